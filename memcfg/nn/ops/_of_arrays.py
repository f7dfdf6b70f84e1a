"""Functions of arrays alone, of NumPy's: their shapes depend on the data, or bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.ops._declaring import described

__all__ = ["nonzero", "unique", "view"]


def _numbers(x: Any, name: str) -> np.ndarray:
    """Return an array; TypeError for a tensor of a model or a function."""
    if isinstance(x, SymbolicTensor):
        raise TypeError(
            f"{name}: x must be an array, not a tensor of a model, whose shapes do not "
            "depend on the data: compute it with the result of predict"
        )
    return np.asarray(x)


@described
def nonzero(x: Any) -> Any:
    """Return the places of the elements of an array that are not 0, for each axis."""
    return tuple(each.astype(np.int32) for each in np.nonzero(_numbers(x, "nonzero")))


@described
def view(x: Any, dtype: Any = None) -> Any:
    """Return an array of another dtype that has the same bits."""
    numbers = _numbers(x, "view")
    return numbers if dtype is None else np.ascontiguousarray(numbers).view(dtype)


@described
def unique(
    x: Any,
    sorted: bool = True,  # noqa: A002  (Keras's name)
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Return the elements of an array without repetitions, in ascending order.

    With a size, the result has so many elements: the first ones, or `fill_value`, by
    default 0, behind them.
    """
    del sorted  # they always are
    numbers = _numbers(x, "unique")
    made = np.unique(
        numbers,
        return_index=True,
        return_inverse=True,
        return_counts=True,
        axis=axis,
    )
    values, *rest = made
    if size is not None:
        count = integer(size, "unique: size")
        values = _of_length(values, count, axis or 0, fill_value or 0)
        rest[0], rest[2] = (
            _of_length(each, count, 0, 0) for each in (rest[0], rest[2])
        )
    asked = (return_index, return_inverse, return_counts)
    several = [
        each.astype(np.int32) for each, kept in zip(rest, asked, strict=True) if kept
    ]
    return (values, *several) if several else values


def _of_length(x: np.ndarray, length: int, axis: int, value: Any) -> np.ndarray:
    """Return x cut along an axis, or with a value behind it."""
    moved = np.moveaxis(x, axis, 0)[:length]
    more = [(0, length - len(moved)), *[(0, 0)] * (x.ndim - 1)]
    return np.moveaxis(np.pad(moved, more, constant_values=value), 0, axis)
