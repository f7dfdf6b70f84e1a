"""Columns that are files: rows are read, not mapped.

Owns the way from an array that is a file's map, as `numpy.memmap` makes it, to the
place of its rows in that file. Pages of a map stay in the process until the system
wants them; rows that are read go into the reader's arrays, and nothing else grows.

Which file it is, and where in it, the system's own list of maps tells. What NumPy keeps
is not enough: a slice has the offset of its parent, and the file of that name may be
another by now.
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

    from memcfg.data.rows._rows import RowNumbers

__all__ = ["FileColumn", "Unreadable", "file_column", "is_map", "mapped_column"]

_MAPS = "/proc/self/maps"
_NOTEWORTHY = 32 << 20  # bytes of a map that a process may well notice


class Unreadable(Exception):  # noqa: N818  told to the user as a warning
    """Why the rows of a map can't be read from its file."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where rows lie in a file.

    Parameters
    ----------
    path : str
        The file.
    offset : int
        Of the first byte that belongs to a row.
    step : int
        From a row to the next, in rows; negative: backwards.
    count : int
        How many rows there are.
    shape : tuple of int
        Of a row.
    dtype : numpy.dtype
        In the file.
    """

    path: str
    offset: int
    step: int
    count: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """The length of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Of the last byte that belongs to a row, plus one."""
        return self.offset + (abs(self.step) * (self.count - 1) + 1) * self.row_bytes

    def numbers(self, rows: RowNumbers) -> RowNumbers:
        """Count rows in the file.

        Parameters
        ----------
        rows : numpy.ndarray
            Numbers of rows.

        Returns
        -------
        numpy.ndarray
            Their distances from `offset` in rows.
        """
        if self.step == 1:
            return rows
        first = 0 if self.step > 0 else -self.step * (self.count - 1)
        return rows * self.step + first


class FileColumn:
    """Rows of a file.

    Parameters
    ----------
    places : RowPlaces
        Where they are.

    Raises
    ------
    OSError
        If the file can't be opened.
    FormatError
        If it is too short.

    Notes
    -----
    The file stays open as long as the column lives, also when its name is gone. A
    forked process shares it, for reading moves no position. A pickled column has the
    name, and opens the file anew.
    """

    def __init__(self, places: RowPlaces) -> None:
        self._places = places
        self._native = places.dtype.newbyteorder("=")
        file = open_file(places.path)
        weakref.finalize(self, file.close).atexit = False
        self._file = file.fileno()
        size = os.fstat(self._file).st_size
        if size < places.end:
            raise FormatError(
                f"{places.path} has {size} bytes, and the rows of the dataset end at "
                f"byte {places.end}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return FileColumn, (self._places,)

    @property
    def file(self) -> int:
        """The file's descriptor."""
        return self._file

    @property
    def spec(self) -> TensorSpec:
        """What each row is."""
        return TensorSpec(self._places.shape, self._native)

    def take(self, rows: RowNumbers) -> npt.NDArray[Any]:
        """Read rows into a fresh array.

        Parameters
        ----------
        rows : numpy.ndarray
            Their numbers, all in range.

        Returns
        -------
        numpy.ndarray
            Rows along a new first axis.

        Raises
        ------
        FormatError
            If the file became shorter.
        OSError
            If it can't be read.
        """
        places = self._places
        found = np.empty((len(rows), *places.shape), places.dtype)
        self.read(rows, found)
        if places.dtype.isnative:
            return found
        return found.byteswap(inplace=True).view(self._native)

    def read(self, rows: RowNumbers, out: npt.NDArray[Any]) -> None:
        """Read rows into an array, as the file has them.

        Parameters
        ----------
        rows : numpy.ndarray
            Their numbers, all in range.
        out : numpy.ndarray
            Gets them: C-contiguous, of the file's dtype.

        Raises
        ------
        FormatError
            If the file became shorter.
        OSError
            If it can't be read.
        """
        if not out.size:
            return
        places = self._places
        flat = out.reshape(-1).view(np.uint8)
        numbers = places.numbers(rows)
        try:
            read_rows(self._file, places.offset, places.row_bytes, numbers, flat)
        except (FormatError, OSError) as error:
            error.add_note(f"while rows were read from {places.path}")
            raise

    def value(self, row: int) -> Any:
        """Read one row.

        Parameters
        ----------
        row : int
            Its number, in range.

        Returns
        -------
        numpy.ndarray or numpy.generic
            A fresh array.
        """
        return as_scalars(self.take(np.array([row], np.int64))[0, ...])

    def values(self, count: int) -> Iterator[Any]:
        """Read the first rows, one after the other.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        iterator
            Over fresh arrays.
        """
        return map(self.value, range(count))


def mapped_column(array: npt.NDArray[Any]) -> tuple[FileColumn | None, str]:
    """Find the rows of an array in a file, if that is where they are.

    Parameters
    ----------
    array : numpy.ndarray
        Of at least one axis.

    Returns
    -------
    tuple of (FileColumn or None) and str
        None where they are to be read through the array, and what is to be said of
        that: nothing, unless the array is a large map.

    Raises
    ------
    FormatError
        If the file became shorter.
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
            'np.load(path, mmap_mode="r"), and leave rows whole'
        )


def is_map(array: npt.NDArray[Any]) -> bool:
    """Tell whether an array is memory that a file is mapped to.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        Whether it is.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def file_column(array: npt.NDArray[Any]) -> FileColumn:
    """Find the rows of a mapped array in its file.

    Parameters
    ----------
    array : numpy.ndarray
        Of at least one axis and one element; a file is mapped to it.

    Returns
    -------
    FileColumn
        The same values, unless somebody writes to the file.

    Raises
    ------
    Unreadable
        If that can't be, and why.
    FormatError
        If the file became shorter: whoever touches the map there would be killed.
    """
    step = _step(array)
    first = array if step > 0 else array[::-1]
    path, offset, inode = _mapped(first.__array_interface__["data"][0])
    places = RowPlaces(path, offset, step, len(array), array.shape[1:], array.dtype)
    try:
        same = os.stat(path).st_ino == inode
        column = FileColumn(places) if same else None
    except OSError as error:
        raise Unreadable(f"its file can't be opened ({error})") from error
    if column is None or os.fstat(column.file).st_ino != inode:
        raise Unreadable(f"{path} is another file by now")
    return column


def _step(array: npt.NDArray[Any]) -> int:
    """Return the distance from a row to the next in rows."""
    row = array[0, ...]  # a view, also of a number: the map is not touched
    step, rest = divmod(array.strides[0], row.nbytes)
    if not row.flags.c_contiguous or rest or (step == 0 and len(array) > 1):
        raise Unreadable("the bytes of a row do not lie together in the file")
    return step if len(array) > 1 else 1


def _mapped(address: int) -> tuple[str, int, int]:
    """Find the file, the place in it, and its inode, that an address is mapped to."""
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                span, access, offset, _, inode, *path = line.rstrip("\n").split(None, 5)
                start, end = (int(part, 16) for part in span.split("-"))
                if start <= address < end:
                    break
            else:
                raise Unreadable("it is no map any more")
    except OSError as error:
        raise Unreadable(f"{_MAPS} can't be read here") from error
    if access[3] != "s":
        raise Unreadable("it is a private copy (mode 'c'), which may be written to")
    if not path or path[0].endswith(" (deleted)"):
        raise Unreadable("its file was removed or replaced")
    return path[0], int(offset, 16) + address - start, int(inode)
