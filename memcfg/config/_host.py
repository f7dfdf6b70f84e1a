"""The limits on the memory of the whole process.

Owns the two knobs that all devices share: what the pools track, and what the process
has resident, whoever took it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from memcfg.config._limits import limit_from_bytes
from memcfg.config._process import HostLimits
from memcfg.config._state import registry

__all__ = ["set_host_memory_limit"]


class _Keep(Enum):
    """A type of one value, so that None can mean no limit."""

    KEEP = "as it is"


_KEEP: Final = _Keep.KEEP


def set_host_memory_limit(
    *,
    tracked: int | str | _Keep | None = _KEEP,
    rss: int | str | _Keep | None = _KEEP,
) -> HostLimits:
    """Limit the host memory of this process, over all devices.

    Without arguments nothing changes; the return value tells the present limits.

    Parameters
    ----------
    tracked : int, str or None, optional
        The most bytes that may be in use in all pools of host memory together: a
        number, a string with its unit, or a share of the machine's memory
        (``"50%"``). None is no limit; left out, it stays as it is.
    rss : int, str or None, optional
        The most bytes that the process may have resident, other libraries' included.
        It is compared when a pool takes memory, so others can still exceed it.

    Returns
    -------
    HostLimits
        ``(tracked, rss)`` from before the call, in bytes; None is no limit.

    Raises
    ------
    TypeError
        If a limit is of no such type, or a bool.
    ValueError
        If a limit is not positive or no size; or the environment's limits, which
        hold until the first call, cannot be read.
    ResourceExhaustedError
        If more is in use, or resident, now.

    Notes
    -----
    ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES`` are the limits from the first
    use of a device, until this function is called with an argument. A call that
    raises changes nothing.
    """
    with registry.lock:
        total = registry.host_bytes
        before = registry.host.settle(total)
        wanted = HostLimits(
            _read(tracked, before.tracked, total, "tracked"),
            _read(rss, before.rss, total, "rss"),
        )
        if tracked is not _KEEP or rss is not _KEEP:
            registry.host.replace(wanted)
        return before


def _read(
    limit: int | str | _Keep | None, present: int | None, total: int, name: str
) -> int | None:
    if isinstance(limit, _Keep):
        return present
    return limit_from_bytes(limit, total_bytes=total, name=name)
