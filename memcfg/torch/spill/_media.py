"""The memory of stores: files for the CPU, page-locked host memory for a GPU."""

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

_TRIED = 32 * 2**20  # bytes that are copied to measure the speed
_PORTABLE = 1  # cudaHostRegisterPortable: locked for all GPUs


class Moving(Protocol):
    """Bytes that are being copied."""

    def wait(self) -> None:
        """Make readers and the next users of the memory wait, or raise OSError."""

    def settle(self) -> None:
        """Wait until the copy has ended."""


class Medium(ABC):
    """Memory outside a device, and what copies to it and from it."""

    name: str  # the name of its tier in plans
    device: torch.device  # the type of device whose tensors leave

    @abstractmethod
    def bytes_per_second(self) -> float:
        """Return the bandwidth that plans assume for copies."""

    @abstractmethod
    def start(self) -> None:
        """Create what copies; called again in the child of a fork."""

    @abstractmethod
    def make(self, nbytes: int) -> Any:
        """Allocate memory; raise OSError or ResourceExhaustedError if there is none."""

    @abstractmethod
    def copy_out(self, memory: Any, offset: int, source: torch.Tensor) -> Moving:
        """Begin to copy bytes to the memory."""

    @abstractmethod
    def copy_in(self, memory: Any, offset: int, target: torch.Tensor) -> Moving:
        """Begin to copy bytes from the memory."""


def bytes_of(storage: Any, device: torch.device) -> torch.Tensor:
    """Return the bytes of a storage on a device, as a tensor."""
    made = torch.empty(0, dtype=torch.uint8, device=device)
    return made.set_(storage, 0, (storage.nbytes(),), (1,))


class _LaneCopy:
    """A copy by a lane, whose transfer ends before it is garbage-collected."""

    __slots__ = ("_transfer",)

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def wait(self) -> None:
        """Wait; raise OSError if the copy failed."""
        self._transfer.wait()

    def settle(self) -> None:
        """Do nothing: whoever drops the copy waits for it."""


class Files(Medium):
    """Unnamed files, allocated on disk at once, and a thread for each direction.

    Parameters
    ----------
    folder : str
        The folder of the files.
    bandwidth : float or None, default None
        The most bytes per second to copy, in each direction; None for no limit.
    """

    name = "file"
    device = torch.device("cpu")

    def __init__(self, folder: str, bandwidth: float | None = None) -> None:
        self._folder = folder
        self._bandwidth = bandwidth
        self.start()

    def bytes_per_second(self) -> float:
        """Return the given bandwidth, or a nominal one."""
        return self._bandwidth or NOMINAL_COPY[self.name]

    def start(self) -> None:
        """Create the lanes."""
        self.lane_in, self.lane_out = Lane(self._bandwidth), Lane(self._bandwidth)

    def make(self, nbytes: int) -> ScratchFile:
        """Create a file; raise OSError before it is filled if the disk has no room."""
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
    """Page-locked memory of the host, and a GPU stream for each direction.

    ``record_stream`` is not used, since it would free bytes later than planned. The
    computing stream waits for a copy before its bytes are freed.

    Parameters
    ----------
    device : torch.device or None, default None
        The GPU; None for any, each with its own streams.
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
        """Return the measured rate of the slower direction, or a nominal one."""
        if not self._measured:
            return NOMINAL_COPY[self.name]
        # it may be called during tracing
        with unset_fake_temporarily(), _disable_current_modes():
            return measured_rate(self.device, self._streams_of(self.device))

    def start(self) -> None:
        """Drop the streams, which are created when they are needed."""
        self._streams: dict[torch.device, Streams] = {}
        self._last_in: dict[torch.device, StreamCopy] = {}

    def make(self, nbytes: int) -> PageLocked:
        """Allocate page-locked memory of the host."""
        # it may be called during tracing
        with unset_fake_temporarily(), _disable_current_modes():
            return PageLocked(nbytes)

    def copy_out(self, memory: Any, offset: int, source: torch.Tensor) -> Moving:
        """Begin to copy to the host, after all that may read the target before."""
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
    """Host memory of an exact size that a GPU copies to and from.

    PyTorch's own allocator of page-locked memory rounds up to powers of two.
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
            with suppress(Exception):  # the interpreter or the GPU may have shut down
                torch.cuda.synchronize()  # no copy is running
                self._unregister(self._address)


class StreamCopy:
    """A copy by a stream of its own."""

    __slots__ = ("_device", "event")

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self.event = event
        self._device = device

    def wait(self) -> None:
        """Make later work of the current stream wait for the copy, but not the host."""
        torch.cuda.current_stream(self._device).wait_event(self.event)

    def settle(self) -> None:
        """Wait for the copy."""
        self.event.synchronize()


class Streams:
    """A stream for each direction, apart from the one that computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def copy_out(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        after: Iterable[StreamCopy] = (),
    ) -> StreamCopy:
        """Copy to the host once the current stream has done its earlier work.

        The copy also waits for those in `after`. The current stream waits for none.
        """
        for each in after:
            self._out.wait_event(each.event)
        return self._copy(self._out, target, source)

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> StreamCopy:
        """Copy from the host, likewise, as others may have used the target's memory."""
        return self._copy(self._in, target, source)

    def _copy(
        self, stream: torch.cuda.Stream, target: torch.Tensor, source: torch.Tensor
    ) -> StreamCopy:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return StreamCopy(stream.record_event(), self._device)


def measured_rate(device: torch.device, streams: Streams) -> float:
    """Return the bytes per second of the slower direction."""
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
