"""Columns that are arrays of the user's: rows are views, and batches are gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.data.elements._convert import read_only
from memcfg.data.elements._spec import TensorSpec
from memcfg.workspaces import check_valid, is_attached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.rows._rows import RowNumbers

__all__ = ["ArrayColumn"]


class ArrayColumn:
    """The rows of an array.

    Parameters
    ----------
    array : numpy.ndarray
        Of at least one axis; of any strides and byte order. It is not copied.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._checked = is_attached(array)
        self._given = array
        self._array = read_only(np.asarray(array))
        self._native = array.dtype.newbyteorder("=")
        self._swaps = not array.dtype.isnative
        flags = self._array.flags
        self._plain = flags.c_contiguous and flags.aligned and not self._swaps

    @property
    def spec(self) -> TensorSpec:
        """What each row is."""
        return TensorSpec(self._array.shape[1:], self._native)

    def take(self, rows: RowNumbers) -> npt.NDArray[Any]:
        """Gather rows into a fresh array.

        Parameters
        ----------
        rows : numpy.ndarray
            Their numbers, all in range.

        Returns
        -------
        numpy.ndarray
            Rows along a new first axis.
        """
        self._check()
        found = np.empty((len(rows), *self._array.shape[1:]), self._native)
        if self._plain:
            # mode="clip": with the default, take() gathers into a copy of `out` first.
            self._array.take(rows, axis=0, out=found, mode="clip")
        elif len(rows) and _is_run(rows):
            np.copyto(found, self._array[rows[0] : rows[-1] + 1])
        else:  # take() would copy the whole array first
            for place, row in enumerate(rows.tolist()):
                found[place] = self._array[row]
        return found

    def value(self, row: int) -> Any:
        """Return one row.

        Parameters
        ----------
        row : int
            Its number, in range.

        Returns
        -------
        numpy.ndarray or numpy.generic
            A read-only view.
        """
        self._check()
        return self._in_order(self._array[row])

    def values(self, count: int) -> Iterator[Any]:
        """Return the first rows in order.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        iterator
            Over read-only views.
        """
        self._check()
        if self._checked or self._swaps:
            return map(self.value, range(count))
        return iter(self._array[:count])

    def _check(self) -> None:
        if self._checked:
            check_valid(self._given, "read a row of it")

    def _in_order(self, row: Any) -> Any:
        """Give a row the machine's byte order; NumPy scalars have it."""
        return row.astype(self._native) if self._swaps and row.ndim else row


def _is_run(rows: RowNumbers) -> bool:
    """Tell whether row numbers follow each other without a gap."""
    if rows[-1] - rows[0] != len(rows) - 1:
        return False
    return bool((rows[1:] - rows[:-1] == 1).all())
