"""Checks of the columns of a record.

Owns the rules and the messages for columns that break them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "ALLOCATE",
    "FAILURE",
    "FREE",
    "NOT_GIVEN",
    "StackOfCalls",
    "as_integers",
    "as_seconds",
    "as_stacks",
    "as_tags",
    "first_fault",
]

ALLOCATE, FREE, FAILURE = range(3)

NOT_GIVEN: NDArray[Any] = np.empty(0)  # stands for a column of defaults

StackOfCalls: TypeAlias = tuple[tuple[str, int, str], ...]


def as_integers(
    name: str,
    values: ArrayLike,
    dtype: Any,
    count: int,
    bounds: tuple[int, int],
) -> NDArray[Any]:
    """Copy a column of integers; ValueError names the first out of range."""
    array = _as_column(name, values, count, "biu")
    minimum, maximum = bounds
    for row in np.flatnonzero((array < minimum) | (array > maximum))[:1]:
        raise ValueError(f"row {row} has {array[row]} as its {name}, which is invalid")
    return _frozen(array.astype(dtype))


def as_seconds(values: ArrayLike, count: int) -> NDArray[np.float64]:
    """Copy the column of times; ValueError names the first invalid one."""
    if values is NOT_GIVEN:
        values = np.zeros(count)
    array = _as_column("seconds", values, count, "biuf").astype(np.float64)
    for row in np.flatnonzero(~np.isfinite(array))[:1]:
        raise ValueError(f"row {row} has {array[row]} as its time, which is invalid")
    return _frozen(array)


def _as_column(name: str, values: ArrayLike, count: int, kinds: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.uint8)  # an empty list has no dtype of its own
    if array.dtype.kind not in kinds:
        raise TypeError(f"{name} is a column of numbers, not of {array.dtype}")
    if array.shape != (count,):
        raise ValueError(f"{name} has the shape {array.shape}, action ({count},)")
    return array


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array = array.copy() if array.base is not None else array
    array.flags.writeable = False
    return array


def as_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags as a tuple; raise TypeError if one is not a string."""
    names = (tags,) if isinstance(tags, str) else tuple(tags)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a tag is a string, not {name!r}")
    return names


def as_stacks(stacks: Iterable[Any]) -> tuple[StackOfCalls, ...]:
    """Copy the stacks; TypeError unless each call is (file, line, function)."""
    return tuple(tuple(_as_call(call) for call in stack) for stack in stacks)


def _as_call(call: Any) -> tuple[str, int, str]:
    try:
        filename, line, function = call
    except (TypeError, ValueError):
        raise TypeError(f"a call is (file, line, function), not {call!r}") from None
    kinds = isinstance(filename, str), isinstance(line, int), isinstance(function, str)
    if not all(kinds):
        raise TypeError(f"a call is (file, line, function), not {call!r}")
    return filename, line, function


def first_fault(
    action: NDArray[np.uint8], address: NDArray[np.uint64], nbytes: NDArray[np.uint64]
) -> tuple[int, str] | None:
    """Find the first row that allocates or frees an address against its state."""
    rows = np.flatnonzero(action != FAILURE)
    rows = rows[np.argsort(address[rows], kind="stable")]
    if not len(rows):
        return None
    is_free = action[rows] == FREE
    same = np.append(False, address[rows][1:] == address[rows][:-1])
    was_out = same & np.append(False, ~is_free[:-1])
    sizes = nbytes[rows]
    other_size = is_free & was_out & (sizes != np.append(sizes[:1], sizes[:-1]))
    wrong = np.flatnonzero((is_free != was_out) | other_size)
    if not len(wrong):
        return None
    first = wrong[np.argmin(rows[wrong])]
    where = f"{int(address[rows[first]]):#x}"
    if other_size[first]:
        held, freed = sizes[first - 1], sizes[first]
        what = f"frees {freed} bytes at {where}, where a block of {held} is"
    elif is_free[first]:
        what = f"frees {where}, which is not out"
    else:
        what = f"takes {where}, which is out"
    return int(rows[first]), what
