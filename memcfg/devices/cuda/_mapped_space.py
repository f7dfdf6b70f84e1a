"""A file that tensors are swapped to, as pages of memory that the driver copies."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np


class MappedSpace:
    """Bytes of a file without a name, mapped; OSError if the disk is full."""

    def __init__(self, folder: str, nbytes: int) -> None:
        self.nbytes = nbytes
        with tempfile.TemporaryFile(dir=folder) as file:
            # All blocks now: a write to a page without one would end the process.
            os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
            self._pages = mmap.mmap(file.fileno(), max(nbytes, 1))

    @property
    def address(self) -> int:
        """Where the bytes are mapped."""
        cells = np.frombuffer(self._pages, np.uint8)
        address: int = cells.__array_interface__["data"][0]
        return address
