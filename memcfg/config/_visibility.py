"""Which hardware memcfg may use.

Owns the list of visible devices. Hardware that is not in it has no logical devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.config._devices import physical_device
from memcfg.config._names import require_type
from memcfg.config._state import registry
from memcfg.config._types import PhysicalDevice

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["get_visible_devices", "set_visible_devices"]


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """List the hardware that memcfg may use.

    Parameters
    ----------
    device_type : str or None, default None
        Such as ``"GPU"``; None lists every type, an unknown type nothing.

    Returns
    -------
    list of PhysicalDevice
        A new list, in the order in which it was set; all hardware by default.

    Raises
    ------
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    return [item for item in _visible() if device_type in (None, item.device_type)]


def set_visible_devices(
    devices: str | PhysicalDevice | Iterable[str | PhysicalDevice] | None,
    device_type: str | None = None,
) -> None:
    """Choose the hardware that memcfg may use.

    Parameters
    ----------
    devices : PhysicalDevice, str, iterable of them, or None
        Hardware or its names; copied. None is all hardware (of the type). An empty
        list hides a type, so it needs one.
    device_type : str or None, default None
        The type that `devices` are of: only this type is replaced. None replaces the
        whole list, so that all other types become invisible.

    Raises
    ------
    TypeError
        If `devices` holds anything but hardware and names, or `device_type` is no
        string.
    ValueError
        If a device is not of this machine or not of the type, is named twice, no
        device would be left, or `device_type` is no word in capital letters.
    RuntimeError
        If a device was used already and the list is not the present one.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.

    Notes
    -----
    A call that raises changes nothing. Logical devices are numbered in the order of
    `list_physical_devices`, whatever the order here.
    """
    if device_type is not None:
        require_type(device_type)
    with registry.lock:
        chosen = _chosen(devices, device_type)
        if chosen == _visible():
            return
        registry.check_unused("The visible devices")
        registry.settings.visible = tuple(chosen)


def _visible() -> list[PhysicalDevice]:
    visible = registry.settings.visible
    return list(registry.machine if visible is None else visible)


def _chosen(
    devices: str | PhysicalDevice | Iterable[str | PhysicalDevice] | None,
    device_type: str | None,
) -> list[PhysicalDevice]:
    if devices is None:
        devices = [d for d in registry.machine if device_type in (None, d.device_type)]
    elif isinstance(devices, str | PhysicalDevice):
        devices = [devices]
    found = [physical_device(device) for device in devices]
    for device in found:
        if device_type not in (None, device.device_type):
            raise ValueError(f"Unrecognized device {device.name!r} of {device_type!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"a device is named twice: {[d.name for d in found]}")
    if device_type is not None:
        others = [item for item in _visible() if item.device_type != device_type]
        found = others + found
    if not found:
        raise ValueError("no device would be visible; to hide a type, name it")
    return found
