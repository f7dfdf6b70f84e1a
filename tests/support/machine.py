"""What `memcfg._core` counts and codes, for tests of the rooms above it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from memcfg._core import (
    Counter,
    Kernel,
    blocks_of,
    codec_bounds,
    decode_bytes,
    encode_bytes,
    engine,
    get_host_limits,
    get_num_threads,
    live_arenas,
    live_resources,
    lossless_codecs,
    resident_bytes,
    set_host_limits,
    set_num_threads,
    tracked_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Counter",
    "Kernel",
    "blocks_of",
    "codec_bounds",
    "decode_bytes",
    "encode_bytes",
    "engine",
    "get_host_limits",
    "get_num_threads",
    "live_arenas",
    "live_resources",
    "lossless_codecs",
    "resident_bytes",
    "set_host_limits",
    "threads",
    "tracked_bytes",
]


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Have kernels run on so many threads."""
    before = set_num_threads(number)
    try:
        yield
    finally:
        set_num_threads(before)
