"""A batch, and the copy of its rows from a user's arrays into a program."""

from __future__ import annotations

from copy import copy
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.nn.inputs._array_likes import Frame, whole
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from memcfg.data.rows._file_rows import FileColumn
    from memcfg.nn.layers._layer import Shape

__all__ = [
    "Batch",
    "ClassWeights",
    "Column",
    "Rows",
    "Targets",
    "as_numbers",
    "is_worth",
    "lies_well",
]

_WORTH = 1 << 16  # bytes from which binding in place is faster than a copy
_BLOCK = 1 << 13  # elements converted at once

Rows = slice | npt.NDArray[np.intp]
Array = npt.NDArray[Any]


class Column:
    """An array whose rows form batches for a named input.

    With `in_place`, a program may read the rows without a copy. Rows of a `file` are
    read from the file. A `checked` array holds only values that the input can
    represent.
    """

    __slots__ = ("array", "block", "checked", "file", "in_place", "is_plain", "name")

    def __init__(
        self,
        name: str,
        array: Array,
        *,
        in_place: bool = False,
        checked: bool = False,
        file: FileColumn | None = None,
    ) -> None:
        self.name = name
        self.array = array
        self.in_place = in_place
        self.checked = checked
        self.file = file
        self.is_plain = file is None and not isinstance(array, Frame)
        self.block = _BLOCK // (prod(array.shape[1:]) or 1) or 1  # rows per block

    def convert(self, rows: Rows, out: Array) -> None:
        """Convert and check rows into `out`, one column or block at a time."""
        if self.file is not None and self.array.dtype == out.dtype:
            self.file.read(as_numbers(rows), out)
            return
        given: Any = self.array
        if isinstance(given, Frame):
            for place, column in enumerate(given.columns):
                out[:, place] = whole(column[rows], out.dtype, self.name)
            return
        for start in range(0, len(out), self.block):
            end = min(start + self.block, len(out))
            some: Rows
            if isinstance(rows, slice):
                some = slice(rows.start + start, rows.start + end)
            else:
                some = rows[start:end]
            part = self.read(some)
            out[start:end] = part if self.checked else whole(part, out.dtype, self.name)

    def read(self, rows: Rows) -> Array:
        """Return rows unconverted, as a view if possible."""
        if self.file is None:
            return np.asarray(self.array[rows])
        result = self.file.take(as_numbers(rows))
        return result.reshape(len(result), *self.array.shape[1:])


class ClassWeights(Column):
    """The weight of each sample's class, times the sample's own weight if given."""

    __slots__ = ("_keys", "_own", "_weights")

    def __init__(
        self, name: str, y: Column, table: Mapping[int, float], own: Array | None
    ) -> None:
        super().__init__(name, y.array, file=y.file)
        self.is_plain = False
        self._own = own
        keys = sorted(table)
        self._keys = np.array([*keys, np.inf])  # a sentinel above all labels
        self._weights = np.array([*(table[key] for key in keys), 1], np.float32)

    def convert(self, rows: Rows, out: Array) -> None:
        """Write the weights of rows."""
        y = self.read(rows)
        labels = y.reshape(len(y), -1)
        labels = labels.argmax(1) if labels.shape[1] > 1 else labels[:, 0]
        places = self._keys.searchsorted(labels)
        found = self._weights.take(places, mode="clip")
        found[self._keys.take(places, mode="clip") != labels] = 1
        if self._own is not None:
            own = self._own[rows]
            found = found.reshape(-1, *[1] * (own.ndim - 1)) * own.astype(np.float32)
        out[...] = found


Targets = tuple[list[Column], list[Column]]


class Batch:
    """Rows of columns: samples and, except for prediction, y and sample weights."""

    __slots__ = (
        "columns",
        "in_place",
        "lengths",
        "masks",
        "rows",
        "size",
        "targets",
        "weights",
    )

    def __init__(
        self,
        columns: Sequence[Column],
        weights: tuple[Shape, ...] = (),
        lengths: tuple[int, ...] = (),
        targets: Targets | None = None,
        masks: tuple[Any, ...] = (),
    ) -> None:
        self.columns = columns
        self.masks = masks  # of the labels of each output, for evaluators
        self.targets = targets  # y and weights as they were given, for evaluators
        self.lengths = lengths  # of the axes of x that have any length
        self.weights = weights  # per-sample shapes of the last columns
        self.in_place = False
        for column in columns:  # runs in each step: a loop is faster than any()
            self.in_place |= column.in_place
        self.size = len(columns[0].array)
        self.rows: Rows = slice(0, self.size)

    def write(self, inputs: Mapping[str, Array], bound: Container[str]) -> None:
        """Copy rows into buffers, except bound ones, without large temporaries.

        Rows are converted to the dtype of the buffer; columns without one are skipped.
        """
        rows = self.rows
        for column in self.columns:
            name = column.name
            if name in bound or name not in inputs:
                continue
            out, source = inputs[name], column.array
            same = source.dtype == out.dtype
            fits = same or column.checked or out.dtype.kind == "f"
            if not (fits and column.is_plain):
                column.convert(rows, out)
            elif isinstance(rows, slice):
                out[...] = source[rows]
            elif same and source.flags.c_contiguous and source.flags.aligned:
                # With another mode than "clip", take() would buffer `out`.
                source.take(rows, 0, out, "clip")
            elif column.block == 1:
                for place, row in enumerate(rows):
                    out[place] = source[row]
            else:  # take() would first copy the whole source, or the batch
                for start in range(0, len(rows), column.block):
                    end = start + column.block
                    out[start:end] = source[rows[start:end]]

    def part(self, begin: int, end: int) -> Batch:
        """Return some of its samples."""
        rows = self.rows
        result = copy(self)
        if isinstance(rows, slice):
            result.rows = slice(rows.start + begin, rows.start + end)
        else:
            result.rows = rows[begin:end]
        result.size = end - begin
        return result

    def release(self) -> None:
        """Drop the arrays."""
        self.columns, self.targets = (), None  # a released batch is not read again


def is_worth(array: Array) -> bool:
    """Return whether reading an array in place saves time."""
    return array.nbytes >= _WORTH


def as_numbers(rows: Rows) -> npt.NDArray[np.intp]:
    """Return rows as an array of indices."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def lies_well(x: Array, batch_size: int) -> bool:
    """Return whether batches are large, contiguous and aligned to 64 bytes."""
    step = batch_size * (x.nbytes // len(x)) if len(x) > batch_size else 0
    begin: int = x.__array_interface__["data"][0]
    aligned = begin % ALIGNMENT == step % ALIGNMENT == 0
    size = min(len(x), batch_size) * (x.nbytes // len(x))
    return size >= _WORTH and bool(x.flags.c_contiguous) and aligned
