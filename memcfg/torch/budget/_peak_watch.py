"""The measured peak of a planned step, as its device counts it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from memcfg.torch.limit import _cpu_limit, _process_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.torch.budget._live_passes import LivePasses

_RUN = 2  # the first step to watch: libraries have allocated what they keep by then


class Meter(NamedTuple):
    """Counts the bytes that an allocator has given out."""

    current: Callable[[], int]  # bytes in use
    peak: Callable[[], int]  # the peak since the last reset
    reset: Callable[[], None]


def meter_of(device: torch.device, *, of_process: bool = False) -> Meter | None:
    """Return the meter of a device's bytes, or None if nothing counts them.

    `of_process` means the resident memory of the process, on a CPU.
    """
    if of_process and device.type == "cpu":
        resident = _process_limit.resident
        return Meter(
            lambda: resident()["now"],
            lambda: resident()["peak"],
            _process_limit.reset_peak,
        )
    if device.type == "cuda":
        return Meter(
            partial(torch.cuda.memory_allocated, device),
            partial(torch.cuda.max_memory_allocated, device),
            partial(torch.cuda.reset_peak_memory_stats, device),
        )
    if device.type == "cpu" and _cpu_limit.is_limited():
        info = _cpu_limit.get_memory_info
        return Meter(
            lambda: info()["current"],
            lambda: info()["peak"],
            _cpu_limit.reset_memory_stats,
        )
    return None


class PeakWatch:
    """Measures the peak of one step, from the start of forward to the end of backward.

    It is the earliest step, from the second on, that no other pass of the module
    overlaps.

    Parameters
    ----------
    meter : Meter
        The meter of the device.
    planned_bytes : int
        The most that the plan adds to the bytes in use when the step begins.
    tell : callable
        Called once with the number of bytes above the plan; 0 if there were none.
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
        self._count = 0  # number of passes when it began
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
