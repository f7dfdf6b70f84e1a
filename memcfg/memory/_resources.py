"""Make resources: where memory comes from, and what stands on top of it.

Owns the functions that stack one resource on another. Refuses what a resource does:
that is the native core's.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from memcfg._core import (
    FailureCallbackResource,
    LimitingResource,
    SimulatedResource,
    StatisticsResource,
    SystemResource,
    current_tag,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg._core import Resource


def system(name: str = "") -> SystemResource:
    """Hand out blocks straight from the C library.

    Parameters
    ----------
    name : str, default ""
        The device's name, for messages.

    Returns
    -------
    SystemResource
        A resource without a limit. Its bytes count against the host's limits.

    Raises
    ------
    TypeError
        If `name` is not a string.
    """
    return SystemResource(name=name)


def simulated(nbytes: int | str, *, name: str = "") -> SimulatedResource:
    """Make a device of addresses only, for devices larger than the machine.

    Parameters
    ----------
    nbytes : int or str
        The device's memory in bytes, at most 2⁶², or a string with a unit such as
        ``"16GiB"``.
    name : str, default ""
        The device's name, for messages.

    Returns
    -------
    SimulatedResource
        A resource whose blocks have addresses, and no memory behind them: a buffer of
        one is refused. No two blocks that live at a time overlap, whatever device they
        are of. A pool on top of it takes pages; `reserved_bytes` counts them too,
        `current_bytes` the device's own blocks only.

    Raises
    ------
    TypeError
        If `nbytes` is neither an int nor a string, or `name` is not a string.
    ValueError
        If `nbytes` is not a size, not positive, or more than 2⁶².
    """
    return SimulatedResource(nbytes, name=name)


def limiting(upstream: Resource, limit: int | str | None) -> LimitingResource:
    """Refuse what would exceed a limit, before upstream is asked.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from; it may have other users, whom the limit ignores.
    limit : int, str or None
        Bytes, each block rounded up to 64, or a string with a unit; None is no limit.

    Returns
    -------
    LimitingResource
        A resource with `limit` and `set_limit`.

    Raises
    ------
    TypeError
        If `upstream` is not a resource, or `limit` is not a size.
    ValueError
        If `limit` is not positive, or no size.

    Examples
    --------
    >>> from memcfg import memory
    >>> half = memory.limiting(memory.Pool(limit="2MiB"), "1MiB")
    >>> half.stats().largest_free_bytes
    1048576
    """
    return LimitingResource(upstream, limit)


def statistics(upstream: Resource) -> StatisticsResource:
    """Count what goes through: over all, by region of the program, by tag.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.

    Returns
    -------
    StatisticsResource
        A resource with `push`, `pop` and `by_tag`.

    Raises
    ------
    TypeError
        If `upstream` is not a resource.

    Notes
    -----
    Regions nest as those of RMM do: when one ends, the region around it takes over its
    current and total, and its peak on top of what was current there before.

    Examples
    --------
    >>> from memcfg import memory
    >>> counted = memory.statistics(memory.system())
    >>> counted.push()
    >>> with counted.allocate(100, tag="a"), counted.allocate(100, tag="b"):
    ...     pass
    >>> region = counted.pop()
    >>> region.current_bytes, region.peak_bytes, region.total_count
    (0, 256, 2)
    >>> counted.by_tag()["a"].total_bytes
    128
    """
    return StatisticsResource(upstream)


def failure_callback(
    upstream: Resource, callback: Callable[[int], bool]
) -> FailureCallbackResource:
    """Ask a function to free memory before a request fails.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.
    callback : callable
        Called with the bytes asked for whenever upstream has no memory for them, by the
        thread that asks. True: upstream is asked again. False: the request fails.

    Returns
    -------
    FailureCallbackResource
        A resource without metadata: its blocks and numbers are upstream's.

    Raises
    ------
    TypeError
        If `upstream` is not a resource, or `callback` not callable.

    Notes
    -----
    What the callback raises leaves `Resource.allocate`. It is asked again as long as
    it says True, so it should say False when it has freed nothing. It may use this
    resource and all others.

    Examples
    --------
    >>> from memcfg import memory
    >>> pool = memory.Pool(limit="1MiB")
    >>> cached = [pool.allocate(600_000, tag="cache")]
    >>> def drop(nbytes):
    ...     return bool(cached) and cached.pop() is not None
    >>> careful = memory.failure_callback(pool, drop)
    >>> with careful.allocate(600_000):
    ...     pool.stats().allocation_count
    2
    """
    return FailureCallbackResource(upstream, callback)


@contextmanager
def tag(name: str) -> Iterator[None]:
    """Name what is allocated inside, unless the allocation names itself.

    Parameters
    ----------
    name : str
        The tag; an inner context replaces it, and ``""`` takes it away.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    TypeError
        If `name` is not a string.

    Notes
    -----
    It holds for the running thread or task (a context variable), arenas included; a
    thread that is started inside begins without a tag.

    Examples
    --------
    >>> from memcfg import memory
    >>> pool = memory.Pool()
    >>> with memory.tag("batch"):
    ...     images, labels = pool.allocate(4096), pool.allocate(64, tag="labels")
    >>> pool.owners()
    {'batch': 4096, 'labels': 64}
    """
    if not isinstance(name, str):
        raise TypeError(f"a tag is a string, not {name!r}")
    token = current_tag.set(name)
    try:
        yield
    finally:
        current_tag.reset(token)
