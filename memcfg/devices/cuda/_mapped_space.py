"""A file tier, mapped into memory for the driver's copies."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np


class MappedSpace:
    """A mapped temporary file; OSError if the disk is full."""

    def __init__(self, folder: str, nbytes: int) -> None:
        self.nbytes = nbytes
        with tempfile.TemporaryFile(dir=folder) as file:
            # Allocate all blocks now: if the disk is full later, a write to a page
            # raises SIGBUS.
            os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
            self._pages = mmap.mmap(file.fileno(), max(nbytes, 1))

    @property
    def address(self) -> int:
        """The address of the map."""
        cells = np.frombuffer(self._pages, np.uint8)
        address: int = cells.__array_interface__["data"][0]
        return address
