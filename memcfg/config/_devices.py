"""Listing devices, and finding the one that is meant.

Owns what a name or an object stands for. Refuses to choose: a name that fits no
device, or several, is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.config._names import parse_name
from memcfg.config._state import registry
from memcfg.config._types import LogicalDevice, PhysicalDevice

if TYPE_CHECKING:
    from memcfg.config._state import Made

__all__ = [
    "AnyDevice",
    "find",
    "list_logical_devices",
    "list_physical_devices",
    "matching",
    "physical_device",
]

AnyDevice = str | LogicalDevice | PhysicalDevice


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """List the hardware of this machine, simulated hardware included.

    Nothing is initialised by asking.

    Parameters
    ----------
    device_type : str or None, default None
        Such as ``"CPU"``; None lists every type, an unknown type nothing.

    Returns
    -------
    list of PhysicalDevice
        A new list; changing it changes nothing else.

    Raises
    ------
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    return [
        item for item in registry.machine if device_type in (None, item.device_type)
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
        A new list, type by type, in the order of the devices' indices.

    Raises
    ------
    ValueError
        If settings contradict each other, the hardware or the environment: growth
        differs between GPUs, a priority or an ordinal is missing or out of range, a
        limit is beyond the hardware or ``MEMCFG_MEMORY_LIMIT``, or a device that
        takes its memory at once has no limit. No device is made then.
    FormatError
        If a variable of the environment cannot be read; it is a ValueError.
    ResourceExhaustedError
        If a device takes its memory at once and there is not so much, or more is in
        use than ``MEMCFG_MAX_BYTES`` or ``MEMCFG_MAX_RSS_BYTES`` allow.
    """
    return [
        made.logical
        for made in registry.made()
        if device_type in (None, made.logical.device_type)
    ]


def physical_device(device: str | PhysicalDevice) -> PhysicalDevice:
    """Find the hardware that is meant; this is not a first use.

    Parameters
    ----------
    device : str or PhysicalDevice
        A name such as ``"GPU:0"`` or ``"/physical_device:GPU:0"`` (the index may be
        left out when there is one device of the type; ``"/device:GPU:0"`` is the
        hardware of that number), or an object of the list.

    Returns
    -------
    PhysicalDevice
        The hardware.

    Raises
    ------
    TypeError
        If `device` is neither.
    ValueError
        If it is not hardware of this machine, or the name cannot be read or fits
        several devices.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    if isinstance(device, PhysicalDevice):
        found = [device] if device in registry.machine else []
    elif isinstance(device, str):
        kind, number, _ = parse_name(device)
        found = [item for item in registry.machine if item.device_type == kind]
        if number is not None:
            found = found[number : number + 1]
    else:
        raise TypeError(f"expected a PhysicalDevice or its name, got {device!r}")
    if not found:
        there = ", ".join(item.name for item in registry.machine)
        raise ValueError(f"Unrecognized device {_shown(device)}; there are: {there}")
    if len(found) > 1:
        raise ValueError(_ambiguous(device, [item.name for item in found]))
    return found[0]


def find(device: AnyDevice) -> Made:
    """Find the one logical device that is meant; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name in any of TensorFlow's spellings (the index may be left out when there
        is one device of the type), or an object of the lists. Hardware stands for the
        one logical device on it.

    Returns
    -------
    Made
        The device.

    Raises
    ------
    TypeError
        If `device` is none of these.
    ValueError
        If the name cannot be read, or no device or several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    found = matching(device)
    if found is None:
        there = ", ".join(made.logical.name for made in registry.made())
        raise ValueError(
            f"No matching devices found for {_shown(device)}; there are: {there}"
        )
    return found


def matching(device: AnyDevice) -> Made | None:
    """Find the one logical device that is meant, if it exists; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        As for `find`.

    Returns
    -------
    Made or None
        The device; None if there is no such device.

    Raises
    ------
    TypeError
        If `device` is none of these.
    ValueError
        If the name cannot be read, the hardware is not of this machine, or several
        devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    if isinstance(device, PhysicalDevice):
        found = _on(physical_device(device))
    elif isinstance(device, LogicalDevice):
        found = [made for made in registry.made() if made.logical == device]
    elif isinstance(device, str):
        found = _named(device)
    else:
        raise TypeError(f"expected a device or its name, got {device!r}")
    if len(found) > 1:
        raise ValueError(_ambiguous(device, [made.logical.name for made in found]))
    return found[0] if found else None


def _on(device: PhysicalDevice) -> list[Made]:
    return [made for made in registry.made() if made.specification.physical == device]


def _named(name: str) -> list[Made]:
    kind, number, physical = parse_name(name)
    if physical:
        return _on(physical_device(name))
    if number is None:
        return [made for made in registry.made() if made.logical.device_type == kind]
    wanted = LogicalDevice(f"/device:{kind}:{number}", kind)
    return [made for made in registry.made() if made.logical == wanted]


def _ambiguous(device: AnyDevice, names: list[str]) -> str:
    return f"Multiple devices match {_shown(device)}; say which: {', '.join(names)}"


def _shown(device: AnyDevice) -> str:
    return repr(device if isinstance(device, str) else device.name)
