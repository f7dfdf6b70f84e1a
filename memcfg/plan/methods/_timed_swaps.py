"""Swaps timed by the simulated clock: bytes are free when their copy out has ended.

Ops wait for a copy out only if the limit would be exceeded otherwise, and for a copy in
only if they read the tensor.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from functools import cached_property
from typing import TYPE_CHECKING

from memcfg.plan.format._clock import Clock
from memcfg.plan.methods._swapping import away_tiers
from memcfg.plan.search._policy import fits
from memcfg.plan.search.swaps._accesses import Entry, Trace
from memcfg.plan.search.swaps._event_times import swap_in_seconds, swap_out_seconds
from memcfg.plan.search.swaps._swap_events import (
    EndSwapOut,
    Event,
    Run,
    StartSwapIn,
    StartSwapOut,
    plan_events,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.methods._swapping import Away
    from memcfg.plan.search._request import Request

_ROUNDS = 5  # plans with a tighter goal when placement exceeds the limit
# With an unreachable goal the walk waits earlier: resnet18 at 10 MB/s stalls 19 s
# instead of 28 s within the bytes of `vdnn_all`.
_PARTS = (1.0, 0.8, 0.6, 0.4, 0.0)  # goals as fractions of the lowest reachable bytes


class TimedSwaps:
    """A schedule with tensors that may be swapped; the clock and a goal decide when.

    In an `Away`, `leave` is the first position where the bytes may be free, `arrive`
    the first where the copy in may start, and `back` that of the next reader. A tensor
    whose copy out has not ended when its copy in may start is not swapped.

    Parameters
    ----------
    request : Request
        The request.
    sequence : sequence of int
        Ops of the graph in order; an op may occur more than once.
    away : iterable of Away
        The tensors that may be swapped, each at most once.
    """

    def __init__(
        self, request: Request, sequence: Sequence[int], away: Iterable[Away]
    ) -> None:
        self.request = request
        self.sequence = sequence
        self.away = [
            each._replace(arrive=max(each.leave, each.arrive))
            for each in away
            if each.leave < each.back
        ]
        self._tiers = away_tiers(request.graph, self.away)

    def plan(self) -> Plan:
        """Return a plan within the limit if one is found, else one with a low peak."""
        limit = self.request.limit_bytes
        if limit is None:
            return self.planned(float("inf"))
        if limit < self.least:
            return self.planned(0)
        goal: float = limit
        for step in range(_ROUNDS):
            events, load = self._walked(goal)
            plan = plan_events(self.request, events)
            if fits(plan):
                return plan
            if self.request.is_over():
                break
            goal = min(goal, load) - (plan.peak_bytes - limit) * 2**step
        for part in _PARTS:
            if part and self.request.is_over():
                continue
            plan = self.planned(self.least * part)
            if fits(plan):
                return plan
        return plan

    def planned(self, goal: float) -> Plan:
        """Return the plan for a goal in bytes; 0 swaps all tensors and waits for it."""
        return plan_events(self.request, self._walked(goal)[0])

    @property
    def least(self) -> int:
        """The peak of the bytes in use if all tensors are swapped."""
        return max(self._usage, default=0)

    @cached_property
    def _usage(self) -> tuple[int, ...]:
        """The bytes in use at each position if tensors are away in [leave, back)."""
        graph = self.request.graph
        trace = Trace(graph, [Entry(n, op) for n, op in enumerate(self.sequence)])
        scratch = [graph.aligned_scratch[op] for op in self.sequence]
        result = trace.loads(scratch)[1:-1]
        for each in self.away:
            for place in range(each.leave, each.back):
                result[place] -= trace.sizes[each.tensor]
        return tuple(result)

    def _walked(self, goal: float) -> tuple[list[Event], int]:
        """Return the events and the peak of bytes in use, within a goal if possible."""
        walk = _EagerWalk(self.request, self._usage, goal, self._tiers)
        return walk.of(self.sequence, self.away), max(walk.usage, default=0)


class _EagerWalk:
    """Simulation of a schedule in which copies in start as soon as there is room."""

    def __init__(
        self,
        request: Request,
        usage: Sequence[int],
        goal: float,
        tiers: Mapping[int, str],
    ) -> None:
        self.graph = request.graph
        self.tiers = tiers  # by tensor
        self.usage = [*usage]
        self.goal = goal
        self.clock = Clock()
        self.events: list[Event] = []
        self.stays: set[int] = set()  # tensors whose copy out is canceled
        self.flight: deque[tuple[Away, float]] = deque()  # copies out and their ends
        self.gone: list[Away] = []  # swapped tensors, sorted by `back`
        self.coming: dict[int, float] = {}  # tensor -> end of its copy in

    def of(self, sequence: Sequence[int], away: Iterable[Away]) -> list[Event]:
        begins: dict[int, list[Away]] = defaultdict(list)
        for each in away:
            begins[each.begin].append(each)
        for place, op in enumerate(sequence):
            for each in begins[place]:
                self._leave(each)
            self._free(place)
            self._bring(place)
            self._run(op)
        return [
            event
            for event in self.events
            if not (isinstance(event, StartSwapOut) and event.tensor in self.stays)
        ]

    def _size(self, each: Away) -> int:
        return self.graph.aligned_bytes[each.tensor]

    def _leave(self, each: Away) -> None:
        tier = self.tiers[each.tensor]
        leave = StartSwapOut(each.tensor, tier=tier)
        self.events.append(leave)
        end = self.clock.swap_out(swap_out_seconds(self.graph, leave), tier)
        self.flight.append((each, end))

    def _free(self, place: int) -> None:
        """End finished copies out, and wait for the oldest if bytes are missing."""
        held = 0
        waiting: deque[tuple[Away, float]] = deque()
        for each, end in self.flight:
            if each.leave > place:
                waiting.append((each, end))
            elif end <= self.clock.now:
                self._left(each, end)
            elif place >= each.arrive and self._fits(each, place):
                self.stays.add(each.tensor)
                self._occupy(each, place)
            else:
                waiting.append((each, end))
                held += self._size(each)
        self.flight = deque()
        for each, end in sorted(waiting, key=lambda row: row[1]):
            over = self.usage[place] + held > self.goal
            if each.leave <= place and (over or end <= self.clock.now):
                self._left(each, end)
                held -= self._size(each)
            else:
                self.flight.append((each, end))
        self.usage[place] += held

    def _left(self, each: Away, end: float) -> None:
        self.clock.wait(end)
        self.events.append(EndSwapOut(each.tensor))
        insort(self.gone, each, key=lambda away: away.back)

    def _bring(self, place: int) -> None:
        """Start copies in, in the order of use, while there is room."""
        later: list[Away] = []
        room = True
        for each in self.gone:
            if place >= each.arrive and place < each.back:
                room = room and self._fits(each, place)
            if place >= each.back or (place >= each.arrive and room):
                tier = self.tiers[each.tensor]
                seconds = swap_in_seconds(
                    self.graph, StartSwapOut(each.tensor, tier=tier)
                )
                self.coming[each.tensor] = self.clock.swap_in(seconds, tier)
                self.events.append(StartSwapIn(each.tensor))
                self._occupy(each, place)
            else:
                later.append(each)
        self.gone = later

    def _fits(self, each: Away, place: int) -> bool:
        """Return whether the goal has room for a tensor until it is read."""
        most = max(self.usage[place : each.back], default=None)
        return most is None or most + self._size(each) <= self.goal

    def _occupy(self, each: Away, place: int) -> None:
        for later in range(place, each.back):
            self.usage[later] += self._size(each)

    def _run(self, index: int) -> None:
        op = self.graph.ops[index]
        ends = [self.coming.pop(t) for t in op.inputs if t in self.coming]
        self.clock.wait(max(ends, default=0.0))
        self.clock.run(op.seconds)
        self.events.append(Run(index))
