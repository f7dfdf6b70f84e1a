"""Estimated stalls of the chosen copies, before a schedule exists."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple


class RoundTrip(NamedTuple):
    """A value's copies out and in, on the clock of a schedule without waits."""

    need: float  # time of the next access
    ready: float  # time at which the copy out may start
    out: float  # seconds of the copy out; 0 if the tier has a copy already
    back: float  # seconds of the copy in
    tier: str = ""


class Lanes:
    """The chosen copies, in sequence on each lane (tier and direction).

    A value that is copied out before the busiest time is not copied in before it.
    """

    def __init__(self, busiest: float) -> None:
        self._busiest = busiest
        self._copies: dict[str, list[RoundTrip]] = {}  # by tier
        self._stalls: dict[str, float] = {}

    @property
    def stall(self) -> float:
        """Seconds that ops wait for the chosen copies."""
        return max(self._stalls.values(), default=0.0)

    def more(self, copy: RoundTrip) -> float:
        """Return the additional seconds that ops would wait with another copy."""
        result = [*self._copies.get(copy.tier, ())]
        insort(result, copy)
        return max(self._stall(result) - self.stall, 0.0)

    def add(self, copy: RoundTrip) -> None:
        """Add a copy to the chosen ones."""
        copies = self._copies.setdefault(copy.tier, [])
        insort(copies, copy)
        self._stalls[copy.tier] = self._stall(copies)

    def _stall(self, copies: list[RoundTrip]) -> float:
        ends = [copy.ready for copy in copies]
        free = 0.0
        for number in sorted(range(len(copies)), key=ends.__getitem__):
            if copies[number].out:
                free = ends[number] = max(free, ends[number]) + copies[number].out
        free = stall = 0.0
        for (need, ready, _, back, _), end in zip(copies, ends, strict=True):
            begin = end if end > free else free  # copies in run in the order of need
            if ready <= self._busiest < need and begin < self._busiest:
                begin = self._busiest
            free = begin + back
            if free - need > stall:
                stall = free - need
        return stall
