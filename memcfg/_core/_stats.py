"""The numbers of resources, as values.

Owns the classes that `engine` fills in; computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolStats", "RegionStats"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a resource holds, in bytes; a pool's numbers are all of one moment.

    ``requested_bytes <= current_bytes <= peak_bytes``, ``current_bytes <=
    limit_bytes``, and a pool's ``reserved_bytes`` exceeds its limit by a page at most.

    Parameters
    ----------
    current_bytes : int
        Bytes in use, each request rounded up to 64: what the limit is on.
    peak_bytes : int
        The highest `current_bytes` since the last `reset_peak`.
    requested_bytes : int
        Bytes in use as they were asked for, not rounded.
    reserved_bytes : int
        Bytes of memory taken from the system or the resource below.
    peak_reserved_bytes : int
        The highest `reserved_bytes` since the last `reset_peak`.
    address_bytes : int
        Bytes of addresses taken; they cost no memory.
    largest_free_bytes : int or None
        The largest request that is sure to succeed now; None where nothing bounds
        it.
    allocation_count : int
        Allocations since the resource was made, growths of arenas included.
    deallocation_count : int
        Blocks given back since then.
    metadata_bytes : int
        Bytes of the resource's own metadata; they are in none of the other numbers.
    limit_bytes : int or None
        The limit; None when there is none.
    fragmentation : float
        The share of the reserved bytes in no block that is not in the largest free
        chunk, from 0 (one chunk, or none) to 1.
    """

    current_bytes: int
    peak_bytes: int
    requested_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    address_bytes: int
    largest_free_bytes: int | None
    allocation_count: int
    deallocation_count: int
    metadata_bytes: int
    limit_bytes: int | None
    fragmentation: float


@dataclass(frozen=True, slots=True)
class RegionStats:
    """What went through a region of a program, or under a tag.

    Parameters
    ----------
    current_bytes : int
        Bytes taken and not given back, each block rounded up to 64. Below zero where
        a region gave back more than it took.
    peak_bytes : int
        The highest `current_bytes`, at least 0.
    total_bytes : int
        All bytes taken.
    current_count : int
        Blocks taken and not given back.
    peak_count : int
        The highest `current_count`, at least 0.
    total_count : int
        All blocks taken.
    """

    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int
