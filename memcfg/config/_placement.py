"""Which device models are placed on.

Owns the choice that a ``with`` block makes, and the fall-back to the CPU when the
device it names is missing.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from memcfg.config._devices import AnyDevice, find, matching
from memcfg.config._names import parse_name
from memcfg.config._state import registry
from memcfg.config._types import LogicalDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.config._state import Made
    from memcfg.devices import Device

__all__ = [
    "device",
    "get_soft_device_placement",
    "logical_device",
    "set_soft_device_placement",
]

_FALLBACK = LogicalDevice("/device:CPU:0", "CPU")
_chosen: ContextVar[str | None] = ContextVar("memcfg_device", default=None)


def logical_device(name: str | None = None) -> Device:
    """Return the device of a name, or the one that models are placed on now.

    This is a first use. A name must fit: only `device` falls back.

    Parameters
    ----------
    name : str or None, default None
        A device's name. None is the device of the innermost `device` block, or the
        first logical device outside all of them.

    Returns
    -------
    Device
        The device.

    Raises
    ------
    ValueError
        If the name cannot be read, or no device or several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    name = name if name is not None else _chosen.get()
    if name is None:
        return registry.made()[0].device
    return find(name).device


@contextmanager
def device(name: AnyDevice) -> Iterator[LogicalDevice]:
    """Choose the device of the models that are compiled in a ``with`` block.

    Parameters
    ----------
    name : str, LogicalDevice or PhysicalDevice
        Such as ``"CPU:1"``, ``"/cpu:1"``, ``"/device:CPU:1"``, or an entry of
        `list_logical_devices`.

    Yields
    ------
    LogicalDevice
        The device.

    Raises
    ------
    TypeError
        If `name` is neither a name nor a device.
    ValueError
        If the name cannot be read, several devices match, or none does and soft
        placement is off or there is no ``CPU:0`` to fall back to.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.

    Warns
    -----
    RuntimeWarning
        If no device matches and ``CPU:0`` is taken instead; once for each device.

    Notes
    -----
    A model remembers the name of its device when it is compiled; where it was built
    does not matter, and compiling it again in another block moves it. A model that is
    used without `compile` is placed by the block in which it takes memory. The choice
    holds for the running thread or task only. Blocks may be nested.

    Models can be planned on a simulated device, and not run.
    """
    found = _place(name).logical
    token = _chosen.set(found.name)
    try:
        yield found
    finally:
        _chosen.reset(token)


def get_soft_device_placement() -> bool:
    """Tell whether `device` falls back to ``CPU:0`` when a device is missing.

    Returns
    -------
    bool
        True by default.
    """
    return registry.options.soft_placement


def set_soft_device_placement(enabled: bool) -> None:
    """Choose whether `device` falls back to ``CPU:0`` when a device is missing.

    Parameters
    ----------
    enabled : bool
        False makes a missing device an error. It can be changed at any time.

    Raises
    ------
    TypeError
        If it is no bool.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"soft placement is True or False, not {enabled!r}")
    registry.options.soft_placement = enabled


def _place(name: AnyDevice) -> Made:
    found = matching(name)
    if found is not None:
        return found
    shown = name if isinstance(name, str) else name.name
    there = [made.logical.name for made in registry.made()]
    fallback = matching(_FALLBACK)
    if fallback is None or not registry.options.soft_placement:
        raise ValueError(
            f"Could not satisfy the placement on {shown!r}; there are: "
            f"{', '.join(there)}"
        )
    missing = parse_name(shown)
    with registry.lock:
        known = missing in registry.options.warned
        registry.options.warned.add(missing)
    if not known:
        warnings.warn(
            f"there is no {shown!r}, so {_FALLBACK.name} is used; "
            "memcfg.config.set_soft_device_placement(False) makes this an error",
            RuntimeWarning,
            stacklevel=4,  # the with statement, past contextlib and this module
        )
    return fallback
