"""From settings to specifications of the logical devices.

Rules on several settings are checked here. Functions take hardware and settings and
return specifications, so every rule can be tested without a device.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memcfg._caller import outside
from memcfg._core import get_host_limits
from memcfg.config._types import LogicalDeviceConfiguration, PhysicalDevice
from memcfg.config._variables import LIMITS
from memcfg.devices import Spill
from memcfg.units import exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.config._variables import EnvironmentOverrides, Machine
    from memcfg.devices import Hardware

Configurations = tuple[LogicalDeviceConfiguration, ...]

DEFAULT: Configurations = (LogicalDeviceConfiguration(),)


@dataclass
class Settings:
    """Settings made in code; fixed at the first use of a device."""

    visible: tuple[PhysicalDevice, ...] | None = None  # None: all
    growth: dict[PhysicalDevice, bool] = field(default_factory=dict)
    logical: dict[PhysicalDevice, Configurations] = field(default_factory=dict)
    intra_threads: int = 0  # of one kernel; 0 is automatic
    inter_threads: int = 0  # programs at the same time; 0 is without a bound


class MemorySpec(NamedTuple):
    """The memory of one logical device."""

    limit_bytes: int | None  # None: no limit
    growth: bool  # whether to allocate as needed, or the whole limit at once


def process_limit(hardware: Hardware) -> int | None:
    """Return the process's limit in bytes on hardware with its own memory, or None.

    The limit on host pools also bounds each GPU, as ND4J's ``maxbytes`` does.
    """
    return None if hardware.space == "host" else get_host_limits()[0]


@dataclass(frozen=True)
class Bounds:
    """Bounds on the logical devices of one piece of hardware."""

    name: str
    memory_bytes: int | None  # the hardware's own; None for a CPU
    machine_bytes: int | None  # a CPU's memory, which is not a bound; otherwise None
    ceiling_bytes: int | None  # the environment's, on the sum; or None
    process_bytes: int | None  # the process's, on the sum; or None

    @classmethod
    def of(
        cls, device: PhysicalDevice, hardware: Hardware, overrides: EnvironmentOverrides
    ) -> Bounds:
        """Collect the bounds of a piece of hardware."""
        nbytes, ceiling = hardware.memory_bytes, overrides.ceilings.get(device)
        process = process_limit(hardware)
        if hardware.bounded:
            return cls(device.name, nbytes, None, ceiling, process)
        return cls(device.name, None, nbytes, ceiling, process)

    def max_limit(self, growth: bool, others: Sequence[MemorySpec]) -> int | None:
        """Return the largest limit given those of others; None without a bound."""
        bounds: list[int] = []
        if self.memory_bytes is not None:
            used = 0 if growth else _total(spec for spec in others if not spec.growth)
            bounds.append(self.memory_bytes - used)
        ceilings = self.ceiling_bytes, self.process_bytes
        bounds += [each - _total(others) for each in ceilings if each is not None]
        return min(bounds, default=None)

    def check(self, specs: Sequence[MemorySpec]) -> None:
        """Raise ValueError if limits violate the bounds."""
        has = self.memory_bytes
        largest = max((spec.limit_bytes or 0 for spec in specs), default=0)
        used = _total(spec for spec in specs if not spec.growth)
        if has is not None and largest > has:
            raise ValueError(
                f"a memory limit of {exact(largest)} is more than {self.name} has: "
                f"{exact(has)}"
            )
        if has is not None and used > has:
            raise ValueError(
                f"the logical devices of {self.name} take {exact(used)} at once, and "
                f"it has {exact(has)}: lower a memory limit, or let them grow"
            )
        for allowed, what in (
            (self.ceiling_bytes, LIMITS),
            (self.process_bytes, "the limit of the process, MEMCFG_MAX_BYTES,"),
        ):
            if allowed is not None:
                self._check_ceiling(specs, allowed, what)

    def _check_ceiling(
        self, specs: Sequence[MemorySpec], allowed: int, what: str
    ) -> None:
        """Raise ValueError if limits together are above a ceiling."""
        ceiling = f"{what} allows {exact(allowed)} on {self.name}"
        if any(spec.limit_bytes is None for spec in specs):
            raise ValueError(f"{ceiling}: give each logical device a memory limit")
        if _total(specs) > allowed:
            raise ValueError(
                f"{ceiling}, and the memory limits configured there come to "
                f"{exact(_total(specs))}"
            )

    def warn_of_much(self, limits: Iterable[int | None]) -> None:
        """Warn of a limit that limits nothing, since there is less memory."""
        largest = max((limit or 0 for limit in limits), default=0)
        if self.machine_bytes is not None and largest > self.machine_bytes:
            warnings.warn(
                f"a memory limit of {exact(largest)} on {self.name} limits nothing: "
                f"this machine has {exact(self.machine_bytes)}. Give less, or None",
                RuntimeWarning,
                stacklevel=outside(),
            )


def _total(specs: Iterable[MemorySpec]) -> int:
    return sum(spec.limit_bytes or 0 for spec in specs)


@dataclass(frozen=True)
class Specification:
    """One logical device, as it is to be made."""

    physical: PhysicalDevice
    memory: MemorySpec
    ordinal: int = 0  # compared before hardware and order of configuration
    priority: int = 0  # of its streams
    spill: Spill = field(default_factory=Spill)


def specify(
    machine: Machine, settings: Settings, overrides: EnvironmentOverrides
) -> dict[str, Specification]:
    """Return the logical devices that the settings ask for, by name, as listed.

    That is type by type, within a type by ordinal, then hardware, then configuration.
    """
    seen = settings.visible
    visible = [device for device in machine if seen is None or device in seen]
    result: dict[str, Specification] = {}
    for kind in dict.fromkeys(device.device_type for device in visible):
        alike = [device for device in visible if device.device_type == kind]
        if overrides.growth is None:
            _check_growth_alike(alike, settings)
        entries = [
            entry
            for device in alike
            for entry in _on(device, machine[device], settings, overrides)
        ]
        entries.sort(key=lambda entry: entry.ordinal)  # stable
        result |= {f"/device:{kind}:{i}": entry for i, entry in enumerate(entries)}
    return result


def _check_growth_alike(devices: Sequence[PhysicalDevice], settings: Settings) -> None:
    values = {device: settings.growth.get(device) for device in devices}
    if len(set(values.values())) > 1:
        raise ValueError(
            f"Memory growth cannot differ between {devices[0].device_type} devices ("
            + ", ".join(f"{d.name}: {growth}" for d, growth in values.items())
            + "): set the same for all, or hide the others with set_visible_devices"
        )


def _on(
    device: PhysicalDevice,
    hardware: Hardware,
    settings: Settings,
    overrides: EnvironmentOverrides,
) -> list[Specification]:
    """Specify the logical devices of one piece of hardware."""
    configurations = settings.logical.get(device, DEFAULT)
    _check_given(hardware, configurations)
    bounds = Bounds.of(device, hardware, overrides)
    alone = len(configurations) == 1
    specs: list[MemorySpec] = []
    for item in configurations:
        growth = _growth(item, device, hardware, settings, overrides)
        limit = item.limit_on(hardware.memory_bytes)
        if limit is None and (alone or hardware.bounded):
            limit = bounds.max_limit(growth, [])
        if limit is None and not growth:
            raise ValueError(
                "without growth all memory is allocated at once, so "
                f"{device.name} needs a memory limit: give one, or let it grow"
            )
        specs.append(MemorySpec(limit, growth))
    bounds.check(specs)
    bounds.warn_of_much(spec.limit_bytes for spec in specs)
    return [
        Specification(
            device,
            spec,
            item.experimental_device_ordinal or 0,
            item.experimental_priority or 0,
            item.spill_on(hardware.memory_bytes),
        )
        for item, spec in zip(configurations, specs, strict=True)
    ]


def _growth(
    item: LogicalDeviceConfiguration,
    device: PhysicalDevice,
    hardware: Hardware,
    settings: Settings,
    overrides: EnvironmentOverrides,
) -> bool:
    """Return the growth: that of the environment, the configuration or the hardware.

    Real hardware grows by default: a limit holds with growth too.
    """
    is_cpu = device.device_type == "CPU"
    if overrides.growth is not None and not is_cpu:
        return overrides.growth
    if item.growth is not None:
        return item.growth
    return settings.growth.get(device, hardware.space != "addresses")


def _check_given(hardware: Hardware, configurations: Configurations) -> None:
    """Refuse priorities and ordinals of some devices only, and unknown priorities."""
    given: list[int] = []
    for name in ("experimental_device_ordinal", "experimental_priority"):
        values = (getattr(item, name) for item in configurations)
        given = [value for value in values if value is not None]
        if given and len(given) != len(configurations):
            raise ValueError(
                f"{name} must be specified for all virtual devices of {hardware.name} "
                "or for none"
            )
    allowed = hardware.priorities if given else None
    wrong = [value for value in given if allowed is None or value not in allowed]
    if wrong:
        span = f"from {allowed[0]} to {allowed[-1]}" if allowed else "not known"
        raise ValueError(
            f"experimental_priority {wrong[0]} is out of range: those of "
            f"{hardware.name} are {span}"
        )
