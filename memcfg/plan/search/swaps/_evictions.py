"""Choice of tensors to evict between accesses, by swapping or recomputation.

The choices are those of Capuchin: Peng et al., ASPLOS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

from memcfg._cached import cached_property
from memcfg.plan.search.swaps._accesses import START, Trace
from memcfg.plan.search.swaps._event_times import swap_out_seconds
from memcfg.plan.search.swaps._lanes import Lanes, RoundTrip
from memcfg.plan.search.swaps._swap_events import Run
from memcfg.plan.search.swaps._walk import Swaps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.plan.format._tier_choice import Rooms
    from memcfg.plan.search.swaps._accesses import Entry, Gap
    from memcfg.plan.search.swaps._replays import Drop, Lineage, Replays
    from memcfg.plan.search.swaps._walk import Walked

_ROUNDS = 12  # rounds of choices, each based on the schedule of the earlier ones
_MENDS = 3  # corrections of choices by measured stalls
_LONGEST = 4  # max. computations in a schedule, as a multiple of the ops


@dataclass
class Eviction:
    """A tensor that may be evicted between two accesses.

    Attributes
    ----------
    free_time : float
        Seconds between the end of a copy out and the start of a copy in; the longer,
        the better they are hidden.
    replay_seconds : float
        Time of recomputation; infinite if it is impossible.
    sources : set of int
        The resident tensors from which recomputation starts.
    """

    tensor: int
    nbytes: int
    free_time: float
    replay_seconds: float
    sources: set[int]

    @property
    def saving(self) -> float:
        """Bytes per second of recomputation, the paper's MSPS."""
        if not self.replay_seconds:
            return float("inf")
        return self.nbytes / self.replay_seconds


def recomputed(chosen: Eviction, others: Iterable[Eviction]) -> None:
    """Update the other costs after one tensor is chosen for recomputation.

    Tensors with it as a source recompute it as well, from its sources.
    """
    for other in others:
        if chosen.tensor in other.sources:
            other.sources.remove(chosen.tensor)
            other.sources |= chosen.sources
            other.replay_seconds += chosen.replay_seconds


