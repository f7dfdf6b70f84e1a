"""Division of all memory of a step between its ops, by need, by priority, or equally.

What an op may be given are bytes in which its outputs stay until the backward phase,
so that it is not computed again, and scratch for a faster algorithm. The rules are
memcfg's own. By need is marginal analysis (B. Fox, "Discrete optimization via marginal
analysis", Management Science 13, 1966), and equal shares are progressive filling, which
is max-min fair (D. Bertsekas, R. Gallager, "Data Networks", 1987).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from memcfg._cached import cached_property
from memcfg.plan.search._policy import Method
from memcfg.plan.search._request import Request
from memcfg.plan.search._watch import check_planning_time
from memcfg.plan.search.algorithms._algorithms import (
    algorithms,
    choose,
    least,
    named,
    planned,
    with_choice,
)
from memcfg.plan.search.algorithms._claims import (
    Claim,
    Claims,
    by_longest,
    by_rate,
    equally,
)
from memcfg.plan.search.algorithms._scratch import FreeGaps
from memcfg.plan.search.recompute._choices import Choice, Search, by_cost
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memcfg.graph import Algorithm
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search.algorithms._claims import Order

_STARTS = 5  # schedules above which memory is divided
_LIMITS = 24  # max. limits for which memory is divided, in each of two ranges
_WORK = 50_000_000  # ops visited by all divisions; a claim visits all ops
_EQUAL = 1  # in-place rule: outputs of the same size


class _Loads:
    """The bytes in use at each step of a schedule, without scratch."""

    def __init__(self, request: Request, sequence: Sequence[int]) -> None:
        sizes = request.graph.aligned_bytes
        change = [0] * (len(sequence) + 3)
        layout = request.step.first_fit(sequence, rule=_EQUAL)
        for tensor, begin, end, source, is_state, _ in layout.instances:
            if not is_state:
                # while its op runs, an output in place is in the bytes of its input
                change[begin + 1 + (source >= 0)] += sizes[tensor]
                change[end + 2] -= sizes[tensor]
        state = sum(sizes[tensor] for tensor in request.graph.persistent)
        loads = list(accumulate(change, initial=state))[2:]
        self.at: dict[int, int] = {}  # by op, the most when it runs
        for step, op in enumerate(sequence):
            self.at[op] = max(loads[step], self.at.get(op, 0))


class _Allotment(NamedTuple):
    """What a division gives: the ops computed again, and algorithms with scratch."""

    choice: Choice
    taken: tuple[tuple[int, Algorithm], ...]
    load: int
    seconds: float


@dataclass(frozen=True)
class _Division:
    """Planning function that divides memory in the order of a rule.

    Idea: a division gives each claim what it asks for, in the order of the rule, if the
    bytes in use stay within a limit. Divisions are made for limits that depend on the
    graph alone, and the fastest of them whose plan fits counts, in which each op gets
    the fastest algorithm for which bytes are free. Invariant: a larger limit has all of
    the plans of a smaller one, with more free bytes, so it is never slower.
    """

    rule: Order

    def __call__(self, request: Request) -> Plan:
        return _Divided(request, self.rule).plan()


class _Divided:
    """The divisions of one request, and their plans."""

    def __init__(self, request: Request, rule: Order) -> None:
        graph = request.graph
        self.request = request
        self.rule = rule
        self.rows = {
            index: row
            for index, op in enumerate(graph.ops)
            if len(row := algorithms(op, divided=True)) > 1
        }
        self.choice = choose(graph, lambda op: least(algorithms(op, divided=True)))
        thrifty = with_choice(graph, self.choice)
        limit = request.limit_bytes
        self.inner = Request.of(thrifty, request.method, limit, request.watch)
        self.inner = replace(self.inner, places=request.places)
        self.graph = thrifty
        self.search = Search.of(self.inner)
        timed = any(op.seconds for op in thrifty.ops)
        self.seconds = [op.seconds if timed else 1.0 for op in thrifty.ops]

    # -- divisions -------------------------------------------------------------

    def allotments(self) -> list[_Allotment]:
        """Return the best divisions, with their scratch reserved and without."""
        search = self.search
        claims = self.rule(Claims(self._claims(), self.seconds))
        least_load, nothing = search.least_load(), search.nothing
        visits = _STARTS * max(1, len(claims) * len(self.graph.ops))
        count = max(2, min(_LIMITS, _WORK // visits))
        ranges = least_load.load, nothing.load, self._top()
        limits = [
            low + (high - low) * k // count
            for low, high in pairwise(ranges)
            for k in range(count)
        ]
        limits.append(ranges[-1])
        ends = [self._allotment(each, {}) for each in (least_load, nothing)]
        made = [
            self._divide(claims, start, limit)
            for limit in dict.fromkeys(limits)
            for start in self._starts(limit)
        ]
        made += ends
        bare = [self._allotment(each.choice, {}) for each in made if each.taken]
        # `share` and the lowest load may be placed lower than what beats them
        return list(dict.fromkeys([*_front(made), *_front(bare), *ends]))

    def _starts(self, limit: int) -> list[Choice]:
        """Return schedules within a limit: of the lowest load, cheap, and the dearest.

        The dearest computes all ops again, so most bytes are free when the forward
        phase ends.
        """
        search = self.search
        dropped = bytearray(len(self.graph.ops))
        for op in search.droppable:
            dropped[op] = 1
        dearest = search.score(bytes(dropped))
        seeds = [each for each in search.seeds if each.load <= limit]
        cheapest = sorted(seeds, key=by_cost)[: _STARTS - 2]
        starts = [search.least_load(), *cheapest, dearest]
        return [each for each in dict.fromkeys(starts) if each.load <= limit]

    def _claims(self) -> dict[int, list[Claim]]:
        """Return the claims of each op, cheaper algorithms first."""
        droppable = set(self.search.droppable)
        claims: dict[int, list[Claim]] = {}
        sizes = self.graph.aligned_bytes
        for op, each in enumerate(self.graph.ops):
            row = []
            if op in droppable:
                nbytes = sum(sizes[tensor] for tensor in each.outputs)
                row.append(Claim(op, self.seconds[op], nbytes, None))
            row += self._upgrades(op)
            if row:
                claims[op] = row
        return claims

    def _upgrades(self, op: int) -> Iterator[Claim]:
        """Yield claims for algorithms, each faster and with more scratch."""
        rows = sorted(
            self.rows.get(op, ()), key=lambda each: (each.scratch_bytes, each.seconds)
        )
        front = [
            each
            for number, each in enumerate(rows)
            if all(each.seconds < before.seconds for before in rows[:number])
        ]
        for now, each in pairwise(_hull(front)):
            more = align_up(each.scratch_bytes) - align_up(now.scratch_bytes)
            yield Claim(op, now.seconds - each.seconds, more, each)

    def _top(self) -> int:
        """Return the bytes in use if all claims are met."""
        nothing = self.search.nothing
        if not self.rows:
            return nothing.load
        loads = _Loads(self.inner, self.search.sequence(nothing))
        scratch = (
            max(each.scratch_bytes for each in row) for row in self.rows.values()
        )
        most = max(
            loads.at[op] + align_up(n) for op, n in zip(self.rows, scratch, strict=True)
        )
        return max(nothing.load, most)

    def _allotment(self, choice: Choice, taken: Mapping[int, Algorithm]) -> _Allotment:
        """Return an allotment with its bytes in use and its time."""
        load = choice.load
        if taken:
            loads = _Loads(self.inner, self.search.sequence(choice))
            scratch = (
                loads.at[op] + align_up(each.scratch_bytes)
                for op, each in taken.items()
            )
            load = max(load, *scratch)
        seconds = math.fsum(
            (taken[op].seconds if op in taken else self.seconds[op]) * (1 + again)
            for op, again in enumerate(choice.dropped)
        )
        return _Allotment(choice, tuple(sorted(taken.items())), load, seconds)

    def _divide(self, claims: Sequence[Claim], start: Choice, limit: int) -> _Allotment:
        """Meet claims in their order, as far as the limit allows."""
        check_planning_time()
        now, search = start, self.search
        taken: dict[int, Algorithm] = {}
        scratch: dict[int, int] = {}
        loads = _Loads(self.inner, search.sequence(now)) if self.rows else None
        for op, _, _, algorithm in claims:
            if algorithm is not None:
                assert loads is not None
                nbytes = align_up(algorithm.scratch_bytes)
                if loads.at[op] + nbytes <= limit:
                    taken[op], scratch[op] = algorithm, nbytes
                continue
            if not now.dropped[op]:
                continue
            trial = bytearray(now.dropped)
            trial[op] = 0
            other = search.score(bytes(trial))
            if other.load > limit:
                continue
            if loads is not None:
                then = _Loads(self.inner, search.sequence(other))
                if any(then.at[op] + n > limit for op, n in scratch.items()):
                    continue
                loads = then
            now = other
        return self._allotment(now, taken)

    # -- plans -----------------------------------------------------------------

    def plan(self) -> Plan:
        """Return the fastest plan of the divisions that fits, or else the lowest."""
        allotments = self.allotments()
        bounds = [(self._bound(each.choice), n) for n, each in enumerate(allotments)]
        placed = [self._placing(each) for each in allotments]
        best: Plan | None = None
        least_key = math.inf, 0
        for bound, number in sorted(bounds):
            if bound >= least_key:
                break
            made = self._filled(placed[number])
            if made is not None:
                key = made.predicted.seconds, allotments[number].choice.replayed
                if key < least_key:
                    best, least_key = made, key
        if best is not None:
            return best
        lowest = min(placed, key=lambda each: each.peak)
        return planned(self.request, lowest.plan().actions)

    def _placing(self, allotment: _Allotment) -> _Placing:
        """Return the placement of an allotment, in which its scratch is reserved."""
        choice = {**self.choice, **dict(allotment.taken)}
        request = self.inner
        if allotment.taken:
            graph = with_choice(self.request.graph, choice)
            request = Request.of(
                graph, request.method, request.limit_bytes, request.watch
            )
            request = replace(request, places=self.request.places)
        return _Placing(request, self.search.sequence(allotment.choice), choice)

    def _bound(self, choice: Choice) -> tuple[float, int]:
        """Return a time that no plan of a choice is below, and its recomputations."""
        seconds = sum(
            self._quickest[op] * (1 + again) for op, again in enumerate(choice.dropped)
        )
        return seconds, choice.replayed

    @cached_property
    def _quickest(self) -> list[float]:
        """The least seconds of each op within the limit."""
        limit = self.request.limit_bytes
        return [
            min(
                (
                    each.seconds
                    for each in self.rows.get(index, ())
                    if limit is None or each.scratch_bytes <= limit
                ),
                default=op.seconds,
            )
            for index, op in enumerate(self.graph.ops)
        ]

    def _filled(self, placing: _Placing) -> Plan | None:
        """Return the plan with the fastest algorithms that fit; None if too high."""
        limit = self.request.limit_bytes
        if limit is not None and placing.peak > limit:
            return None
        plan = placing.plan()
        gaps = FreeGaps.of(self.request.graph, plan, self.rows)
        chosen = {}
        for op, row in self.rows.items():
            now, room = placing.choice.get(op, row[0]), gaps.room(op)
            fitting = [
                each
                for each in row
                if each == now or room is None or each.scratch_bytes <= room
            ]
            best = min(fitting, key=lambda each: each.seconds)  # the default if equal
            if best != now:
                chosen[op] = best
        return planned(self.request, gaps.place(plan, chosen))


@dataclass(frozen=True)
class _Placing:
    """A schedule with algorithms, placed when it is asked for."""

    request: Request
    sequence: Sequence[int]
    choice: Mapping[int, Algorithm]

    @cached_property
    def peak(self) -> int:
        """The peak of the plan."""
        return self.request.peak_in_order(self.sequence)

    def plan(self) -> Plan:
        """Return the plan, with the names of algorithms."""
        plan = self.request.ordered(self.sequence)
        names = {op: each.name for op, each in self.choice.items()}
        return replace(plan, actions=named(plan.actions, names))


def _front(made: Sequence[_Allotment]) -> list[_Allotment]:
    """Return the allotments that no other beats in bytes and time."""
    front: list[_Allotment] = []
    for each in sorted(made, key=lambda each: (each.load, each.seconds)):
        if not front or each.seconds < front[-1].seconds:
            front.append(each)
    return front


def _hull(front: Sequence[Algorithm]) -> list[Algorithm]:
    """Return the algorithms between which savings per byte only fall."""
    hull: list[Algorithm] = []
    for each in front:
        while len(hull) > 1 and _rate(hull[-2], hull[-1]) <= _rate(hull[-1], each):
            hull.pop()
        hull.append(each)
    return hull


def _rate(now: Algorithm, each: Algorithm) -> float:
    more = each.scratch_bytes - now.scratch_bytes
    return (now.seconds - each.seconds) / more


def by_need() -> Policy:
    """Divide all memory of a step by need: to what saves most seconds per byte.

    Returns
    -------
    Policy
        The policy, whose plans compute no op more than twice. Without a limit it keeps
        everything, with the fastest algorithms.

    Notes
    -----
    A division starts from a schedule that recomputes, with the least scratch. An op can
    get bytes in which its outputs stay until backward ops read them, which saves its
    recomputation, and scratch for faster algorithms. These claims are met in the order
    of seconds saved per byte, each if the bytes in use stay within the limit.

    Scratch is in use only while its op runs, so it competes with tensors that stay, but
    not with the scratch of other ops. A kernel that an op of the graph packs is a
    tensor like others. The same rule orders kernels that a model packs once for all
    steps: it plans with each of several sets of them, and takes the fastest plan.

    Divisions are made for fixed limits between the lowest peak and that of the fastest
    step, from the schedule of the lowest peak and from four others of
    `sqrt_checkpoint`. Of those whose plan fits, with the fastest algorithms for which
    it has room, the fastest is taken. So a larger limit never makes a step slower. This
    is a heuristic: `auto` may be faster, and can plan within less.

    With `times="measured"`, the times of algorithms are known; different algorithms may
    round differently. By nominal times, ops have their default algorithms where these
    fit.

    The rule is memcfg's own. It is the marginal analysis of [1]_, whose result is
    optimal if gains are concave and bytes can be divided at will, which is not so here.

    References
    ----------
    .. [1] B. Fox, "Discrete Optimization via Marginal Analysis", Management Science
       13(3), 1966.
    """
    return _dividing("by_need", by_rate)


def by_priority() -> Policy:
    """Divide all memory of a step by priority: to the ops that take longest.

    Returns
    -------
    Policy
        The policy, whose plans compute no op more than twice. Without a limit it keeps
        everything, with the fastest algorithms.

    Notes
    -----
    As `by_need`, but all claims of the op that takes longest are met before those of
    the next op, as far as they fit. A larger limit never makes a step slower. The rule
    is memcfg's own.
    """
    return _dividing("by_priority", by_longest)


def balanced() -> Policy:
    """Divide all memory of a step into equal shares of its ops.

    Returns
    -------
    Policy
        The policy, whose plans compute no op more than twice. Without a limit it keeps
        everything, with the fastest algorithms.

    Notes
    -----
    As `by_need`, but the shares of all ops grow at one pace. An op that needs less than
    its share leaves the rest to the others, and one whose next claim does not fit stays
    at what it has. A larger limit never makes a step slower. The rule is memcfg's own:
    the progressive filling of [1]_, which is max-min fair.

    References
    ----------
    .. [1] D. Bertsekas, R. Gallager, "Data Networks", Prentice Hall, 1987.
    """
    return _dividing("balanced", equally)


_LOWER = "look_ahead(), which can recompute ops more than once"


def _dividing(name: str, order: Order) -> Method:
    return Method(name, _Division(order), _LOWER, chooses=True, order=order)
