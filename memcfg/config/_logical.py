"""Splitting a physical device into logical ones.

Owns the rules of one configuration list. What needs all settings at once is checked
by `memcfg.config._specify` when the devices are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.config._devices import physical_device
from memcfg.config._settings import DEFAULT
from memcfg.config._state import registry
from memcfg.config._types import LogicalDeviceConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.config._settings import Configurations
    from memcfg.config._types import PhysicalDevice
    from memcfg.devices import Hardware

__all__ = ["get_logical_device_configuration", "set_logical_device_configuration"]


def get_logical_device_configuration(
    device: str | PhysicalDevice,
) -> list[LogicalDeviceConfiguration] | None:
    """Return how a physical device was configured.

    Parameters
    ----------
    device : PhysicalDevice or str
        One of `list_physical_devices`, or its name.

    Returns
    -------
    list of LogicalDeviceConfiguration or None
        What `set_logical_device_configuration` was given; None when it was not
        called. A limit that `set_memory_limit` changed later is not shown here.

    Raises
    ------
    TypeError
        If `device` is neither.
    ValueError
        If `device` is not a device of this machine.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    configurations = registry.settings.logical.get(physical_device(device))
    return None if configurations is None else list(configurations)


def set_logical_device_configuration(
    device: str | PhysicalDevice,
    logical_devices: Iterable[LogicalDeviceConfiguration] | None,
) -> None:
    """Split a physical device into logical devices with limits of their own.

    Parameters
    ----------
    device : PhysicalDevice or str
        One of `list_physical_devices`, or its name.
    logical_devices : iterable of LogicalDeviceConfiguration or None
        One entry a logical device; it is copied. None is the default: one device,
        on a CPU without a limit, elsewhere with all of the memory.

    Raises
    ------
    TypeError
        If `device` is neither, or `logical_devices` holds anything but
        `LogicalDeviceConfiguration`.
    ValueError
        If `device` is not a device of this machine or cannot be split,
        `logical_devices` is empty, a priority or an ordinal is given for a CPU, a
        GPU's device has no memory limit, or growth is the opposite of what
        `set_memory_growth` was given.
    RuntimeError
        If a device was used already and the configuration is not the present one.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.

    Notes
    -----
    A call that raises changes nothing. Until the first use of a device a later call
    replaces an earlier one. The limits are real on a CPU.
    """
    with registry.lock:
        found = physical_device(device)
        hardware = registry.machine[found]
        configurations = None
        if logical_devices is not None:
            configurations = _checked(found, hardware, logical_devices)
        logical = registry.settings.logical
        if registry.used and _same(hardware, configurations, logical.get(found)):
            return
        registry.check_unused(f"The logical devices of {found.name}")
        if configurations is None:
            logical.pop(found, None)
        else:
            logical[found] = configurations


def _same(
    hardware: Hardware, first: Configurations | None, second: Configurations | None
) -> bool:
    """Compare by effect: 48 and "48MiB" are one limit."""

    def values(configurations: Configurations | None) -> list[tuple[object, ...]]:
        return [
            (
                item.limit_on(hardware.memory_bytes),
                item.experimental_priority,
                item.experimental_device_ordinal,
                item.growth,
            )
            for item in configurations or DEFAULT
        ]

    return values(first) == values(second)


def _checked(
    device: PhysicalDevice,
    hardware: Hardware,
    configurations: Iterable[LogicalDeviceConfiguration],
) -> Configurations:
    if isinstance(configurations, LogicalDeviceConfiguration):
        raise TypeError(
            "expected a list of LogicalDeviceConfiguration, got one of them"
        )
    if not hardware.divisible:
        raise ValueError(f"Virtual devices are not supported for {device.device_type}")
    checked = tuple(configurations)
    if not checked:
        raise ValueError(f"no logical device given for {device.name}; None is default")
    growth = registry.settings.growth.get(device)
    for item in checked:
        if not isinstance(item, LogicalDeviceConfiguration):
            raise TypeError(f"expected a LogicalDeviceConfiguration, got {item!r}")
        if device.device_type == "CPU":
            _check_cpu(item)
        elif item.memory_limit is None:
            raise ValueError(
                f"a memory limit is required for virtual devices of {device.name}"
            )
        if None not in (growth, item.growth) and growth != item.growth:
            raise ValueError(
                f"set_memory_growth says {growth} of {device.name}; virtual devices "
                f"with growth={item.growth} contradict it"
            )
    return checked


def _check_cpu(item: LogicalDeviceConfiguration) -> None:
    for name in ("experimental_priority", "experimental_device_ordinal"):
        if getattr(item, name) is not None:
            raise ValueError(f"{name} is not supported for a CPU")
    if item.growth is False and item.memory_limit is None:
        raise ValueError(
            "without growth all memory is taken at once: growth=False needs a "
            "memory limit on a CPU"
        )
