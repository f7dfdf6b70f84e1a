"""What is known about a piece of hardware.

Owns the question; the answers are the hardware's.
"""

from __future__ import annotations

from typing import Any

from memcfg.config._state import registry
from memcfg.config._types import PhysicalDevice

__all__ = ["get_device_details"]


def get_device_details(device: PhysicalDevice) -> dict[str, Any]:
    """Tell what is known about a piece of hardware; this is not a first use.

    Parameters
    ----------
    device : PhysicalDevice
        One of `list_physical_devices`. As in TensorFlow, neither a name nor a
        logical device will do.

    Returns
    -------
    dict of str to object
        ``device_name`` and ``memory`` in bytes; of a CPU also ``cores``, the number
        that this process may use; of simulated hardware also ``simulated``, which
        is True.

    Raises
    ------
    ValueError
        If `device` is no `PhysicalDevice`, or not one of this machine.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.
    """
    if not isinstance(device, PhysicalDevice):
        raise ValueError(  # TensorFlow's rule: no TypeError
            f"device must be a memcfg.config.PhysicalDevice, but got: {device!r}"
        )
    hardware = registry.machine.get(device)
    if hardware is None:
        raise ValueError(
            "device must be one obtained from calling "
            f"memcfg.config.list_physical_devices, but got: {device!r}"
        )
    return hardware.details()
