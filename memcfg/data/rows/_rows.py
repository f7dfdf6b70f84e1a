"""Data whose elements have numbers: columns, and rows across them.

Owns `Rows`, a nest of columns of one length, and the plain order of row numbers. A
column knows how its values are stored: in an array (`_array_rows`), in a file
(`_file_rows`), or not at all (`_sources.RangeColumn`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from memcfg.data._closing import closing
from memcfg.data.elements._structure import (
    flatten,
    is_flat_tuple,
    is_nest,
    map_structure,
    packer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memcfg.data.elements._spec import TensorSpec
    from memcfg.data.engine._run import Run
    from memcfg.data.ops._node import RowStream

__all__ = ["Column", "RowNumbers", "Rows", "elements_of", "in_order"]

RowNumbers = npt.NDArray[np.int64]
_CHUNK = 8192  # row numbers at a time: 64 KiB


class Column(Protocol):
    """One leaf of every element."""

    @property
    def spec(self) -> TensorSpec:
        """What each value is."""

    def take(self, rows: RowNumbers) -> npt.NDArray[Any]:
        """Gather values into a fresh array.

        Parameters
        ----------
        rows : numpy.ndarray
            Their numbers, all in range.

        Returns
        -------
        numpy.ndarray
            Values along a new first axis.
        """

    def value(self, row: int) -> Any:
        """Return one value.

        Parameters
        ----------
        row : int
            Its number, in range.

        Returns
        -------
        numpy.ndarray or numpy.generic
            Read-only where it is the column's memory.
        """

    def values(self, count: int) -> Iterator[Any]:
        """Return the first values in order.

        Parameters
        ----------
        count : int
            How many, at most as many as there are.

        Returns
        -------
        iterator
            As `value` gives them.
        """


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of one length.

    Parameters
    ----------
    columns : nest of Column
        The leaves.
    count : int
        How many rows there are.
    """

    columns: Any
    count: int

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed: functions can't be pickled."""
        return {"columns": self.columns, "count": self.count}

    @cached_property
    def _leaves(self) -> list[Column]:
        return flatten(self.columns)

    @cached_property
    def _pack(self) -> Callable[[Sequence[Any]], Any]:
        return packer(self.columns)

    @property
    def spec(self) -> Any:
        """What each element is: a nest of `TensorSpec`."""
        return map_structure(lambda column: column.spec, self.columns)

    def take(self, rows: RowNumbers) -> Any:
        """Gather rows into fresh arrays, made where arrays are made now.

        Parameters
        ----------
        rows : numpy.ndarray
            Row numbers in any order.

        Returns
        -------
        nest of numpy.ndarray
            The elements, stacked along a new first axis.
        """
        if not is_nest(self.columns):
            return self.columns.take(rows)
        return self._pack([column.take(rows) for column in self._leaves])

    def element(self, row: int) -> Any:
        """Return one element.

        Parameters
        ----------
        row : int
            Its number.

        Returns
        -------
        nest of numpy.ndarray and numpy.generic
            The element; arrays are read-only where they are the columns' memory.
        """
        if not is_nest(self.columns):
            return self.columns.value(row)
        return self._pack([column.value(row) for column in self._leaves])

    def elements(self) -> Iterator[Any]:
        """Return all elements in order.

        Returns
        -------
        iterator
            As `element` gives them.
        """
        return _together(self.columns, self.count)


def in_order(count: int) -> Iterator[RowNumbers]:
    """Yield the numbers from 0 on.

    Parameters
    ----------
    count : int
        How many.

    Yields
    ------
    numpy.ndarray
        The next ones, in memory that is used again for those that follow.
    """
    numbers = np.arange(min(count, _CHUNK), dtype=np.int64)
    for start in range(0, count, _CHUNK):
        if start:
            numbers += _CHUNK
        yield numbers[: count - start]


def elements_of(stream: RowStream, run: Run) -> Iterator[Any]:
    """Yield the elements of a stream of row numbers.

    Parameters
    ----------
    stream : RowStream
        The stream.
    run : Run
        The pass.

    Yields
    ------
    nest of numpy.ndarray and numpy.generic
        Element after element.
    """
    with closing(stream.chunks):
        while True:
            with run.outside():  # the numbers are kept
                chunk = next(stream.chunks, None)
            if chunk is None:
                return
            for row in chunk.tolist():
                yield stream.source.element(row)


def _together(columns: Any, count: int) -> Iterator[Any]:
    """Iterate over columns at once; for tuples, with no Python for each element."""
    if not is_nest(columns):
        column: Column = columns
        return column.values(count)
    leaves = zip(*(one.values(count) for one in flatten(columns)), strict=True)
    return leaves if is_flat_tuple(columns) else map(packer(columns), leaves)
