"""Copies beside a schedule, as a clock says: what waits for what, and why.

Idea: copies out start right after the access before a gap, copies in as late as they
end in time. Invariant: at each place the bytes in use are within the goal if `lowest`
is. Source: the just-in-time copies in of Peng et al., "Capuchin", ASPLOS 2020.

An op waits for the earliest copy out that is on its way only where a limit would not
hold otherwise. Elsewhere its bytes end when it would have ended on a lane on which each
takes its slack, too, so that a copy that takes longer than was thought has nobody wait.
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

_SLACK = 2.0  # times the seconds of a copy out, after which its bytes end unasked
_WALKS = 2  # each with copies in as late as the one before has time for


@dataclass(frozen=True)
class Walked:
    """What happens in a schedule with copies, and when.

    Attributes
    ----------
    events : list of Event
        In order.
    seconds : float
        When the last op ends.
    stalls : dict of Gap to float
        Seconds that ops waited for each copy, out and in.
    loads : list of int
        Bytes in use at the start and at each place, if those of copies out are free
        when they end.
    """

    events: list[Event]
    seconds: float
    stalls: dict[Gap, float]
    loads: list[int]


class Swaps:
    """Gaps of a trace in which values are on a tier.

    A value is copied out in the first of its gaps; in later ones its copy is still
    there. Copies out start behind the access before a gap, or `beside` it if that reads
    alone; those in of some tensors take `longer`, in seconds. Tensors with a code are
    encoded by the lane that copies them. Bytes end after `slack` times the seconds of a
    copy out where nobody needs them earlier.

    Parameters
    ----------
    trace : Trace
        The schedule.
    runs : sequence of Run
        Its ops, by place.
    seconds : sequence of float
        What they take, by place.
    scratch : sequence of int
        Their scratch in bytes, rounded up, by place.
    gaps : collection of Gap
        When values are away.
    beside : bool, default False
        Whether copies out start beside the access before a gap if that reads alone.
    slack : float, default 2.0
        Times the seconds of a copy out, after which its bytes end unasked.
    longer : mapping of int to float, optional
        Seconds by tensor that copies in take longer.
    codes : mapping of int to StartSwapOut, optional
        How tensors leave that a lane encodes.

    Attributes
    ----------
    lowest : list of int
        The bytes in use if each copy out is waited for, and none in is early.
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
        self._beside = beside  # reads that come before them
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
        self.starts = [0.0, *accumulate(seconds)]  # by place, if nothing waits

    def _leaves(self, codes: Mapping[int, StartSwapOut]) -> dict[int, StartSwapOut]:
        """Return the copy out of each value; it goes to the tier that has room."""
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
        """Return what its copies leave of tiers, by places."""
        tiers = tiers_of(self.trace.graph)
        rooms = Rooms(tiers, len(self.trace.entries) + 1)
        for value, life in self._lives.items():
            rooms.take(life, self.leaves[self._copies[value]].tier or tiers[0].name)
        return rooms

    def leave(self, gap: Gap, rooms: Rooms, *, take: bool = False) -> StartSwapOut:
        """Return how a value leaves in a gap, which may be another one.

        Parameters
        ----------
        gap : Gap
            A gap of the trace.
        rooms : Rooms
            What is left of tiers.
        take : bool, default False
            Whether the copy takes its room.

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
        """Return whether a copy out begins a gap.

        Parameters
        ----------
        gap : Gap
            One of its gaps.

        Returns
        -------
        bool
            False for a later gap of a value.
        """
        return self._copies[gap.value] == gap

    def is_only(self, gap: Gap) -> bool:
        """Return whether its value has no other gap.

        Parameters
        ----------
        gap : Gap
            One of its gaps.

        Returns
        -------
        bool
            Whether there is one gap.
        """
        return self._copies[gap.value] == self._last[gap.value]

    def begin(self, gap: Gap) -> int:
        """Return the place that a copy out starts before: of a read, or behind it.

        Parameters
        ----------
        gap : Gap
            One of its gaps.

        Returns
        -------
        int
            The place.
        """
        return gap.after + (not self.is_beside(gap))

    def is_beside(self, gap: Gap) -> bool:
        """Return whether a swap-out starts with the last read, not after it.

        Parameters
        ----------
        gap : Gap
            One of its gaps.

        Returns
        -------
        bool
            Whether it does.
        """
        return self._beside and self.trace.is_read(gap)

    @cached_property
    def lowest(self) -> list[int]:
        """The bytes in use if each copy out is waited for, and none in is early."""
        return self.trace.loads(self._scratch, self.gaps, self._copies.values())

    def on_time(self, goal: int, held: Sequence[int]) -> dict[Gap, int]:
        """Tell before which place each copy in starts.

        That is the last from which it ends before its access, one after another on
        their lane, but none from which on a goal in bytes would not hold.

        Parameters
        ----------
        goal : int
            The most bytes in use.
        held : sequence of int
            Bytes in use if all come back when they are needed.

        Returns
        -------
        dict of Gap to int
            Places.
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
                if loads[place] + size > goal:  # of the place before
                    break
                place -= 1
            for each in range(place, gap.back):
                loads[each + 1] += size
            result[gap] = place
        return result

    def fastest(self, goal: int, is_over: Callable[[], bool]) -> Walked:
        """Walk within a goal, with copies in as late as they are in time.

        Parameters
        ----------
        goal : int
            The most bytes in use.
        is_over : callable
            Called without arguments; returns whether to take the best so far.

        Returns
        -------
        Walked
            The fastest walk.
        """
        best = self.walk(goal)
        for _ in range(_WALKS):
            if not best.stalls or is_over():
                break
            found = self.walk(goal, self.on_time(goal, best.loads))
            if found.seconds >= best.seconds:
                break
            best = found
        return best

    def walk(self, goal: int, arrives: Mapping[Gap, int] | None = None) -> Walked:
        """List what happens within a goal, which holds if `lowest` is within it.

        Parameters
        ----------
        goal : int
            The most bytes in use.
        arrives : mapping of Gap to int, optional
            Before which place copies in start. By default they start when they are
            needed.

        Returns
        -------
        Walked
            What happens, and when.
        """
        walk = _Walk(self, goal, arrives or {})
        return walk.run(self._runs, self._seconds)


