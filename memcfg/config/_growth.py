"""Whether a device takes memory as it needs it, or all at once.

Owns the setting of a whole piece of hardware. A configuration's own ``growth`` goes
before it, and ``MEMCFG_FORCE_GPU_ALLOW_GROWTH`` before both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.config._devices import physical_device
from memcfg.config._state import registry

if TYPE_CHECKING:
    from memcfg.config._types import PhysicalDevice

__all__ = ["get_memory_growth", "set_memory_growth"]


def get_memory_growth(device: str | PhysicalDevice) -> bool | None:
    """Tell what was set for a piece of hardware.

    Parameters
    ----------
    device : PhysicalDevice or str
        One of `list_physical_devices`, or its name.

    Returns
    -------
    bool or None
        None when nothing was set: a CPU then grows, other devices do not.

    Raises
    ------
    TypeError
        If `device` is neither.
    ValueError
        If `device` is not a device of this machine.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    return registry.settings.growth.get(physical_device(device))


def set_memory_growth(device: str | PhysicalDevice, enable: bool | None) -> None:
    """Say whether the devices of a piece of hardware grow.

    Parameters
    ----------
    device : PhysicalDevice or str
        One of `list_physical_devices`, or its name.
    enable : bool or None
        True takes memory as it is needed. False takes the whole limit at once, at
        the first use; a CPU then needs a limit. None is the default: a CPU grows,
        other devices do not.

    Raises
    ------
    TypeError
        If `device` is neither, or `enable` is no bool.
    ValueError
        If `device` is not a device of this machine, or one of its virtual devices
        was configured to do the opposite.
    RuntimeError
        If a device was used already and the value is not the present one.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.

    Notes
    -----
    A call that raises changes nothing. Growth goes with limits, in either order of
    the calls. That it is the same for all visible GPUs, and that a CPU which does
    not grow has a limit, is checked at the first use.
    """
    if not isinstance(enable, bool | None):
        raise TypeError(f"growth is True, False or None, not {enable!r}")
    with registry.lock:
        found = physical_device(device)
        settings = registry.settings
        configured = {item.growth for item in settings.logical.get(found, ())}
        if enable is not None and (not enable) in configured:
            raise ValueError(
                f"{found.name} has virtual devices with growth={not enable}; "
                f"growth={enable} for all of it contradicts them"
            )
        if settings.growth.get(found) == enable:
            return
        registry.check_unused(f"The memory growth of {found.name}")
        if enable is None:
            del settings.growth[found]
        else:
            settings.growth[found] = enable
