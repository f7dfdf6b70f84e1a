"""A file that takes saved tensors, and copies on lanes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from memcfg._core import Lane, ScratchFile, Transfer
from memcfg.torch.spill._spill_space import Extent, SpillSpace
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from memcfg.torch.saved._codes import Bytes


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


class SpillFile(SpillSpace):
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
        super().__init__(nbytes)
        self.file = ScratchFile(folder, nbytes)
        self.lane_in, self._lane_out = Lane(), Lane()

    def write(self, pieces: list[Bytes]) -> Extent | None:
        """Write bytes behind one another, and wait for it; None if the file is full."""
        extent = self.take(sum(piece.nbytes for piece in pieces))
        if extent is None:
            return None
        at, transfers = extent.offset, []
        for piece in pieces:
            transfers.append(Transfer.write(self.file, at, piece.data, self._lane_out))
            at += piece.nbytes
        for transfer in transfers:
            transfer.wait()
        return extent

    def read(self, extent: Extent, target: Bytes) -> Transfer:
        """Begin to read from an extent; RuntimeError in the child of a fork."""
        self.check_process()
        return Transfer.read(self.file, extent.offset, target.data, self.lane_in)
