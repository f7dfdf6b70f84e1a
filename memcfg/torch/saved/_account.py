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
    """Bytes charged to an account until this object is garbage-collected.

    It may be collected in any thread, while any lock is held; the account learns of it
    when it is next settled.
    """

    __slots__ = ("__weakref__", "kind", "nbytes")

    def __init__(self, kind: str, nbytes: int) -> None:
        self.kind = kind
        self.nbytes = nbytes


class Account:
    """Counts bytes by kind; callers hold the lock of its owner.

    Invariant: `total` is the sum of all charges that are alive, plus those that died
    since it was last settled, and never exceeds the limit. Charges leave `beside` bytes
    of it to others. `trim`, if set, is called
    with the free bytes that codes may keep next to a charge of another kind.

    Python handles signals after calls, so numbers that belong together change without a
    call between them, and a charge ends without running any Python.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.beside = 0
        self.total = self.peak = self.code_peak = 0  # bytes
        self.by_kind = dict.fromkeys(KINDS, 0)
        self._live: dict[ref[Charge], tuple[str, int]] = {}
        self._gone: deque[ref[Charge]] = deque()
        self.trim: Callable[[int], int] | None = None

    def settle(self) -> int:
        """Uncharge what was garbage-collected, and return the bytes still charged."""
        gone, live = self._gone, self._live
        while gone:
            weak = gone[0]
            charge = live.get(weak)
            if charge is not None:
                kind, nbytes = charge
                del live[weak]
                self.by_kind[kind] -= nbytes
                self.total -= nbytes
            gone.popleft()
        return self.total

    def room(self) -> int:
        """Return the bytes below the limit."""
        return self.limit - self.beside - self.settle()

    def charge(self, kind: str, nbytes: int) -> Charge | None:
        """Charge bytes, or return None and change nothing if they exceed the limit."""
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
