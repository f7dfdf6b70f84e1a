"""The memory that the C library's allocator holds in addition to the pools.

Owns a call of glibc's `malloc_trim(3)`.
"""

from __future__ import annotations

import ctypes

__all__ = ["trim_heap"]

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it


def trim_heap() -> None:
    """Return the free pages of the process's heap to the system.

    Planning and compiling leave 10 to 20 MiB free in the heap, which malloc would keep
    while steps run.
    """
    if _trim is not None:
        _trim(ctypes.c_size_t(0))
