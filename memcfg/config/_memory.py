"""How much memory a device may use, and how much it uses.

Owns the words; the numbers are the pool's. Refuses to estimate anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.config._devices import find
from memcfg.config._types import limit_from_bytes

if TYPE_CHECKING:
    from memcfg.config._types import LogicalDevice, PhysicalDevice

__all__ = ["get_memory_info", "reset_memory_stats", "set_memory_limit"]


def get_memory_info(device: str | LogicalDevice | PhysicalDevice) -> dict[str, int]:
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
    """
    stats = find(device).pool.stats()
    return {"current": stats.current_bytes, "peak": stats.peak_bytes}


def reset_memory_stats(device: str | LogicalDevice | PhysicalDevice) -> None:
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
    """
    find(device).pool.reset_peak()


def set_memory_limit(
    device: str | LogicalDevice | PhysicalDevice, limit: int | str | None
) -> int | None:
    """Change the limit of a device that may be in use; this is a first use.

    Parameters
    ----------
    device : str, LogicalDevice or PhysicalDevice
        A name such as ``"CPU:0"``, or an object of the lists.
    limit : int, str or None
        The most bytes that may be in use: a number of bytes, a string with its unit
        (``"4MiB"``), or None for no limit.

    Returns
    -------
    int or None
        The limit that was in force before, in bytes.

    Raises
    ------
    TypeError
        If `device` or `limit` is of no such type, or `limit` is a bool.
    ValueError
        If `limit` is not positive or no size, the name cannot be read, or no device
        or several devices match.
    ResourceExhaustedError
        If more than `limit` is in use now. The limit stays as it was.

    Notes
    -----
    Plans that were made for another limit are not made again: a model plans when it
    is compiled or meets a new batch size.
    """
    limit_bytes = limit_from_bytes(limit)
    return find(device).pool.set_limit(limit_bytes)
