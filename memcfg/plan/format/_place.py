"""Offsets for buffers with fixed lifetimes (dynamic storage allocation)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, overload

from memcfg._core import search
from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._stage import Stage
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAN_EFFORT = 20_000_000  # max. comparisons when a plan is placed: below 0.1 s
_EFFORT = 5_000_000_000  # max. comparisons of `place`: about 10 s
_SECONDS = 10.0  # default time limit of `place`
_LARGEST = 2**62  # exclusive bound of times and of the sum of sizes, to fit 64 bits
_ORDERS = ("size", "area", "lifetime", "start", "end", "conflicts")
_FITS = ("first fit", "best fit")
_CLIMBED, _SEARCHED = 1, 2  # codes of a hill climb and of a complete search


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer with a size and a lifetime.

    Parameters
    ----------
    id : str
        Name of the buffer.
    lower, upper : int
        The lifetime [lower, upper), in any unit of time.
    size : int
        Size in bytes.
    """

    id: str
    lower: int
    upper: int
    size: int


@dataclass(frozen=True)
class Placement:
    """Offsets of buffers, with bounds.

    Parameters
    ----------
    offsets : tuple of int
        Offset of each buffer in bytes, in the order of the buffers.
    height : int
        The highest end of any buffer, in bytes.
    bound : int
        The most bytes alive at one time: a lower bound of the height.
    floor : int
        The largest proven lower bound of the height: at least `bound`, and more if a
        complete search has raised it.
    seconds : float
        The time that placing took; ignored in comparisons.
    order : str
        The heuristic that gave the placement, such as ``"size, best fit"``;
        ``"size, best fit, climbed"`` after a hill climb; ``"search"`` for a complete
        search.
    """

    offsets: tuple[int, ...]
    height: int
    bound: int
    floor: int
    seconds: float = field(compare=False)
    order: str


@overload
def place(buffers: None = None) -> Stage: ...
@overload
def place(
    buffers: Sequence[Buffer],
    *,
    capacity: int | None = None,
    alignment: int = 1,
    time_limit: float = _SECONDS,
) -> Placement: ...
def place(
    buffers: Sequence[Buffer] | None = None,
    *,
    capacity: int | None = None,
    alignment: int = 1,
    time_limit: float = _SECONDS,
) -> Placement | Stage:
    """Give each buffer an offset so that no two overlap while both live.

    Parameters
    ----------
    buffers : sequence of Buffer, optional
        The buffers to place. Without them, the call returns the last stage of `chain`,
        which places by a search instead of by first fit in the order of execution.
    capacity : int or None, default None
        The largest allowed height in bytes; None finds the lowest height.
    alignment : int, default 1
        Bytes to which sizes are rounded up and offsets are aligned.
    time_limit : float, default 10.0
        Seconds after which the search returns the best placement found. The greedy
        heuristics run first and are not interrupted.

    Returns
    -------
    Placement or Stage
        The lowest placement of several greedy heuristics. If it exceeds the lower bound
        (or the capacity), a complete search follows, and a hill climb if that does not
        end. The same buffers get the same offsets unless the time limit is reached.

    Raises
    ------
    InfeasiblePlanError
        If the lowest placement found exceeds `capacity`. The message says whether that
        is proven, and when too many bytes are alive.
    TypeError
        If other arguments are given without buffers.
    ValueError
        If a lifetime is empty, a size or the capacity is negative, the alignment or the
        time limit is not positive, or a time or the sum of sizes reaches 2**62.

    References
    ----------
    .. [1] M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
       Hardware-Accelerated Machine Learning", ASPLOS 2023.
    .. [2] F. Boussemart et al., "Boosting Systematic Search by Weighting Constraints",
       ECAI 2004.

    Examples
    --------
    >>> lives = {"a": (0, 2), "b": (1, 3), "c": (2, 4)}
    >>> place([Buffer(name, *life, 64) for name, life in lives.items()]).height
    128
    """
    if buffers is None:
        if (capacity, alignment, time_limit) != (None, 1, _SECONDS):
            raise TypeError("place() without buffers takes no arguments")
        return Stage("place")
    began = time.perf_counter()
    _check(buffers, capacity, alignment)
    if not time_limit > 0:
        raise ValueError(f"a time limit must be positive, not {time_limit}")
    offsets, height, bound, floor, order, fit, way = search.pack(
        [buffer.lower for buffer in buffers],
        [buffer.upper for buffer in buffers],
        [align_up(buffer.size, alignment) for buffer in buffers],
        effort=_EFFORT,
        goal=capacity or 0,
        is_over=lambda: time.perf_counter() - began > time_limit,
    )
    seconds = time.perf_counter() - began
    if capacity is not None and height > capacity:
        if bound > capacity:
            lower, upper = _busiest(buffers, alignment)
            hint = f"{bound} B are alive in [{lower}, {upper})."
        elif floor > capacity:
            hint = f"{bound} B are alive at once, but no placement fits."
        else:
            hint = (
                f"{bound} B are alive at once. Not found in {seconds:.1f} s, but not "
                "ruled out."
            )
        raise InfeasiblePlanError(
            f"{len(buffers)} buffers were not placed within the capacity.",
            smallest_limit_bytes=height,
            lower_bound_bytes=floor,
            is_smallest=height == floor,
            requested_bytes=height,
            limit_bytes=capacity,
            hint=hint,
        )
    name = "search" if way == _SEARCHED else f"{_ORDERS[order]}, {_FITS[fit]}"
    if way == _CLIMBED:
        name += ", climbed"
    return Placement(tuple(offsets), height, bound, floor, seconds, name)


def plan_offsets(buffers: Sequence[Buffer], alignment: int) -> list[int]:
    """Return offsets of a plan's buffers, the same on every machine (no time limit)."""
    _check(buffers, None, alignment)
    offsets, *_ = search.pack(
        [buffer.lower for buffer in buffers],
        [buffer.upper for buffer in buffers],
        [align_up(buffer.size, alignment) for buffer in buffers],
        effort=PLAN_EFFORT,
        goal=0,
        is_over=lambda: False,
    )
    return offsets


def _busiest(buffers: Sequence[Buffer], alignment: int) -> tuple[int, int]:
    """Return the first time interval in which the most bytes are alive."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        size = align_up(buffer.size, alignment)
        changes[buffer.lower] = changes.get(buffer.lower, 0) + size
        changes[buffer.upper] = changes.get(buffer.upper, 0) - size
    times = sorted(changes)
    loads = [*accumulate(changes[at] for at in times)]
    most = loads.index(max(loads))
    return times[most], times[most + 1]


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
