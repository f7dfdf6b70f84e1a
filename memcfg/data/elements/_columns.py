"""The arrays of a batch while they are filled.

Owns the rows that elements are written to. Refuses to know where elements come from.

An element is written as soon as it is there, and no list of elements is kept. Its
leaves need not have been converted: what has the shape and the dtype of the first
element's is written as it is, and everything else is converted and compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core.columns import RowWriter
from memcfg.data.elements._form import TEXT
from memcfg.data.elements._user_functions import as_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.elements._form import Form

__all__ = ["Columns"]


class Columns:
    """Arrays with a row for each element of a batch, made where arrays are made now.

    Parameters
    ----------
    form : Form
        What the elements have in common.
    rows : int
        For how many there is room.

    Attributes
    ----------
    form : Form
        As given.
    """

    __slots__ = ("_arrays", "_rows", "form")

    def __init__(self, form: Form, rows: int) -> None:
        self.form = form
        self._rows = rows
        self._arrays = [
            np.empty((rows, *shape), dtype)
            for shape, dtype in zip(form.shapes, form.dtypes, strict=True)
        ]

    def put(self, row: int, element: Any) -> None:
        """Write an element into a row.

        Parameters
        ----------
        row : int
            Which.
        element : nest of numpy.ndarray or numpy.generic
            The element.

        Raises
        ------
        ValueError
            If a shape differs from the first element's.
        TypeError
            If a dtype or the structure does.
        """
        for index, leaf in enumerate(self.form.leaves(element)):
            self._check(index, row, leaf)
            self._arrays[index][row] = leaf

    def fill(
        self,
        row: int,
        elements: Iterator[Any],
        function: Callable[..., Any] | None,
        *,
        unpack: bool,
        stop: int | None = None,
    ) -> int:
        """Write elements into rows, until the last row or the last element.

        Parameters
        ----------
        row : int
            The first row.
        elements : iterator
            Where they come from.
        function : callable or None
            Applied to each; what it returns need not have been converted.
        unpack : bool
            Whether an element is a tuple of the function's arguments.
        stop : int, optional
            The row behind the last. None: all rows.

        Returns
        -------
        int
            The row behind the last that was written.

        Raises
        ------
        ValueError
            If a shape differs from the first element's.
        TypeError
            If a dtype or the structure does.
        """
        writer = RowWriter(tuple(self._arrays), self.form.numbers)
        stop = self._rows if stop is None else stop
        while True:
            row, left = writer.fill(row, stop, elements, function, unpack)
            if not left:
                return row
            self.put(row, as_result(left[0]))
            del left
            row += 1

    def elements(self, begin: int, end: int) -> list[Any]:
        """Read elements that were written.

        Parameters
        ----------
        begin, end : int
            Their rows.

        Returns
        -------
        list
            Of nests of views and NumPy scalars.
        """
        pack = self.form.pack
        return [pack([each[row] for each in self._arrays]) for row in range(begin, end)]

    def batch(self, count: int) -> Any:
        """Return the batch.

        Parameters
        ----------
        count : int
            How many rows have been written.

        Returns
        -------
        nest of numpy.ndarray
            The arrays, cut if there was room for more.
        """
        if count == self._rows:
            return self.form.pack(self._arrays)
        return self.form.pack([array[:count] for array in self._arrays])

    def _check(self, index: int, row: int, leaf: Any) -> None:
        shape, dtype = self.form.shapes[index], self.form.dtypes[index]
        if leaf.shape != shape:
            raise ValueError(
                f"cannot batch arrays of different shapes in component {index}: "
                f"element 0 has shape {list(shape)}, element {row} has shape "
                f"{list(leaf.shape)}; padded_batch makes them alike"
            )
        if leaf.dtype != dtype and not (
            leaf.dtype.kind == dtype.kind and dtype.kind in TEXT
        ):
            raise TypeError(
                f"cannot batch arrays of different dtypes in component {index}: "
                f"element 0 is {dtype}, element {row} is {leaf.dtype}"
            )
