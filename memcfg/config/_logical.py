"""Logical devices: listing them, placing models on them, their memory.

Each query is a first use: it creates the devices. A name that matches no device, or
several, is an error; only `device` falls back to the CPU.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import TYPE_CHECKING

from memcfg._checks import flag
from memcfg.config._physical import listed_type, only, physical_device, why_missing
from memcfg.config._registry import registry
from memcfg.config._types import (
    MAX_BYTES,
    TYPES,
    LogicalDevice,
    PhysicalDevice,
    device_type_of,
    exact_value,
    limit_from_bytes,
    parse_name,
)
from memcfg.memory import MemoryHistory
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from memcfg.config._registry import Made
    from memcfg.devices import Device

AnyDevice = str | LogicalDevice | PhysicalDevice

_FALLBACK = LogicalDevice("/device:CPU:0", "CPU")
_chosen: ContextVar[str | None] = ContextVar("memcfg_device", default=None)


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """List the devices that models can be placed on; this is a first use.

    Parameters
    ----------
    device_type : str or None, default None
        Such as ``"CPU"`` or ``"cpu"``; None lists every type.

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
    kind = listed_type(device_type)
    return [
        made.logical
        for made in registry.made(kind)
        if kind in (None, made.logical.device_type)
    ]


def logical_device(name: str | None = None) -> Device:
    """Return the device of a name, or the one that models are placed on now.

    This is a first use. A name must match: only `device` falls back.

    Parameters
    ----------
    name : str or None, default None
        A device's name. None is the device of the innermost `device` block, or the
        first logical device outside of all blocks.

    Raises
    ------
    TypeError
        If `name` is neither a name nor a device.
    ValueError
        If the name cannot be read, or no device or several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises.
    """
    name = name if name is not None else _chosen.get()
    if name is None:
        return registry.made("CPU")[0].device
    return _find(name).device


def chosen_device(device_type: str) -> Made:
    """Return the device that models are placed on, or the first of a type."""
    name = _chosen.get()
    made = None if name is None else _find(name)
    if made is None or made.logical.device_type != device_type:
        made = registry.made(device_type)[0]
    return made


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
        If the name cannot be read or its type is unknown (``"cuda:0"`` is
        ``"/GPU:0"`` here), several devices match, or none does and soft placement is
        off or there is no ``CPU:0`` to fall back to.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises.

    Warns
    -----
    RuntimeWarning
        If no device matches and ``CPU:0`` is used instead; once for each device.

    Notes
    -----
    A model remembers the name of its device when it is compiled; where it was built
    does not matter, and compiling it again in another block moves it. A model that is
    used without `compile` is placed by the block in which it takes memory. The choice
    holds for the running thread or task only. Blocks may be nested.

    Models can be planned on a simulated device, and not run.
    """
    logical = _place(name).logical
    token = _chosen.set(logical.name)
    try:
        yield logical
    finally:
        _chosen.reset(token)


def choose_device(name: AnyDevice) -> None:
    """Choose a device as `device` does, for as long as the running context lasts."""
    _chosen.set(_place(name).logical.name)


def get_soft_device_placement() -> bool:
    """Return whether `device` falls back to ``CPU:0``, as it does by default."""
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
        If it is not a bool.
    """
    registry.options.soft_placement = flag(enabled, "soft placement")


def get_memory_info(device: AnyDevice) -> dict[str, int]:
    """Return the memory use of a device; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.

    Returns
    -------
    dict of str to int
        ``"current"`` and ``"peak"``: bytes in use now, and at most since the last
        `reset_memory_stats`. Each piece in use counts rounded up to 64 bytes, as in
        the device's limit and in a plan's peak.

    Raises
    ------
    TypeError, ValueError, ResourceExhaustedError
        What `logical_device` raises.
    """
    stats = _find(device).device.pool.stats()
    return {"current": stats.current_bytes, "peak": stats.peak_bytes}


def get_memory_usage(device: AnyDevice) -> int:
    """Return how many bytes of a device are in use: `get_memory_info`'s ``"current"``.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        As for `get_memory_info`.

    Raises
    ------
    TypeError, ValueError, ResourceExhaustedError
        What `logical_device` raises.
    """
    return get_memory_info(device)["current"]


