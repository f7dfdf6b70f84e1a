"""Conversion of array-likes to NumPy arrays, as views where possible.

No element is converted here: batches convert rows as they are copied into a program.
"""

from __future__ import annotations

from inspect import isfunction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.data import DataSet, MultiDataSet
from memcfg.nn._nesting import holds_numbers, is_array

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Frame", "as_array", "whole"]

Array = npt.NDArray[Any]


class Frame:
    """Columns of different dtypes that act as one array, converted batch by batch."""

    __slots__ = ("columns", "dtype", "ndim", "shape", "size")

    def __init__(self, columns: Sequence[Array]) -> None:
        self.columns = columns
        self.dtype = np.result_type(*columns)
        self.shape = (len(columns[0]), len(columns))
        self.size = self.shape[0] * self.shape[1]
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Frame:
        return Frame([column[rows] for column in self.columns])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.stack(self.columns, 1, dtype=dtype or self.dtype)


def as_array(given: Any, what: str) -> Any:
    """Return an array or a `Frame`; TypeError if neither can be made."""
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array: fill its masked places first")
    if isinstance(given, np.ndarray):
        return given
    if not is_array(given) and not holds_numbers(given):
        kind = "type" if isinstance(given, type) else type(given).__name__
        raise TypeError(
            f"{what} is an array, or what gives one, as lists of numbers, DataFrames "
            f"and tensors do, not {kind}{_hint(given, what)}"
        )
    try:
        if hasattr(given, "iloc"):
            return _frame(given)
        if hasattr(given, "__array__") or not hasattr(given, "__dlpack__"):
            return np.asarray(given)
        return np.from_dlpack(given)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise TypeError(
            f"{what}, of {type(given).__name__}, gives no array of numbers: {error}"
        ) from error


def _hint(given: Any, what: str) -> str:
    """Return a hint on what to pass instead, or nothing."""
    if given is None and what.startswith("y"):
        return ": give arrays, fit(x, y), or batches that have both, (x, y)"
    if isinstance(given, DataSet | MultiDataSet):
        return "; in a list it is a stream of one batch: [data_set]"
    if isfunction(given):
        return "; if it makes batches, call it, or give Dataset.from_generator of it"
    if hasattr(given, "__iter__") and not isinstance(given, str | bytes | type):
        return "; if it gives batches (x, y), do not pass y, too"
    return ""


def _frame(given: Any) -> Any:
    """Return the array of a pandas Series or DataFrame."""
    if len(given.shape) == 1:
        return _column(given)
    dtypes = set(given.dtypes)
    if len(dtypes) == 1 and all(isinstance(each, np.dtype) for each in dtypes):
        result = np.asarray(
            given
        )  # a view: pandas stores columns of one dtype together
        if result.dtype.kind in "iufb":
            return result
    places = range(given.shape[1])
    return Frame([_column(given.iloc[:, place]) for place in places])


def _column(series: Any) -> Array:
    """Return the array of a Series; nullable dtypes must have no missing value."""
    if not isinstance(series.dtype, np.dtype) and series.isna().any():
        raise TypeError(f"column {series.name!r} has places for no number: fill them")
    result = np.asarray(series)
    kind = getattr(series.dtype, "kind", "O")
    if result.dtype.kind == "O" and kind in "iufb":
        result = np.asarray(series, {"f": "f8", "b": "?"}.get(kind, f"{kind}8"))
    if result.dtype.kind not in "iufb":
        raise TypeError(f"column {series.name!r} holds {series.dtype}, no numbers")
    return result


def whole(part: Array, dtype: np.dtype[Any], what: str) -> Array:
    """Return an array; refuse values that an integer dtype cannot represent."""
    if dtype.kind != "i" or np.can_cast(part.dtype, dtype):
        return part
    bounds = np.iinfo(dtype)
    if part.dtype.kind == "f":
        part = part.astype(np.float64)  # represents the bounds exactly
    wrong = (part < bounds.min) | (part > bounds.max)
    if part.dtype.kind == "f":
        wrong |= np.trunc(part) != part  # true for NaN, too
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise ValueError(
            f"{what} holds {part[place]}, but whole numbers are read here, from "
            f"{bounds.min} to {bounds.max}"
        )
    return part
