"""What the C library's allocator holds beside the pools.

Owns one call of glibc's, `malloc_trim(3)`.
"""

from __future__ import annotations

import ctypes

__all__ = ["trim_heap"]

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it


def trim_heap() -> None:
    """Return the free pages of the process' heap to the system.

    Planning and compiling leave 10 to 20 MiB behind, which malloc would keep for the
    next time while steps run.
    """
    if _trim is not None:
        _trim(ctypes.c_size_t(0))
