"""Recomputation of any op, any number of times, by a search over the whole step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._choices import Search, by_cost, by_load
from memcfg.plan.search.recompute._recomputation import first_fitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_DESCENT, _SEARCH = 1, 2  # shares of the work of a descent, and of a search in a limit
_WORK = 6_000_000, 1_250  # steps measured per share: any graph, or per op if more
_MOST_WORK = 60_000_000  # max. work per share: some seconds, which 48,000 ops get
_PAIR = 40  # max. work per pair of ops
_SEEDS = 4  # choices of segments from which a search starts
_SMALL = 2_000  # max. ops of a graph whose choices of segments are improved first
_LOWEST = 4  # schedules of lowest load that are placed for the smallest limit
_ORDERS = 4  # max. times that a schedule is reordered and searched from there
_AGAIN = 4  # searches from a plan that fits, each from the result of the one before
_PLACED = 2  # schedules that are placed after each of these searches
_STATES = 200_000, 1_000  # states for replanning parts: any graph, or per op if more
_MOST_STATES = 30_000_000  # max. states: some seconds, which 30,000 ops get
_PARTS = 2  # rounds of replanning, the second with a lower goal
_WORTH = 0.001  # relative gain in recomputation below which searching stops
# All limits in a cell share a start, so a higher limit seldom costs more time. That it
# never does is not proven.
_CELLS = 24  # cells of the range of limits; the lower end of a cell is searched first


class _Schedules:
    """Search for schedules of one request.

    Idea: a greedy descent recomputes what lowers the load most until a goal holds; a
    large-neighborhood search then keeps again what the goal has room for. Invariant:
    the load of the schedule that `find` returns is within the goal, in its own order.
    Source: the descent's scores are those of Kirisame et al., ICLR 2021, applied to the
    whole step; the search is Shaw's, CP 1998.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.step = request.step
        self.ops = len(request.graph.ops)
        self.given = list(range(self.ops))
        self.search = Search.of(request)
        self.seeds = self.search.seeds
        self.rungs: list[tuple[int, float, list[int]]] = []
        self.given_order = 0  # number of rungs in the graph's own order; they are first
        self.reached: int | None = None  # goal of the descents so far
        self.ended = False  # whether they ended above it, as with any lower goal
        self.last: list[Sequence[int]] = []
        self.unit = request.load_unit
        self.bottom = request.lower_bound
        self.top, _, _ = self.step.measure(self.given)

    def _reach(self, goal: int) -> None:
        """Make the rungs of two descents to a goal; a second call descends to 0.

        For a goal above 0, a large graph has one descent, from the lowest seed.
        """
        if self.reached is not None:
            if goal >= self.reached or (self.ended and self.ops <= _SMALL):
                return
            goal = 0
        self.reached = goal
        all_starts = self.ops <= _SMALL or goal == 0
        lowest = min(self.seeds, key=by_load)
        least = lowest.load
        if lowest.load > goal and all_starts:
            lowest = self.search.least_load()
            self.seeds = [lowest, *self.seeds]
        starts = [self.step.sequence(lowest.dropped)]
        if all_starts:
            starts.append(self.given)
        work = self._work(_DESCENT)
        rungs = [s for each in starts for s in self.step.descend(each, goal, work=work)]
        self.rungs = [(*self.step.measure(each)[:2], each) for each in rungs]
        self.given_order = len(self.rungs)
        for _ in range(_ORDERS):
            load, _, rung = min(self.rungs)
            if load <= goal or (other := self._in_order(rung)) is rung:
                break
            rungs = self.step.descend(other, goal, work=work)
            self.rungs += [(*self.step.measure(each)[:2], each) for each in rungs]
        self.ended = min(least, *(rung[0] for rung in self.rungs)) > goal

    def _in_order(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return a schedule in the order of the lowest load, or itself if time is over.

        The searches keep the given order, though another one may need less.
        """
        if self.request.orders is False or self.request.is_over():
            return sequence
        return self.request.reordered(sequence)

    def _work(self, shares: int) -> int:
        whole = min(max(_WORK[0], _WORK[1] * self.ops), _PAIR * self.ops**2, _MOST_WORK)
        return shares * whole

    def is_low(self, goal: int) -> bool:
        """Return whether no descent gets below the goal's cell, as `find` learns."""
        if self.ops > _SMALL:
            return False
        self._reach(self._lower_end(goal - goal % self.unit))
        return self.ended

    def least_load(self) -> int:
        """Return the lowest load of a descent, which is placed a little higher."""
        self._reach(0)
        return min(load for load, *_ in self.rungs)

    def lowest_rungs(self) -> list[Sequence[int]]:
        """Return the schedules of lowest load that descents to a goal of 0 pass."""
        self._reach(0)
        rungs = self.rungs[: self.given_order], self.rungs[self.given_order :]
        return [rung for each in rungs for *_, rung in sorted(each)[:_LOWEST]]

    def lowest(self) -> list[Sequence[int]]:
        """Return schedules of low load, independent of earlier searches.

        Loads do not tell which is placed lowest. If a search within the load of a
        schedule ends below it, it continues from there.
        """
        self.last = []
        result: list[Sequence[int]] = []
        for rung in self.lowest_rungs():
            result.append(rung)
            least = self.step.measure(rung)[0]
            while (lower := self._search(least, 4)) is not None:
                result.append(lower)
                before, (least, cost, _) = least, self.step.measure(lower)
                if least >= before:
                    break
                self.rungs.append((least, cost, list(lower)))
        return result

    def find(self, goal: int) -> tuple[int, Sequence[int]] | None:
        """Return the load and ops of the cheapest schedule found within a goal.

        The first call also starts from the schedule within the lower end of the goal's
        cell. All goals in the cell share that start, so higher goals seldom cost more.
        """
        goal -= goal % self.unit
        again = bool(self.last)
        lower: Sequence[int] | None = None
        if not again and self.ops <= _SMALL:
            end = self._lower_end(goal)
            self._reach(end)
            if min(rung[0] for rung in self.rungs) > goal:
                return None  # no search starts above its goal
            self._search(min(rung[0] for rung in self.rungs), 2)
            lower = self._search(end, 2)
        result = self._search(goal, 4 if again else 1)
        if result is None:
            return None
        result = self.in_better_orders(result, goal)
        if lower is not None:
            other = self._again(self.in_better_orders(lower, end), goal)
            result = min((each for each in (result, other) if each), key=self._cost)
        self.last = [result]
        return self.step.measure(result)[0], result

    def in_better_orders(self, best: Sequence[int], goal: int) -> Sequence[int]:
        """Reorder a schedule, and recompute less where that makes room."""
        for _ in range(_ORDERS):
            if (other := self._in_order(best)) is best:
                break
            lower = self._again(other, goal)
            if lower is None or self._cost(lower) >= self._cost(best):
                break
            best = lower
        return best

    def _again(self, start: Sequence[int], goal: int) -> Sequence[int] | None:
        return self.step.within([start], goal, work=self._work(_SEARCH) // 8)

    def cheaper(self, start: Sequence[int], goal: int) -> Sequence[Sequence[int]]:
        """Return schedules within a goal, searched from one, with decreasing cost."""
        return self.step.cheaper(start, goal, work=self._work(_SEARCH) // 2)

    def replanned(self, start: Sequence[int], goal: int) -> Sequence[Sequence[int]]:
        """Return such schedules, found by exact replanning of parts of one."""
        effort = min(max(_STATES[0], _STATES[1] * self.ops), _PAIR * self.ops**2)
        effort = min(effort, _MOST_STATES)
        return self.step.replanned(start, goal, effort=effort)

    def _cost(self, sequence: Sequence[int]) -> tuple[float, int]:
        _, cost, again = self.step.measure(sequence)
        return cost, again

    def _lower_end(self, goal: int) -> int:
        """Return the lower end of a goal's cell; cells depend on the graph only."""
        width = max(1, (self.top - self.bottom) // _CELLS)
        end = self.bottom + (goal - 1 - self.bottom) // width * width
        return end - end % self.unit

    def _search(self, goal: int, parts: int) -> Sequence[int] | None:
        """Search within a goal by a fraction of the work; the result becomes `last`."""
        self._reach(goal)
        rungs = [rung for rung in self.rungs if rung[0] <= goal]
        if not rungs:
            return None
        cheapest = min(rungs, key=lambda rung: rung[1])[2]
        starts = [*([self.given] if parts == 1 else []), *self.last, cheapest]
        seeds = [choice for choice in self.seeds if choice.load <= goal]
        seeds.sort(key=by_cost)
        if seeds and self.ops <= _SMALL:
            lowest = min(seeds, key=by_load)
            seeds = [self.search.least_cost(goal, lowest), *seeds]
        starts += [self.step.sequence(choice.dropped) for choice in seeds[:_SEEDS]]
        work = self._work(_SEARCH) // parts
        result = self.step.within(starts, goal, work=work)
        if result is not None:
            self.last = [result]
        return result


def rough_peak(request: Request) -> int:
    """Return about the peak of the lowest plan, without placing any."""
    return _Schedules(request).least_load()


def plan_look_ahead(request: Request) -> Plan:
    """Plan for the lowest peak or, with a limit, for the least recomputation."""
    how = request.replayed, request.orders, request.in_place, request.searches
    key = "look ahead", request.limit_bytes, request.any_fits, how
    return request.ordered(request.once(key, lambda: _sequence(request)))


def _sequence(request: Request) -> Sequence[int]:
    """Return the schedule of the plan, before reordering."""
    given = range(len(request.graph.ops))
    limit = request.limit_bytes
    if limit is not None and request.peak_in_order(given) <= limit:
        return given
    schedules = _Schedules(request)
    first: Sequence[int] | None = None
    if limit is not None and request.any_fits and schedules.is_low(limit):
        first = _placed_lowest(request, schedules.lowest_rungs())
        if request.peak_in_order(first) <= limit:
            return first
    if limit is not None:
        first = first_fitting(request, schedules.find)
    if first is None:
        first = _placed_lowest(request, [given, *schedules.lowest()])
    if limit is None or request.any_fits or request.peak_in_order(first) > limit:
        return first
    start = request.in_order(first)
    result = _searched_again(request, schedules, start, limit)
    parts = _replanned(request, schedules, result, limit)
    if parts is not result and not _is_too_low(request, schedules, parts, result):
        result = parts
    return first if result is start else result


def _searched_again(
    request: Request, schedules: _Schedules, best: Sequence[int], limit: int
) -> Sequence[int]:
    """Search again from a schedule that fits, as long as a cheaper one fits.

    Earlier searches started from worse schedules, and may have ended with a lower goal
    or with the lowest schedule. Invariant: the plan of the result fits.
    """
    goal = max(limit, request.step.measure(best)[0])
    for _ in range(_AGAIN):
        load, before, _ = request.step.measure(best)
        if load > goal or request.is_over():
            break
        cheaper = schedules.cheaper(best, goal)
        fitting = _last_fitting(request, cheaper, limit)
        if fitting is not None:
            best = fitting
            if request.step.measure(best)[1] > (1 - _WORTH) * before:
                break
        elif cheaper:
            goal -= request.peak_in_order(cheaper[-1]) - limit
        else:
            break
    return best


def _replanned(
    request: Request, schedules: _Schedules, best: Sequence[int], limit: int
) -> Sequence[int]:
    """Replan parts of a schedule that fits; if that is too high, with a lower goal."""
    goal = max(limit, request.step.measure(request.in_order(best))[0])
    for _ in range(_PARTS):
        start = request.in_order(best)
        if request.step.measure(start)[0] > goal or request.is_over():
            break
        cheaper = schedules.replanned(start, goal)
        if not cheaper:
            break
        fitting = _last_fitting(request, cheaper, limit)
        best = best if fitting is None else fitting
        if fitting is cheaper[-1]:
            break
        goal -= request.peak_in_order(cheaper[-1]) - limit
    return best


def _is_too_low(
    request: Request,
    schedules: _Schedules,
    sequence: Sequence[int],
    before: Sequence[int],
) -> bool:
    """Return whether a schedule is placed below the limit that errors name.

    Lower limits raise an error that names this limit, so using it would contradict it.
    """
    peak = request.peak_in_order(sequence)
    if peak >= request.peak_in_order(before):
        return False
    known = min(schedules.rungs, default=None)
    if known is not None and peak >= request.peak_in_order(known[2]):
        return False
    given = range(schedules.ops)
    lowest = _placed_lowest(request, [given, *schedules.lowest()])
    return peak < request.peak_in_order(lowest)


def _last_fitting(
    request: Request, sequences: Sequence[Sequence[int]], limit: int
) -> Sequence[int] | None:
    """Return the last schedule found whose plan fits: try the last, then bisect."""
    best, begin, end = None, 0, len(sequences)
    middle = end - 1
    for _ in range(_PLACED):
        if begin == end:
            break
        if request.peak_in_order(sequences[middle]) <= limit:
            best, begin = sequences[middle], middle + 1
        else:
            end = middle
        middle = (begin + end) // 2
    return best


def _placed_lowest(
    request: Request, sequences: Iterable[Sequence[int]]
) -> Sequence[int]:
    """Return the schedule with the lowest peak; those of higher load are not placed."""
    loads = {each: request.least_load(each) for each in map(tuple, sequences)}
    best, least = None, math.inf
    for each in sorted(loads, key=lambda each: loads[each]):
        if best is not None and loads[each] >= least:
            break
        peak = request.peak_in_order(each)
        if peak < least:
            best, least = each, peak
    assert best is not None
    return best


def look_ahead() -> Policy:
    """Recompute any op, any number of times, decided with the whole step in view.

    Returns
    -------
    Policy
        The policy. Without a limit it looks for the lowest peak; with a limit, for the
        least recomputation within it. Memory is shared as by `share`.

    Notes
    -----
    A tensor that is dropped between two of its readers frees its bytes between them.
    Its op then runs again before the second reader, together with the ops of missing
    inputs. A greedy search takes the drop of the least cost per byte freed above the
    limit, measured on the whole step, until the limit holds: the offline counterpart of
    [1]_. A large-neighborhood search [2]_ continues from there, from the segments of
    `sqrt_checkpoint`, and from the lowest schedules: it removes some recomputations,
    adds others with randomly perturbed costs, and keeps improvements. It keeps the
    order of ops; results, including those that fit when placed, are reordered for the
    lowest peak and searched again as long as that helps. Last, parts are replanned: for
    some ops, the search of `exact` finds the best order and repetitions between the
    others, which stay. Any replayable op may be recomputed, also in the backward phase,
    and even if its outputs are kept: these are dropped until the end. Updates of state
    and kept losses run once. The work is limited instead of the time, so the same graph
    and limit give the same plan.

    References
    ----------
    .. [1] M. Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021,
       arXiv:2006.09616.
    .. [2] P. Shaw, "Using Constraint Programming and Local Search Methods to Solve
       Vehicle Routing Problems", CP 1998.
    """
    return Method("look_ahead", plan_look_ahead)
