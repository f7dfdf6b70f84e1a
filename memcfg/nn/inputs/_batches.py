"""One batch, on its way from a user's arrays into a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from memcfg.data.rows._file_rows import FileColumn

__all__ = ["Batch", "Rows", "as_numbers", "lies_well"]

_WORTH = 1 << 16  # bytes of a batch whose copy takes longer than not to copy it

Rows = slice | npt.NDArray[np.intp]
Array = npt.NDArray[Any]


class Batch:
    """Rows of samples and, except for prediction, of their labels.

    With `in_place` a program may read the samples where they lie; None: if that is
    worth it. Rows of a `file` are read from there.
    """

    __slots__ = ("_file", "_y", "in_place", "rows", "size", "x")

    def __init__(
        self,
        x: Array,
        y: Array | None = None,
        *,
        in_place: bool | None = None,
        file: FileColumn | None = None,
    ) -> None:
        self.x = x
        self._y = y
        self._file = file
        self.in_place = x.nbytes >= _WORTH if in_place is None else in_place
        self.size = len(x)
        self.rows: Rows = slice(0, self.size)

    def write(self, x: Array | None, y: Array | None) -> None:
        """Copy samples and labels into buffers, without memory for it; None: neither.

        Labels change their dtype on the way.
        """
        rows = self.rows
        if x is not None and self._file is not None:
            self._file.read(as_numbers(rows), x)
        elif x is not None:
            source = self.x
            if isinstance(rows, slice):
                x[...] = source[rows]
            elif source.flags.c_contiguous and source.flags.aligned:
                # mode="clip": otherwise take() gathers into a copy of `out` first.
                source.take(rows, 0, x, "clip")
            else:  # take() would copy the whole source first
                for place, row in enumerate(rows):
                    x[place] = source[row]
        if y is not None:
            assert self._y is not None  # where labels are read there are some
            if isinstance(rows, slice):
                y[...] = self._y[rows]
            else:
                self._y.take(rows, 0, y, "clip")

    def release(self) -> None:
        """Drop the arrays."""
        self.x = self._y = None  # type: ignore[assignment]  # nobody reads it again


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
