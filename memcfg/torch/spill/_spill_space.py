"""Bytes that take saved tensors: which of them are free."""

from __future__ import annotations

from collections import deque
from weakref import ref

from memcfg._core import fork_count
from memcfg.units import align_up

_PAGE = 4096  # bytes: what is written begins on a page


class Extent:
    """Bytes of a space, which it has back when this is garbage-collected.

    As an account has the bytes of a `Charge`.
    """

    __slots__ = ("__weakref__", "nbytes", "offset", "space")

    def __init__(self, space: SpillSpace, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.space = space

    @property
    def is_ours(self) -> bool:
        """Whether this process has written it."""
        return self.space.is_ours


class SpillSpace:
    """Bytes elsewhere, given out by first fit.

    Parameters
    ----------
    nbytes : int
        How many.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._live: dict[ref[Extent], tuple[int, int]] = {}
        self._gone: deque[ref[Extent]] = deque()
        self._forks = fork_count()
        self._free = {0: nbytes}  # bytes by offset; no two of them touch
        self.in_use = self.peak = 0  # bytes

    @property
    def is_ours(self) -> bool:
        """Whether this process has made it, not the parent that it was forked from."""
        return self._forks == fork_count()

    def check_process(self) -> None:
        """Raise RuntimeError in the child of a fork: its parent writes there."""
        if not self.is_ours:
            raise RuntimeError(
                "this process was forked after tensors were spilled, which only its "
                "parent can read: run forward again"
            )

    def take(self, nbytes: int) -> Extent | None:
        """Take the first free bytes that are enough; None if there are none."""
        nbytes = align_up(nbytes, _PAGE)
        self._settle()
        for offset in sorted(self._free):
            size = self._free[offset]
            if size < nbytes:
                continue
            made = Extent(self, offset, nbytes)
            weak = ref(made, self._gone.append)
            del self._free[offset]  # no call from here on: see `Account`
            if size > nbytes:
                self._free[offset + nbytes] = size - nbytes
            self._live[weak] = offset, nbytes
            self.in_use += nbytes
            self.peak = max(self.peak, self.in_use)
            return made
        return None

    def _settle(self) -> None:
        """Take back what is no longer used, and join what touches."""
        if not self._gone:
            return
        gone, live = self._gone, self._live
        while gone:
            weak = gone[0]
            found = live.get(weak)
            if found is not None:
                offset, nbytes = found
                del live[weak]
                self._free[offset] = nbytes
                self.in_use -= nbytes
            gone.popleft()
        joined: dict[int, int] = {}
        last = -1
        for offset in sorted(self._free):
            if last >= 0 and last + joined[last] == offset:
                joined[last] += self._free[offset]
            else:
                last = offset
                joined[last] = self._free[offset]
        self._free = joined
