"""In which order a graph's ops run without a plan, and how long each tensor lives.

Owns schedules as numbers and tensor ids. Refuses memory and kernels.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg import plan as planning
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph

__all__ = ["Schedule", "ScheduledOp", "graph_order", "updates_last"]


@dataclass(frozen=True, slots=True)
class ScheduledOp:
    """What happens around one op.

    Parameters
    ----------
    number : int
        Its place in the schedule.
    op : int
        The op's index in the graph.
    makes : tuple of int
        Outputs that get bytes of their own.
    aliases : tuple of (int, int)
        Outputs that overwrite state, and the tensors whose bytes they take.
    ends : tuple of int
        Tensors that nobody reads after the op.
    """

    number: int
    op: int
    makes: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """A graph's ops in an order, and the life of each tensor.

    Parameters
    ----------
    graph : Graph
        The graph, with its kernels' scratch.
    fed : tuple of int
        Inputs that an op reads or that are kept: they are there before the first op.
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
            The indices of all its ops; each after the ops that it depends on.

        Returns
        -------
        Schedule
            The schedule.
        """
        source_of = planning.state_updates(graph)
        ends = _ends(graph, order, {*graph.keep, *graph.persistent, *source_of})
        ops = [
            ScheduledOp(
                number,
                index,
                tuple(t for t in graph.ops[index].outputs if t not in source_of),
                tuple(
                    (t, source_of[t])
                    for t in graph.ops[index].outputs
                    if t in source_of
                ),
                tuple(ends[number]),
            )
            for number, index in enumerate(order)
        ]
        return Schedule(graph, _fed(graph), tuple(ops))

    def rounded(self, tensor: int) -> int:
        """Return a tensor's bytes, rounded up to 64.

        Parameters
        ----------
        tensor : int
            Its id.

        Returns
        -------
        int
            What a pool is charged for it.
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
            What a pool is charged for it.
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
    """Return the ops in the graph's order, but all updates of the state at the end.

    They take no memory then, so that a step that runs out of it has changed nothing.

    Parameters
    ----------
    graph : Graph
        The graph.

    Returns
    -------
    tuple of int
        The indices of all ops; among the updates are those that read what one makes.
    """
    late: dict[int, None] = {}
    for index, op in enumerate(graph.ops):
        makers = (graph.producer[tensor] for tensor in op.inputs)
        if op.phase == "update" or any(maker in late for maker in makers):
            late[index] = None
    return (*(i for i in graph_order(graph) if i not in late), *late)


def _fed(graph: Graph) -> tuple[int, ...]:
    return tuple(
        i
        for i, tensor in enumerate(graph.tensors)
        if tensor.role == "input"
        and graph.producer[i] is None
        and (graph.consumers[i] or i in graph.keep)
    )


def _ends(
    graph: Graph, order: Sequence[int], remaining: set[int]
) -> dict[int, list[int]]:
    """For each place in the order the tensors that end there."""
    last: dict[int, int] = {}
    for number, index in enumerate(order):
        op = graph.ops[index]
        last |= dict.fromkeys((*op.inputs, *op.outputs), number)
    ends: dict[int, list[int]] = defaultdict(list)
    for tensor, number in last.items():
        if tensor not in remaining:
            ends[number].append(tensor)
    return ends