def reset_memory_stats(device: AnyDevice) -> None:
    """Reset a device's peak to the bytes in use now; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.

    Raises
    ------
    TypeError, ValueError, ResourceExhaustedError
        What `logical_device` raises.
    """
    _find(device).device.pool.reset_peak()


def get_memory_limit(device: AnyDevice) -> int | None:
    """Return the limit of a device in bytes, None for no limit; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.

    Raises
    ------
    TypeError, ValueError, ResourceExhaustedError
        What `logical_device` raises.
    """
    return _find(device).device.pool.limit


def set_memory_limit(device: AnyDevice, limit: int | str | None) -> int | None:
    """Change the limit of a device, and return the one before; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.
    limit : int, str or None
        The maximum of bytes in use: a number of bytes, a string with its unit
        (``"4MiB"``), or a percentage of the hardware's memory (``"50%"``). With None
        only the limits of the hardware, if it has its own memory, and of the
        environment remain.

    Raises
    ------
    TypeError
        If `limit` has another type, or is a bool.
    ValueError
        If `limit` is not positive or not a size, or is more than the hardware has or
        ``MEMCFG_MEMORY_LIMIT`` allows.
    RuntimeError
        If the limit of the device is that of a `budget`, whose block has not ended.
    ResourceExhaustedError
        If more than `limit` is in use now. The limit stays as it was.
    TypeError, ValueError, ResourceExhaustedError
        What `logical_device` raises.

    Warns
    -----
    RuntimeWarning
        If `limit` is a number below 1 KiB: it is bytes, and MiB were probably meant.
        If it is more than the machine of a CPU has: it limits nothing.

    Notes
    -----
    Memory that a higher limit adds is allocated as needed, even without growth; a lower
    limit releases free memory above it. Existing plans are kept, unless a lower limit
    needs the memory of a model: between two steps, for which another thread waits, it
    is planned again in less.
    """
    # Before anything is made; a warning names the line that calls.
    limit_from_bytes(limit, total_bytes=MAX_BYTES, stacklevel=2)
    made = _find(device)
    total = made.hardware.memory_bytes
    return registry.set_limit(made, limit_from_bytes(limit, total_bytes=total))


def memory_fraction(device: AnyDevice, fraction: float | None = None) -> float | None:
    """Set or return a device's limit as a fraction of the hardware's memory.

    This is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"GPU:0"``, or an object of the lists.
    fraction : float or None, default None
        Above 0 and at most 1; the limit is rounded down to whole bytes. None changes
        nothing.

    Returns
    -------
    float or None
        The fraction before the call; None if there was no limit.

    Raises
    ------
    TypeError
        If `fraction` is not a number.
    ValueError
        If `fraction` is out of range or comes to less than a byte.
    TypeError, ValueError, ResourceExhaustedError
        What `set_memory_limit` raises.
    """
    part = None if fraction is None else _fraction(fraction)
    made = _find(device)
    total = made.hardware.memory_bytes
    if part is None:
        before = made.device.pool.limit
    else:
        limit = int(part * total)
        if not limit:
            raise ValueError(f"a fraction of {fraction!r} is less than a byte")
        before = registry.set_limit(made, limit)
    return None if before is None else before / total


def trim(device: AnyDevice, keep: int | str = 0) -> int:
    """Release unused memory to the system; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.
    keep : int or str, default 0
        How much free memory to keep: bytes, or a string with its unit.

    Returns
    -------
    int
        Bytes released.

    Raises
    ------
    TypeError, ValueError
        If `keep` is neither an int nor a string, is negative or not a size.
    TypeError, ValueError, ResourceExhaustedError
        What `logical_device` raises.
    """
    nbytes = parse_bytes(keep)
    return _find(device).device.pool.trim(nbytes)


