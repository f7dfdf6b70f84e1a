"""Memory under hard limits: resources that stack, and the pool among them.

Owns the names under which a user meets the native core's memory. Refuses devices:
which pool belongs to which device stands in `memcfg.config`.

A resource hands out blocks. `system` and `simulated` are where memory comes from,
`Pool` keeps it and places blocks in it, `limiting`, `statistics` and
`failure_callback` stand on top of another resource. All have the methods of
`Resource`; every size is in bytes. ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES``
bound what all of them hold of the host, from the first one on; making it raises what is
wrong with these variables.

Examples
--------
>>> from memcfg import memory
>>> pool = memory.Pool(limit="64MiB", name="scratch")
>>> with pool.allocate(1000, tag="window") as block:
...     view = memoryview(block)
...     view[:5] = b"hello"
...     view.release()
...     pool.stats().current_bytes, pool.owners()
(1024, {'window': 1024})
>>> pool.stats().current_bytes, pool.stats().peak_bytes
(0, 1024)

A device larger than the machine has addresses only; the arithmetic is the same:

>>> gpu = memory.Pool(memory.simulated("1TiB", name="GPU:0"), limit="600GiB")
>>> weights = gpu.allocate(500 * 2**30, tag="weights", lifetime="long")
>>> try:
...     gpu.allocate(200 * 2**30)
... except MemoryError as error:
...     print(error.message, error.owners)
A request does not fit the memory limit. {'weights': 536870912000}
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from memcfg._core import (
    Arena,
    Block,
    FailureCallbackResource,
    LimitingResource,
    Pool,
    PoolStats,
    RegionStats,
    Resource,
    SimulatedResource,
    StatisticsResource,
    SystemResource,
    current_tag,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Arena",
    "Block",
    "FailureCallbackResource",
    "LimitingResource",
    "Pool",
    "PoolStats",
    "RegionStats",
    "Resource",
    "SimulatedResource",
    "StatisticsResource",
    "SystemResource",
    "failure_callback",
    "limiting",
    "simulated",
    "statistics",
    "system",
    "tag",
]


def system(name: str = "") -> SystemResource:
    """Hand out blocks straight from the C library, with books.

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
        If `name` is no string.
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
        If `nbytes` is neither an int nor a string, or `name` no string.
    ValueError
        If `nbytes` is no size, not positive, or more than 2⁶².
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
        If `upstream` is no resource, or `limit` no size.
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
        If `upstream` is no resource.

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
    """Ask a function for room before a request fails.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.
    callback : callable
        Called with the bytes asked for whenever upstream has no memory for them, by the
        thread that asks. True: upstream is asked again. False: its refusal stands.

    Returns
    -------
    FailureCallbackResource
        A resource without books: its blocks and numbers are upstream's.

    Raises
    ------
    TypeError
        If `upstream` is no resource, or `callback` not callable.

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
        If `name` is no string.

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
