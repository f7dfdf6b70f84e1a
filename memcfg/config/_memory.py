"""How much memory a device may use, and how much it uses.

Owns the words; the numbers are the pool's. Refuses to estimate anything, and to fall
back to another device than the one that is named.
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Rational, Real

from memcfg.config._devices import AnyDevice, find
from memcfg.config._limits import LARGEST, limit_from_bytes
from memcfg.config._state import registry
from memcfg.units import parse_bytes

__all__ = [
    "get_memory_info",
    "get_memory_limit",
    "get_memory_usage",
    "memory_fraction",
    "reset_memory_stats",
    "set_memory_limit",
    "trim",
]


def get_memory_info(device: AnyDevice) -> dict[str, int]:
    """Tell how much memory a device uses; this is a first use.

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
    TypeError
        If `device` is none of these.
    ValueError
        If the name cannot be read, or no device or several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    stats = find(device).device.pool.stats()
    return {"current": stats.current_bytes, "peak": stats.peak_bytes}


def get_memory_usage(device: AnyDevice) -> int:
    """Tell how many bytes of a device are in use; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.

    Returns
    -------
    int
        `get_memory_info`'s ``"current"``.

    Raises
    ------
    TypeError
        If `device` is none of these.
    ValueError
        If the name cannot be read, or no device or several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    return get_memory_info(device)["current"]


def reset_memory_stats(device: AnyDevice) -> None:
    """Let a device's peak start again at what is in use now; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.

    Raises
    ------
    TypeError
        If `device` is none of these.
    ValueError
        If the name cannot be read, or no device or several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    find(device).device.pool.reset_peak()


def get_memory_limit(device: AnyDevice) -> int | None:
    """Return the limit of a device; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.

    Returns
    -------
    int or None
        The most bytes that may be in use now; None is no limit.

    Raises
    ------
    TypeError
        If `device` is of no such type.
    ValueError
        If the name cannot be read, or no device or several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    return find(device).device.pool.limit


def set_memory_limit(device: AnyDevice, limit: int | str | None) -> int | None:
    """Change the limit of a device that may be in use; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.
    limit : int, str or None
        The most bytes that may be in use: a number of bytes, a string with its unit
        (``"4MiB"``), a share of the hardware's memory (``"50%"``), or None for no
        limit but the hardware's own memory, where it has one, and the
        environment's.

    Returns
    -------
    int or None
        The limit that was in force before, in bytes.

    Raises
    ------
    TypeError
        If `device` or `limit` is of no such type, or `limit` is a bool.
    ValueError
        If `limit` is not positive or no size, is more than the hardware has or
        ``MEMCFG_MEMORY_LIMIT`` allows, the name cannot be read, or no device or
        several devices match.
    ResourceExhaustedError
        If more than `limit` is in use now. The limit stays as it was.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.

    Warns
    -----
    RuntimeWarning
        If `limit` is a number below 1 KiB: it is bytes, and MiB were probably meant.

    Notes
    -----
    What a higher limit adds is taken as it is needed, also where there is no growth;
    a lower one gives free memory above it back. Plans that were made for another
    limit are not made again: a model plans when it is compiled or meets a new batch
    size.
    """
    # Before anything is made; a warning names the line that calls.
    limit_from_bytes(limit, total_bytes=LARGEST, stacklevel=2)
    made = find(device)
    total = registry.machine[made.specification.physical].memory_bytes
    return registry.set_limit(made, limit_from_bytes(limit, total_bytes=total))


def memory_fraction(device: AnyDevice, fraction: float | None = None) -> float | None:
    """Set or ask a device's limit as a share of the hardware's memory.

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
        The share before the call; None if there was no limit.

    Raises
    ------
    TypeError
        If `device` is none of these, or `fraction` is no number.
    ValueError
        If `fraction` is out of range or comes to less than a byte, the limit is more
        than ``MEMCFG_MEMORY_LIMIT`` allows, the name cannot be read, or no device or
        several devices match.
    ResourceExhaustedError
        If more is in use now. The limit stays as it was.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    share = None if fraction is None else _share(fraction)
    made = find(device)
    total = registry.machine[made.specification.physical].memory_bytes
    if share is None:
        before = made.device.pool.limit
    else:
        limit = int(share * total)
        if not limit:
            raise ValueError(f"a fraction of {fraction!r} is less than a byte")
        before = registry.set_limit(made, limit)
    return None if before is None else before / total


def trim(device: AnyDevice, keep: int | str = 0) -> int:
    """Give memory that is in no use back to the system; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.
    keep : int or str, default 0
        How much of what is free to keep at hand: bytes, or a string with its unit.

    Returns
    -------
    int
        Bytes given back.

    Raises
    ------
    TypeError
        If `device` is none of these, or `keep` is neither an int nor a string.
    ValueError
        If `keep` is negative or no size, the name cannot be read, or no device or
        several devices match.
    ValueError, ResourceExhaustedError
        What `list_logical_devices` raises, if this is the first use.
    """
    nbytes = parse_bytes(keep)
    return find(device).device.pool.trim(nbytes)


def _share(fraction: object) -> Fraction:
    if isinstance(fraction, bool) or not isinstance(fraction, Real):
        raise TypeError(f"a fraction is a number above 0, at most 1, not {fraction!r}")
    if isinstance(fraction, Rational):
        share = Fraction(int(fraction.numerator), int(fraction.denominator))
    else:
        share = Fraction(float(fraction)) if math.isfinite(fraction) else Fraction(-1)
    if not 0 < share <= 1:
        raise ValueError(f"a fraction is above 0 and at most 1, not {fraction!r}")
    return share
