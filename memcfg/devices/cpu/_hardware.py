"""The CPU of this machine: its name, its cores and its memory.

Owns what is read from the operating system about them. Refuses to keep anything but
the amount of memory.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from memcfg._core._machine import machine_bytes
from memcfg.devices.cpu._device import CpuDevice

__all__ = ["CpuHardware"]

_MODEL = re.compile(r"^(?:model name|Model|cpu model)\s*:\s*(\S.*)$", re.MULTILINE)


class CpuHardware:
    """The processors of this machine; all cores together are one device.

    Attributes
    ----------
    name : str
        ``"/physical_device:CPU:0"``.
    device_type : str
        ``"CPU"``.
    memory_bytes : int
        The machine's memory, or what its control group allows if that is less.
    simulated : bool
        False.
    bounded : bool
        False: without a limit of its own a device may use what the machine gives.
    divisible : bool
        True.
    priorities : None
        A CPU has no streams.
    """

    name = "/physical_device:CPU:0"
    device_type = "CPU"
    simulated = False
    bounded = False
    divisible = True
    priorities: range | None = None

    def __init__(self) -> None:
        self.memory_bytes = machine_bytes()

    def details(self) -> dict[str, Any]:
        """Tell what is known about the processors.

        Returns
        -------
        dict
            ``device_name``, ``cores`` (those that this process may use) and
            ``memory`` in bytes.
        """
        return {
            "device_name": _model_name(),
            "cores": _usable_cores(),
            "memory": self.memory_bytes,
        }

    def make(
        self, name: str, *, limit_bytes: int | None, growth: bool, priority: int
    ) -> CpuDevice:
        """Make a logical device, with its pool.

        Parameters
        ----------
        name : str
            Such as ``"/device:CPU:0"``.
        limit_bytes : int or None
            The limit of its pool in bytes; None is no limit.
        growth : bool
            Whether memory is taken as it is needed; False takes the limit at once.
        priority : int
            0.

        Returns
        -------
        CpuDevice
            The device.

        Raises
        ------
        ResourceExhaustedError
            If memory is to be taken at once and the machine does not have it.
        """
        assert priority == 0, "a CPU has no priorities"
        return CpuDevice(name, limit_bytes, growth=growth)


def _model_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = _MODEL.search(text)
    return found[1] if found else platform.processor() or platform.machine() or "CPU"


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
