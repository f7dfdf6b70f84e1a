"""Page-locked memory that takes saved tensors of GPUs, beside what computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.torch.spill._page_locked import PageLocked, Streams
from memcfg.torch.spill._spill_space import SpillSpace

if TYPE_CHECKING:
    import torch

    from memcfg.torch.spill._page_locked import StreamCopy
    from memcfg.torch.spill._spill_space import Extent


class Underway:
    """A copy between a tensor and an extent, which both stay until it is waited for.

    Whoever drops it before waits for it, since its memory may be another's next.
    """

    __slots__ = ("_copy", "_tensor", "extent")

    def __init__(self, copy: StreamCopy, tensor: torch.Tensor, extent: Extent) -> None:
        self._copy: StreamCopy | None = copy
        self._tensor: torch.Tensor | None = tensor
        self.extent = extent

    def wait(self) -> None:
        """Have the current stream wait, not the host."""
        if self._copy is not None:
            self._copy.wait()
            self._copy = self._tensor = None

    def __del__(self) -> None:
        if self._copy is not None:
            self._copy.settle()


class SpillHost(SpillSpace):
    """Page-locked memory, and streams that copy to it and from it.

    Parameters
    ----------
    nbytes : int
        Its size in bytes.

    Raises
    ------
    ResourceExhaustedError
        If the host has not so many to lock.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self._memory = PageLocked(nbytes)
        self._streams: dict[torch.device, Streams] = {}
        self._last: dict[torch.device, StreamCopy] = {}  # that reads from it

    def write(self, source: torch.Tensor) -> Underway | None:
        """Begin to copy bytes of a GPU; None if there is no room."""
        extent = self.take(source.numel())
        if extent is None:
            return None
        for last in self._last.values():  # may read what was there before
            last.wait()
        self._last.clear()
        there = self._bytes(extent, source)
        copy = self._streams_of(source.device).copy_out(there, source)
        return Underway(copy, source, extent)

    def read(self, extent: Extent, target: torch.Tensor) -> Underway:
        """Begin to copy bytes back; RuntimeError in the child of a fork."""
        self.check_process()
        there = self._bytes(extent, target)
        copy = self._streams_of(target.device).copy_in(target, there)
        self._last[target.device] = copy
        return Underway(copy, target, extent)

    def _bytes(self, extent: Extent, like: torch.Tensor) -> torch.Tensor:
        return self._memory.tensor[extent.offset : extent.offset + like.numel()]

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = Streams(device)
        return self._streams[device]
