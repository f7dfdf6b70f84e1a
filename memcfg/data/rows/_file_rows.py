"""Columns of files: rows of a memory-mapped array are read from its file.

Pages of a map count as the process's memory until the system reclaims them; file reads
go into the reader's arrays and take no other memory of the process.
"""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg._core.rows import read_rows
from memcfg.data.elements._convert import as_scalars
from memcfg.data.elements._spec import TensorSpec
from memcfg.errors import FormatError
from memcfg.files import open_file
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

RowNumbers = npt.NDArray[np.int64]
_MAPS = "/proc/self/maps"
_NOTEWORTHY = 32 << 20  # bytes of a map from which on a warning is given


class Unreadable(Exception):  # noqa: N818  reported to the user as a warning
    """The reason why rows of a mapped array can't be read from its file."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The location of rows in a file."""

    path: str
    offset: int  # of the first byte of all rows
    step: int  # from a row to the next, in rows; may be negative
    count: int
    shape: tuple[int, ...]  # of a row
    dtype: np.dtype[Any]  # in the file

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Offset of the end of the last row in the file."""
        return self.offset + (abs(self.step) * (self.count - 1) + 1) * self.row_bytes

    def numbers(self, rows: RowNumbers) -> RowNumbers:
        """Convert row numbers of the column to row numbers of the file."""
        if self.step == 1:
            return rows
        first = 0 if self.step > 0 else -self.step * (self.count - 1)
        return rows * self.step + first


class FileColumn:
    """Rows of a file that is open as long as the column lives, even if it is unlinked.

    A forked process can use it, as reads do not move the file position. A pickled
    column stores the path and opens the file again.
    """

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._native = layout.dtype.newbyteorder("=")
        file = open_file(layout.path)
        weakref.finalize(self, file.close).atexit = False
        self._file = file.fileno()
        size = os.fstat(self._file).st_size
        if size < layout.end:
            raise FormatError(
                f"{layout.path} has {size} bytes, but the rows of the dataset end at "
                f"byte {layout.end}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return FileColumn, (self._layout,)

    @property
    def file(self) -> int:
        return self._file

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self._layout.shape, self._native)

    def take(self, rows: RowNumbers) -> npt.NDArray[Any]:
        layout = self._layout
        result = np.empty((len(rows), *layout.shape), layout.dtype)
        self.read(rows, result)
        if layout.dtype.isnative:
            return result
        return result.byteswap(inplace=True).view(self._native)

    def read(self, rows: RowNumbers, out: npt.NDArray[Any]) -> None:
        """Read rows into a C-contiguous array of the file's dtype."""
        if not out.size:
            return
        layout = self._layout
        flat = out.reshape(-1).view(np.uint8)
        numbers = layout.numbers(rows)
        try:
            read_rows(self._file, layout.offset, layout.row_bytes, numbers, flat)
        except (FormatError, OSError) as error:
            error.add_note(f"while rows were read from {layout.path}")
            raise

    def value(self, row: int) -> Any:
        return as_scalars(self.take(np.array([row], np.int64))[0, ...])

    def values(self, count: int) -> Iterator[Any]:
        return map(self.value, range(count))


def mapped_column(array: npt.NDArray[Any]) -> tuple[FileColumn | None, str]:
    """Return a column of the file that an array is mapped from, and a warning.

    The column is None if the array is not mapped or its file can't be read; the warning
    is empty unless the array is a large map. FormatError: the file became shorter.
    """
    if array.size == 0 or not is_map(array):
        return None, ""
    try:
        return file_column(array), ""
    except Unreadable as reason:
        if array.nbytes < _NOTEWORTHY:
            return None, ""
        return None, (
            f"a mapped array of {format_bytes(array.nbytes)} is read through its map, "
            f"and its pages will count as the process's memory: {reason}. Open it with "
            'np.load(path, mmap_mode="r"), and do not slice rows'
        )


def is_map(array: npt.NDArray[Any]) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def file_column(array: npt.NDArray[Any]) -> FileColumn:
    """Return the column of a mapped array's file; Unreadable if it can't be read.

    FormatError: the file became shorter, and access to its map there would be SIGBUS.
    """
    step = _step(array)
    first = array if step > 0 else array[::-1]
    path, offset, inode = _mapped(first.__array_interface__["data"][0])
    layout = RowLayout(path, offset, step, len(array), array.shape[1:], array.dtype)
    try:
        same = os.stat(path).st_ino == inode
        column = FileColumn(layout) if same else None
    except OSError as error:
        raise Unreadable(f"its file can't be opened ({error})") from error
    if column is None or os.fstat(column.file).st_ino != inode:
        raise Unreadable(f"{path} has been replaced by another file")
    return column


def _step(array: npt.NDArray[Any]) -> int:
    """Return the distance from a row to the next, in rows."""
    row = array[0, ...]  # a view, also of a number: the map is not touched
    step, rest = divmod(array.strides[0], row.nbytes)
    if not row.flags.c_contiguous or rest or (step == 0 and len(array) > 1):
        raise Unreadable("the bytes of a row are not contiguous in the file")
    return step if len(array) > 1 else 1


def _mapped(address: int) -> tuple[str, int, int]:
    """Return the path, the offset and the inode that an address is mapped to.

    They are read from /proc/self/maps. NumPy's attributes are not enough: a slice has
    the offset of its parent, and the path may name another file by now.
    """
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                span, access, offset, _, inode, *path = line.rstrip("\n").split(None, 5)
                start, end = (int(part, 16) for part in span.split("-"))
                if start <= address < end:
                    break
            else:
                raise Unreadable("it is no longer mapped")
    except OSError as error:
        raise Unreadable(f"{_MAPS} can't be read here") from error
    if access[3] != "s":
        raise Unreadable("it is a private copy (mode 'c'), which may be written to")
    if not path or path[0].endswith(" (deleted)"):
        raise Unreadable("its file was removed or replaced")
    return path[0], int(offset, 16) + address - start, int(inode)
