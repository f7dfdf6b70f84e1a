"""Listing, splitting and choosing devices.

Owns the rules of device names and of logical configurations. Refuses to hold
state, except which device a ``with`` block chose.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from memcfg.config._state import registry
from memcfg.config._types import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memcfg.devices import CpuDevice

__all__ = [
    "device",
    "get_logical_device_configuration",
    "list_logical_devices",
    "list_physical_devices",
    "logical_device",
    "reset",
    "set_logical_device_configuration",
]

_NAME = re.compile(r"(?:/?device:|/)?(?P<type>[A-Za-z_]+)(?::(?P<index>\d+))?")
_chosen: ContextVar[str | None] = ContextVar("memcfg_device", default=None)


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """List the hardware of this machine.

    Nothing is initialised by asking.

    Parameters
    ----------
    device_type : str or None, default None
        Such as ``"CPU"``; None lists every type, an unknown type nothing.

    Returns
    -------
    list of PhysicalDevice
        A new list; changing it changes nothing else.
    """
    return [
        item for item in registry.physical if device_type in (None, item.device_type)
    ]


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """List the devices that models can be placed on; this is a first use.

    Parameters
    ----------
    device_type : str or None, default None
        Such as ``"CPU"``; None lists every type, an unknown type nothing.

    Returns
    -------
    list of LogicalDevice
        A new list, in the order of the devices' indices.
    """
    return [
        item for item in registry.devices() if device_type in (None, item.device_type)
    ]


def get_logical_device_configuration(
    device: PhysicalDevice,
) -> list[LogicalDeviceConfiguration] | None:
    """Return how a physical device was configured.

    Parameters
    ----------
    device : PhysicalDevice
        One of `list_physical_devices`.

    Returns
    -------
    list of LogicalDeviceConfiguration or None
        What `set_logical_device_configuration` was given; None when it was not
        called. A limit that `set_memory_limit` changed later is not shown here.

    Raises
    ------
    TypeError
        If `device` is not a `PhysicalDevice`.
    ValueError
        If `device` is not a device of this machine.
    """
    _check_physical(device)
    configurations = registry.configuration(device)
    return None if configurations is None else list(configurations)


def set_logical_device_configuration(
    device: PhysicalDevice,
    logical_devices: Iterable[LogicalDeviceConfiguration] | None,
) -> None:
    """Split a physical device into logical devices with limits of their own.

    Parameters
    ----------
    device : PhysicalDevice
        One of `list_physical_devices`.
    logical_devices : iterable of LogicalDeviceConfiguration or None
        One entry a logical device; it is copied. None is the default: one device
        without a limit.

    Raises
    ------
    TypeError
        If `device` is not a `PhysicalDevice`, or `logical_devices` holds anything
        but `LogicalDeviceConfiguration`.
    ValueError
        If `device` is not a device of this machine, `logical_devices` is empty, or
        a priority or an ordinal is given for a CPU.
    RuntimeError
        If a device was used already and the configuration is not the present one.

    Notes
    -----
    A call that raises changes nothing. Until the first use of a device a later call
    replaces an earlier one. The limits are real on a CPU.
    """
    _check_physical(device)
    configurations = None
    if logical_devices is not None:
        configurations = _check_configurations(device, logical_devices)
    registry.configure(device, configurations)


def _check_physical(device: PhysicalDevice) -> None:
    if not isinstance(device, PhysicalDevice):
        raise TypeError(f"expected a PhysicalDevice, got {device!r}")
    if device not in registry.physical:
        raise ValueError(
            f"Unrecognized device {device.name!r}; list_physical_devices() has "
            f"{[item.name for item in registry.physical]}"
        )


def _check_configurations(
    device: PhysicalDevice, configurations: Iterable[LogicalDeviceConfiguration]
) -> tuple[LogicalDeviceConfiguration, ...]:
    if isinstance(configurations, LogicalDeviceConfiguration):
        raise TypeError(
            "expected a list of LogicalDeviceConfiguration, got one of them"
        )
    checked = tuple(configurations)
    if not checked:
        raise ValueError(f"no logical device given for {device.name}; None is default")
    for item in checked:
        if not isinstance(item, LogicalDeviceConfiguration):
            raise TypeError(f"expected a LogicalDeviceConfiguration, got {item!r}")
        if item.experimental_priority is not None:
            raise ValueError("experimental_priority is not supported for a CPU")
        if item.experimental_device_ordinal is not None:
            raise ValueError("experimental_device_ordinal is not supported for a CPU")
    return checked


def find(device: str | LogicalDevice | PhysicalDevice) -> CpuDevice:
    """Find the one logical device that is meant; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name with or without ``/device:`` (the index may be left out when there is
        one device of the type), or an object of the lists.

    Returns
    -------
    CpuDevice
        The device.

    Raises
    ------
    TypeError
        If `device` is none of these.
    ValueError
        If the name cannot be read, or no device or several devices match.
    """
    if isinstance(device, PhysicalDevice):
        _check_physical(device)
        name = device.device_type
    elif isinstance(device, LogicalDevice):
        name = device.name
    elif isinstance(device, str):
        name = device
    else:
        raise TypeError(f"expected a device or its name, got {device!r}")
    matching = _match(name)
    if not matching:
        present = ", ".join(item.name for item in registry.devices())
        raise ValueError(
            f"No matching devices found for {name!r}; there are: {present}"
        )
    if len(matching) > 1:
        raise ValueError(f"Multiple devices match {name!r}; say which: {name}:0, …")
    return matching[0]


def _match(name: str) -> list[CpuDevice]:
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        raise ValueError(f"Failed parsing device name {name!r}; write it like 'CPU:0'")
    wanted = f"/device:{parsed['type']}:{int(parsed['index'] or 0)}"
    return [
        device
        for logical, device in registry.devices().items()
        if logical.name == wanted
        or (parsed["index"] is None and logical.device_type == parsed["type"])
    ]


def logical_device(name: str | None = None) -> CpuDevice:
    """Return the device of a name, or the one that models are placed on now.

    This is a first use.

    Parameters
    ----------
    name : str or None, default None
        A device's name. None is the device of the innermost `device` block, or the
        first logical device outside all of them.

    Returns
    -------
    CpuDevice
        The device.

    Raises
    ------
    ValueError
        If the name cannot be read, or no device or several devices match.
    """
    name = name if name is not None else _chosen.get()
    if name is None:
        return next(iter(registry.devices().values()))
    return find(name)


@contextmanager
def device(name: str | LogicalDevice) -> Iterator[LogicalDevice]:
    """Choose the device of the models that are compiled in a ``with`` block.

    Parameters
    ----------
    name : str or LogicalDevice
        Such as ``"CPU:1"``, ``"/device:CPU:1"``, or an entry of
        `list_logical_devices`.

    Yields
    ------
    LogicalDevice
        The device.

    Raises
    ------
    TypeError
        If `name` is neither a name nor a logical device.
    ValueError
        If the name cannot be read, or no device or several devices match.

    Notes
    -----
    A model remembers the name of its device when it is compiled; where it was built
    does not matter, and compiling it again in another block moves it. A model that is
    used without `compile` is placed by the block in which it takes memory. The choice
    holds for the running thread or task only. Blocks may be nested.
    """
    found = find(name).name
    token = _chosen.set(found)
    try:
        yield LogicalDevice(found, "CPU")
    finally:
        _chosen.reset(token)


def reset() -> None:
    """Forget all configurations and devices, as if nothing had been used.

    A compiled model remembers its device by name: it takes memory again on the device
    that bears this name then, inside that device's limit, or raises RuntimeError when
    there is none.

    Raises
    ------
    RuntimeError
        If memory of a device is still in use; the message lists its holders.
        Nothing is forgotten then.
    """
    registry.reset()