class Evictions:
    """A schedule in which some tensors are swapped and some recomputed."""

    def __init__(
        self,
        replays: Replays,
        early: Mapping[int, float],
        swapped: frozenset[Drop],
        dropped: frozenset[Drop],
        entries: Sequence[Entry],
    ) -> None:
        graph = replays.graph
        self.replays = replays
        self.early = early  # tensor -> seconds by which its copies in start earlier
        self.swapped = swapped
        self.dropped = dropped
        self.entries = entries
        self.trace = Trace(graph, self.entries)
        ops = [op for _, op in entries]
        self.gaps = self.trace.gaps()
        self.swaps = Swaps(
            self.trace,
            [*map(Run, ops)],
            [graph.ops[op].seconds for op in ops],
            [graph.aligned_scratch[op] for op in ops],
            [gap for gap in self.gaps if self.key(gap) in swapped],
            longer=early,
        )
        self._first = {gap.value: gap for gap in reversed(self.swaps.gaps)}

    def key(self, gap: Gap) -> Drop:
        """Return a key of a gap that is valid in all schedules of the same order."""
        entry = START if gap.after < 0 else self.entries[gap.after]
        return self.trace.tensor(gap), entry

    @cached_property
    def loads(self) -> list[int]:
        """The bytes in use without early copies in."""
        return self.swaps.lowest

    @property
    def least(self) -> int:
        """The smallest goal that holds."""
        return max(self.loads)

    @cached_property
    def _rooms(self) -> Rooms:
        return self.swaps.rooms()

    def copy(
        self, gap: Gap, rooms: Rooms | None = None, *, take: bool = False
    ) -> RoundTrip:
        """Return the copies of a gap; the copy out takes 0 s if there is one already.

        `take` adds the copy to the bytes in use on its tier.
        """
        leave = self.swaps.leave(gap, rooms or self._rooms, take=take)
        seconds = swap_out_seconds(self.trace.graph, leave)
        starts = self.swaps.starts
        later = self.early.get(self.trace.tensor(gap), 0.0)
        first = self._first.get(gap.value, gap)
        out = seconds if first >= gap else 0.0
        way = (out, seconds + later, leave.tier or "")
        return RoundTrip(starts[gap.back], starts[gap.after + 1], *way)

    def lanes(self) -> Lanes:
        """Return the lanes with the copies chosen so far."""
        busiest = max(range(len(self.entries)), key=lambda n: self.loads[n + 1])
        lanes = Lanes(self.swaps.starts[busiest])
        for gap in self.swaps.gaps:
            lanes.add(self.copy(gap))
        return lanes

    def candidates(self, goal: int) -> dict[Gap, Eviction]:
        """Map gaps that may be evicted, and where the load exceeds a goal, to costs."""
        over = [0, *accumulate(load > goal for load in self.loads[1:])]
        gaps = [
            gap
            for gap in self.gaps
            if self.key(gap) not in self.swapped
            and over[gap.back] > over[gap.after + 1]
        ]
        lineages = self._lineages(gaps)
        result = {}
        for gap in gaps:
            tensor, _ = self.key(gap)
            copy = self.copy(gap)
            lineage = lineages.get((self.entries[gap.back].place, tensor))
            can = lineage is not None and self._is_later(gap)
            result[gap] = Eviction(
                tensor,
                self.trace.size(gap),
                copy.need - copy.back - (copy.ready + copy.out),
                lineage.seconds if lineage is not None and can else float("inf"),
                set(lineage.sources) if lineage is not None and can else set(),
            )
        return result

    def _is_later(self, gap: Gap) -> bool:
        """Return whether the gap ends at a later op of the order than it begins."""
        return gap.after < 0 or self.entries[gap.after].place < (
            self.entries[gap.back].place
        )

    def _lineages(self, gaps: Iterable[Gap]) -> dict[tuple[int, int], Lineage]:
        wanted: dict[int, list[int]] = {}
        for gap in gaps:
            row = wanted.setdefault(self.entries[gap.back].place, [])
            row.append(self.key(gap)[0])
        return self.replays.lineages(self.dropped, wanted)

    def swapping(self, keys: Iterable[Drop]) -> Evictions:
        """Return the schedule with more swaps."""
        swapped = self.swapped.union(keys)
        return Evictions(self.replays, self.early, swapped, self.dropped, self.entries)

    def dropping(self, keys: Iterable[Drop]) -> Evictions | None:
        """Return the schedule with more recomputation, or None if it is impossible.

        These tensors are not swapped any more.
        """
        more = frozenset(keys)
        dropped = self.dropped | more
        entries = self.replays.entries(dropped)
        if entries is None:
            return None
        return Evictions(
            self.replays, self.early, self.swapped - more, dropped, entries
        )

    # -- choices -----------------------------------------------------------------

    def lowered(self, goal: int, *, swaps_only: bool = False) -> Evictions:
        """Evict more until a goal holds, not counting the memory of recomputation."""
        choices = _Choices(self, goal)
        choices.swap_for_nothing(everything=swaps_only)
        choices.take_the_cheapest()
        result = self.swapping(choices.swapped)
        return result.dropping(choices.dropped) or result

    # -- schedules ---------------------------------------------------------------

    def walked(self, goal: int) -> Walked:
        """Time the schedule within a goal, with copies in as late as possible."""
        return self.swaps.fastest(goal, self.replays.is_over)

    def mended(self, goal: int) -> tuple[Evictions, Walked]:
        """Recompute tensors for which ops wait longer than recomputation takes."""
        best, walked = self, self.walked(goal)
        for _ in range(_MENDS):
            waits = {gap: s for gap, s in walked.stalls.items() if s}
            if self.replays.is_over():
                break
            lineages = best._lineages(waits)
            dearer = set()
            for gap, stall in waits.items():
                tensor, _ = key = best.key(gap)
                lineage = lineages.get((best.entries[gap.back].place, tensor))
                if lineage and lineage.seconds < stall and best._is_later(gap):
                    dearer.add(key)
            if not dearer:
                break
            other = best.dropping(dearer)
            other = other and other.within(goal)
            if other is None:
                break
            other_walked = other.walked(goal)
            if other_walked.seconds >= walked.seconds:
                break
            best, walked = other, other_walked
        return best, walked

    def within(self, goal: int) -> Evictions | None:
        """Evict until a goal holds; None if that is impossible or time is over."""
        result = self
        for number in range(_ROUNDS):
            if result.least <= goal:
                return result
            if self.replays.is_over():
                return None
            longest = len(result.entries) > _LONGEST * len(self.replays.order)
            other = result.lowered(goal, swaps_only=longest or number > _ROUNDS // 2)
            if (other.swapped, other.dropped) == (result.swapped, result.dropped):
                return None
            result = other
        return result if result.least <= goal else None

    @cached_property
    def everything(self) -> Evictions:
        """The schedule with the lowest load: swaps in all gaps."""
        return self.swapping(map(self.key, self.gaps))

    def lowest(self) -> Evictions:
        """Return a schedule with the load of `everything` and fewer swaps, if found."""
        goal, result = self.everything.least, self
        while result.least > goal:
            other = result.lowered(goal, swaps_only=True)
            if other.swapped == result.swapped or self.replays.is_over():
                return self.everything
            result = other
        return result


class _Choices:
    """The evictions of one round, based on the schedule before it."""

    def __init__(self, evictions: Evictions, goal: int) -> None:
        self.evictions = evictions
        self.goal = goal
        self.swapped: list[Drop] = []
        self.dropped: list[Drop] = []
        self._left = evictions.candidates(goal)
        self._loads = [*evictions.loads]
        self._lanes = evictions.lanes()
        self._rooms = evictions.swaps.rooms()
        self._is_over = evictions.replays.is_over

    def swap_for_nothing(self, *, everything: bool) -> None:
        """Swap values whose copies can be hidden, the longest free time first.

        `everything` swaps the others as well.
        """
        rows = sorted(self._left.items(), key=lambda row: -row[1].free_time)
        for gap, each in rows:
            if self._is_over():
                return
            if not self._helps(gap):
                del self._left[gap]
            elif everything or (each.free_time >= 0 and not self._more(gap)):
                self._swap(gap)

    def take_the_cheapest(self) -> None:
        """Swap or recompute the remaining values, most bytes per second first."""
        queue = [(-self._worth(gap), gap) for gap in self._left]
        heapify(queue)
        while queue and not self._is_over():
            worth, gap = heappop(queue)
            if not self._helps(gap):
                continue
            now = -self._worth(gap)
            if queue and now > queue[0][0] and now > worth:
                heappush(queue, (now, gap))  # its cost has increased
            elif self._left[gap].replay_seconds < self._cost(gap):
                self._drop(gap)
            else:
                self._swap(gap)

    def _swap(self, gap: Gap) -> None:
        self.swapped.append(self.evictions.key(gap))
        self._lanes.add(self.evictions.copy(gap, self._rooms, take=True))
        self._evict(gap)

    def _drop(self, gap: Gap) -> None:
        self.dropped.append(self.evictions.key(gap))
        chosen = self._left[gap]
        self._evict(gap)
        recomputed(chosen, self._left.values())

    def _evict(self, gap: Gap) -> None:
        del self._left[gap]
        for place in range(gap.after + 1, gap.back):
            self._loads[place + 1] -= self.evictions.trace.size(gap)

    def _helps(self, gap: Gap) -> bool:
        return max(self._loads[gap.inside]) > self.goal

    def _more(self, gap: Gap) -> float:
        return self._lanes.more(self.evictions.copy(gap, self._rooms))

    def _cost(self, gap: Gap) -> float:
        """Return the seconds that swapping adds; infinity if recomputing is faster."""
        each = self._left[gap]
        if each.replay_seconds < -each.free_time:
            return float("inf")
        return max(self._more(gap), -each.free_time)

    def _worth(self, gap: Gap) -> float:
        """Return the bytes per second of the cheaper of swapping and recomputation."""
        each = self._left[gap]
        cost = min(each.replay_seconds, self._cost(gap))
        return each.nbytes / cost if cost > 0 else float("inf")
