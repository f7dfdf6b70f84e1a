"""What stores are made of: files beside the CPU, the host's memory beside a GPU."""

from __future__ import annotations

import errno
import mmap
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memcfg._core import Lane, ScratchFile, Transfer
from memcfg.errors import ResourceExhaustedError
from memcfg.graph import NOMINAL_COPY
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TRIED = 32 * 2**20  # bytes that are copied to see how fast that is
_PORTABLE = 1  # cudaHostRegisterPortable: locked for all GPUs


class Moving(Protocol):
    """Bytes on their way."""

    def wait(self) -> None:
        """Have whoever reads them, or takes their place, wait; OSError."""

    def settle(self) -> None:
        """Wait until nothing is on its way."""


class Medium(ABC):
    """Memory elsewhere, and what copies to it and from it."""

    name: str  # of the tier in plans
    device: torch.device  # whose tensors leave

    @abstractmethod
    def bytes_per_second(self) -> float:
        """Return what plans take a copy to move."""

    @abstractmethod
    def start(self) -> None:
        """Make what copies; called again in the child of a fork."""

    @abstractmethod
    def make(self, nbytes: int) -> Any:
        """Make memory; OSError or ResourceExhaustedError if there is none."""

    @abstractmethod
    def copy_out(self, memory: Any, offset: int, source: torch.Tensor) -> Moving:
        """Begin to copy bytes to it."""

    @abstractmethod
    def copy_in(self, memory: Any, offset: int, target: torch.Tensor) -> Moving:
        """Begin to copy bytes from it."""


def bytes_of(storage: Any, device: torch.device) -> torch.Tensor:
    """Return the bytes of a storage of a device."""
    made = torch.empty(0, dtype=torch.uint8, device=device)
    return made.set_(storage, 0, (storage.nbytes(),), (1,))


class _LaneCopy:
    """A copy by a lane, whose transfer ends before it is garbage-collected."""

    __slots__ = ("_transfer",)

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def wait(self) -> None:
        """Wait; OSError if it failed."""
        self._transfer.wait()

    def settle(self) -> None:
        """Do nothing: whoever drops it waits."""


class Files(Medium):
    """Files without names, on disk that is taken at once, and a thread for each way.

    Parameters
    ----------
    folder : str
        Where they lie.
    bandwidth : float or None, default None
        The bytes that a second of copying moves at most, each way; None: no limit.
    """

    name = "file"
    device = torch.device("cpu")

    def __init__(self, folder: str, bandwidth: float | None = None) -> None:
        self._folder = folder
        self._bandwidth = bandwidth
        self.start()

    def bytes_per_second(self) -> float:
        """Return the bandwidth, or a nominal one."""
        return self._bandwidth or NOMINAL_COPY[self.name]

    def start(self) -> None:
        """Make the lanes."""
        self.lane_in, self.lane_out = Lane(self._bandwidth), Lane(self._bandwidth)

    def make(self, nbytes: int) -> ScratchFile:
        """Make a file; OSError, before it is filled, if the disk has no room for it."""
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        if nbytes > free:
            raise OSError(
                errno.ENOSPC,
                f"a file of {format_bytes(nbytes, exact=True)} for tensors that leave "
                f"cannot be made, the disk has {format_bytes(free)}: lower spill_limit",
                self._folder,
            )
        return ScratchFile(self._folder, nbytes)

    def copy_out(self, memory: Any, offset: int, source: torch.Tensor) -> Moving:
        """Begin to write."""
        data = source.numpy().data
        return _LaneCopy(Transfer.write(memory, offset, data, self.lane_out))

    def copy_in(self, memory: Any, offset: int, target: torch.Tensor) -> Moving:
        """Begin to read."""
        data = target.numpy().data
        return _LaneCopy(Transfer.read(memory, offset, data, self.lane_in))


