"""One batch, on its way from a user's arrays into a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.nn.inputs._array_likes import Frame, whole
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from memcfg.data.rows._file_rows import FileColumn
    from memcfg.nn.layers._layer import Shape

__all__ = ["Batch", "Column", "Rows", "as_numbers", "is_worth", "lies_well"]

_WORTH = 1 << 16  # bytes of a batch whose copy takes longer than not to copy it

Rows = slice | npt.NDArray[np.intp]
Array = npt.NDArray[Any]


class Column:
    """An array of which batches are rows, for an input of that name.

    With `in_place` a program may read rows where they lie; rows of a `file` are read
    from there.
    """

    __slots__ = ("array", "file", "in_place", "name")

    def __init__(
        self,
        name: str,
        array: Array,
        *,
        in_place: bool = False,
        file: FileColumn | None = None,
    ) -> None:
        self.name = name
        self.array = array
        self.in_place = in_place
        self.file = file


class Batch:
    """Rows of columns: samples and, except for prediction, y and sample weights."""

    __slots__ = ("columns", "in_place", "rows", "size", "weights")

    def __init__(
        self, columns: Sequence[Column], weights: tuple[Shape, ...] = ()
    ) -> None:
        self.columns = columns
        self.weights = weights  # of a sample, in the last columns
        self.in_place = False
        for column in columns:  # amid each step: no call of Python
            self.in_place |= column.in_place
        self.size = len(columns[0].array)
        self.rows: Rows = slice(0, self.size)

    def write(self, inputs: Mapping[str, Array], bound: Container[str]) -> None:
        """Copy rows into buffers, except what is bound, without memory for it.

        Arrays change their dtype on the way; what no buffer is for is left out.
        """
        rows = self.rows
        for column in self.columns:
            name = column.name
            source: Any = column.array  # a Frame perhaps
            if name in bound or name not in inputs:
                continue
            out = inputs[name]
            if source.dtype != out.dtype or type(source) is Frame:
                if column.file is not None:
                    part = column.file.take(as_numbers(rows)).reshape(out.shape)
                else:
                    part = np.asarray(source[rows])
                out[...] = whole(part, out.dtype, name)
            elif column.file is not None:
                column.file.read(as_numbers(rows), out)
            elif isinstance(rows, slice):
                out[...] = source[rows]
            elif source.flags.c_contiguous and source.flags.aligned:
                # mode="clip": otherwise take() gathers into a copy of `out` first.
                source.take(rows, 0, out, "clip")
            else:  # take() would copy the whole source first
                for place, row in enumerate(rows):
                    out[place] = source[row]

    def release(self) -> None:
        """Drop the arrays."""
        self.columns = ()  # nobody reads it again


def is_worth(array: Array) -> bool:
    """Whether reading an array where it lies saves time."""
    return array.nbytes >= _WORTH


def as_numbers(rows: Rows) -> npt.NDArray[np.intp]:
    """Return rows as their numbers."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def lies_well(x: Array, batch_size: int) -> bool:
    """Whether each batch is worth it, and begins at a multiple of 64 without gaps."""
    step = batch_size * (x.nbytes // len(x)) if len(x) > batch_size else 0
    begin: int = x.__array_interface__["data"][0]
    aligned = begin % ALIGNMENT == step % ALIGNMENT == 0
    size = min(len(x), batch_size) * (x.nbytes // len(x))
    return size >= _WORTH and bool(x.flags.c_contiguous) and aligned
