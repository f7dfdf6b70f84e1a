"""The judge's arena: which rooms are in use, and which of them share bytes.

Owns the search for overlaps. Refuses, like the rest of the judge, everything of the
planners.

Rooms stand in the order of their bytes. As long as no two overlap, a new one can only
overlap its neighbours; from the first overlap on it is compared with every room, so
that each is found.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

__all__ = ["Room", "Rooms"]


class Room(NamedTuple):
    """Bytes [start, end) of the arena, in use."""

    start: int
    end: int
    label: str


class Rooms:
    """The rooms in use that have bytes; those without overlap nothing."""

    def __init__(self) -> None:
        self.ordered: list[Room] = []
        self.disjoint = True

    def clashes(self, room: Room) -> list[Room]:
        """List the rooms that share a byte with a new one, before it is added."""
        candidates = self._neighbours(room) if self.disjoint else self.ordered
        found = [
            other
            for other in candidates
            if max(room.start, other.start) < min(room.end, other.end)
        ]
        self.disjoint = self.disjoint and not found
        return found

    def _neighbours(self, room: Room) -> list[Room]:
        """List the room before and those that start within."""
        first = max(0, bisect_left(self.ordered, room) - 1)
        last = bisect_left(self.ordered, (room.end,), lo=first)
        return self.ordered[first:last]

    def add(self, room: Room) -> None:
        if room.end > room.start:
            insort(self.ordered, room)

    def remove(self, room: Room) -> None:
        if room.end > room.start:
            del self.ordered[bisect_left(self.ordered, room)]
