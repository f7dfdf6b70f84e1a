"""A planned step: its graph, its plan, and the bytes that it needs outside of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from memcfg.graph import Tensor
from memcfg.plan import Alloc, Compute, Free, Wait, simulate
from memcfg.torch.budget._room import STATE, Needs, Room
from memcfg.torch.budget._swaps import register
from memcfg.torch.trace._traced import UPDATE
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from memcfg.graph import Graph
    from memcfg.plan import Plan
    from memcfg.torch.spill._store import Store
    from memcfg.torch.trace._traced import Traced


@dataclass(frozen=True)
class Peak:
    """The time of a plan at which the most bytes are allocated.

    Parameters
    ----------
    nbytes : int
        Bytes in use.
    op : int or None
        The op that runs; None at the start or the end.
    tensors : tuple of int
        The tensors that are allocated.
    scratch_bytes : int
        Scratch of the op.
    """

    nbytes: int
    op: int | None
    tensors: tuple[int, ...]
    scratch_bytes: int


def live_peak(graph: Graph, plan: Plan, absent: Container[int] = ()) -> Peak:
    """Return the time at which a plan has the most bytes in use.

    An allocator gives each tensor its own bytes. Holes of the plan's arena and absent
    tensors therefore do not count, and the result is at most the plan's peak.
    """
    sizes = [align_up(tensor.nbytes) for tensor in graph.tensors]
    there: set[int] = set()
    now = 0
    peak = Peak(0, None, (), 0)
    for action in plan.actions:
        scratch, op = 0, None
        if isinstance(action, (Alloc, Free)) and action.tensor in absent:
            continue
        if isinstance(action, Alloc):
            there.add(action.tensor)
            now += sizes[action.tensor]
        elif isinstance(action, Free):
            there.discard(action.tensor)
            now -= sizes[action.tensor]
        elif isinstance(action, Compute):
            op = action.op
            scratch = align_up(graph.ops[op].scratch_bytes)
        if now + scratch > peak.nbytes or (op is not None and peak.op is None):
            peak = Peak(now + scratch, op, tuple(sorted(there)), scratch)
    return peak


def peak_of(traced: Traced, plan: Plan) -> Peak:
    """Return the time at which a plan of a traced graph has the most bytes in use."""
    return live_peak(traced.graph, plan, traced.unused_states(plan))


@dataclass(frozen=True)
class Step:
    """A traced step and its plan.

    Parameters
    ----------
    traced : Traced
        The traced graph.
    plan : Plan
        The plan of its graph.
    overhead : dict of str to int
        Bytes outside the graph, by name.
    limit_bytes : int or None, default None
        The limit of the graph's own bytes; None if there is no limit.
    ways : tuple of Traced, default ()
        The variants of the graph: with replays of random ops, and without.
    store : Store or None, default None
        Where the plan moves tensors; None if none may leave.
    room : Room, optional
        Bytes that other passes hold meanwhile.
    """

    traced: Traced
    plan: Plan
    overhead: dict[str, int]
    limit_bytes: int | None = None
    ways: tuple[Traced, ...] = ()
    store: Store | None = None
    room: Room = field(default_factory=Room)

    @property
    def is_training(self) -> bool:
        """Whether the step has a backward phase."""
        return self.traced.boundary is not None

    @cached_property
    def spill_bytes(self) -> int:
        """The bytes that its tensors have in the store; 0 if none leave."""
        if self.store is None:
            return 0
        tiers = simulate(self.traced.graph, self.plan).tier_peak_bytes
        return tiers.get(self.store.tier.name, 0)

    @property
    def spill(self) -> tuple[int, int] | None:
        """The number of the store and the bytes there, as the emitter takes them."""
        if self.store is None or not self.spill_bytes:
            return None
        return register(self.store), self.spill_bytes

    @property
    def overhead_bytes(self) -> int:
        """The sum of the bytes outside the graph."""
        return sum(self.overhead.values())

    @cached_property
    def peak(self) -> Peak:
        """The time at which the plan has the most bytes in use."""
        return peak_of(self.traced, self.plan)

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at a time, including those outside the graph."""
        return self.peak.nbytes + self.overhead_bytes

    @cached_property
    def passes_bytes(self) -> int:
        """The most bytes of the graph in use until backward ends."""
        graph = self.traced.graph
        ops = tuple(
            replace(op, scratch_bytes=0) if op.type == UPDATE else op
            for op in graph.ops
        )
        until = replace(self.traced, graph=replace(graph, ops=ops))
        return peak_of(until, self.plan).nbytes

    @cached_property
    def needs(self) -> Needs:
        """The needs of its phases, without what other passes hold."""
        return Needs.of(self.traced, self.plan, self.overhead, self.room)

    @cached_property
    def whole(self) -> tuple[Graph, Plan]:
        """The graph and plan, with the bytes outside the graph as tensors."""
        limit = self.limit_bytes
        whole = None if limit is None else limit + self.overhead_bytes
        return _with_overhead(self.traced.graph, self.plan, self.overhead, whole)


def _with_overhead(
    graph: Graph, plan: Plan, overhead: Mapping[str, int], limit_bytes: int | None
) -> tuple[Graph, Plan]:
    """Return a graph and a plan that include the bytes outside the graph.

    Each kind of these bytes is a tensor that no op makes or reads, placed above all
    others.
    """
    overhead = {name: align_up(nbytes) for name, nbytes in overhead.items() if nbytes}
    first, top = len(graph.tensors), align_up(plan.peak_bytes)
    tensors, actions = [], []
    for at, (name, nbytes) in enumerate(overhead.items(), first):
        role = "optimizer_state" if name == STATE else "input"
        tensors.append(Tensor(name, nbytes, role))
        actions.append(Alloc(at, top))
        top += nbytes
    moved = [
        Wait(each.action + len(actions)) if isinstance(each, Wait) else each
        for each in plan.actions
    ]
    added = sum(overhead.values())
    kept = (*graph.keep, *range(first, first + len(tensors)))
    summary = plan.summary
    if summary is not None:
        roles = Counter(summary.by_role)
        for each in tensors:
            roles[each.name] += each.nbytes
        all_bytes = summary.all_bytes + added
        summary = replace(summary, by_role=dict(roles), all_bytes=all_bytes)
    predicted = replace(
        plan.predicted,
        peak_bytes=top if tensors else plan.peak_bytes,
        lower_bound_bytes=plan.lower_bound_bytes + added,
    )
    return (
        replace(graph, tensors=(*graph.tensors, *tensors), keep=kept),
        replace(
            plan,
            limit_bytes=limit_bytes,
            predicted=predicted,
            actions=(*actions, *moved),
            summary=summary,
        ),
    )