def record_memory_history(
    *devices: AnyDevice, max_entries: int = 100_000
) -> MemoryHistory:
    """Record all blocks of devices over time, until it is stopped; a first use.

    Parameters
    ----------
    *devices : str, LogicalDevice or PhysicalDevice
        Names such as ``"CPU:0"``, or objects of the lists; none is all logical devices.
    max_entries : int, default 100,000
        The number of events to keep of each pool; the oldest are dropped. Each takes 48
        bytes, which no limit counts.

    Returns
    -------
    MemoryHistory
        A context manager with `stop`, `trace` and `timeline`. It has begun.

    Raises
    ------
    TypeError
        If `max_entries` is not an int.
    ValueError
        If a device is given twice, or `max_entries` is not positive.
    MemoryError
        If there is no address space for so many events.
    TypeError, ValueError, ResourceExhaustedError
        What `logical_device` raises.

    See Also
    --------
    memcfg.memory.MemoryHistory : The same for any pools.
    memcfg.nn.Model.memory_timeline : Each tensor of a step of a model.

    Notes
    -----
    It records whoever takes memory: models, datasets, workspaces, and NumPy's arrays in
    a `memcfg.budget`. A GPU has a pool of the host too, for arrays in transit.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> with mc.config.record_memory_history("CPU:0") as history:
    ...     for batch in mc.data.Dataset.range(8).batch(4):
    ...         pass
    >>> timeline = history.timeline()
    >>> timeline.peak_bytes > 0
    True
    """
    names = [made.logical for made in registry.made(None)]
    found = [_find(each).device for each in devices or names]
    for number, each in enumerate(found):
        if each in found[:number]:
            raise ValueError(f"the device {_name(devices[number])!r} is given twice")
    pools = [pool for each in found for pool in (each.pool, each.host_pool)]
    return MemoryHistory(*dict.fromkeys(pools), max_entries=max_entries)


def _fraction(fraction: object) -> Fraction:
    if isinstance(fraction, bool) or not isinstance(fraction, Real):
        raise TypeError(f"a fraction is a number above 0, at most 1, not {fraction!r}")
    exact = exact_value(fraction)
    if exact is None or not 0 < exact <= 1:
        raise ValueError(f"a fraction is above 0 and at most 1, not {fraction!r}")
    return exact


def _place(name: AnyDevice) -> Made:
    result = _matching(name)
    if result is not None:
        return result
    fallback = _matching(_FALLBACK)
    missing = parse_name(_name(name))
    kind = missing.device_type
    here = {device.device_type for device in registry.machine(kind)}
    known = kind in here.union(TYPES)
    if fallback is None or not registry.options.soft_placement or not known:
        raise _missing("Could not satisfy the placement on", name)
    with registry.lock:
        was_warned = missing in registry.options.warned
        registry.options.warned.add(missing)
    if not was_warned:
        warnings.warn(
            f"there is no {_name(name)!r}, so {_FALLBACK.name} is used; "
            "memcfg.config.set_soft_device_placement(False) makes this an error"
            f"{registry.why_missing(missing.device_type)}",
            RuntimeWarning,
            stacklevel=4,  # the with statement, past contextlib and this module
        )
    return fallback


def _find(device: AnyDevice) -> Made:
    """Return the logical device of a name; ValueError unless exactly one matches."""
    result = _matching(device)
    if result is None:
        raise _missing("No matching devices found for", device)
    return result


def _missing(what: str, device: AnyDevice) -> ValueError:
    kind = device_type_of(device)
    there = ", ".join(made.logical.name for made in registry.made(kind))
    why = why_missing(_name(device), kind)
    return ValueError(f"{what} {_name(device)!r}; there are: {there}{why}")


def _matching(device: AnyDevice) -> Made | None:
    """Return the logical device of a name, or None; ValueError if several match."""
    kind = device_type_of(device)
    made = registry.made(kind)
    if isinstance(device, str):
        _, number, physical = parse_name(device)
    else:
        number, physical = None, isinstance(device, PhysicalDevice)
    if physical:
        assert not isinstance(device, LogicalDevice)
        hardware = physical_device(device)
        result = [each for each in made if each.specification.physical == hardware]
    elif isinstance(device, LogicalDevice):
        result = [each for each in made if each.logical == device]
    elif number is None:
        result = [each for each in made if each.logical.device_type == kind]
    else:
        wanted = LogicalDevice(f"/device:{kind}:{number}", kind)
        result = [each for each in made if each.logical == wanted]
    return only(result, _name(device), [each.logical.name for each in result])


def _name(device: AnyDevice) -> str:
    return device if isinstance(device, str) else device.name
