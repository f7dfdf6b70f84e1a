"""The judge's arena: which rooms are in use, and which of them share bytes.

Owns the search for overlaps. Refuses, like the rest of the judge, everything of the
planners.

How many rooms share a byte with a new one is counted without looking at them: all, but
for those that end before it starts, and those that start behind its end. They are
searched only if there are any.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
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
        self._rooms: list[Room] = []
        self._ends: list[int] = []

    def clash(self, room: Room) -> tuple[Room, int] | None:
        """Find the first room that shares a byte with a new one, and how many do."""
        if room.end <= room.start:
            return None
        begun = bisect_left(self._rooms, (room.end,))
        count = begun - bisect_right(self._ends, room.start)
        if not count:
            return None
        return next(each for each in self._rooms if each.end > room.start), count

    def add(self, room: Room) -> None:
        if room.end > room.start:
            insort(self._rooms, room)
            insort(self._ends, room.end)

    def remove(self, room: Room) -> None:
        if room.end > room.start:
            del self._rooms[bisect_left(self._rooms, room)]
            del self._ends[bisect_left(self._ends, room.end)]
