"""Files of tensors: mapped for whoever reads them, copied explicitly by steps.

A tensor of such a file is an ordinary tensor over a mapping of its bytes, so all of
PyTorch can read and write it, at the price of resident pages. Planned steps never touch
the mapping: they copy pieces from and to the file (`TensorFile.read`, `write`), which
the kernel keeps coherent with it, so that only their own buffers are resident.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from memcfg._core import fork_count
from memcfg.units import align_up, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

_PAGE = 4096  # bytes: each tensor of a scratch file begins on a page


def whole_pages(nbytes: int) -> int:
    """Return the bytes that a tensor takes of a scratch file."""
    return align_up(nbytes, _PAGE)


class _Mapping(mmap.mmap):
    """The mapping of a file, which keeps it alive."""

    file: TensorFile
    address: int


_mappings: WeakSet[_Mapping] = WeakSet()


class Traffic:
    """The bytes and seconds of copies from and to files.

    Attributes
    ----------
    read_bytes, written_bytes : int
        Bytes copied so far.
    waited_seconds : float
        Seconds that steps have waited for copies.
    """

    def __init__(self) -> None:
        self.read_bytes = self.written_bytes = 0
        self.waited_seconds = 0.0

    def wait(self, copy: Future[Any]) -> None:
        """Wait for a copy; raise OSError if it failed."""
        began = time.perf_counter()
        copy.result()
        self.waited_seconds += time.perf_counter() - began


class TensorFile:
    """A file that holds tensors at offsets.

    Parameters
    ----------
    descriptor : int
        The open file, which is closed with this.
    nbytes : int
        The bytes of the file.
    is_ours : bool
        Whether the file belongs to memcfg, and is written. Changes of tensors of other
        files stay in memory.
    name : str
        What errors call it.
    """

    def __init__(self, descriptor: int, nbytes: int, *, is_ours: bool, name: str):
        self._descriptor = descriptor
        self.nbytes = nbytes
        self.is_ours = is_ours
        self.name = name
        self._end = 0
        self._forks = fork_count()
        kind = mmap.MAP_SHARED if is_ours else mmap.MAP_PRIVATE
        self._mapping = _Mapping(
            descriptor, nbytes, kind, mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._mapping.file = self
        self._mapping.address = torch.frombuffer(
            self._mapping, dtype=torch.uint8, count=1
        ).data_ptr()
        _mappings.add(self._mapping)

    @classmethod
    def scratch(cls, folder: str, nbytes: int) -> TensorFile:
        """Create a file without a name; raise OSError if the disk has no room."""
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        if nbytes > free:
            raise OSError(
                errno.ENOSPC,
                f"a file of {format_bytes(nbytes, exact=True)} for tensors cannot be "
                f"made, the disk has {format_bytes(free)}",
                folder,
            )
        descriptor, path = tempfile.mkstemp(dir=folder, prefix="memcfg-")
        os.unlink(path)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, nbytes, is_ours=True, name=f"a file in {folder}")

    @classmethod
    def of(cls, path: str) -> TensorFile:
        """Open an existing file, which is not written; raise OSError if it cannot."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        nbytes = os.fstat(descriptor).st_size
        return cls(descriptor, nbytes, is_ours=False, name=path)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def take(self, nbytes: int) -> int:
        """Return the offset of bytes that no tensor has had."""
        offset = self._end
        self._end = align_up(offset + nbytes, _PAGE)
        assert offset + nbytes <= self.nbytes, "the file was made large enough"
        return offset

    def tensor(
        self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> torch.Tensor:
        """Return a contiguous tensor over the mapping."""
        count = 1
        for each in shape:
            count *= each
        if not count:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(
            self._mapping,
            dtype=torch.uint8,
            offset=offset,
            count=count * dtype.itemsize,
        )
        return flat.view(dtype).view(shape)

    def check_process(self) -> None:
        """Raise RuntimeError in the child of a fork, which would write its parent's."""
        if self.is_ours and self._forks != fork_count():
            raise RuntimeError(
                "this process was forked from one whose tensors lie in a file, which "
                "only its parent may use: make the budget in this process"
            )

    def read(self, offset: int, target: torch.Tensor) -> int:
        """Copy from the file into a contiguous tensor in memory."""
        view = memoryview(target.reshape(-1).view(torch.uint8).numpy())
        done = 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], offset + done)
            if count == 0:
                raise OSError(errno.EIO, "the file is shorter than it was", self.name)
            done += count
        return done

    def write(self, offset: int, source: torch.Tensor) -> int:
        """Copy a contiguous tensor in memory to the file."""
        view = memoryview(source.reshape(-1).view(torch.uint8).numpy())
        done = 0
        while done < len(view):
            done += os.pwritev(self._descriptor, [view[done:]], offset + done)
        return done

    def forget(self) -> None:
        """Drop the resident pages of the mapping; their bytes stay in the file."""
        if self.is_ours:
            self._mapping.madvise(mmap.MADV_DONTNEED)


class Place:
    """Where the bytes of a tensor lie in a file."""

    __slots__ = ("file", "offset")

    def __init__(self, file: TensorFile, offset: int) -> None:
        self.file = file
        self.offset = offset

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Place)
            and self.file is other.file
            and self.offset == other.offset
        )

    __hash__ = None  # type: ignore[assignment]


def place_of(tensor: Any) -> Place | None:
    """Return where a tensor lies in a file, or None if it is in memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    if not _mappings or isinstance(tensor, torch._subclasses.FakeTensor):
        return None
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return None
    address = tensor.data_ptr()
    for each in list(_mappings):
        offset = address - each.address
        if 0 <= offset < each.file.nbytes:
            return Place(each.file, offset)
    return None


def is_elsewhere(tensor: Any) -> bool:
    """Return whether the bytes of a tensor lie in a file."""
    return place_of(tensor) is not None


class Copies:
    """A thread for each direction, which copies between memory and files.

    Parameters
    ----------
    bandwidth : float or None, default None
        The most bytes per second in each direction; None for no limit.
    """

    def __init__(self, bandwidth: float | None = None) -> None:
        self.bandwidth = bandwidth
        self.traffic = Traffic()
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._forks = fork_count()
        self._in = ThreadPoolExecutor(1, "memcfg-read")
        self._out = ThreadPoolExecutor(1, "memcfg-write")

    def read(self, place: Place, target: torch.Tensor) -> Future[int]:
        """Begin to copy from a file into a tensor."""
        self.traffic.read_bytes += target.nbytes
        return self._begin(True, place, target)

    def write(self, place: Place, source: torch.Tensor) -> Future[int]:
        """Begin to copy a tensor, which must not change meanwhile, to a file."""
        self.traffic.written_bytes += source.nbytes
        return self._begin(False, place, source)

    def _begin(self, reads: bool, place: Place, tensor: torch.Tensor) -> Future[int]:
        place.file.check_process()
        with self._lock:
            if self._forks != fork_count():  # the threads are the parent's
                self._start()
            copy = place.file.read if reads else place.file.write
            threads = self._in if reads else self._out
            return threads.submit(self._timed, copy, place.offset, tensor)

    def _timed(
        self,
        copy: Callable[[int, torch.Tensor], int],
        offset: int,
        tensor: torch.Tensor,
    ) -> int:
        began = time.perf_counter()
        done = copy(offset, tensor)
        if self.bandwidth is not None:
            left = done / self.bandwidth - (time.perf_counter() - began)
            time.sleep(max(0.0, left))
        return done
