"""Arrays at chosen addresses, and arrays that nobody can write."""

from __future__ import annotations

import numpy as np

LINE = 64  # bytes; what kernels want their operands aligned to


def placed(array, offset=0):
    """Return a copy whose address is `offset` beyond a multiple of 64."""
    room = np.empty(array.nbytes + 2 * LINE, np.uint8)
    begin = -room.__array_interface__["data"][0] % LINE + offset
    copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert copy.__array_interface__["data"][0] % LINE == offset % LINE
    return copy


def locked(array, path):
    """Return a copy in pages that end the process when they are written.

    Their file has no name any more, or its rows would be read without the pages.
    """
    array.tofile(path)
    pages = np.memmap(path, array.dtype, "r", shape=array.shape)
    path.unlink()
    return pages
