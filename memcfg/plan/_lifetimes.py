"""From a graph to numbers, and from places to actions.

Owns both ends of the search: the graph as arrays for `_core.search`, and the list
of actions that a layout means. Every policy goes through here, so they agree on
where the state lies, on what is aliased and on when a buffer ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg._core import search
from memcfg.errors import GraphError
from memcfg.plan._actions import Action, Alias, Alloc, Compute, Free
from memcfg.plan._bound import lower_bound
from memcfg.plan._plan import Plan, Predicted
from memcfg.plan._simulate import simulate
from memcfg.plan._summary import summarise
from memcfg.plan._updates import state_updates, with_updates_in_time
from memcfg.units import ALIGNMENT, align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph

__all__ = ["Request", "effort", "make_step", "nothing_dropped"]

_EFFORT = 20_000_000  # comparisons of the packer's climb: below 0.1 s
_TRIES = 1000  # orders that the climb tries in a small graph
_LARGEST = 2**62  # bytes; sums of sizes stay below it, so 64 bits hold them
_NO_SIZE = 2**63  # bytes; no file states a size that large
_PHASES = {"forward": 0, "backward": 1, "update": 2}


@dataclass(frozen=True)
class Request:
    """What a policy was asked, and since when it has been at it."""

    graph: Graph
    order: tuple[int, ...]
    method: str
    limit_bytes: int | None
    began: float

    @staticmethod
    def of(graph: Graph, method: str, limit_bytes: int | None) -> Request:
        """Check a policy's arguments and start its clock."""
        if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int | None):
            raise TypeError(f"a limit is a number of bytes or None: {limit_bytes!r}")
        if limit_bytes is not None and limit_bytes <= 0:
            raise ValueError(f"a limit must be positive, not {limit_bytes} bytes")
        if limit_bytes is not None and limit_bytes >= _NO_SIZE:
            raise ValueError("a limit is below 2**63 bytes; None is no limit")
        scratch = sum(align_up(op.scratch_bytes) for op in graph.ops)
        total = 2 * (sum(align_up(t.nbytes) for t in graph.tensors) + scratch)
        if total >= _LARGEST:
            raise GraphError(f"graph {graph.name!r}: sizes beyond 2**62 bytes")
        began = time.perf_counter()
        ordered, order = with_updates_in_time(graph)
        return Request(ordered, order, method, limit_bytes, began)

    def plan(self, actions: Sequence[Action]) -> Plan:
        """Make the plan of these actions: simulated, summarised, not yet judged."""
        blank = Plan(
            graph=self.graph.name,
            method=self.method,
            limit_bytes=self.limit_bytes,
            alignment=ALIGNMENT,
            predicted=Predicted(peak_bytes=0),
            actions=tuple(actions),
        )
        simulation = simulate(self.graph, blank)
        predicted = Predicted(
            peak_bytes=simulation.peak_bytes,
            host_peak_bytes=simulation.host_peak_bytes,
            moved_bytes=simulation.moved_bytes,
            seconds=simulation.seconds,
            recompute_seconds=simulation.recompute_seconds,
            lower_bound_bytes=lower_bound(self.graph),
            planning_seconds=time.perf_counter() - self.began,
        )
        return Plan(
            graph=blank.graph,
            method=blank.method,
            limit_bytes=blank.limit_bytes,
            alignment=blank.alignment,
            predicted=predicted,
            actions=tuple(self._renumbered(action) for action in actions),
            summary=summarise(self.graph, blank, simulation, _own_buffers(self.graph)),
        )

    def _renumbered(self, action: Action) -> Action:
        if isinstance(action, Compute) and self.order[action.op] != action.op:
            return replace(action, op=self.order[action.op])
        return action

    def plan_of(self, layout: search.Layout) -> Plan:
        """Make the plan of a layout."""
        return self.plan(_actions(self.graph, layout))


def _own_buffers(graph: Graph) -> int:
    """Return the peak of `keep_all`."""
    updated = state_updates(graph)
    buffers = (
        _rounded(graph, t) for t in range(len(graph.tensors)) if t not in updated
    )
    scratch = (align_up(op.scratch_bytes) for op in graph.ops)
    return sum(buffers) + max(scratch, default=0)


def make_step(graph: Graph) -> search.Step:
    """Turn a graph into numbers.

    Costs are seconds; in a graph that states none, each op costs 1.
    """
    keep = set(graph.keep)
    persistent = set(graph.persistent)
    forward = _needed_forward(graph)
    timed = any(op.seconds for op in graph.ops)
    tensors = [
        (
            align_up(tensor.nbytes),
            index in persistent,
            index in keep,
            -1 if maker is None else maker,
        )
        for index, (tensor, maker) in enumerate(
            zip(graph.tensors, graph.producer, strict=True)
        )
    ]
    ops = [
        (
            op.inputs,
            op.outputs,
            [tensor for pair in op.in_place for tensor in pair],
            align_up(op.scratch_bytes),
            _PHASES[op.phase],
            op.seconds if timed else 1.0,
            op.replayable and index in forward and keep.isdisjoint(op.outputs),
        )
        for index, op in enumerate(graph.ops)
    ]
    return search.Step(tensors, ops)


def _needed_forward(graph: Graph) -> set[int]:
    """Find the forward ops that are surely computed before the first update.

    One whose outputs only the backward phase reads could be put off beyond it.
    """
    forward = {i for i, op in enumerate(graph.ops) if op.phase == "forward"}
    if all(op.phase != "update" for op in graph.ops):
        return forward
    return {
        i
        for i in forward
        if any(not forward.isdisjoint(graph.consumers[t]) for t in graph.ops[i].outputs)
    }


def effort(graph: Graph) -> int:
    """Return the comparisons that the packer's climb may spend on a graph."""
    buffers = len(graph.ops) + len(graph.tensors)
    return min(_EFFORT, _TRIES * buffers * buffers // 4)


def _rounded(graph: Graph, tensor: int) -> int:
    return align_up(graph.tensors[tensor].nbytes)


def nothing_dropped(graph: Graph) -> bytes:
    """Return the choice that recomputes nothing."""
    return bytes(len(graph.ops))


def _actions(graph: Graph, layout: search.Layout) -> list[Action]:
    """Write a layout as actions: the state first, then whatever the layout says."""
    offsets, base = _state_offsets(graph)
    begins: dict[int, list[Action]] = defaultdict(list)
    ends: dict[int, list[tuple[bool, int]]] = defaultdict(list)
    taken = {instance[3] for instance in layout.instances}
    for number, (tensor, begin, end, source, state, offset) in enumerate(
        layout.instances
    ):
        if source >= 0:
            begins[begin].append(Alias(tensor, layout.instances[source][0]))
        else:
            begins[begin].append(
                Alloc(tensor, offsets[tensor] if state else base + offset)
            )
        if not state:
            ends[end].append((number not in taken, tensor))  # taken buffers end first
    actions: list[Action] = []
    for step in range(-1, len(layout.sequence)):
        actions += begins[step]
        if step >= 0:
            scratch = layout.scratch[step]
            place = base + scratch if scratch >= 0 else None
            actions.append(Compute(layout.sequence[step], None, place))
        actions += [Free(tensor) for _, tensor in sorted(ends[step])]
    return actions


def _state_offsets(graph: Graph) -> tuple[dict[int, int], int]:
    """Place the state from 0 in id order; all programs of a model agree on it."""
    offsets: dict[int, int] = {}
    base = 0
    for tensor in graph.persistent:
        offsets[tensor] = base
        base += align_up(graph.tensors[tensor].nbytes)
    return offsets, base
