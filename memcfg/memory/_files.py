"""Memory in files: blocks, and arrays larger than the machine's memory.

Owns the functions that map a file, and the array class that knows its file. System
calls on files belong to the native core.
"""

from __future__ import annotations

from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds

from memcfg._core import Block, MappedFile, current_tag

if TYPE_CHECKING:
    from os import PathLike
    from typing import Self

    from numpy.typing import DTypeLike, NDArray

__all__ = ["MappedArray", "mapped_array", "mmap_file"]


def mmap_file(
    path: str | bytes | PathLike[str] | PathLike[bytes],
    nbytes: int | str | None = None,
    *,
    overwrite: bool = False,
    delete: bool = False,
) -> MappedFile:
    """Map a file as a resource whose blocks may be larger than the machine's memory.

    Parameters
    ----------
    path : str, bytes or path-like
        The file. Symbolic links are followed.
    nbytes : int, str or None, default None
        The file's length, at least 1: bytes, or a string with a unit such as
        ``"8GiB"``. An existing file keeps its bytes, and is extended by zeros if it is
        shorter. None means its current length.
    overwrite : bool, default False
        Whether to replace an existing file by a new one of zeros, with the same owner
        and permissions. Its folder must be writable, with space for both.
    delete : bool, default False
        Whether to remove the file when it is closed, or the interpreter exits. A
        process that is killed leaves it. An existing file is refused, unless it is
        overwritten.

    Returns
    -------
    MappedFile
        A resource with `path`, `nbytes`, `flush`, `evict` and `close`, which closes
        itself when it is garbage-collected. A `Pool` or any other resource can stand on
        it.

    Raises
    ------
    BlockingIOError
        If the file already has an owner, in this process or in another one; the message
        says which.
    FileExistsError
        If the file exists, and `delete` without `overwrite` would remove it.
    OSError
        If the disk is full (``ENOSPC``, with the numbers), or the file cannot be used:
        its folder is missing, it is write-protected, a folder or no regular file, or it
        is to be overwritten and this user cannot create a file with its owner.
        `filename` is `path`.
    TypeError
        If an argument is of another type.
    ValueError
        If `nbytes` is not a size, not positive, or less than the length of the file; or
        if it is None and the file does not exist or is empty.

    Notes
    -----
    Any error leaves files and folder unchanged, with one exception: if the folder
    cannot be flushed after a file in it was replaced, the OSError is raised and the new
    file stays, or with `delete`, none. A process that is killed while it overwrites may
    leave a file ``.memcfg-*`` next to it. No file is ever truncated. Disk space is
    allocated before the first write, including gaps, so that no write finds the disk
    full; this cannot be guaranteed on copy-on-write file systems (Btrfs, ZFS).

    Blocks are placed wherever they fit; use `mapped_array` for data that is read again.
    No block extends past the end of the file, so the last 1 to 63 bytes of an unaligned
    file are only in a block of the whole file.

    Bytes are in the file as soon as they are written, and survive the end of the
    process, even by a signal; after `flush` they also survive a crash of the machine.
    The lock is that of flock(2), which other programs may ignore: if one of them
    truncates the file, the next access ends the process (``SIGBUS``). In a forked child
    the blocks are private copies, made page by page as it writes; `flush` and `evict`
    are refused there, and the file remains the parent's.

    Bytes on disk are not host memory: `set_host_memory_limit(tracked=...)` does not
    count them. Resident pages count towards a limit on resident memory, and are evicted
    before it refuses anything.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from memcfg import memory
    >>> with TemporaryDirectory() as folder:
    ...     with memory.mmap_file(folder + "/scratch", "1MiB", delete=True) as file:
    ...         with file.allocate(1000, tag="window") as block:
    ...             file.owners(), file.stats().limit_bytes
    ({'window': 1024}, 1048576)
    """
    return MappedFile(path, nbytes, overwrite=overwrite, delete=delete)


class MappedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array whose data is in a file, made by `mapped_array`.

    Views keep the file open and are of this class, too. Results computed from it are
    plain arrays, and so are copies, pickles and results of `copy.copy`. Some methods of
    NumPy (`astype`, `flatten`, `repeat` and similar ones) return an array of this class
    in memory, whose `filename` is None.
    """

    _block: Block | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise TypeError, since only a file makes such an array."""
        raise TypeError("a MappedArray is made by memcfg.memory.mapped_array")

    def __array_finalize__(self, array: object) -> None:
        """Keep the file of the source if the memory is the same, as in a view."""
        self._block = None
        if isinstance(array, MappedArray) and _is_view(self, array):
            self._block = array._block

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        """Return results that are not in the file as plain arrays or scalars."""
        array = super().__array_wrap__(array, context)
        if self is array:
            return array
        return array[()] if return_scalar else np.asarray(array)

    def __getitem__(self, key: Any) -> Any:
        """Return the copy that an index makes as a plain array."""
        item = super().__getitem__(key)
        if isinstance(item, MappedArray) and item._block is None:
            return np.asarray(item)
        return item

    def copy(self, order: Any = "C") -> Any:
        """Copy the data into memory.

        Parameters
        ----------
        order : {"C", "F", "A", "K"}, default "C"
            As for `numpy.ndarray.copy`.

        Returns
        -------
        numpy.ndarray
            A plain array.
        """
        return np.asarray(self).copy(order)

    def __copy__(self) -> Any:
        return np.array(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return np.array(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)

    @property
    def filename(self) -> str | None:
        """The absolute path of the file; None if the array is in memory."""
        return None if self._block is None else self._file().path

    def _file(self) -> MappedFile:
        if self._block is None:
            raise ValueError("the array is in memory, not in a file")
        return cast("MappedFile", self._block.resource)

    def flush(self) -> None:
        """Write the whole file to the disk, not only the part of a view.

        Raises
        ------
        OSError
            If the system cannot write all of it.
        ValueError
            If the array is in memory.
        """
        self._file().flush()

    def evict(self) -> int:
        """Remove the array's pages from the resident memory of this process.

        The data stays in the file, and the next access reads it back. A program that
        evicts what it has read thus stays small, however long the file is.

        Returns
        -------
        int
            The bytes that were resident, in the whole pages between the first and the
            last byte of the array or view. It is 0 for an empty array, and if the
            system does not report it.

        Raises
        ------
        OSError
            If the system refuses because the program has locked the pages in memory.
        ValueError
            If the array is in memory.
        """
        file = self._file()
        if self.size == 0:
            return 0
        low, high = byte_bounds(self)
        return file.evict(low - cast("Block", self._block).address, high - low)


# Empty arrays share no memory, but their chains of bases end in the same object.
def _is_view(view: MappedArray, array: MappedArray) -> bool:
    if view.size > 0:
        return np.may_share_memory(view, array)
    return _origin(view) is _origin(array)


def _origin(array: object) -> object:
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array


def mapped_array(
    path: str | bytes | PathLike[str] | PathLike[bytes],
    shape: int | tuple[int, ...] | list[int] | None = None,
    dtype: DTypeLike = "float64",
    *,
    overwrite: bool = False,
    delete: bool = False,
) -> MappedArray:
    """Map a file as an array, which may be larger than the machine's memory.

    Parameters
    ----------
    path : str, bytes or path-like
        The file. Symbolic links are followed.
    shape : int, tuple of int or None, default None
        The shape of the array; the file is as long as its data. Note that
        `numpy.memmap` takes the data type first. An existing file keeps its data, and
        is extended by zeros if it is shorter. None means one dimension over the whole
        existing file.
    dtype : data-type, default "float64"
        The data type of the elements, as for `numpy.empty`; no Python objects.
    overwrite : bool, default False
        Whether to replace an existing file by zeros.
    delete : bool, default False
        Whether to remove the file with the last view of the array, or when the
        interpreter exits. An existing file is refused, unless it is overwritten.

    Returns
    -------
    MappedArray
        A writable array with `filename`, `flush` and `evict`. The file is flushed and
        closed when its last view is garbage-collected.

    Raises
    ------
    BlockingIOError, FileExistsError, OSError
        As for `mmap_file`.
    TypeError
        If an argument has another type, such as a data type as the second one.
    ValueError
        If the array would have no bytes, or fewer than the file; if `shape` is None and
        there is no file, or its length is not a multiple of an element's; if the shape
        has more dimensions than NumPy's arrays; or if `dtype` holds objects.

    Notes
    -----
    The notes of `mmap_file` on disk space, locks and crashes apply here, too. Unlike
    with `numpy.memmap`, the file is never sparse, never has two owners, and never has
    another length than the array. A forked child shares the file: the parent sees what
    the child writes.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from memcfg import memory
    >>> folder = TemporaryDirectory()
    >>> a = memory.mapped_array(folder.name + "/a", (1000, 3))
    >>> a[:, 2] = 1
    >>> a.flush(), a.sum()
    (None, np.float64(1000.0))
    >>> del a
    >>> memory.mapped_array(folder.name + "/a").shape
    (3000,)
    >>> folder.cleanup()
    """
    kind = np.dtype(dtype)
    if kind.hasobject or kind.itemsize == 0:
        raise ValueError(f"a file holds no elements of type {kind!r}")
    extents = None if shape is None else _extents(shape)
    dimensions = ((-1,) if extents is None else extents) + kind.shape
    np.empty((1,) * len(dimensions))  # raises ValueError for too many dimensions
    nbytes = None if extents is None else prod(extents) * kind.itemsize
    file = MappedFile(
        path,
        nbytes,
        overwrite=overwrite,
        delete=delete,
        _unit=kind.itemsize,
        _shared=True,
    )
    block = file.allocate(file.nbytes, tag=current_tag.get() or "mapped array")
    flat: NDArray[Any] = np.frombuffer(memoryview(block), kind.base)
    array = flat.reshape(dimensions).view(MappedArray)
    array._block = block
    return array


def _extents(shape: Any) -> tuple[int, ...]:
    rows = shape if isinstance(shape, tuple | list) else (shape,)
    if not all(_is_extent(each) for each in rows):
        raise TypeError(f"shape is an int or a tuple of ints, not {shape!r}")
    sizes = tuple(index(each) for each in rows)
    if any(size < 0 for size in sizes):
        raise ValueError(f"a shape has no negative numbers: {sizes}")
    return sizes


# A bool is an int, and an array with several numbers has `__index__`.
def _is_extent(value: Any) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, bool | np.bool_)
