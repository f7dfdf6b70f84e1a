"""The arrays of a batch while they are filled, and what its elements have in common."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core.columns import RowWriter
from memcfg.data.elements._structure import flatten, map_structure, pack, same_structure
from memcfg.data.elements._user_functions import as_result
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["TEXT", "BatchArrays", "Form"]

TEXT = "SU"  # kinds of dtypes whose size may differ from element to element


class Form:
    """What elements of one batch have in common: structure, shapes, dtypes.

    `numbers` is the structure, with the number of each leaf.
    """

    __slots__ = ("dtypes", "numbers", "shapes")

    def __init__(self, element: Any) -> None:
        leaves = flatten(element)
        self.shapes = [leaf.shape for leaf in leaves]
        self.dtypes = [leaf.dtype for leaf in leaves]
        self.numbers = pack(element, range(len(leaves)))

    @property
    def has_text(self) -> bool:
        """Whether a leaf is text, whose length may differ from element to element."""
        return any(dtype.kind in TEXT for dtype in self.dtypes)

    def fits(self, element: Any) -> bool:
        """Tell whether an element is of this form."""
        return same_structure(self.numbers, element) and all(
            leaf.shape == shape and leaf.dtype == dtype
            for leaf, shape, dtype in zip(
                flatten(element), self.shapes, self.dtypes, strict=True
            )
        )

    def widen(self, element: Any) -> None:
        """Widen dtypes to the text of an element."""
        for index, leaf in enumerate(self.leaves(element)):
            mine = self.dtypes[index]
            if mine.kind in TEXT and leaf.dtype.kind == mine.kind:
                self.dtypes[index] = max(mine, leaf.dtype, key=lambda d: d.itemsize)

    def nbytes(self, rows: int) -> int:
        """Tell what the columns of a batch take in a workspace."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        sizes = [max(1, rows * prod(shape) * dtype.itemsize) for shape, dtype in pairs]
        return sum(map(align_up, sizes))

    def leaves(self, element: Any) -> Sequence[Any]:
        """List the leaves of an element, converted or not."""
        if same_structure(self.numbers, element):
            return flatten(element)
        found = map_structure(lambda leaf: type(leaf).__name__, element)
        raise TypeError(
            "the elements of a batch must be of one structure: the first is "
            f"{self}, another is {found}"
        )

    def pack(self, leaves: Sequence[Any]) -> Any:
        """Make a nest of this structure."""
        return pack(self.numbers, leaves)

    def __str__(self) -> str:
        pairs = zip(self.dtypes, self.shapes, strict=True)
        return str(self.pack([f"{dtype}{list(shape)}" for dtype, shape in pairs]))


class BatchArrays:
    """Arrays with a row for each element of a batch, made where arrays are made now.

    An element is written as soon as it is there, and no list of elements is kept. Its
    leaves need not have been converted: what has the shape and the dtype of the first
    element's is written as it is, and everything else is converted and compared.
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
        """Write an element; ValueError, TypeError: it is not like the first."""
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

        The function is applied to each; what it returns need not have been converted.
        Returns the row behind the last that was written.
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
        """Read elements that were written."""
        pack = self.form.pack
        return [pack([each[row] for each in self._arrays]) for row in range(begin, end)]

    def batch(self, count: int) -> Any:
        """Return the batch."""
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
