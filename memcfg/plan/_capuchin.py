"""Capuchin: what leaves or is computed again, by accesses of tensors alone.

Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS
2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memcfg._cached import cached_property
from memcfg.plan._actions import SwapIn, Wait
from memcfg.plan._events import Run, plan_events, tier_of
from memcfg.plan._lanes import Copy, Lanes
from memcfg.plan._passive import Passive
from memcfg.plan._policy import Method, fits
from memcfg.plan._replays import Replays
from memcfg.plan._swapping import within_tier
from memcfg.plan._trace import START, Trace
from memcfg.plan._walk import Swaps
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.plan._lifetimes import Request
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy
    from memcfg.plan._replays import Drop
    from memcfg.plan._simulate import Simulation
    from memcfg.plan._trace import Gap
    from memcfg.plan._walk import Walked

_ROUNDS = 12  # of choices, each by the schedule that those before it make
_GOALS = 8  # within a limit, of which the fastest schedule is taken
_STEP = 0.05  # of what is no state, from one goal to the next
_MENDS = 3  # times that choices are corrected by what ops wait for
_PLACED = 3  # times that a schedule is placed, with fewer bytes in use
_SOONER = 0.05  # of the seconds of a copy
_LONGEST = 4  # times as many computations as ops


@dataclass
class Candidate:
    """A tensor that may be evicted after an access, until the next one.

    Attributes
    ----------
    free_time : float
        Seconds between the end of a copy out and the start of one back: the longer,
        the better they are hidden.
    replay_seconds : float
        What computing it again takes; infinite: it cannot be.
    sources : set of int
        The tensors from which that begins.
    """

    tensor: int
    nbytes: int
    free_time: float
    replay_seconds: float
    sources: set[int]

    @property
    def saving(self) -> float:
        """Bytes for a second of computing again: MSPS of the paper."""
        if not self.replay_seconds:
            return float("inf")
        return self.nbytes / self.replay_seconds


def recomputed(chosen: Candidate, others: Iterable[Candidate]) -> None:
    """Correct the others' costs when one is chosen to be computed again.

    Who would begin from it begins from what it begins from, and computes it, too.
    """
    for other in others:
        if chosen.tensor in other.sources:
            other.sources.remove(chosen.tensor)
            other.sources |= chosen.sources
            other.replay_seconds += chosen.replay_seconds


class _Evictions:
    """A schedule in which some tensors are swapped out, and some computed again."""

    def __init__(
        self,
        replays: Replays,
        early: Mapping[int, float],
        swapped: frozenset[Drop],
        dropped: frozenset[Drop],
    ) -> None:
        graph = replays.graph
        self.replays = replays
        self.early = early  # seconds by tensor
        self.swapped = swapped
        self.dropped = dropped
        self.entries = replays.entries(dropped)
        self.trace = Trace(graph, self.entries)
        ops = [graph.ops[op] for _, op in self.entries]
        self.rate = tier_of(graph).bytes_per_second
        self.gaps = self.trace.gaps()
        self.swaps = Swaps(
            self.trace,
            [Run(op) for _, op in self.entries],
            [op.seconds for op in ops],
            [align_up(op.scratch_bytes) for op in ops],
            [gap for gap in self.gaps if self.key(gap) in swapped],
            self.rate,
            longer=early,
        )
        self._first = {gap.value: gap for gap in reversed(self.swaps.gaps)}

    def key(self, gap: Gap) -> Drop:
        """Name a gap in any schedule of the same order."""
        entry = START if gap.after < 0 else self.entries[gap.after]
        return self.trace.values[gap.value].tensor, entry

    @cached_property
    def loads(self) -> list[int]:
        """The bytes in use where nothing is there that need not be."""
        return self.swaps.lowest()

    @property
    def least(self) -> int:
        """The least goal that holds."""
        return max(self.loads)

    def seconds(self, gap: Gap) -> float:
        """Return the seconds of a copy."""
        return self.trace.nbytes(gap) / self.rate if self.rate else 0.0

    def copy(self, gap: Gap) -> Copy:
        """Return a gap's way out and back; a copy may be there already."""
        starts, seconds = self.swaps.starts, self.seconds(gap)
        later = self.early.get(self.trace.values[gap.value].tensor, 0.0)
        first = self._first.get(gap.value, gap)
        out = seconds if first >= gap else 0.0
        return Copy(starts[gap.back], starts[gap.after + 1], out, seconds + later)

    def lanes(self) -> Lanes:
        """Return the lanes with what is swapped already."""
        busiest = max(range(len(self.entries)), key=lambda n: self.loads[n + 1])
        lanes = Lanes(self.swaps.starts[busiest])
        for gap in self.swaps.gaps:
            lanes.add(self.copy(gap))
        return lanes

    def candidates(self, goal: int) -> dict[Gap, Candidate]:
        """List what may be evicted and is there while a goal does not hold."""
        over = [0, *accumulate(load > goal for load in self.loads[1:])]
        gaps = [
            gap
            for gap in self.gaps
            if self.key(gap) not in self.swapped
            and over[gap.back] > over[gap.after + 1]
        ]
        lineages = self._lineages(gaps)
        found = {}
        for gap in gaps:
            tensor, _ = self.key(gap)
            copy = self.copy(gap)
            lineage = lineages.get((self.entries[gap.back].place, tensor))
            can = lineage is not None and self._is_later(gap)
            found[gap] = Candidate(
                tensor,
                self.trace.size(gap),
                copy.need - copy.back - (copy.ready + copy.out),
                lineage.seconds if lineage is not None and can else float("inf"),
                set(lineage.sources) if lineage is not None and can else set(),
            )
        return found

    def _is_later(self, gap: Gap) -> bool:
        """Whether what computes a tensor again stands before another op than it."""
        return gap.after < 0 or self.entries[gap.after].place < (
            self.entries[gap.back].place
        )

    def _lineages(self, gaps: Iterable[Gap]) -> Mapping:
        wanted: dict[int, list[int]] = {}
        for gap in gaps:
            row = wanted.setdefault(self.entries[gap.back].place, [])
            row.append(self.key(gap)[0])
        return self.replays.lineages(self.dropped, wanted)

    def with_more(self, swapped: Iterable[Drop], dropped: Iterable[Drop]) -> _Evictions:
        """Evict more."""
        return self._with(self.swapped | {*swapped}, self.dropped | {*dropped})

    def _with(self, swapped: frozenset[Drop], dropped: frozenset[Drop]) -> _Evictions:
        return _Evictions(self.replays, self.early, swapped, dropped)

    # -- choices -----------------------------------------------------------------

    def lowered(self, goal: int, *, swaps_only: bool = False) -> _Evictions:
        """Evict more, so that a goal holds if what replays hold is left out."""
        candidates = self.candidates(goal)
        loads, lanes = [*self.loads], self.lanes()
        swapped: list[Drop] = []
        dropped: list[Drop] = []
        left: dict[Gap, Candidate] = {}

        def helps(gap: Gap) -> bool:
            return max(loads[gap.after + 2 : gap.back + 1]) > goal

        def evict(gap: Gap) -> None:
            for place in range(gap.after + 1, gap.back):
                loads[place + 1] -= self.trace.size(gap)

        for gap, each in sorted(candidates.items(), key=lambda row: -row[1].free_time):
            copy = self.copy(gap)
            if not helps(gap):
                continue
            if swaps_only or (each.free_time >= 0 and not lanes.more(copy)):
                swapped.append(self.key(gap))
                lanes.add(copy)
                evict(gap)
            else:
                left[gap] = each
        queue = [(-self._worth(gap, each, lanes), gap) for gap, each in left.items()]
        heapify(queue)
        while queue:
            worth, gap = heappop(queue)
            if not helps(gap):
                continue
            each, copy = left[gap], self.copy(gap)
            now = -self._worth(gap, each, lanes)
            if queue and now > queue[0][0] and now > worth:
                heappush(queue, (now, gap))  # dearer than it was
                continue
            del left[gap]
            if each.replay_seconds < self._cost(gap, each, lanes):
                dropped.append(self.key(gap))
                recomputed(each, left.values())
            else:
                swapped.append(self.key(gap))
                lanes.add(copy)
            evict(gap)
        return self.with_more(swapped, dropped)

    def _cost(self, gap: Gap, each: Candidate, lanes: Lanes) -> float:
        """Return the seconds that swapping adds, or more than computing again does."""
        if each.replay_seconds < -each.free_time:
            return float("inf")
        return max(lanes.more(self.copy(gap)), -each.free_time)

    def _worth(self, gap: Gap, each: Candidate, lanes: Lanes) -> float:
        """Return bytes for a second of the cheaper way."""
        cost = min(each.replay_seconds, self._cost(gap, each, lanes))
        return each.nbytes / cost if cost > 0 else float("inf")

    # -- schedules ---------------------------------------------------------------

    def walked(self, goal: int) -> Walked:
        """Run it within a goal, with copies back as late as they are in time."""
        best = self.swaps.walk(goal)
        for _ in range(2):
            arrives = self.swaps.on_time(goal, best.loads)
            found = self.swaps.walk(goal, arrives)
            if found.seconds >= best.seconds:
                break
            best = found
        return best

    def mended(self, goal: int) -> tuple[_Evictions, Walked]:
        """Compute again what ops wait longer for than that takes."""
        best, walked = self, self.walked(goal)
        for _ in range(_MENDS):
            waits = {gap: s for gap, s in walked.stalls.items() if s}
            lineages = best._lineages(waits)
            dearer = set()
            for gap, stall in waits.items():
                tensor, _ = key = best.key(gap)
                lineage = lineages.get((best.entries[gap.back].place, tensor))
                if lineage and lineage.seconds < stall and best._is_later(gap):
                    dearer.add(key)
            if not dearer:
                break
            other = best._with(best.swapped - dearer, best.dropped | dearer)
            if other.least > goal:
                other = other.within(goal) or other
            if other.least > goal:
                break
            found = other.walked(goal)
            if found.seconds >= walked.seconds:
                break
            best, walked = other, found
        return best, walked

    def within(self, goal: int) -> _Evictions | None:
        """Evict until a goal holds; None: there is not enough that may be."""
        found = self
        for number in range(_ROUNDS):
            if found.least <= goal:
                return found
            longest = len(found.entries) > _LONGEST * len(self.replays.order)
            other = found.lowered(goal, swaps_only=longest or number > _ROUNDS // 2)
            if (other.swapped, other.dropped) == (found.swapped, found.dropped):
                return None
            found = other
        return found if found.least <= goal else None

    @cached_property
    def everything(self) -> _Evictions:
        """Swap between any two accesses: the least bytes in use that there are."""
        return self._with(frozenset(map(self.key, self.gaps)), frozenset())

    def lowest(self) -> _Evictions:
        """Swap as little as reaches that, or everything."""
        goal, found = self.everything.least, self
        while found.least > goal:
            other = found.lowered(goal, swaps_only=True)
            if other.swapped == found.swapped:
                return self.everything
            found = other
        return found


@dataclass(frozen=True)
class _Guided:
    """What plans by a trace: a value, so that equal policies are equal."""

    early: tuple[tuple[str, float], ...] = ()

    def __call__(self, request: Request) -> Plan:
        """Evict what is least missed, as little as a limit asks for."""
        start = _start(request, self.early)
        nothing = plan_events(request, start.walked(start.least).events)
        limit = request.limit_bytes
        if limit is None or fits(nothing):
            return nothing
        plan = _fastest(request, start, limit)
        if plan is None:
            plan = min(
                (
                    plan_events(request, each.swaps.walk(each.least).events)
                    for each in (start.lowest(), start.everything)
                ),
                key=lambda each: each.peak_bytes,
            )
        return within_tier(request, plan, nothing.peak_bytes)


@dataclass(frozen=True)
class _Passive:
    """What plans the first step, which has no trace yet."""

    def __call__(self, request: Request) -> Plan:
        """Evict where bytes are missing, and fetch what is accessed."""
        trace = _start(request).trace
        goal, limit = request.limit_bytes, request.limit_bytes
        if limit is None or goal is None:
            return plan_events(request, [Run(op) for _, op in trace.entries])
        for _ in range(_ROUNDS):
            passive = Passive(trace, goal)
            plan = plan_events(request, passive.events())
            if fits(plan):
                return within_tier(request, plan)
            if passive.most > goal:  # nothing more may leave
                break
            goal -= plan.peak_bytes - limit
        least = Passive(trace, 0)
        least.events()
        plan = plan_events(request, Passive(trace, least.most).events())
        return within_tier(request, plan)


def _start(request: Request, early: tuple[tuple[str, float], ...] = ()) -> _Evictions:
    """Return the schedule in which nothing is evicted, in the order of least load."""
    graph = request.graph
    order: Sequence[int] = range(len(graph.ops))
    if request.orders is not False:
        order = request.reordered(order)
    named = dict(early)
    sooner = {
        number: named[tensor.name]
        for number, tensor in enumerate(graph.tensors)
        if tensor.name in named
    }
    nothing: frozenset[Drop] = frozenset()
    return _Evictions(Replays(request, order), sooner, nothing, nothing)


class _Found(NamedTuple):
    """A schedule within a limit, if it is placed as low as its bytes in use are."""

    evictions: _Evictions
    walked: Walked


def _fastest(request: Request, start: _Evictions, limit: int) -> Plan | None:
    """Place the fastest schedules first, until one fits."""
    state = start.trace.state_bytes
    if start.everything.least > limit:
        return None
    found: list[_Found] = []
    evictions: _Evictions | None = start
    for number in range(_GOALS):
        goal = state + int((limit - state) * (1 - _STEP * number))
        evictions = evictions.within(goal) if evictions else None
        if evictions is None:
            break
        found.append(_Found(*evictions.mended(limit)))
    for evictions, walked in sorted(found, key=lambda each: each.walked.seconds):
        goal, way = limit, walked
        for _ in range(_PLACED):
            plan = plan_events(request, way.events)
            if fits(plan):
                return plan
            goal -= plan.peak_bytes - limit
            if goal < evictions.least:
                break
            way = evictions.walked(goal)
    return None


def capuchin(
    *, passive: bool = False, early: Mapping[str, float] | None = None
) -> Policy:
    """Evict tensors between accesses: swap what can be hidden, else what is cheaper.

    Nothing but accesses of tensors counts, no types of ops. A copy back starts as late
    as it ends in time and the limit has room; ops wait for a copy out only where the
    limit would not hold otherwise. What is cheaper to compute again than to wait for is
    computed again, from the nearest tensors that are there.

    Parameters
    ----------
    passive : bool, default False
        Plan the first step, of which no accesses are known before: where bytes are
        missing, what was accessed first leaves, and comes back while its access waits.
    early : mapping of str to float, optional
        By how many seconds copies back start earlier, by tensor; see
        `capuchin_feedback`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit nothing is evicted.

    Raises
    ------
    ValueError
        If a passive policy is told what starts earlier, which it does not plan.

    Notes
    -----
    Peng et al., ASPLOS 2020. The order of ops is that of the lowest load. Several
    goals below the limit are planned for, which leave more room to copies back, and the
    fastest schedule is taken that fits once it is placed. What ops would wait longer
    for than computing it again takes is computed again.
    """
    if passive and early:
        raise ValueError("a passive capuchin() starts no copy early")
    if passive:
        return Method("capuchin", _Passive(), swaps=True)
    return Method("capuchin", _Guided(tuple(sorted((early or {}).items()))), swaps=True)


def capuchin_feedback(
    policy: Policy, graph: Graph, plan: Plan, measured: Simulation
) -> Policy:
    """Return a policy whose copies back start earlier where ops had to wait for them.

    Each that was still coming starts 5 percent of its time earlier than by `policy`.

    Parameters
    ----------
    policy : Policy
        What `capuchin` returned, or this.
    graph : Graph
        The graph that was planned.
    plan : Plan
        The plan that it made.
    measured : Simulation
        What happened, such as ``simulate(graph, plan, bandwidth)`` with the bandwidths
        that were measured.

    Returns
    -------
    Policy
        It, or the same if nothing was late.

    Raises
    ------
    TypeError
        If the policy is not a `capuchin` that is not passive.

    Notes
    -----
    Peng et al., ASPLOS 2020.
    """
    guided = policy.make if isinstance(policy, Method) else None
    if not isinstance(guided, _Guided):
        raise TypeError(f"feedback is for capuchin(), not {policy!r}")
    rate = tier_of(graph).bytes_per_second
    early = dict(guided.early)
    for each in measured.schedule:
        action = plan.actions[each.action]
        if not isinstance(action, Wait) or each.end <= each.begin:
            continue
        copy = plan.actions[action.action]
        if isinstance(copy, SwapIn):
            tensor = graph.tensors[copy.tensor]
            sooner = _SOONER * tensor.nbytes / rate if rate else 0.0
            early[tensor.name] = early.get(tensor.name, 0.0) + sooner
    return capuchin(early=early)
