"""The statistics of resources, as values.

Owns the classes that `engine` fills in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from memcfg._html import report_of_fields

__all__ = ["PoolStats", "RegionStats"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a resource holds, in bytes; the numbers of a pool are of one moment.

    ``requested_bytes <= current_bytes <= peak_bytes``, ``current_bytes <=
    limit_bytes``, and a pool's ``reserved_bytes`` exceeds its limit by a page at most.

    Parameters
    ----------
    current_bytes : int
        Bytes in use, each request rounded up to 64; the limit applies to these.
    peak_bytes : int
        The highest `current_bytes` since the last `reset_peak`.
    requested_bytes : int
        Requested bytes in use, not rounded.
    reserved_bytes : int
        Bytes of memory taken from the system or the resource below.
    peak_reserved_bytes : int
        The highest `reserved_bytes` since the last `reset_peak`.
    address_bytes : int
        Bytes of addresses taken; they cost no memory.
    largest_free_bytes : int or None
        The largest request that is sure to succeed now; None if it is unbounded.
    allocation_count : int
        Allocations since the resource was made, including growths of arenas.
    deallocation_count : int
        Blocks freed since then.
    metadata_bytes : int
        Bytes of the resource's own metadata, which the other numbers do not include.
    limit_bytes : int or None
        The limit; None if there is none.
    fragmentation : float
        The share of the unused reserved bytes that is outside of the largest free
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

    def _repr_html_(self) -> str:
        """Return the numbers as an HTML table."""
        return report_of_fields(type(self).__name__, asdict(self))


@dataclass(frozen=True, slots=True)
class RegionStats:
    """Counts of the allocations in a region of a program, or under a tag.

    Parameters
    ----------
    current_bytes : int
        Bytes allocated and not freed, each block rounded up to 64. Negative if a region
        freed more than it allocated.
    peak_bytes : int
        The highest `current_bytes`, at least 0.
    total_bytes : int
        All bytes allocated.
    current_count : int
        Blocks allocated and not freed.
    peak_count : int
        The highest `current_count`, at least 0.
    total_count : int
        All blocks allocated.
    """

    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int

    def _repr_html_(self) -> str:
        """Return the numbers as an HTML table."""
        return report_of_fields(type(self).__name__, asdict(self))
