"""Evictions of tensors between accesses, by swapping or by computing again.

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

_ROUNDS = 12  # of choices, each by the schedule that those before it make
_MENDS = 3  # times that choices are corrected by what ops wait for
_LONGEST = 4  # times as many computations as ops


@dataclass
class Eviction:
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


def recomputed(chosen: Eviction, others: Iterable[Eviction]) -> None:
    """Correct the others' costs when one is chosen to be computed again.

    Who would begin from it begins from what it begins from, and computes it, too.
    """
    for other in others:
        if chosen.tensor in other.sources:
            other.sources.remove(chosen.tensor)
            other.sources |= chosen.sources
            other.replay_seconds += chosen.replay_seconds


class Evictions:
    """A schedule in which some tensors are swapped out, and some computed again."""

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
        self.early = early  # seconds by tensor
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
        """Name a gap in any schedule of the same order."""
        entry = START if gap.after < 0 else self.entries[gap.after]
        return self.trace.tensor(gap), entry

    @cached_property
    def loads(self) -> list[int]:
        """The bytes in use where nothing is there that need not be."""
        return self.swaps.lowest

    @property
    def least(self) -> int:
        """The least goal that holds."""
        return max(self.loads)

    @cached_property
    def _rooms(self) -> Rooms:
        return self.swaps.rooms()

    def copy(
        self, gap: Gap, rooms: Rooms | None = None, *, take: bool = False
    ) -> RoundTrip:
        """Return a gap's copies out and in; one out may be there already.

        It goes to the tier that has room, of which it may take it.
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
        """Return the lanes with what is swapped already."""
        busiest = max(range(len(self.entries)), key=lambda n: self.loads[n + 1])
        lanes = Lanes(self.swaps.starts[busiest])
        for gap in self.swaps.gaps:
            lanes.add(self.copy(gap))
        return lanes

    def candidates(self, goal: int) -> dict[Gap, Eviction]:
        """List what may be evicted and is there while a goal does not hold."""
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
        """Return whether a replay comes before another op than its reader."""
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
        """Swap more."""
        swapped = self.swapped.union(keys)
        return Evictions(self.replays, self.early, swapped, self.dropped, self.entries)

    def dropping(self, keys: Iterable[Drop]) -> Evictions | None:
        """Compute more again, of which none is swapped; None: that is impossible."""
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
        """Evict more, so that a goal holds if what replays hold is left out."""
        choices = _Choices(self, goal)
        choices.swap_for_nothing(everything=swaps_only)
        choices.take_the_cheapest()
        result = self.swapping(choices.swapped)
        return result.dropping(choices.dropped) or result

    # -- schedules ---------------------------------------------------------------

    def walked(self, goal: int) -> Walked:
        """Run it within a goal, with copies in as late as they are in time."""
        return self.swaps.fastest(goal, self.replays.is_over)

    def mended(self, goal: int) -> tuple[Evictions, Walked]:
        """Compute again what ops wait longer for than that takes."""
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
            found = other.walked(goal)
            if found.seconds >= walked.seconds:
                break
            best, walked = other, found
        return best, walked

    def within(self, goal: int) -> Evictions | None:
        """Evict until a goal holds; None: not enough may be, or it is over before."""
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
        """Swap between any two accesses: the least bytes in use that there are."""
        return self.swapping(map(self.key, self.gaps))

    def lowest(self) -> Evictions:
        """Swap as little as reaches that, or everything; that, too, if it is over."""
        goal, result = self.everything.least, self
        while result.least > goal:
            other = result.lowered(goal, swaps_only=True)
            if other.swapped == result.swapped or self.replays.is_over():
                return self.everything
            result = other
        return result


class _Choices:
    """What is evicted in one round, by a schedule in which it is not."""

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
        """Swap those that copies can be hidden of, the longest free time first."""
        rows = sorted(self._left.items(), key=lambda row: -row[1].free_time)
        for gap, each in rows:
            if self._is_over():
                return
            if not self._helps(gap):
                del self._left[gap]
            elif everything or (each.free_time >= 0 and not self._more(gap)):
                self._swap(gap)

    def take_the_cheapest(self) -> None:
        """Swap the rest or compute it again, most bytes for a second first."""
        queue = [(-self._worth(gap), gap) for gap in self._left]
        heapify(queue)
        while queue and not self._is_over():
            worth, gap = heappop(queue)
            if not self._helps(gap):
                continue
            now = -self._worth(gap)
            if queue and now > queue[0][0] and now > worth:
                heappush(queue, (now, gap))  # dearer than it was
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
        """Return the seconds that swapping adds, or more than computing again does."""
        each = self._left[gap]
        if each.replay_seconds < -each.free_time:
            return float("inf")
        return max(self._more(gap), -each.free_time)

    def _worth(self, gap: Gap) -> float:
        """Return bytes for a second of the cheaper way."""
        each = self._left[gap]
        cost = min(each.replay_seconds, self._cost(gap))
        return each.nbytes / cost if cost > 0 else float("inf")
