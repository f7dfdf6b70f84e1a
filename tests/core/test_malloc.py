"""What malloc holds and nobody uses goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from memcfg._core import trim_heap

MIB = 1 << 20


def resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="needs glibc",
)
def test_free_pages_below_what_is_used_are_returned():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(64_000) for _ in range(1000)]  # none has pages of its own
    for block in blocks:
        ctypes.memset(block, 1, 64_000)
    for block in blocks[:-1]:  # the last one holds the heap's end
        libc.free(block)
    before = resident()
    trim_heap()
    assert before - resident() > 40 * MIB
    libc.free(blocks[-1])
