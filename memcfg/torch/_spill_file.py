"""A file that takes saved tensors: which of its bytes are free, and copies on lanes."""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING
from weakref import ref

from memcfg._core import Lane, ScratchFile, Transfer, fork_count
from memcfg.units import align_up, format_bytes

if TYPE_CHECKING:
    from memcfg.torch._codes import Bytes

_PAGE = 4096  # bytes: what is written begins on a page


class Extent:
    """Bytes of a file, which it has back when this is garbage-collected.

    As an account has the bytes of a `Charge`.
    """

    __slots__ = ("__weakref__", "_file", "nbytes", "offset")

    def __init__(self, file: SpillFile, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self._file = file

    @property
    def is_ours(self) -> bool:
        """Whether this process has written it."""
        return self._file.is_ours

    def read(self, target: Bytes) -> Transfer:
        """Begin to read from its first bytes; RuntimeError in the child of a fork."""
        self._file.check_process()
        return Transfer.read(
            self._file.file, self.offset, target.data, self._file.lane_in
        )


def check_disk(folder: str, nbytes: int, what: str) -> None:
    """Raise OSError for a file that the disk has no room for, before it is filled."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if nbytes > free:
        raise OSError(
            errno.ENOSPC,
            f"a file of {format_bytes(nbytes, exact=True)} for {what} cannot be "
            f"made, the disk has {format_bytes(free)}: lower spill_limit",
            folder,
        )


class SpillFile:
    """A file without a name, on disk that is taken when this is made.

    Parameters
    ----------
    folder : str
        Where it lies.
    nbytes : int
        Its size in bytes.

    Raises
    ------
    OSError
        If the disk is full, or no file can be made in the folder.
    """

    def __init__(self, folder: str, nbytes: int) -> None:
        check_disk(folder, nbytes, "saved tensors")
        self.file = ScratchFile(folder, nbytes)
        self.lane_in, self._lane_out = Lane(), Lane()
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
        """Raise RuntimeError in the child of a fork: its parent writes to the file."""
        if not self.is_ours:
            raise RuntimeError(
                "this process was forked after tensors were spilled, which only its "
                "parent can read: run forward again"
            )

    def write(self, pieces: list[Bytes]) -> Extent | None:
        """Write bytes behind one another, and wait for it; None if the file is full."""
        extent = self._take(align_up(sum(piece.nbytes for piece in pieces), _PAGE))
        if extent is None:
            return None
        at, transfers = extent.offset, []
        for piece in pieces:
            transfers.append(Transfer.write(self.file, at, piece.data, self._lane_out))
            at += piece.nbytes
        for transfer in transfers:
            transfer.wait()
        return extent

    def _take(self, nbytes: int) -> Extent | None:
        """Take the first free bytes that are enough."""
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
