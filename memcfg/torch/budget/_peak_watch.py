"""What a planned step has in use at most, as its device counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from memcfg.torch.limit import _cpu_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.torch.budget._live_passes import LivePasses

_RUN = 2  # the first that may be watched: by then libraries have what they keep


class Meter(Protocol):
    """Counts the bytes that an allocator has given out."""

    def current(self) -> int:
        """Return the bytes in use."""

    def peak(self) -> int:
        """Return the most since the last reset."""

    def reset(self) -> None:
        """Begin to count the most anew."""


class _CudaMeter:
    """PyTorch's allocator of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> int:
        """Return the bytes in use."""
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self) -> int:
        """Return the most since the last reset."""
        return int(torch.cuda.max_memory_allocated(self._device))

    def reset(self) -> None:
        """Begin to count the most anew."""
        torch.cuda.reset_peak_memory_stats(self._device)


class _PoolMeter:
    """The pool of `limit_cpu`."""

    def current(self) -> int:
        """Return the bytes in use."""
        return int(_cpu_limit.get_memory_info()["current"])

    def peak(self) -> int:
        """Return the most since the last reset."""
        return int(_cpu_limit.get_memory_info()["peak"])

    def reset(self) -> None:
        """Begin to count the most anew."""
        _cpu_limit.reset_memory_stats()


def meter_of(device: torch.device) -> Meter | None:
    """Return what counts a device's bytes; None: nothing does."""
    if device.type == "cuda":
        return _CudaMeter(device)
    if device.type == "cpu" and _cpu_limit.is_limited():
        return _PoolMeter()
    return None


class PeakWatch:
    """Watches one step: from the begin of its forward to the end of its backward graph.

    That is the first, after the one that is the first of all, that no other pass of the
    module overlaps.

    Parameters
    ----------
    meter : Meter
        What counts.
    planned_bytes : int
        The most that the plan adds to what is there when the step begins.
    tell : callable
        Is told once how many bytes more there were; 0: none.
    passes : LivePasses
        The passes of the module.
    """

    def __init__(
        self,
        meter: Meter,
        planned_bytes: int,
        tell: Callable[[int], None],
        passes: LivePasses,
    ) -> None:
        self._meter = meter
        self._planned = planned_bytes
        self._tell = tell
        self._passes = passes
        self._count = 0  # of passes when it began
        self._begun = 0
        self._has_told = False
        self._start = 0
        self._is_open = False

    def forward(self, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return a forward graph that begins a step."""

        def call(arguments: list[Any]) -> Any:
            self._begun += 1
            self._is_open = (
                self._begun >= _RUN and not self._has_told and self._passes.is_alone
            )
            if self._is_open:
                self._count = self._passes.count
                self._start = self._meter.current()
                self._meter.reset()
            return run(arguments)

        return call

    def backward(self, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return a backward graph that ends a step."""

        def call(arguments: list[Any]) -> Any:
            made = run(arguments)
            if self._is_open and self._passes.count == self._count:
                self._is_open, self._has_told = False, True
                most = self._meter.peak() - self._start
                self._tell(max(0, most - self._planned))
            return made

        return call
