"""Swaps and algorithms chosen together, by the cheapest move for decreasing goals.

Idea: at the first op where the load exceeds a goal, take the move of least time per
byte: a swap around the op, or an algorithm of less scratch for it. Invariant: goals do
not depend on the limit, so a larger limit has all schedules of a smaller one and its
plan is not slower. Source: X. Chen et al., "moDNN", DATE 2018, state this property of a
joint choice; the greedy method is memcfg's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.search._full_tiers import within_tier
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search.algorithms._algorithms import algorithms
from memcfg.plan.search.swaps._accesses import Entry, Trace
from memcfg.plan.search.swaps._event_times import clock, swap_out_seconds
from memcfg.plan.search.swaps._lanes import Lanes, RoundTrip
from memcfg.plan.search.swaps._swap_events import Run, plan_events
from memcfg.plan.search.swaps._walk import Swaps
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.graph import Op
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.swaps._accesses import Gap
    from memcfg.plan.search.swaps._swap_events import Event

_LEVELS = 48  # goals between the peak without moves and the lowest one
_TRIED = 32  # max. values to compare for the cheapest swap
_ROUNDS = 8  # max. recounts of loads, as swaps change which outputs are in place
_DIGITS = 1e-12  # relative rounding error of a sum of times


class Way(NamedTuple):
    """An algorithm of an op."""

    scratch: int  # bytes, rounded up
    seconds: float
    algorithm: str | None  # None: the default


def ways_of(op: Op) -> list[Way]:
    """Return the Pareto-optimal algorithms of an op, by increasing scratch.

    The default is preferred to equal ones.
    """
    ways = [Way(align_up(op.scratch_bytes), op.seconds, None)]
    ways += [
        Way(align_up(each.scratch_bytes), each.seconds, each.name)
        for each in algorithms(op, divided=True)
    ]
    result: list[Way] = []
    for way in sorted(ways, key=lambda way: way[:2]):
        least = result[-1].seconds if result else float("inf")
        if way.seconds < least or (way.seconds == least and not way.algorithm):
            result.append(way)
    return result


class _Level(NamedTuple):
    """The schedule of a goal."""

    goal: int
    seconds: float
    events: Sequence[Event]


class _Trajectory:
    """The moves for one goal after another, from the highest down.

    They do not depend on the limit.
    """

    def __init__(self, request: Request) -> None:
        graph = self.graph = request.graph
        order: Sequence[int] = range(len(graph.ops))
        if request.orders is not False:
            order = request.reordered(order)
        self.trace = Trace(graph, [Entry(place, op) for place, op in enumerate(order)])
        self.is_over = request.is_over
        self.ways = [ways_of(graph.ops[op]) for op in order]
        self.order = order
        self.taken = [len(ways) - 1 for ways in self.ways]
        self.gaps = self.trace.gaps()
        self.away: set[Gap] = set()
        self.copied: dict[int, Gap] = {}
        self.fastest = (1 + _DIGITS) * sum(ways[-1].seconds for ways in self.ways)
        fastest = [ways[-1].scratch for ways in self.ways]
        thriftiest = [ways[0].scratch for ways in self.ways]
        self.highest = max(self.trace.loads(fastest))
        everything = Swaps(self.trace, (), (), thriftiest, self.gaps)
        self.alone = everything.lowest
        self.rooms = everything.rooms()  # bytes in use on tiers
        self.lowest = min(self.highest, max(self.alone))
        self.loads = self._loads()

    def goals(self) -> list[int]:
        """Return the goals, in geometric steps of the bytes above the state.

        They include those in which all ops have their fastest algorithm, their second
        fastest, and so on.
        """
        state = self.trace.state_bytes
        high, low = self.highest - state, self.lowest - state
        ratio = (max(low, 1) / max(high, 1)) ** (1 / _LEVELS)
        row = [state + int(high * ratio**number) for number in range(_LEVELS)]
        for rank in range(max(map(len, self.ways), default=0)):
            ranked = (ways[max(~rank, -len(ways))].scratch for ways in self.ways)
            rows = zip(self.alone[1:], ranked, self.ways, strict=False)
            row.append(max(load + way - ways[0].scratch for load, way, ways in rows))
        row = [max(each, self.lowest) for each in row if each <= self.highest]
        return sorted({*row, self.lowest}, reverse=True)

    def levels(self, limit: int | None) -> Iterator[_Level]:
        """Yield the schedules of all goals within a limit, two for the lowest goal.

        Once time is over, only the last is yielded.
        """
        for goal in self.goals():
            self._lower(goal)
            if self.is_over():
                break
            if limit is None or goal <= limit or goal == self.lowest:
                yield self._level(goal)
        self.away = {*self.gaps}
        self.taken = [0] * len(self.ways)
        self.loads = self._loads()
        yield self._level(self.lowest, on_demand=True)

    # -- choices ------------------------------------------------------------------

    def _swaps(self, ways: Sequence[Way]) -> Swaps:
        return Swaps(
            self.trace,
            [Run(op, w.algorithm) for op, w in zip(self.order, ways, strict=True)],
            [way.seconds for way in ways],
            [way.scratch for way in ways],
            self.away,
            beside=True,
        )

    def _now(self) -> list[Way]:
        return [ways[n] for ways, n in zip(self.ways, self.taken, strict=True)]

    def _loads(self) -> list[int]:
        return [*self._swaps(self._now()).lowest]

    def _lower(self, goal: int) -> None:
        """Take the cheapest move at the first op above a goal, until the goal holds."""
        for _ in range(_ROUNDS):
            place = self._first_over(goal, 0)
            if place is None or self.is_over():
                return
            swaps = self._swaps(self._now())
            self.rooms = swaps.rooms()
            lanes = self._lanes(swaps)
            while place is not None and self._move(place, swaps, lanes):
                place = None if self.is_over() else self._first_over(goal, place)
            self.loads = self._loads()

    def _first_over(self, goal: int, place: int) -> int | None:
        return next(
            (n for n in range(place, len(self.order)) if self.loads[n + 1] > goal), None
        )

    def _lanes(self, swaps: Swaps) -> Lanes:
        busiest = max(range(len(self.order)), key=lambda n: self.loads[n + 1])
        lanes = Lanes(swaps.starts[busiest])
        for gap in self.away:
            lanes.add(self._copy(gap, swaps))
        return lanes

    def _copy(self, gap: Gap, swaps: Swaps, *, take: bool = False) -> RoundTrip:
        leave = swaps.leave(gap, self.rooms, take=take)
        seconds = swap_out_seconds(self.graph, leave)
        is_first = self.copied.get(gap.value, gap) >= gap
        out = seconds if is_first else 0.0
        ready = swaps.starts[swaps.begin(gap)]
        return RoundTrip(swaps.starts[gap.back], ready, out, seconds, leave.tier or "")

    def _move(self, place: int, swaps: Swaps, lanes: Lanes) -> bool:
        """Take the move of least time per byte at an op; return False without one."""
        best: Gap | Way | None = None
        least = float("inf")
        now = self._now()[place]
        for way in self.ways[place][: self.taken[place]]:
            cost = (way.seconds - now.seconds) / (now.scratch - way.scratch)
            if cost <= least:
                best, least = way, cost
        around = [
            (self._copy(gap, swaps), gap)
            for gap in self.gaps
            if gap.after < place < gap.back and gap not in self.away
        ]
        around.sort(key=lambda row: _free(row[0]), reverse=True)
        for copy, gap in around[:_TRIED]:
            cost = lanes.more(copy) / self.trace.size(gap)
            if cost < least:
                best, least = gap, cost
            if not cost:
                break
        if best is None:
            return False
        if isinstance(best, Way):
            self.taken[place] = self.ways[place].index(best)
            self.loads[place + 1] -= now.scratch - best.scratch
            return True
        lanes.add(self._copy(best, swaps, take=True))
        self.away.add(best)
        self.copied[best.value] = min(best, self.copied.get(best.value, best))
        for each in range(best.after + 1, best.back):
            self.loads[each + 1] -= self.trace.size(best)
        return True

    # -- schedules ----------------------------------------------------------------

    def _level(self, goal: int, *, on_demand: bool = False) -> _Level:
        """Return the schedule with the fastest algorithms that the goal has room for.

        Copies in are as late as possible, or at their use if `on_demand`.
        """
        ways = []
        for choices, now, load in zip(
            self.ways, self._now(), self.loads[1:], strict=False
        ):
            room = goal - (load - now.scratch)
            ways.append([w for w in choices if w.scratch <= room][-1:] or [choices[0]])
        swaps = self._swaps([each for (each,) in ways])
        best = swaps.walk(goal) if on_demand else swaps.fastest(goal, self.is_over)
        seconds = clock(self.graph, best.events).elapsed_seconds
        return _Level(goal, seconds, best.events)


def _free(copy: RoundTrip) -> float:
    """Return the free time between the copies, if nothing else is copied."""
    return copy.need - copy.back - (copy.ready + copy.out)


def plan_trade(request: Request) -> Plan:
    """Return the plan of the fastest schedule whose plan fits."""
    trajectory = _Trajectory(request)
    levels: list[_Level] = []
    for level in trajectory.levels(request.limit_bytes):
        if level.seconds > trajectory.fastest:
            levels.append(level)
            continue
        # Its time is that of all fastest algorithms: no other level is faster.
        plan = plan_events(request, level.events)
        if fits(plan):
            return within_tier(request, plan)
    least: Plan | None = None
    ranked = sorted(levels, key=lambda level: (level.seconds, -level.goal))
    for number, level in enumerate(ranked):
        if number and level.goal > trajectory.lowest and request.is_over():
            continue
        if request.is_slow(level.seconds):
            return least or request.ordered(range(len(request.graph.ops)))
        plan = plan_events(request, level.events)
        if fits(plan):
            return within_tier(request, plan)
        if level.goal == trajectory.lowest:
            least = min(least or plan, plan, key=lambda each: each.peak_bytes)
    return within_tier(request, least or plan)


def trade() -> Policy:
    """Return the policy that swaps and chooses algorithms by cost, for `auto`."""
    return Method("trade", plan_trade, swaps=True)