class HostMemory(Medium):
    """Page-locked memory of the host, and streams of a GPU's own for each way.

    No stream's allocator hears of another (``record_stream``), which would free bytes
    later than planned: the computing stream waits for a copy before its bytes end.

    Parameters
    ----------
    device : torch.device or None, default None
        The GPU; None: any, each with its own streams.
    measured : bool, default False
        Whether its copies are timed.
    """

    name = "host"

    def __init__(
        self, device: torch.device | None = None, *, measured: bool = False
    ) -> None:
        if device is not None:
            self.device = device
        self._measured = measured
        self.start()

    def bytes_per_second(self) -> float:
        """Return the rate of the slower way, or a nominal one."""
        if not self._measured:
            return NOMINAL_COPY[self.name]
        with unset_fake_temporarily(), _disable_current_modes():  # while traced
            return measured_rate(self.device, self._streams_of(self.device))

    def start(self) -> None:
        """Forget the streams; they are made when they are needed."""
        self._streams: dict[torch.device, Streams] = {}
        self._last_in: dict[torch.device, StreamCopy] = {}

    def make(self, nbytes: int) -> PageLocked:
        """Lock pages of the host."""
        with unset_fake_temporarily(), _disable_current_modes():  # while traced
            return PageLocked(nbytes)

    def copy_out(self, memory: Any, offset: int, source: torch.Tensor) -> Moving:
        """Begin to copy to the host, behind all that may read what was there before."""
        there = memory.tensor[offset : offset + source.numel()]
        streams = self._streams_of(source.device)
        return streams.copy_out(there, source, tuple(self._last_in.values()))

    def copy_in(self, memory: Any, offset: int, target: torch.Tensor) -> Moving:
        """Begin to copy from the host."""
        there = memory.tensor[offset : offset + target.numel()]
        made = self._streams_of(target.device).copy_in(target, there)
        self._last_in[target.device] = made
        return made

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = Streams(device)
        return self._streams[device]


class PageLocked:
    """Memory of the host that a GPU copies to and from: just so many bytes.

    PyTorch's own allocator of such memory rounds up to powers of two.
    """

    def __init__(self, nbytes: int) -> None:
        self._pages = mmap.mmap(-1, nbytes)
        self.tensor = torch.frombuffer(self._pages, dtype=torch.uint8)
        self._address = self.tensor.data_ptr()
        runtime = torch.cuda.cudart()
        code = int(runtime.cudaHostRegister(self._address, nbytes, _PORTABLE))
        if code != 0:
            raise ResourceExhaustedError(
                f"Memory of the host cannot be page-locked (CUDA's error {code}).",
                requested_bytes=nbytes,
                hint="Lower spill_limit.",
            )
        self._unregister = runtime.cudaHostUnregister

    def __del__(self) -> None:
        if hasattr(self, "_unregister"):
            with suppress(Exception):  # the interpreter, or the GPU, may have ended
                torch.cuda.synchronize()  # nothing is on its way
                self._unregister(self._address)


class StreamCopy:
    """A copy by a stream of its own."""

    __slots__ = ("_device", "event")

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self.event = event
        self._device = device

    def wait(self) -> None:
        """Have what the current stream is given from now on wait; not the host."""
        torch.cuda.current_stream(self._device).wait_event(self.event)

    def settle(self) -> None:
        """Wait for it."""
        self.event.synchronize()


class Streams:
    """A stream for each direction, beside whatever stream computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def copy_out(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        after: Iterable[StreamCopy] = (),
    ) -> StreamCopy:
        """Copy to the host when all that the current stream has been given is done.

        And when the copies `after` which it comes are; the current stream waits for
        none of them.
        """
        for each in after:
            self._out.wait_event(each.event)
        return self._copy(self._out, target, source)

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> StreamCopy:
        """Copy from the host, likewise: others may have used the target's memory."""
        return self._copy(self._in, target, source)

    def _copy(
        self, stream: torch.cuda.Stream, target: torch.Tensor, source: torch.Tensor
    ) -> StreamCopy:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return StreamCopy(stream.record_event(), self._device)


def measured_rate(device: torch.device, streams: Streams) -> float:
    """Return the bytes a second of the slower direction."""
    host = PageLocked(_TRIED)
    there = torch.empty(_TRIED, dtype=torch.uint8, device=device)
    seconds = 0.0
    copies: tuple[Callable[[], StreamCopy], ...] = (
        partial(streams.copy_out, host.tensor, there),
        partial(streams.copy_in, there, host.tensor),
    )
    for copy in copies:
        copy().settle()
        torch.cuda.synchronize(device)
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record(torch.cuda.current_stream(device))
        copy().wait()
        end.record(torch.cuda.current_stream(device))
        end.synchronize()
        seconds = max(seconds, begin.elapsed_time(end) / 1e3)
    return _TRIED / max(seconds, 1e-9)
