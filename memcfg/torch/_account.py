"""Bytes that saved tensors hold, under a limit that is never exceeded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT, ENCODED, AHEAD = "kept as they are", "encoded", "decoded or read ahead"
KINDS = (KEPT, ENCODED, AHEAD)


class Charge:
    """Bytes of an account, which it has back when this is garbage-collected.

    That may be in any thread, while any lock is held: an account hears of it when it is
    next asked.
    """

    __slots__ = ("_freed", "kind", "nbytes")

    def __init__(self, freed: deque[tuple[str, int]], kind: str, nbytes: int) -> None:
        self.kind = kind
        self.nbytes = nbytes
        self._freed = freed

    def __del__(self) -> None:
        """Give the bytes back."""
        self._freed.append((self.kind, self.nbytes))


class Account:
    """Counts bytes by kind; whoever calls it holds its owner's lock.

    Invariant: `total` is the sum of all charges that live, or more by those that went
    since it was last settled, and never above the limit. `trim`, if there is one, is
    told how many free bytes codes may keep beside a charge that is not theirs.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = self.peak = self.code_peak = 0  # bytes
        self.by_kind = dict.fromkeys(KINDS, 0)
        self._freed: deque[tuple[str, int]] = deque()
        self.trim: Callable[[int], int] | None = None

    def settle(self) -> int:
        """Take back what is no longer charged; return the bytes that are."""
        freed = self._freed
        while freed:
            kind, nbytes = freed.popleft()
            self.by_kind[kind] -= nbytes
            self.total -= nbytes
        return self.total

    def room(self) -> int:
        """Return the bytes below the limit."""
        return self.limit - self.settle()

    def charge(self, kind: str, nbytes: int) -> Charge | None:
        """Charge bytes; None, and nothing has changed, if that exceeds the limit."""
        room = self.room()
        if nbytes > room:
            return None
        if self.trim is not None and kind != ENCODED:
            self.trim(room - nbytes)
        made = Charge(self._freed, kind, nbytes)
        self.by_kind[kind] += nbytes
        self.total += nbytes
        self.peak = max(self.peak, self.total)
        self.code_peak = max(self.code_peak, self.by_kind[ENCODED])
        return made
