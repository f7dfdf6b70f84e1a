"""The numbers of a pool, as a value.

Owns the class that `engine` fills in; computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolStats"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool holds, in bytes, all of one moment.

    ``requested_bytes <= current_bytes <= reserved_bytes``, and without a reset of the
    peak ``current_bytes <= peak_bytes <= limit_bytes``.

    Parameters
    ----------
    current_bytes : int
        Bytes in use, each request rounded up to 64: what the limit is on.
    peak_bytes : int
        The highest `current_bytes` since the last `Pool.reset_peak`.
    requested_bytes : int
        Bytes in use as they were asked for, not rounded.
    reserved_bytes : int
        Bytes taken from the system: `current_bytes`, arenas rounded up to a page.
    largest_free_bytes : int or None
        The largest request that fits; None when there is no limit.
    allocation_count : int
        Requests granted since the pool was made, growths of arenas included.
    limit_bytes : int or None
        The limit; None when there is none.
    """

    current_bytes: int
    peak_bytes: int
    requested_bytes: int
    reserved_bytes: int
    largest_free_bytes: int | None
    allocation_count: int
    limit_bytes: int | None
