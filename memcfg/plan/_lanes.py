"""What copies on two lanes cost that have been chosen, before there is a schedule."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple


class Copy(NamedTuple):
    """A value's way out and back, in seconds of a schedule in which nothing waits."""

    need: float  # when it is accessed again
    ready: float  # when the copy out may start
    out: float  # how long it takes; 0: there is a copy already
    back: float


class Lanes:
    """Copies that have been chosen, one after another in each direction.

    What leaves before the busiest moment does not come back before it.
    """

    def __init__(self, busiest: float) -> None:
        self._busiest = busiest
        self._copies: list[Copy] = []
        self.stall = 0.0  # seconds that ops wait for all of them

    def more(self, copy: Copy) -> float:
        """Return for how many seconds more ops wait with another one."""
        found = [*self._copies]
        insort(found, copy)
        return self._stall(found) - self.stall

    def add(self, copy: Copy) -> None:
        """Choose it."""
        insort(self._copies, copy)
        self.stall = self._stall(self._copies)

    def _stall(self, copies: list[Copy]) -> float:
        ends: dict[Copy, float] = {}
        free = 0.0
        for copy in sorted(copies, key=lambda copy: copy.ready):
            end = copy.ready
            if copy.out:
                free = end = max(free, copy.ready) + copy.out
            ends[copy] = end
        free = stall = 0.0
        for copy in copies:  # by when they are needed
            begin = max(free, ends[copy])
            if copy.ready <= self._busiest < copy.need:
                begin = max(begin, self._busiest)
            free = begin + copy.back
            stall = max(stall, free - copy.need)
        return stall