class _Pending(NamedTuple):
    """A copy out, whose bytes have not ended."""

    gap: Gap
    end: float
    sure: float  # when it has ended at half the bandwidth


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
        # By tier, a lane out on which each copy has its slack.
        self.slow: dict[str | None, float] = defaultdict(float)
        self.pending: list[_Pending] = []  # by their ends
        self.held = 0  # the bytes of these
        self.begun: dict[Gap, int] = {}  # copies out -> their events
        self.coming: dict[int, tuple[Gap, float]] = {}
        self.leaves: dict[int, list[Gap]] = defaultdict(list)
        self.beside: dict[int, list[Gap]] = defaultdict(list)  # what is read meanwhile
        self.returns: dict[int, list[Gap]] = defaultdict(list)
        for gap in swaps.gaps:
            if swaps.is_copied(gap):
                rows = self.beside if swaps.is_beside(gap) else self.leaves
                rows[swaps.begin(gap)].append(gap)
        for gap in sorted(swaps.gaps, key=lambda gap: gap.back):  # as they are needed
            self.returns[arrives.get(gap, gap.back)].append(gap)

    def run(self, runs: Sequence[Run], seconds: Sequence[float]) -> Walked:
        """Run it all."""
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
        """End copies out that have ended, or whose bytes a goal needs."""
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
        coming = 0  # those behind the last that has ended
        for each in reversed(self.pending):
            if each.end <= self.clock.now:
                break
            coming += self.swaps.trace.size(each.gap)
        self.loads.append(lowest + coming)

    def end(self, number: int) -> None:
        """End a copy out; the first of them ends earliest."""
        gap, end, _ = self.pending.pop(number)
        self.wait(gap, end)
        self.events.append(EndSwapOut(self.swaps.trace.tensor(gap)))
        self.held -= self.swaps.trace.size(gap)

    def stay(self, gap: Gap) -> None:
        """Undo a copy out that is on its way when it is to be back."""
        only = self.pending and self.swaps.is_only(gap)
        if only and any(each.gap == gap for each in self.pending):
            self.events[self.begun[gap]] = None
            self.pending = [each for each in self.pending if each.gap != gap]
            self.held -= self.swaps.trace.size(gap)
            del self.begun[gap]

    def come(self, gap: Gap) -> None:
        """Start a copy in, of what has left."""
        if self.swaps.is_copied(gap) and gap not in self.begun:
            return
        while any(each.gap == gap for each in self.pending):
            self.end(0)
        tier = self.swaps.leaves[gap].tier
        end = self.clock.swap_in(self.swaps.swap_in_seconds[gap], tier)
        self.coming[gap.value] = gap, end
        self.events.append(StartSwapIn(self.swaps.trace.tensor(gap)))

    def wait(self, gap: Gap, end: float) -> None:
        """Have ops wait for a copy."""
        if waited := self.clock.wait(end):
            self.stalls[gap] += waited
