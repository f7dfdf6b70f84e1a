"""Bytes that saved tensors hold, under a limit that is never exceeded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT, ENCODED, AHEAD = "kept as they are", "encoded", "decoded or read ahead"
KINDS = (KEPT, ENCODED, AHEAD)


class Charge:
    """Bytes of an account, which it has back when this is garbage-collected.

    That may be in any thread, while any lock is held: an account hears of it when it is
    next asked.
    """

    __slots__ = ("__weakref__", "kind", "nbytes")

    def __init__(self, kind: str, nbytes: int) -> None:
        self.kind = kind
        self.nbytes = nbytes


class Account:
    """Counts bytes by kind; whoever calls it holds its owner's lock.

    Invariant: `total` is the sum of all charges that live, or more by those that went
    since it was last settled, and never above the limit. `trim`, if there is one, is
    told how many free bytes codes may keep beside a charge that is not theirs.

    Signals: Python handles them after calls, so numbers that belong together change
    without a call between them, and a charge goes without running any Python.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = self.peak = self.code_peak = 0  # bytes
        self.by_kind = dict.fromkeys(KINDS, 0)
        self._live: dict[ref[Charge], tuple[str, int]] = {}
        self._gone: deque[ref[Charge]] = deque()
        self.trim: Callable[[int], int] | None = None

    def settle(self) -> int:
        """Take back what is no longer charged; return the bytes that are."""
        gone, live = self._gone, self._live
        while gone:
            weak = gone[0]
            found = live.get(weak)
            if found is not None:
                kind, nbytes = found
                del live[weak]
                self.by_kind[kind] -= nbytes
                self.total -= nbytes
            gone.popleft()
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
        made = Charge(kind, nbytes)
        weak = ref(made, self._gone.append)
        self._live[weak] = kind, nbytes
        self.by_kind[kind] += nbytes
        self.total += nbytes
        self.peak = max(self.peak, self.total)
        self.code_peak = max(self.code_peak, self.by_kind[ENCODED])
        return made
