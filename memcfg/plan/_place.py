"""Offsets for buffers with fixed lifetimes, as a service of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg._core import search
from memcfg.errors import InfeasiblePlanError
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

_EFFORT = 60_000_000  # comparisons of the climb: about 0.2 s
_LARGEST = 2**62  # times and the sum of sizes stay below, so 64 bits hold them
_ORDERS = ("size", "area", "lifetime", "start", "end", "conflicts")
_FITS = ("first fit", "best fit")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that are needed for a while.

    Parameters
    ----------
    id : str
        Its name.
    lower, upper : int
        It lives in [lower, upper), in any unit of time.
    size : int
        Its size in bytes.
    """

    id: str
    lower: int
    upper: int
    size: int


@dataclass(frozen=True)
class Placement:
    """Where buffers lie.

    Parameters
    ----------
    offsets : tuple of int
        In bytes, by buffer.
    height : int
        The highest end of any buffer, in bytes.
    bound : int
        The bytes alive at the peak; no placement is lower.
    seconds : float
        The time that placing took; does not take part in comparison.
    order : str
        The order that won, such as ``"size, best fit"``.
    """

    offsets: tuple[int, ...]
    height: int
    bound: int
    seconds: float = field(compare=False)
    order: str


def place(
    buffers: Sequence[Buffer], *, capacity: int | None = None, alignment: int = 1
) -> Placement:
    """Give each buffer an offset so that no two overlap while both live.

    Parameters
    ----------
    buffers : sequence of Buffer
        What is to be placed.
    capacity : int or None, default None
        The height that may not be exceeded, in bytes; None: as low as it gets.
    alignment : int, default 1
        Bytes to which sizes are rounded up and offsets are aligned.

    Returns
    -------
    Placement
        The lowest of several orders, improved by a climb where it is above the
        bound. The same buffers give the same offsets.

    Raises
    ------
    InfeasiblePlanError
        If the placement that was found is higher than `capacity`. A lower one may
        exist, unless the bound is above it too.
    ValueError
        If a lifetime is empty, a size or the capacity negative, the alignment not
        positive, or the numbers are beyond 62 bits.

    Examples
    --------
    >>> lives = {"a": (0, 2), "b": (1, 3), "c": (2, 4)}
    >>> place([Buffer(name, *life, 64) for name, life in lives.items()]).height
    128
    """
    began = time.perf_counter()
    _check(buffers, capacity, alignment)
    offsets, height, bound, order, fit, climbed = search.pack(
        [buffer.lower for buffer in buffers],
        [buffer.upper for buffer in buffers],
        [align_up(buffer.size, alignment) for buffer in buffers],
        effort=_EFFORT,
    )
    if capacity is not None and height > capacity:
        certain = "" if bound > capacity else "A lower placement may exist. "
        raise InfeasiblePlanError(
            f"{len(buffers)} buffers were not placed within the capacity.",
            smallest_limit_bytes=height,
            lower_bound_bytes=bound,
            requested_bytes=height,
            limit_bytes=capacity,
            hint=f"{certain}The live bytes reach {bound} B.",
        )
    name = f"{_ORDERS[order]}, {_FITS[fit]}" + (", climbed" if climbed else "")
    seconds = time.perf_counter() - began
    return Placement(tuple(offsets), height, bound, seconds, name)


def _check(buffers: Sequence[Buffer], capacity: int | None, alignment: int) -> None:
    if alignment < 1:
        raise ValueError(f"an alignment must be positive, not {alignment}")
    if capacity is not None and capacity < 0:
        raise ValueError(f"a capacity cannot be negative: {capacity}")
    for buffer in buffers:
        if buffer.lower >= buffer.upper:
            raise ValueError(
                f"buffer {buffer.id!r} has an empty lifetime "
                f"[{buffer.lower}, {buffer.upper})"
            )
        if buffer.size < 0:
            raise ValueError(f"buffer {buffer.id!r} has a negative size {buffer.size}")
        if max(abs(buffer.lower), abs(buffer.upper)) >= _LARGEST:
            raise ValueError(f"buffer {buffer.id!r}: times beyond 2**62")
    if sum(align_up(buffer.size, alignment) for buffer in buffers) >= _LARGEST:
        raise ValueError("the buffers' sizes sum to 2**62 bytes or more")
