"""Estimated stalls of the chosen copies, before a schedule exists."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple


class RoundTrip(NamedTuple):
    """A value's copies out and in, by seconds of a schedule in which nothing waits."""

    need: float  # when it is accessed again
    ready: float  # when the copy out may start
    out: float  # how long it takes; 0: there is a copy already
    back: float
    tier: str = ""


class Lanes:
    """Copies that have been chosen, one after another on each tier and in each way.

    What leaves before the busiest moment does not come back before it.
    """

    def __init__(self, busiest: float) -> None:
        self._busiest = busiest
        self._copies: dict[str, list[RoundTrip]] = {}  # by tier
        self._stalls: dict[str, float] = {}

    @property
    def stall(self) -> float:
        """Seconds that ops wait for all of them."""
        return max(self._stalls.values(), default=0.0)

    def more(self, copy: RoundTrip) -> float:
        """Return the additional seconds that ops would wait with another copy."""
        result = [*self._copies.get(copy.tier, ())]
        insort(result, copy)
        return max(self._stall(result) - self.stall, 0.0)

    def add(self, copy: RoundTrip) -> None:
        """Add a copy to the chosen ones."""
        found = self._copies.setdefault(copy.tier, [])
        insort(found, copy)
        self._stalls[copy.tier] = self._stall(found)

    def _stall(self, copies: list[RoundTrip]) -> float:
        ends = [copy.ready for copy in copies]
        free = 0.0
        for number in sorted(range(len(copies)), key=ends.__getitem__):
            if copies[number].out:
                free = ends[number] = max(free, ends[number]) + copies[number].out
        free = stall = 0.0
        for (need, ready, _, back, _), end in zip(copies, ends, strict=True):
            begin = end if end > free else free  # by when they are needed
            if ready <= self._busiest < need and begin < self._busiest:
                begin = self._busiest
            free = begin + back
            if free - need > stall:
                stall = free - need
        return stall
