"""Timing of a schedule's copies by a simulated clock.

Idea: copies out start right after the access before a gap, copies in as late as
possible to end in time. Invariant: the bytes in use are within the goal at each
position if `lowest` is. Source: the just-in-time copies in of Peng et al., "Capuchin",
ASPLOS 2020.

An op waits for the earliest pending copy out only if the limit would be exceeded
otherwise. Elsewhere bytes are freed later than predicted, by a slack on each copy, so
that no op waits if a copy takes longer than predicted.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memcfg._cached import cached_property
from memcfg.plan.format._clock import Clock
from memcfg.plan.format._tier_choice import Life, Rooms, is_one, likely_tiers, tiers_of
from memcfg.plan.search.swaps._event_times import (
    life_of,
    on_tier,
    swap_in_seconds,
    swap_out_seconds,
)
from memcfg.plan.search.swaps._swap_events import (
    EndSwapOut,
    Event,
    Run,
    StartSwapIn,
    StartSwapOut,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from memcfg.plan.search.swaps._accesses import Gap, Trace

_SLACK = 2.0  # bytes are freed after so many times the seconds of a copy out
_WALKS = 2  # walks in which copies in are timed by the walk before


@dataclass(frozen=True)
class Walked:
    """A schedule with timed copies.

    Attributes
    ----------
    events : list of Event
        The events, in order.
    seconds : float
        The end of the last op.
    stalls : dict of Gap to float
        Seconds that ops waited for the copies of each gap, out and in.
    loads : list of int
        Bytes in use at the start and at each position, if bytes are free as soon as
        copies out end.
    """

    events: list[Event]
    seconds: float
    stalls: dict[Gap, float]
    loads: list[int]


class Swaps:
    """A trace with gaps in which values are on a tier.

    A value is copied out in the first of its gaps; in later gaps the tier still has its
    copy.

    Parameters
    ----------
    trace : Trace
        The schedule.
    runs : sequence of Run
        The op at each position.
    seconds : sequence of float
        The time of each op.
    scratch : sequence of int
        The scratch of each op in bytes, rounded up.
    gaps : collection of Gap
        The gaps in which values are away.
    beside : bool, default False
        Whether copies out start in parallel with the access before a gap, if it only
        reads, instead of after it.
    slack : float, default 2.0
        Bytes that are not needed earlier are freed after `slack` times the seconds of
        the copy out.
    longer : mapping of int to float, optional
        Additional seconds of copies in, by tensor.
    codes : mapping of int to StartSwapOut, optional
        The copies out of tensors that a lane encodes.

    Attributes
    ----------
    lowest : list of int
        The bytes in use if each copy out is waited for, and no copy in is early.
    """

    def __init__(
        self,
        trace: Trace,
        runs: Sequence[Run],
        seconds: Sequence[float],
        scratch: Sequence[int],
        gaps: Collection[Gap],
        *,
        beside: bool = False,
        slack: float = _SLACK,
        longer: Mapping[int, float] | None = None,
        codes: Mapping[int, StartSwapOut] | None = None,
    ) -> None:
        self.trace = trace
        self._runs = runs
        self._seconds = seconds
        self._scratch = scratch
        self.gaps = sorted(gaps)
        self.slack = slack
        self._beside = beside
        self._copies = {gap.value: gap for gap in reversed(self.gaps)}
        self._last = {gap.value: gap for gap in self.gaps}
        self.leaves: dict[Gap, StartSwapOut] = {}
        self.swap_out_seconds: dict[Gap, float] = {}
        self.swap_in_seconds: dict[Gap, float] = {}
        self._lives: dict[int, Life] = {}  # by value
        leaves = self._leaves(codes or {})
        for gap in self.gaps:
            tensor, leave = trace.tensor(gap), leaves[gap.value]
            self.leaves[gap] = leave
            self.swap_out_seconds[gap] = swap_out_seconds(trace.graph, leave)
            later = (longer or {}).get(tensor, 0.0)
            self.swap_in_seconds[gap] = swap_in_seconds(trace.graph, leave) + later
        self.starts = [0.0, *accumulate(seconds)]  # by position, without waits

    def _leaves(self, codes: Mapping[int, StartSwapOut]) -> dict[int, StartSwapOut]:
        """Return the copy out of each value, with its likely tier."""
        trace = self.trace
        tensors = {value: trace.tensor(gap) for value, gap in self._copies.items()}
        leaves = {
            v: codes.get(tensor, StartSwapOut(tensor)) for v, tensor in tensors.items()
        }
        tiers = tiers_of(trace.graph)
        if is_one(tiers):
            return leaves
        for value, gap in self._copies.items():
            self._lives[value] = self._life(gap, leaves[value], self._last[value].back)
        names = likely_tiers(tiers, [*self._lives.values()])
        return {
            value: on_tier(leaves[value], name)
            for value, name in zip(self._copies, names, strict=True)
        }

    def _life(self, gap: Gap, leave: StartSwapOut, end: int) -> Life:
        return life_of(self.trace.graph, leave, self.begin(gap), end)

    def rooms(self) -> Rooms:
        """Return the bytes in use on tiers over time, by positions."""
        tiers = tiers_of(self.trace.graph)
        rooms = Rooms(tiers, len(self.trace.entries) + 1)
        for value, life in self._lives.items():
            rooms.take(life, self.leaves[self._copies[value]].tier or tiers[0].name)
        return rooms

    def leave(self, gap: Gap, rooms: Rooms, *, take: bool = False) -> StartSwapOut:
        """Return the copy out of a value for any gap of the trace.

        Parameters
        ----------
        gap : Gap
            A gap of the trace.
        rooms : Rooms
            The bytes in use on tiers.
        take : bool, default False
            Whether to add a new copy to `rooms`.

        Returns
        -------
        StartSwapOut
            The copy out.
        """
        if gap.value in self._copies:
            return self.leaves[self._copies[gap.value]]
        leave = StartSwapOut(self.trace.tensor(gap))
        if is_one(tiers_of(self.trace.graph)):
            return leave
        life = self._life(gap, leave, gap.back)
        tier = rooms.first(life)
        if take:
            rooms.take(life, tier)
        return on_tier(leave, tier)

    def is_copied(self, gap: Gap) -> bool:
        """Return whether a gap begins with a copy out.

        Parameters
        ----------
        gap : Gap
            A gap in which a value is away.

        Returns
        -------
        bool
            False for later gaps of a value.
        """
        return self._copies[gap.value] == gap

    def is_only(self, gap: Gap) -> bool:
        """Return whether a gap is the only one of its value.

        Parameters
        ----------
        gap : Gap
            A gap in which a value is away.

        Returns
        -------
        bool
            Whether the value has no other gap.
        """
        return self._copies[gap.value] == self._last[gap.value]

    def begin(self, gap: Gap) -> int:
        """Return the position before which the copy out of a gap starts.

        Parameters
        ----------
        gap : Gap
            A gap of the trace.

        Returns
        -------
        int
            The position of the access before the gap, or the next one; see
            `is_beside`.
        """
        return gap.after + (not self.is_beside(gap))

    def is_beside(self, gap: Gap) -> bool:
        """Return whether a swap-out starts with the last read, not after it.

        Parameters
        ----------
        gap : Gap
            A gap of the trace.

        Returns
        -------
        bool
            True if `beside` was given and the access before the gap only reads.
        """
        return self._beside and self.trace.is_read(gap)

    @cached_property
    def lowest(self) -> list[int]:
        """The bytes in use if each copy out is waited for, and no copy in is early."""
        return self.trace.loads(self._scratch, self.gaps, self._copies.values())

    def on_time(self, goal: int, held: Sequence[int]) -> dict[Gap, int]:
        """Return the position before which each copy in starts.

        It is the last one from which the copy ends before its access, with copies in
        sequence on their lane, or a later one if the goal has no room until then.

        Parameters
        ----------
        goal : int
            The limit of bytes in use.
        held : sequence of int
            Bytes in use if each copy in starts when it is needed.

        Returns
        -------
        dict of Gap to int
            Positions.
        """
        wanted: dict[Gap, float] = {}
        free = float("inf")
        for gap in sorted(self.gaps, key=lambda gap: -gap.back):
            free = min(free, self.starts[gap.back]) - self.swap_in_seconds[gap]
            wanted[gap] = free
        loads = [*held]
        result: dict[Gap, int] = {}
        for gap in sorted(self.gaps, key=lambda gap: gap.back):
            size, place = self.trace.size(gap), gap.back
            while place - 1 > gap.after and self.starts[place] > wanted[gap]:
                if loads[place] + size > goal:  # load of position `place - 1`
                    break
                place -= 1
            for each in range(place, gap.back):
                loads[each + 1] += size
            result[gap] = place
        return result

    def fastest(self, goal: int, is_over: Callable[[], bool]) -> Walked:
        """Walk within a goal, with copies in as late as possible to be in time.

        Parameters
        ----------
        goal : int
            The limit of bytes in use.
        is_over : callable
            Called without arguments; returns whether to stop with the best so far.

        Returns
        -------
        Walked
            The fastest walk.
        """
        best = self.walk(goal)
        for _ in range(_WALKS):
            if not best.stalls or is_over():
                break
            walked = self.walk(goal, self.on_time(goal, best.loads))
            if walked.seconds >= best.seconds:
                break
            best = walked
        return best

    def walk(self, goal: int, arrives: Mapping[Gap, int] | None = None) -> Walked:
        """Time the copies within a goal, which holds if `lowest` is within it.

        Parameters
        ----------
        goal : int
            The limit of bytes in use.
        arrives : mapping of Gap to int, optional
            The positions before which copies in start; by default when they are needed.

        Returns
        -------
        Walked
            The events and their times.
        """
        walk = _Walk(self, goal, arrives or {})
        return walk.run(self._runs, self._seconds)


class _Pending(NamedTuple):
    """A copy out whose bytes are not freed yet."""

    gap: Gap
    end: float
    sure: float  # end of the copy with slack


class _Walk:
    """The state of a walk."""

    def __init__(self, swaps: Swaps, goal: int, arrives: Mapping[Gap, int]) -> None:
        self.swaps = swaps
        self.goal = goal
        self.lowest = [*swaps.lowest]
        for gap, arrive in arrives.items():
            for place in range(arrive, gap.back):
                self.lowest[place + 1] += swaps.trace.size(gap)
        self.loads = [self.lowest[0]]
        self.events: list[Event | None] = []
        self.stalls: dict[Gap, float] = defaultdict(float)
        self.clock = Clock()
        # By tier: end of the last copy out with slack.
        self.slow: dict[str | None, float] = defaultdict(float)
        self.pending: list[_Pending] = []  # sorted by their ends
        self.held = 0  # bytes of `pending`
        self.begun: dict[Gap, int] = {}  # gap -> index of its copy out in `events`
        self.coming: dict[int, tuple[Gap, float]] = {}  # value -> gap and end
        # By position: copies out before it, in parallel with it, and copies in.
        self.leaves: dict[int, list[Gap]] = defaultdict(list)
        self.beside: dict[int, list[Gap]] = defaultdict(list)
        self.returns: dict[int, list[Gap]] = defaultdict(list)
        for gap in swaps.gaps:
            if swaps.is_copied(gap):
                rows = self.beside if swaps.is_beside(gap) else self.leaves
                rows[swaps.begin(gap)].append(gap)
        for gap in sorted(swaps.gaps, key=lambda gap: gap.back):  # in order of use
            self.returns[arrives.get(gap, gap.back)].append(gap)

    def run(self, runs: Sequence[Run], seconds: Sequence[float]) -> Walked:
        """Run all ops and return the result."""
        for place, run in enumerate(runs):
            returns = self.returns.get(place, ())
            for gap in self.leaves.get(place, ()):
                self.leave(gap)
            for gap in returns:
                self.stay(gap)
            self.make_room(place)
            for gap in returns:
                self.come(gap)
            for gap in self.beside.get(place, ()):
                self.leave(gap)
            if self.coming:
                for number in self.swaps.trace.read(place):
                    if number in self.coming:
                        self.wait(*self.coming.pop(number))
            self.clock.run(seconds[place])
            self.events.append(run)
        events = [event for event in self.events if event is not None]
        return Walked(events, self.clock.now, dict(self.stalls), self.loads)

    def leave(self, gap: Gap) -> None:
        """Start a copy out."""
        seconds, tier = self.swaps.swap_out_seconds[gap], self.swaps.leaves[gap].tier
        sure = max(self.clock.now, self.slow[tier]) + self.swaps.slack * seconds
        self.slow[tier] = sure
        pending = _Pending(gap, self.clock.swap_out(seconds, tier), sure)
        insort(self.pending, pending, key=lambda each: each.end)
        self.held += self.swaps.trace.size(gap)
        self.begun[gap] = len(self.events)
        self.events.append(self.swaps.leaves[gap])

    def make_room(self, place: int) -> None:
        """Free the bytes of copies out that are surely done or that the goal needs."""
        lowest = self.lowest[place + 1]
        if not self.pending:
            self.loads.append(lowest)
            return
        while self.pending:
            ended = 0
            if lowest + self.held <= self.goal:
                sure = [each.sure <= self.clock.now for each in self.pending]
                if True not in sure:
                    break
                ended = sure.index(True)
            self.end(ended)
        coming = 0  # bytes of copies out that have not ended
        for each in reversed(self.pending):
            if each.end <= self.clock.now:
                break
            coming += self.swaps.trace.size(each.gap)
        self.loads.append(lowest + coming)

    def end(self, number: int) -> None:
        """Wait for a pending copy out and free its bytes; the first ends earliest."""
        gap, end, _ = self.pending.pop(number)
        self.wait(gap, end)
        self.events.append(EndSwapOut(self.swaps.trace.tensor(gap)))
        self.held -= self.swaps.trace.size(gap)

    def stay(self, gap: Gap) -> None:
        """Cancel a value's only copy out if it is pending when the value is needed."""
        only = self.pending and self.swaps.is_only(gap)
        if only and any(each.gap == gap for each in self.pending):
            self.events[self.begun[gap]] = None
            self.pending = [each for each in self.pending if each.gap != gap]
            self.held -= self.swaps.trace.size(gap)
            del self.begun[gap]

    def come(self, gap: Gap) -> None:
        """Start a copy in, unless the copy out was canceled."""
        if self.swaps.is_copied(gap) and gap not in self.begun:
            return
        while any(each.gap == gap for each in self.pending):
            self.end(0)
        tier = self.swaps.leaves[gap].tier
        end = self.clock.swap_in(self.swaps.swap_in_seconds[gap], tier)
        self.coming[gap.value] = gap, end
        self.events.append(StartSwapIn(self.swaps.trace.tensor(gap)))

    def wait(self, gap: Gap, end: float) -> None:
        """Wait for a copy, and record the stall."""
        if waited := self.clock.wait(end):
            self.stalls[gap] += waited
