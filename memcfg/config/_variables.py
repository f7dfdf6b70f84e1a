"""Environment variables about devices, read when they are first needed.

A value that cannot be parsed raises an error that names the variable and its format.
Variables about the whole process are read by the core.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from memcfg._caller import outside
from memcfg._core import _environment as process
from memcfg.config._types import (
    MAX_BYTES,
    PhysicalDevice,
    limit_from_bytes,
    parse_name,
    require_type,
)
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.devices import Hardware
    from memcfg.errors import FormatError

SIMULATED = "MEMCFG_SIMULATED_DEVICES"
FORCE_GROWTH = "MEMCFG_FORCE_GPU_ALLOW_GROWTH"
LIMITS = "MEMCFG_MEMORY_LIMIT"

_PREFIX = "MEMCFG_"
_READ = (  # here and in other rooms, behind the prefix; docs/settings.md has them
    *("ALGORITHM_CACHE", "CPU_ALGORITHMS", "CRASH_REPORTS", "CUBLASLT_LIBRARY"),
    *("CUDA_CACHE", "CUDA_GRAPHS", "CUDA_LIBRARY", "CUDA_TF32", "CUDNN", "DEBUG"),
    *(
        "FORCE_GPU_ALLOW_GROWTH",
        "KERNELS",
        "LIVE_REPORT",
        "MAX_BYTES",
        "MAX_RSS_BYTES",
        "MEASURE",
    ),
    *("MEMORY_LIMIT", "ONEDNN_LIBRARY", "SIMULATED_DEVICES", "TORCH_CACHE"),
    *("TORCH_COSTS", "TORCH_PLANS", "WORKSPACE_DEBUG"),
)
# Prefixes of the project's own tests and reports.
_TESTS = ("GPU_REPORT", "PARITY", "PLUGIN_", "STRESS_")

_FORMS = {
    SIMULATED: "TYPE:COUNT:MEMORY, such as 'GPU:2:16GiB', separated by commas",
    FORCE_GROWTH: "'true' or 'false'",
    LIMITS: "DEVICE=SIZE, such as 'CPU:0=2GiB' or 'CPU:0=50%', separated by commas",
}
MAX_DEVICES = 1024  # max. count of an entry; more is probably a typo
MAX_DEVICE_BYTES = 2**62  # simulated addresses end there

Machine = Mapping[PhysicalDevice, "Hardware"]  # in the order of the listings


@dataclass(frozen=True)
class EnvironmentOverrides:
    """Settings of the environment, which override those in code."""

    growth: bool | None = None  # of all devices but CPUs; None: as set in code
    ceilings: Mapping[PhysicalDevice, int] = field(default_factory=dict)  # bytes in use

    @classmethod
    def read(
        cls, machine: Machine, limits: Mapping[tuple[str, int], str]
    ) -> EnvironmentOverrides:
        """Check `physical_limits` against the hardware, and read other variables.

        FormatError if the value of a variable is invalid.
        """
        ceilings: dict[PhysicalDevice, int] = {}
        for (device_type, index), size in limits.items():
            name = f"/physical_device:{device_type}:{index}"
            device = PhysicalDevice(name, device_type)
            if device not in machine:
                raise _unreadable(LIMITS, f"there is no {device_type}:{index}")
            total = machine[device].memory_bytes
            ceiling = limit_from_bytes(size, total_bytes=total)
            assert ceiling is not None, "a size was read"
            ceilings[device] = ceiling
        return cls(_forced_growth(), ceilings)


def warn_of_unknown() -> None:
    """Warn of unknown variables, with the most similar known name."""
    unknown = [
        name
        for name in sorted(os.environ)
        if name.startswith(_PREFIX)
        and name.removeprefix(_PREFIX) not in _READ
        and not name.removeprefix(_PREFIX).startswith(_TESTS)
    ]
    if not unknown:
        return
    names = []
    for name in unknown:
        near = get_close_matches(name.removeprefix(_PREFIX), _READ, 1)
        names.append(f"{name} (did you mean {_PREFIX}{near[0]}?)" if near else name)
    warnings.warn(
        f"memcfg does not know {', '.join(names)} of the environment: correct or unset",
        RuntimeWarning,
        stacklevel=outside(),
    )


def simulated_devices() -> list[tuple[str, int, int]]:
    """Return type, count and bytes of each entry of ``MEMCFG_SIMULATED_DEVICES``."""
    return [_simulated(entry) for entry in _entries(SIMULATED)]


def check_simulated_type(device_type: str) -> str:
    """Return a valid type of simulated hardware; TypeError or ValueError for others."""
    require_type(device_type)
    if device_type == "CPU":
        raise ValueError("the CPU is real and cannot be simulated")
    return device_type


def _forced_growth() -> bool | None:
    """Return the value of ``MEMCFG_FORCE_GPU_ALLOW_GROWTH``; None if not set."""
    text = process.value_of(FORCE_GROWTH)
    if not text:
        return None
    if text.lower() not in ("true", "false"):
        raise _unreadable(FORCE_GROWTH)
    return text.lower() == "true"


def physical_limits() -> dict[tuple[str, int], str]:
    """Return the sizes in ``MEMCFG_MEMORY_LIMIT`` by type and index of hardware."""
    limits: dict[tuple[str, int], str] = {}
    for entry in _entries(LIMITS):
        name, _, text = entry.partition("=")
        size = process.with_unit(text, LIMITS)
        try:
            device_type, index, _ = parse_name(name.strip())
            limit_from_bytes(size, total_bytes=MAX_BYTES, name="the size")
        except ValueError as error:
            raise _unreadable(LIMITS, str(error)) from None
        if index is None:
            raise _unreadable(LIMITS, f"{name.strip()} has no number")
        if (device_type, index) in limits:
            raise _unreadable(LIMITS, f"{device_type}:{index} is a duplicate")
        limits[device_type, index] = size
    return limits


def _simulated(entry: str) -> tuple[str, int, int]:
    parts = [part.strip() for part in entry.split(":")]
    try:
        device_type, count, memory = parts
        nbytes = parse_bytes(process.with_unit(memory, SIMULATED))
        check_simulated_type(device_type)
    except ValueError as error:
        raise _unreadable(SIMULATED, str(error) if len(parts) == 3 else "") from None
    if not (count.isascii() and count.isdecimal() and 0 < int(count) <= MAX_DEVICES):
        raise _unreadable(SIMULATED, f"{entry!r} needs a count from 1 to {MAX_DEVICES}")
    if not 0 < nbytes <= MAX_DEVICE_BYTES:
        raise _unreadable(SIMULATED, f"{entry!r} needs a memory from 1 byte to 2**62")
    return device_type, int(count), nbytes


def _entries(variable: str) -> Iterator[str]:
    text = process.value_of(variable)
    for entry in text.split(",") if text else ():
        if not entry.strip():
            raise _unreadable(variable, "an entry is empty")
        yield entry.strip()


def _unreadable(variable: str, why: str = "") -> FormatError:
    """Return the error for a variable with an invalid value."""
    return process.unreadable(variable, _FORMS[variable], why)
