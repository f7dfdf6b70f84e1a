"""Elements stacked along a new first axis: `Dataset.batch`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._checks import count, flag
from memcfg.data._closing import closing
from memcfg.data.elements._spec import stacked
from memcfg.data.engine._parallel_step import checked_calls, is_ordered
from memcfg.data.ops._batch_maker import StackingMaker
from memcfg.data.ops._map import Map, unmapped
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node, UnaryNode
from memcfg.data.ops._parallel_batch import BatchOptions, ParallelBatches
from memcfg.data.rows._readers import IteratorReader, RowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.ops._batch_maker import BatchMaker
    from memcfg.data.rows._readers import ElementReader
    from memcfg.data.rows._rows import RowNumbers, RowStream

__all__ = ["Batch", "batches", "cardinality_of_batches", "reader_of"]


@dataclass(frozen=True, eq=False)
class Batch(UnaryNode):
    """Elements in batches."""

    batch_size: int
    drop_remainder: bool
    calls: int | None  # threads; None: the consumer's
    deterministic: bool | None
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", count(self.batch_size, "batch_size"))
        flag(self.drop_remainder, "drop_remainder")
        object.__setattr__(self, "calls", checked_calls(self.calls, self.deterministic))

    @property
    def element_spec(self) -> Any:
        """That of the step before, with an axis in front."""
        size = self.batch_size if self.drop_remainder else None
        return stacked(self.source.element_spec, size)

    @property
    def cardinality(self) -> int:
        """The number of batches."""
        return cardinality_of_batches(
            self.source, self.batch_size, drop_remainder=self.drop_remainder
        )

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass: with the threads of the map before, if it has some."""
        source, function = self._unmapped()
        before = self.source if isinstance(self.source, Map) else None
        parallel = before if before is not None and before.calls is not None else self
        calls = parallel.calls
        total = self.source.cardinality
        max_size = self.batch_size if total < 0 else max(1, min(self.batch_size, total))
        min_size = self.batch_size if self.drop_remainder else 1
        if function is None and calls is None and source.has_rows:
            return _gathered(source.rows(run), max_size, min_size, run)
        reader = reader_of(source, run)
        if calls is None:
            maker = StackingMaker(
                run, max_size, min_size, function, is_certain=total >= 0
            )
            return batches(maker, reader)
        options = BatchOptions(
            max_size=max_size,
            min_size=min_size,
            batches=self.cardinality,
            is_certain=total >= 0,
            is_ordered=is_ordered(run, parallel.deterministic),
        )
        name = self.name if parallel is self else f"{parallel.name}+{self.name}"
        return ParallelBatches(run, reader, function, calls, name, options)

    def _unmapped(self) -> tuple[Node, Callable[..., Any] | None]:
        """Take over what maps do, unless one thread is to do it and several batch."""
        source = self.source
        if self.calls is not None and isinstance(source, Map) and source.calls is None:
            return source, None
        return unmapped(source)


def cardinality_of_batches(
    source: Node, batch_size: int, *, drop_remainder: bool
) -> int:
    """Count the batches of a pass."""
    total = source.cardinality
    if total in (INFINITE, UNKNOWN):
        return total
    return total // batch_size if drop_remainder else -(-total // batch_size)


def reader_of(source: Node, run: Run) -> ElementReader:
    """Begin a pass over what batches are made of."""
    if source.has_rows:
        return RowReader(source.rows(run), run)
    return IteratorReader(source.elements(run))


def batches(maker: BatchMaker, reader: ElementReader) -> Iterator[Any]:
    """Make batches until the end."""
    with contextlib.closing(reader), maker:
        while (batch := maker.make(reader)) is not None:
            yield batch
            del batch  # its block is needed


def _gathered(
    stream: RowStream, max_size: int, min_size: int, run: Run
) -> Iterator[Any]:
    take = stream.source.take
    for rows in _regrouped(stream.chunks, max_size, run):
        if len(rows) >= min_size:
            yield take(rows)


def _regrouped(
    chunks: Iterator[RowNumbers], size: int, run: Run
) -> Iterator[RowNumbers]:
    """Divide a stream of row numbers into groups of one size."""
    with run.outside():
        group = np.empty(size, np.int64)
    filled = 0
    for chunk in _kept(chunks, run):
        begin = 0
        while begin < len(chunk):
            end = begin + size - filled
            if not filled and end <= len(chunk):
                yield chunk[begin:end]
            else:
                part = chunk[begin:end]
                group[filled : filled + len(part)] = part
                filled += len(part)
                if filled == size:
                    yield group
                    filled = 0
            begin = end
    if filled:
        yield group[:filled]


def _kept(chunks: Iterator[RowNumbers], run: Run) -> Iterator[RowNumbers]:
    """Pull chunks that lie in no workspace: groups are made of one for a while."""
    with closing(chunks):
        while True:
            with run.outside():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk
