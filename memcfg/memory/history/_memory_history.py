"""The history of pools: all blocks of all holders, as a trace and as a timeline."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from memcfg import _core
from memcfg._checks import count
from memcfg._core import Pool
from memcfg.memory._census import label_of
from memcfg.memory._trace import Trace
from memcfg.memory.history._native_trace import native_trace
from memcfg.timeline._record_timeline import Recorded, record_timeline
from memcfg.units import align_up, exact

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from memcfg.timeline import MemoryTimeline

__all__ = ["MemoryHistory"]

_BEFORE = "before the recording"
_UNKNOWN = 0  # thread of a block that was there before


class _Place(NamedTuple):
    """A pool and what is noted of it."""

    label: str
    pool: Pool
    events: _core.PoolHistory


@final
class MemoryHistory:
    """All blocks of pools over time, from now to `stop` or the end of a ``with`` block.

    Whoever holds them: models, datasets, workspaces, NumPy's arrays or the program.
    `memcfg.config.record_memory_history` makes it for devices.

    Parameters
    ----------
    *pools : Pool
        The pools, at least one.
    max_entries : int, default 100,000
        The number of events to keep of each pool; the oldest are dropped. Each takes 48
        bytes beside the pool's limit, which its `stats` count as metadata.

    Raises
    ------
    TypeError
        If one is not a pool, or `max_entries` is not an int.
    ValueError
        If there is no pool, one is given twice or stands on another one, so that its
        bytes would count twice, or `max_entries` is not positive.
    MemoryError
        If there is no address space for so many events.

    Notes
    -----
    Nothing is noted, and nothing costs time, unless a pool is recorded. While it is,
    every block takes the lock of the pool, also small ones that threads otherwise keep
    for themselves. Arenas, in which a model has its tensors, are a block each, which
    ends and begins again when it grows. A request that does not fit is an event, also
    where it is granted a moment later, since holders of memory gave some back.

    Blocks that were there before come first, at the begin of the recording. Histories
    of one pool may overlap and be nested; each has its own events.

    Examples
    --------
    >>> from memcfg import memory
    >>> pool = memory.Pool(limit="1MiB", name="scratch")
    >>> with memory.MemoryHistory(pool) as history:
    ...     weights = pool.allocate(1000, tag="weights")
    ...     pool.allocate(500, tag="scratch").free()
    >>> history.trace()
    <Trace: 2 allocations, 1 frees, 0 failures>
    >>> history.timeline().peak_bytes
    1536
    """

    def __init__(self, *pools: Pool, max_entries: int = 100_000) -> None:
        _require_pools(pools)
        entries = count(max_entries, "a number of entries", 1)
        self._lock = threading.Lock()
        self._places: list[_Place] = []
        self._stopped = False
        self._limits: dict[str, int | None] = {}
        try:
            for label, pool in zip(_labels(pools), pools, strict=True):
                events = _core.PoolHistory(pool, entries)
                self._places.append(_Place(label, pool, events))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        if self.stopped:
            raise RuntimeError("the history has been stopped: make another one")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def stopped(self) -> bool:
        """Whether nothing is recorded any more."""
        return self._stopped

    @property
    def dropped(self) -> int:
        """How many events were too many, of all pools."""
        return self._read()[2]

    def stop(self) -> None:
        """Record nothing any more; what has been recorded stays."""
        with self._lock:
            if self._stopped:
                return
            for place in self._places:
                place.events.end()
            self._limits = {place.label: place.pool.limit for place in self._places}
            self._stopped = True

    def _read(self) -> tuple[list[Trace], float, int]:
        """Return the events of each pool, all until the same second, and the dropped.

        Pools are read one after another, and memory may go from one to the other
        meanwhile: what came behind the first reading is left out.
        """
        found = [place.events.read() for place in self._places]
        end = min(second for _, _, second in found)
        traces = [_until(end, native_trace(columns)) for columns, _, _ in found]
        return traces, end, sum(number for _, number, _ in found)

    def trace(self) -> Trace:
        """Return the events of all pools in order.

        Returns
        -------
        Trace
            Bytes as asked for, by tag, without stacks. `thread` is 0 for blocks that
            were there before.
        """
        return _merged(self._read()[0])[0]

    def timeline(self) -> MemoryTimeline:
        """Return who had which addresses when.

        Returns
        -------
        MemoryTimeline
            A box for each block, with its bytes rounded up to 64, as limits count them;
            the pool of each stands in the place of a layer. Of several pools, bytes in
            use are those of all; the limit is drawn if there is one pool. It is that at
            the end of the recording.
        """
        traces, end, dropped = self._read()
        trace, sources = _merged(traces)
        labels = [place.label for place in self._places]
        rows = _rows(trace, [labels[source] for source in sources.tolist()])
        limits = self._limits or {each.label: each.pool.limit for each in self._places}
        facts = {}
        if len(labels) > 1:
            words = [
                f"{label} {'none' if limit is None else exact(limit)}"
                for label, limit in limits.items()
            ]
            facts["limit"] = ", ".join(words)  # in the place of that of one pool
        if dropped:
            facts["dropped events"] = f"{dropped:,}"
        return record_timeline(
            rows,
            limits[labels[0]] if len(labels) == 1 else None,
            title=f"Memory of {', '.join(labels)}",
            end=end,
            facts=facts,
        )

    def __repr__(self) -> str:
        labels = ", ".join(place.label for place in self._places)
        state = "stopped" if self.stopped else "recording"
        return f"<MemoryHistory of {labels}: {state}, {self.trace()!r}>"

    def _repr_html_(self) -> str:
        """Return the picture of the timeline."""
        return self.timeline()._repr_html_()


def _require_pools(pools: Sequence[Pool]) -> None:
    if not pools:
        raise ValueError("a history needs at least one pool")
    for pool in pools:
        if not isinstance(pool, Pool):
            raise TypeError(f"a history is of pools, not of {pool!r}")
        if sum(other is pool for other in pools) > 1:
            raise ValueError(f"the pool {label_of(pool)!r} is given twice")
        below = pool.upstream
        while below is not None:
            if any(below is other for other in pools):
                raise ValueError(
                    f"the pool {label_of(pool)!r} stands on {label_of(below)!r}, so "
                    "its bytes would count twice; record one of them"
                )
            below = below.upstream


def _labels(pools: Sequence[Pool]) -> list[str]:
    """Return a name of each pool; equal ones are numbered."""
    names = [label_of(pool).removeprefix("/device:") for pool in pools]
    return [
        name if names.count(name) == 1 else f"{name} {names[: number + 1].count(name)}"
        for number, name in enumerate(names)
    ]


def _until(end: float, trace: Trace) -> Trace:
    """Return the rows until a second, and those of blocks that were there before."""
    is_early = trace.seconds <= end
    if is_early.all():
        return trace
    kept = is_early | (trace.thread == _UNKNOWN)
    columns: dict[str, Any] = {
        name: getattr(trace, name)[kept]
        for name in ("action", "address", "nbytes", "thread", "seconds", "tag")
    }
    columns["seconds"] = np.minimum(columns["seconds"], end)
    return Trace(tags=trace.tags, **columns)


def _merged(traces: Sequence[Trace]) -> tuple[Trace, NDArray[np.int64]]:
    """Return one trace in the order of time, and whose each of its rows is."""
    starts = np.cumsum([0, *(len(trace.tags) for trace in traces)])
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in ("action", "address", "nbytes", "thread", "seconds")
    }
    columns["tag"] = np.concatenate(
        [trace.tag + start for trace, start in zip(traces, starts[:-1], strict=True)]
    )
    order = np.argsort(columns["seconds"], kind="stable")  # all pools have one clock
    sources = np.repeat(np.arange(len(traces)), [len(trace) for trace in traces])
    merged = Trace(
        tags=tuple(name for trace in traces for name in trace.tags),
        **{name: column[order] for name, column in columns.items()},
    )
    return merged, sources[order]


def _rows(trace: Trace, labels: Sequence[str]) -> list[Recorded]:
    columns = (trace.action, trace.address, trace.nbytes, trace.seconds)
    lists = (column.tolist() for column in (*columns, trace.tag, trace.thread))
    return [
        Recorded(
            action,
            address,
            align_up(nbytes),
            seconds,
            trace.tags[tag],
            layer=label,
            origin=_BEFORE if thread == _UNKNOWN and address else "",
            requested_bytes=nbytes,
        )
        for (action, address, nbytes, seconds, tag, thread), label in zip(
            zip(*lists, strict=True), labels, strict=True
        )
    ]
