"""The CPU of this machine: its name, its cores and its memory.

Owns what is read from the operating system about them. Refuses to keep anything but
the amount of memory.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcfg.devices.cpu._device import CpuDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    @cached_property
    def memory_bytes(self) -> int:
        """The machine's memory, or what its control group allows if that is less."""
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min([physical, *_group_limits()])

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


def _group_limits() -> Iterator[int]:
    """Read the limits of the control groups (version 2) that this process is in."""
    try:
        entries = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return
    own = next((line[4:] for line in entries if line.startswith("0::/")), "")
    group = Path("/sys/fs/cgroup", own)
    for folder in (group, *group.parents):
        try:
            limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if limit.isdecimal() and int(limit):
            yield int(limit)
