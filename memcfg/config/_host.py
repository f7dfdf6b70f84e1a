"""The limits on the memory of the whole process, over all devices."""

from __future__ import annotations

from types import EllipsisType

from memcfg._core import resident_bytes, tracked_bytes
from memcfg._core._environment import HostLimits
from memcfg.config._registry import registry
from memcfg.config._types import limit_from_bytes


def get_host_memory_info() -> dict[str, int]:
    """Return the host memory of this process, and the part that pools count.

    Returns
    -------
    dict of str to int
        In bytes: ``"tracked"``, in blocks and arenas of host memory; ``"resident"``,
        what the system reports for the process, or 0 if it does not;
        ``"untracked"``, at least how much of that is outside blocks and arenas:
        ``resident - tracked``, or 0 if that is negative.

    Notes
    -----
    Which pages of a block have been touched is unknown. Untouched pages are tracked but
    not resident, so the true untracked size lies between this number and all resident
    bytes. It includes the interpreter, other libraries and free pages of the pools.
    """
    tracked, resident = tracked_bytes(), resident_bytes()
    return {
        "tracked": tracked,
        "resident": resident,
        "untracked": max(0, resident - tracked),
    }


def set_host_memory_limit(
    *,
    tracked: int | str | EllipsisType | None = ...,
    rss: int | str | EllipsisType | None = ...,
) -> HostLimits:
    """Limit the host memory of this process, over all devices.

    Without arguments nothing changes, and the present limits are returned.

    Parameters
    ----------
    tracked : int, str or None, optional
        The maximum of bytes in use in all pools of host memory together, and of each
        GPU: a number, a string with its unit, or a percentage of the machine's memory
        (``"50%"``). None is no limit; if omitted, the limit is unchanged.
    rss : int, str or None, optional
        The maximum resident bytes of the process, including other libraries. It is
        checked when a pool allocates memory, so other libraries can still exceed it.
        The pages of mapped files count; they are evicted before a request is refused.

    Returns
    -------
    HostLimits
        ``(tracked, rss)`` from before the call, in bytes; None is no limit.

    Raises
    ------
    TypeError
        If a limit has another type, or is a bool.
    ValueError
        If a limit is not positive or not a size, or logical devices that share a GPU
        have larger limits together; before devices are used, their first use raises it.
    FormatError
        If a variable of the environment cannot be parsed.
    ResourceExhaustedError
        If more is in use, or resident, now than a limit or the environment's allows.

    Warns
    -----
    RuntimeWarning
        If a limit is a number below 1 KiB: it is bytes, and MiB were probably meant.

    Notes
    -----
    ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES`` are the limits from the first
    resource or device on, until this function is called with an argument. A call that
    raises changes no limit; models may have given memory back. As with ND4J's
    ``maxbytes``, no GPU takes more than `tracked`: the limit of its device is lowered,
    and stays when `tracked` is raised, until `set_memory_limit` raises it.
    """
    total = registry.host_bytes
    given = _read(tracked, total, "tracked"), _read(rss, total, "rss")

    def change() -> HostLimits:
        before = registry.host.apply()
        wanted = HostLimits(
            *(
                old if isinstance(new, EllipsisType) else new
                for old, new in zip(before, given, strict=True)
            )
        )
        if tracked is not ... or rss is not ...:
            registry.host.replace(wanted)
            try:
                if wanted.tracked is not None:
                    registry.lower_limits(wanted.tracked)
            except BaseException:
                registry.host.replace(before)
                raise
        return before

    return registry.changed(change)


def _read(
    limit: int | str | EllipsisType | None, total: int, name: str
) -> int | EllipsisType | None:
    if isinstance(limit, EllipsisType):
        return limit
    return limit_from_bytes(limit, total_bytes=total, name=name, stacklevel=3)
