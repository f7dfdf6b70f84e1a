"""Columns that are stored nowhere: numbers at equal distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.data.elements._spec import TensorSpec
from memcfg.data.rows._rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.rows._rows import RowNumbers

__all__ = ["RangeColumn", "range_rows"]


class RangeColumn:
    """Numbers at equal distances, which are stored nowhere.

    Parameters
    ----------
    numbers : range
        The numbers.
    dtype : numpy.dtype
        What they are given out as; what it can't hold wraps around, as in tf.data.
    """

    def __init__(self, numbers: range, dtype: np.dtype[Any]) -> None:
        self._numbers = numbers
        self._dtype = dtype

    @property
    def spec(self) -> TensorSpec:
        """A number."""
        return TensorSpec((), self._dtype)

    def take(self, rows: RowNumbers) -> npt.NDArray[Any]:
        """Compute numbers.

        Parameters
        ----------
        rows : numpy.ndarray
            Their places.

        Returns
        -------
        numpy.ndarray
            A fresh array.
        """
        found = rows * np.int64(self._numbers.step)
        found += np.int64(self._numbers.start)
        return found.astype(self._dtype, copy=False)

    def value(self, row: int) -> Any:
        """Compute a number.

        Parameters
        ----------
        row : int
            Its place.

        Returns
        -------
        numpy.generic
            The number.
        """
        return np.int64(self._numbers[row]).astype(self._dtype)

    def values(self, count: int) -> Iterator[Any]:
        """Compute the first numbers.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        iterator
            Over numbers.
        """
        exact = map(np.int64, self._numbers[:count])
        if self._dtype == np.int64:
            return exact
        return (number.astype(self._dtype) for number in exact)


def range_rows(numbers: range, dtype: npt.DTypeLike) -> Rows:
    """Make the rows of a range.

    Parameters
    ----------
    numbers : range
        The numbers, each an int64.
    dtype : dtype
        What they are given out as.

    Returns
    -------
    Rows
        Of one column.

    Raises
    ------
    TypeError
        If numbers can't be of that dtype.
    """
    found = np.dtype(dtype)
    if found.kind not in "iufc":
        raise TypeError(f"a range is of numbers, not of {found}")
    return Rows(RangeColumn(numbers, found), len(numbers))
