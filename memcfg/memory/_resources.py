"""Functions that make resources, which provide memory or stand on one another.

Owns the functions that stack one resource on another. What resources do belongs to the
native core.

See docs/decisions/0008-a-limit-counts-bytes-in-use.md,
docs/decisions/0009-pool-of-reserved-addresses.md and
docs/decisions/0010-checked-frees.md.
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
    """Return a resource that hands out blocks of the C library.

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
    """Return a device of addresses only, which may be larger than the machine.

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
        A resource whose blocks have addresses but no memory, so that they give no
        buffers. Blocks that are alive at the same time never overlap, even those of
        different devices. A pool on it takes pages; `reserved_bytes` includes them,
        while `current_bytes` counts only the device's own blocks.

    Raises
    ------
    TypeError
        If `nbytes` is neither an int nor a string, or `name` is not a string.
    ValueError
        If `nbytes` is not a size, not positive, or more than 2⁶².
    """
    return SimulatedResource(nbytes, name=name)


def limiting(upstream: Resource, limit: int | str | None) -> LimitingResource:
    """Return a resource that refuses requests above a limit before asking upstream.

    Parameters
    ----------
    upstream : Resource
        The resource that provides the blocks; its other users are not limited.
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
        If `limit` is not positive, or is not a size.

    Examples
    --------
    >>> from memcfg import memory
    >>> half = memory.limiting(memory.Pool(limit="2MiB"), "1MiB")
    >>> half.stats().largest_free_bytes
    1048576
    """
    return LimitingResource(upstream, limit)


def statistics(upstream: Resource) -> StatisticsResource:
    """Return a resource that counts allocations in total, by program region and by tag.

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
    Regions nest as in RMM: when one ends, its current and total bytes are added to the
    region around it, whose peak takes into account the inner peak on top of what was
    current there.

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
    """Return a resource that calls a function to free memory before a request fails.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.
    callback : callable
        Called with the requested bytes whenever upstream has no memory for them, in the
        requesting thread. If it returns True, upstream is tried again; if False, the
        request fails.

    Returns
    -------
    FailureCallbackResource
        A resource without metadata, whose blocks and numbers are upstream's.

    Raises
    ------
    TypeError
        If `upstream` is not a resource, or `callback` is not callable.

    Notes
    -----
    Exceptions of the callback propagate from `Resource.allocate`. It is called again as
    long as it returns True, so it should return False when it has freed nothing. It may
    use this resource and all others.

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
    """Name the memory that is allocated inside, unless an allocation names itself.

    Parameters
    ----------
    name : str
        The tag; an inner context replaces it, and ``""`` removes it.

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
    It applies to the current thread or task (a context variable), including arenas. A
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
