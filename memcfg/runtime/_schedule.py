"""Plans that run each op once in a given order, without any search.

Workspace modes place the tensors of these plans. Owns no memory and no kernels.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg import plan as planning
from memcfg.units import ALIGNMENT, align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph

__all__ = ["Schedule", "ScheduledOp", "graph_order", "updates_last"]


class ScheduledOp(NamedTuple):
    """One op of a schedule, with the tensors that begin and end at it.

    Parameters
    ----------
    number : int
        Position in the schedule.
    op : int
        The op's index in the graph.
    makes : tuple of int
        Outputs that get their own bytes; the others overwrite state.
    ends : tuple of int
        Tensors that no later op reads.
    """

    number: int
    op: int
    makes: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """A graph's ops in execution order, with the lifetime of each tensor.

    Parameters
    ----------
    graph : Graph
        The graph, with its kernels' scratch.
    fed : tuple of int
        Inputs that an op reads or that are kept; resident before the first op.
    ops : tuple of ScheduledOp
        One for each op, in order.
    """

    graph: Graph
    fed: tuple[int, ...]
    ops: tuple[ScheduledOp, ...]

    @staticmethod
    def of(graph: Graph, order: Sequence[int]) -> Schedule:
        """Schedule the ops of a graph.

        Parameters
        ----------
        graph : Graph
            The graph.
        order : sequence of int
            Indices of all its ops, each after its dependencies.

        Returns
        -------
        Schedule
            The schedule.
        """
        updates = planning.state_updates(graph)
        remaining = {*graph.keep, *graph.persistent, *updates}
        last: dict[int, int] = {}
        for number, index in enumerate(order):
            op = graph.ops[index]
            last |= dict.fromkeys((*op.inputs, *op.outputs), number)
        ends: dict[int, list[int]] = defaultdict(list)
        for tensor, number in last.items():
            if tensor not in remaining:
                ends[number].append(tensor)
        ops = (
            ScheduledOp(
                number,
                index,
                tuple(t for t in graph.ops[index].outputs if t not in updates),
                tuple(ends[number]),
            )
            for number, index in enumerate(order)
        )
        fed = (
            i
            for i, tensor in enumerate(graph.tensors)
            if tensor.role == "input"
            and graph.producer[i] is None
            and (graph.consumers[i] or i in graph.keep)
        )
        return Schedule(graph, tuple(fed), tuple(ops))

    def plan(self, method: str) -> planning.Plan:
        """Convert the schedule to a plan.

        Parameters
        ----------
        method : str
            The method named in the plan.

        Returns
        -------
        Plan
            A plan in which only the state is placed: its peak is the maximum of the
            bytes in use.
        """
        graph, updates = self.graph, planning.state_updates(self.graph)
        actions: list[planning.Action] = []
        end = 0
        for tensor in graph.persistent:
            actions.append(planning.Alloc(tensor, end))
            end += self.rounded(tensor)
        rest = [
            tensor
            for tensor, maker in enumerate(graph.producer)
            if maker is None and tensor not in graph.persistent
        ]
        for tensor in rest:
            actions.append(planning.Alloc(tensor, end))
            if tensor not in self.fed:
                actions.append(planning.Free(tensor))
        for each in self.ops:
            op = graph.ops[each.op]
            actions += (
                planning.Alias(tensor, updates[tensor])
                if tensor in updates
                else planning.Alloc(tensor, end)
                for tensor in op.outputs
            )
            scratch = end if op.scratch_bytes else None
            actions.append(planning.Compute(each.op, None, scratch))
            actions += map(planning.Free, each.ends)
        blank = planning.Plan(
            graph=graph.name,
            method=method,
            limit_bytes=None,
            alignment=ALIGNMENT,
            predicted=planning.Predicted(0),
            actions=tuple(actions),
            places=False,
        )
        peak = planning.simulate(graph, blank).peak_bytes
        return replace(blank, predicted=planning.Predicted(peak))

    def rounded(self, tensor: int) -> int:
        """Return a tensor's bytes, rounded up to 64.

        Parameters
        ----------
        tensor : int
            The tensor's id.

        Returns
        -------
        int
            The bytes that a pool charges for it.
        """
        return align_up(self.graph.tensors[tensor].nbytes)

    def scratch(self, op: ScheduledOp) -> int:
        """Return an op's scratch in bytes, rounded up to 64.

        Parameters
        ----------
        op : ScheduledOp
            One of `ops`.

        Returns
        -------
        int
            The bytes that a pool charges for it.
        """
        return align_up(self.graph.ops[op.op].scratch_bytes)


def graph_order(graph: Graph) -> tuple[int, ...]:
    """Return the ops in the order in which the graph lists them.

    Parameters
    ----------
    graph : Graph
        The graph.

    Returns
    -------
    tuple of int
        0, 1, 2, ...
    """
    return tuple(range(len(graph.ops)))


def updates_last(graph: Graph) -> tuple[int, ...]:
    """Return the ops in graph order with all updates of the state moved to the end.

    Updates allocate nothing, so a step that runs out of memory has not changed the
    state.

    Parameters
    ----------
    graph : Graph
        The graph.

    Returns
    -------
    tuple of int
        Indices of all ops. Ops that read the result of an update count as updates.
    """
    late: dict[int, None] = {}
    for index, op in enumerate(graph.ops):
        makers = (graph.producer[tensor] for tensor in op.inputs)
        if op.phase == "update" or any(maker in late for maker in makers):
            late[index] = None
    return (*(i for i in graph_order(graph) if i not in late), *late)
