"""Memory in files: blocks, and arrays larger than the machine's memory.

Owns the functions that map a file, and the array that knows its file. Refuses what the
system does with files: that is the native core's.
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
    """Hand out blocks that lie in a file: memory for what is larger than memory.

    Parameters
    ----------
    path : str, bytes or path-like
        The file. Symbolic links are followed.
    nbytes : int, str or None, default None
        The file's length, at least 1: bytes, or a string with a unit such as
        ``"8GiB"``. A file that is there keeps its bytes, a shorter one gets zeros at
        its end. None is the length that it has.
    overwrite : bool, default False
        Whether a file that is there is replaced by a new one of zeros, with the same
        owner and permissions. Its folder must then be writable, with space for both.
    delete : bool, default False
        Whether the file is removed when it is closed, or the interpreter ends. A
        process that is killed leaves it. A file that is there already is refused,
        unless it is overwritten.

    Returns
    -------
    MappedFile
        A resource with `path`, `nbytes`, `flush`, `evict` and `close`, which closes
        itself when it is garbage-collected. It can stand below a `Pool` and all others.

    Raises
    ------
    BlockingIOError
        If the file has an owner already, in this process or in another one; the
        message tells which.
    FileExistsError
        If the file is there, and `delete` without `overwrite` would remove it.
    OSError
        If the disk is full (``ENOSPC``, with the numbers), or the file cannot be used:
        its folder is missing, it is write-protected, a folder or no regular file, or
        it is overwritten and this user can make no file of its owner's. `filename` is
        `path`.
    TypeError
        If an argument is of another type.
    ValueError
        If `nbytes` is not a size, not positive, or less than the file has; or if it is
        None and there is no file, or an empty one.

    Notes
    -----
    Whatever is raised, files and folder are as they were, with one exception: where
    the folder cannot be flushed after a file in it was replaced, the OSError is raised
    and the new file stays, or with `delete` none. A process that is killed while it
    overwrites may leave a neighbour ``.memcfg-*``. No file is ever truncated. Its disk
    is allocated before the first write, gaps included, so that no write meets a full
    disk; on file systems that copy on write (Btrfs, ZFS) nobody can promise that.

    Blocks lie wherever they fit; what reads the file again wants `mapped_array`.
    No block reaches behind the file's end, so up to 63 bytes there are only in a block
    of the whole file.

    Written bytes are in the file as soon as they are written and survive the end of
    the process, even by a signal; they survive that of the machine from `flush` on.
    The lock is one of flock(2), which other programs need not heed: where one of them
    cuts the file, the next touch ends the process (``SIGBUS``). In a forked child the
    blocks are copies of its own, made page by page as it writes; `flush` and `evict`
    are refused there, and the file remains the parent's.

    The disk's bytes are not the host's memory: `set_host_memory_limit(tracked=...)`
    does not count them. The pages that are resident count as long as they are, and are
    evicted before a limit on resident memory refuses anything.

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
    """An array whose data is in a file. Made by `mapped_array`.

    Its views keep the file open and are of this class too. What is computed from it is
    a plain array; so are copies, pickles and what `copy.copy` makes. A few methods of
    NumPy (`astype`, `flatten`, `repeat` and the like) give an array of this class that
    is in memory: its `filename` is None.
    """

    _block: Block | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse: only a file makes one."""
        raise TypeError("a MappedArray is made by memcfg.memory.mapped_array")

    def __array_finalize__(self, array: object) -> None:
        """Take the file over where the memory is the same, as in a view."""
        self._block = None
        if isinstance(array, MappedArray) and _is_view(self, array):
            self._block = array._block

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        """Give results that are not in the file as plain arrays or scalars."""
        array = super().__array_wrap__(array, context)
        if self is array:
            return array
        return array[()] if return_scalar else np.asarray(array)

    def __getitem__(self, key: Any) -> Any:
        """Give what an index copies as a plain array."""
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
        """The file, as an absolute path; None where the array is in memory."""
        return None if self._block is None else self._file().path

    def _file(self) -> MappedFile:
        if self._block is None:
            raise ValueError("the array is in memory, not in a file")
        return cast("MappedFile", self._block.resource)

    def flush(self) -> None:
        """Bring the whole file onto the disk, not only what a view shows of it.

        Raises
        ------
        OSError
            If the system cannot write it all.
        ValueError
            If the array is in memory.
        """
        self._file().flush()

    def evict(self) -> int:
        """Take the array's pages out of the memory that this process has resident.

        The data stays in the file, and the next touch brings it back; so a program
        that evicts what it has read stays small, however long the file is.

        Returns
        -------
        int
            The bytes that were resident, in the whole pages between the first and the
            last byte of the array (or view); 0 for an empty one, and where the system
            does not tell.

        Raises
        ------
        OSError
            If the system refuses, because the program has locked the pages in memory.
        ValueError
            If the array is in memory.
        """
        file = self._file()
        if self.size == 0:
            return 0
        low, high = byte_bounds(self)
        return file.evict(low - cast("Block", self._block).address, high - low)


# Two empty arrays share no memory, but they end in the same object.
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
        The array's shape, before the data-type (`numpy.memmap` has it behind); the file
        is as long as its data. What is in a file that is there stays, and is followed
        by zeros where it was shorter. None: one dimension, over the whole file that is
        there.
    dtype : data-type, default "float64"
        What the array holds, as for `numpy.empty`; no Python objects.
    overwrite : bool, default False
        Whether a file that is there is replaced by zeros.
    delete : bool, default False
        Whether the file is removed with the last view of the array, or when the
        interpreter ends. A file that is there already is refused, unless it is
        overwritten.

    Returns
    -------
    MappedArray
        An array that can be written, with `filename`, `flush` and `evict`. The file is
        flushed and closed when the last view of it goes.

    Raises
    ------
    BlockingIOError, FileExistsError, OSError
        As for `mmap_file`.
    TypeError
        If an argument is of another type: a data-type as the second one, for example.
    ValueError
        If the array would have no bytes, or fewer than the file; if there is no shape
        and no file, or its length is not a multiple of an element's; if the shape has
        more dimensions than NumPy's arrays; or if `dtype` holds objects.

    Notes
    -----
    What `mmap_file` says of disk space, locks and crashes holds here too. Unlike
    `numpy.memmap` it is never sparse, and never has two owners or a file of another
    length. In a forked child it is the same file: what the child writes, the parent
    sees.

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
    np.empty((1,) * len(dimensions))  # refuses too many
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


# bool is an int, and an array of several numbers has the method of one.
def _is_extent(value: Any) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, bool | np.bool_)
