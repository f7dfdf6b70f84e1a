"""Swaps and algorithms together: goal after goal, the cheapest move that helps.

Idea: where the bytes in use exceed a goal first, the move is taken that costs the least
time for its bytes, a swap around that op or an algorithm of less scratch for it.
Invariant: goals do not depend on the limit, so a larger limit has every schedule of a
smaller one and takes no more time. Source: X. Chen et al., "moDNN", DATE 2018, promise
this of a joint choice; the greedy method is ours.
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

# Goals do not depend on the limit, so a larger limit has every schedule of a smaller
# one, and more memory never costs time.
_LEVELS = 48  # goals between all that is needed at once and the least that is
_TRIED = 32  # values that may leave, of which the cheapest is looked for
_ROUNDS = 8  # times that what outputs in place free or take is counted anew
_DIGITS = 1e-12  # of a sum of times


class Way(NamedTuple):
    """A way to compute an op."""

    scratch: int  # rounded up
    seconds: float
    algorithm: str | None  # None: the default


def ways_of(op: Op) -> list[Way]:
    """List the ways to compute an op, of rising scratch and falling time.

    The default is among them if no other is faster with less.
    """
    ways = [Way(align_up(op.scratch_bytes), op.seconds, None)]
    ways += [
        Way(align_up(each.scratch_bytes), each.seconds, each.name)
        for each in algorithms(op, divided=True)
    ]
    result: list[Way] = []
    for way in sorted(ways, key=lambda way: way[:2]):  # of equals the default
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
    """What is done for one goal after another, from the highest on.

    It is the same whatever the budget is. So a larger budget has all the schedules of a
    smaller one, and takes no more time.
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
        self.rooms = everything.rooms()  # of tiers
        self.lowest = min(self.highest, max(self.alone))
        self.loads = self._loads()

    def goals(self) -> list[int]:
        """List the goals, in a geometric row of what is above the state.

        Among them are those for which all ops have their fastest way, or their second.
        """
        state = self.trace.state_bytes
        high, low = self.highest - state, self.lowest - state
        ratio = (max(low, 1) / max(high, 1)) ** (1 / _LEVELS)
        row = [state + int(high * ratio**number) for number in range(_LEVELS)]
        for rank in range(max(map(len, self.ways), default=0)):
            beside = (ways[max(~rank, -len(ways))].scratch for ways in self.ways)
            rows = zip(self.alone[1:], beside, self.ways, strict=False)
            row.append(max(load + way - ways[0].scratch for load, way, ways in rows))
        row = [max(each, self.lowest) for each in row if each <= self.highest]
        return sorted({*row, self.lowest}, reverse=True)

    def levels(self, limit: int | None) -> Iterator[_Level]:
        """Make the schedules of all goals within a limit, two of them of the lowest.

        Once it is over, only the last.
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
        """Take the cheapest move where a goal does not hold first, until it does."""
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
        """Take the move of least time for its bytes; False: there is none."""
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
        """Take the fastest ways that there is room for; copies as late as in time."""
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
    """Return the seconds between its ends, if nothing else is copied."""
    return copy.need - copy.back - (copy.ready + copy.out)


def plan_trade(request: Request) -> Plan:
    """Take the fastest schedule that fits once it is placed."""
    trajectory = _Trajectory(request)
    levels: list[_Level] = []
    for level in trajectory.levels(request.limit_bytes):
        if level.seconds > trajectory.fastest:
            levels.append(level)
            continue
        plan = plan_events(request, level.events)  # no other is faster
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
    """Swap and choose algorithms by what they cost for their bytes, for `auto`."""
    return Method("trade", plan_trade, swaps=True)
