"""One batch, on its way from a user's arrays into a program.

Owns the copy of rows into the arena, and whether there is one: rows that lie as a
program wants its input are read where they are. Refuses checks and loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from memcfg.data.rows._file_rows import FileColumn

__all__ = ["Batch", "Rows", "as_numbers", "batches", "gather"]

Rows = slice | npt.NDArray[np.intp]
Array = npt.NDArray[Any]


class Batch:
    """Rows of samples and, except for prediction, of their labels."""

    __slots__ = ("_file", "_in_place", "_rows", "_x", "_y", "sample_shape", "size")

    def __init__(
        self,
        x: Array,
        y: Array | None,
        rows: Rows,
        *,
        in_place: bool,
        file: FileColumn | None = None,
    ) -> None:
        self._x: Array | None = x
        self._y = y
        self._file = file
        self._rows = rows
        self._in_place = in_place
        self.sample_shape = x.shape[1:]
        self.size = rows.stop - rows.start if isinstance(rows, slice) else len(rows)

    def moved(self, rows: Rows) -> Self:
        """Become another batch of the same arrays."""
        self._rows = rows
        self.size = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return self

    def in_place(self) -> Array | None:
        """Return the samples, if a program may read them where they lie."""
        return self._x[self._rows] if self._in_place and self._x is not None else None

    def copy(self, what: str, room: Array) -> None:
        """Copy samples or labels into a program."""
        source = self._x if what == "x" else self._y
        assert source is not None  # nobody asks for what was let go, or not there
        if what == "x" and self._file is not None:
            self._file.read(as_numbers(self._rows), room)
        else:
            gather(source, self._rows, room)

    def let_go(self) -> None:
        """Forget the arrays."""
        self._x = self._y = None


def batches(
    samples: int, batch_size: int, order: npt.NDArray[np.intp] | None = None
) -> Iterator[Rows]:
    """Yield the rows of each batch; the last may be shorter."""
    for start in range(0, samples, batch_size):
        rows = slice(start, min(start + batch_size, samples))
        yield rows if order is None else order[rows]


def as_numbers(rows: Rows) -> npt.NDArray[np.intp]:
    """Return rows as their numbers."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def gather(source: Array, rows: Rows, room: Array) -> None:
    """Copy rows into the arena without any memory of their own."""
    if isinstance(rows, slice):
        np.copyto(room, source[rows])
    elif source.flags.c_contiguous and source.flags.aligned:
        # mode="clip": with the default, take() gathers into a copy of `out` first.
        np.take(source, rows, axis=0, out=room, mode="clip")
    else:  # take() would copy the whole source first
        for place, row in enumerate(rows):
            room[place] = source[row]
