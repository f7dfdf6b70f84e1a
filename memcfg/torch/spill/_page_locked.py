"""Page-locked memory of the host, and streams that copy between it and a GPU."""

from __future__ import annotations

import mmap
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from memcfg.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable

_TRIED = 32 * 2**20  # bytes that are copied to see how fast that is
_PORTABLE = 1  # cudaHostRegisterPortable: locked for all GPUs


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

    __slots__ = ("_device", "_event")

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event = event
        self._device = device

    def wait(self) -> None:
        """Have what the current stream is given from now on wait; not the host."""
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def settle(self) -> None:
        """Wait for it."""
        self._event.synchronize()


class Streams:
    """A stream for each direction, beside whatever stream computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def copy_out(self, target: torch.Tensor, source: torch.Tensor) -> StreamCopy:
        """Copy to the host when all that the current stream has been given is done."""
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


def bytes_of(storage: Any, device: torch.device) -> torch.Tensor:
    """Return the bytes of a storage of a device."""
    made = torch.empty(0, dtype=torch.uint8, device=device)
    return made.set_(storage, 0, (storage.nbytes(),), (1,))


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
