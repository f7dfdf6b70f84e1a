"""Resources that record allocations, in memory or in a file.

Owns the Python form of what the native core has recorded. `_replay` plays it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never, final

from memcfg import _core
from memcfg._checks import count
from memcfg._core import LiveBlock, LoggingResource
from memcfg.memory.history._native_trace import native_trace
from memcfg.units import format_bytes

if TYPE_CHECKING:
    import os

    from memcfg._core import Resource
    from memcfg.memory._trace import Trace

__all__ = ["TrackingResource", "logging", "tracking"]


@final
class TrackingResource(_core.TrackingResource):
    """A resource that records its blocks and history, made by `memory.tracking`.

    Parameters
    ----------
    upstream : Resource
        The resource that provides the blocks.
    stacks : bool, default False
        Whether to record the Python calls that take each block.
    max_entries : int, default 100,000
        The number of events to keep.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> Never:
        raise TypeError("type 'TrackingResource' is not an acceptable base type")

    def live(self) -> list[LiveBlock]:
        """List the current blocks, all of one moment, sorted by address.

        Returns
        -------
        list of LiveBlock
            The blocks with age and thread, and with stacks if these are recorded.
        """
        name = self.name or "tracking"
        return [
            LiveBlock(
                resource=name,
                address=address,
                nbytes=nbytes,
                rounded_bytes=rounded,
                tag=tag,
                seconds=seconds,
                stack=stack,
                thread=thread,
            )
            for address, nbytes, rounded, tag, seconds, thread, stack in self.holders()
        ]

    def trace(self) -> Trace:
        """Return the history of allocations, all of one moment.

        Returns
        -------
        Trace
            The newest `max_entries` events since the last `clear`. Blocks allocated
            before them come first, at the time of the oldest event. A change of size is
            a free and an allocation at the same address. `seconds` count from 1970 and
            never decrease, `thread` is the system's number, and `stack` is that of the
            block.
        """
        return native_trace(self.history())

    def leaks(self, top: int = 20) -> str:
        """Describe the current blocks, the largest first, as text for a terminal.

        Parameters
        ----------
        top : int, default 20
            The most blocks to list, at least 0.

        Returns
        -------
        str
            A line of at most 80 columns for each block, and one for the rest; empty if
            there are no blocks.

        Raises
        ------
        TypeError
            If `top` is not an int.
        ValueError
            If `top` is negative.
        """
        top = count(top, "a number of blocks", 0)
        blocks = sorted(self.live(), key=lambda block: -block.nbytes)
        lines = [str(block) for block in blocks[:top]]
        rest = blocks[top:]
        if rest:
            nbytes = format_bytes(sum(block.nbytes for block in rest))
            lines.append(f"{len(rest)} more blocks, {nbytes} together")
        return "\n".join(lines)


def tracking(
    upstream: Resource, *, stacks: bool = False, max_entries: int = 100_000
) -> TrackingResource:
    """Record who holds what, and the history of allocations.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.
    stacks : bool, default False
        Whether to record the Python calls that take each block, at most 100 of them. A
        pool then cannot stand on the resource.
    max_entries : int, default 100,000
        The number of events to keep; the oldest are dropped. Each recorded event takes
        64 bytes.

    Returns
    -------
    TrackingResource
        A resource with `live`, `trace`, `leaks`, `clear` and `dropped`.

    Raises
    ------
    TypeError
        If `upstream` is not a resource, `stacks` is not a bool or `max_entries` is not
        an int.
    ValueError
        If `max_entries` is not positive.
    MemoryError
        If there is no address space for so many.

    Notes
    -----
    Blocks that upstream hands out to others are not recorded. A request that fails is
    an event; an invalid or empty one is not.

    Examples
    --------
    >>> from memcfg import memory
    >>> tracked = memory.tracking(memory.Pool(limit="1MiB"))
    >>> weights = tracked.allocate(1000, tag="weights")
    >>> tracked.allocate(500, tag="scratch").free()
    >>> [(block.tag, block.nbytes) for block in tracked.live()]
    [('weights', 1000)]
    >>> tracked.trace()
    <Trace: 2 allocations, 1 frees, 0 failures>
    """
    return TrackingResource(upstream, stacks=stacks, max_entries=max_entries)


def logging(
    upstream: Resource, path: str | os.PathLike[str], *, overwrite: bool = False
) -> LoggingResource:
    """Log allocations to a file that RMM's replay benchmark reads.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.
    path : str or path-like
        The file, which is created.
    overwrite : bool, default False
        Whether to empty an existing file.

    Returns
    -------
    LoggingResource
        A resource with `flush`, `close` and `closed`, and a context manager that closes
        the log.

    Raises
    ------
    FileExistsError
        If the file exists, and `overwrite` is False.
    OSError
        If the file cannot be opened or written to, is a pipe, or already has an owner,
        such as a log or a mapped file (``EBUSY``).
    TypeError
        If `upstream` is not a resource, `path` is not a path, or `overwrite` is not a
        bool.

    Notes
    -----
    Columns are ``Thread,Time,Action,Pointer,Size,Stream``, actions ``allocate``,
    ``free`` and ``allocate failure``. Times are local, with the offset from UTC at
    which the log was opened. The stream is always 0, RMM's default.

    Rows are buffered in 64 KiB of memory until they are flushed, the log is closed or
    garbage-collected, or the interpreter exits. A write error does not make allocations
    fail: it causes one RuntimeWarning, and `flush` and `close` raise. The child of a
    fork logs nothing.

    Examples
    --------
    >>> import tempfile
    >>> from memcfg import memory
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with memory.logging(memory.Pool(), f"{folder}/log.csv") as logged:
    ...         logged.allocate(1000).free()
    ...     memory.Trace.from_csv(f"{folder}/log.csv")
    <Trace: 1 allocations, 1 frees, 0 failures>
    """
    return LoggingResource(upstream, path, overwrite=overwrite)
