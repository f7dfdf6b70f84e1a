"""Steps that stack elements along a new first axis, and split them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count, flag
from memcfg._core import scope_out
from memcfg.data.elements._spec import TensorSpec, stacked
from memcfg.data.elements._structure import flatten, map_structure
from memcfg.data.engine._parallel_step import checked_calls
from memcfg.data.engine._run import kept
from memcfg.data.ops._batch_maker import StackingMaker
from memcfg.data.ops._map import Map, unmapped
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node, UnaryNode, require_arrays
from memcfg.data.ops._parallel_batch import ParallelBatches
from memcfg.data.rows._rows import IteratorReader, RowReader, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.ops._batch_maker import BatchMaker
    from memcfg.data.rows._file_rows import RowNumbers
    from memcfg.data.rows._rows import ElementReader, RowStream


@dataclass(frozen=True, eq=False)
class Batch(UnaryNode):
    """Elements in batches."""

    batch_size: int
    drop_remainder: bool
    calls: int | None  # threads; None: the consumer's
    deterministic: bool | None
    name: str

    def __post_init__(self) -> None:
        require_arrays(self.source, self.name)
        object.__setattr__(self, "batch_size", count(self.batch_size, "batch_size"))
        flag(self.drop_remainder, "drop_remainder")
        object.__setattr__(self, "calls", checked_calls(self.calls, self.deterministic))

    @property
    def element_spec(self) -> Any:
        size = self.batch_size if self.drop_remainder else None
        return stacked(self.source.element_spec, size)

    @property
    def cardinality(self) -> int:
        return cardinality_of_batches(
            self.source, self.batch_size, drop_remainder=self.drop_remainder
        )

    @property
    def repeats(self) -> bool:
        return self.deterministic is not False and self.source.repeats

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass, in the threads of the preceding map if that is parallel."""
        source, function = self._unmapped()
        before = self.source if isinstance(self.source, Map) else None
        parallel = before if before is not None and before.calls is not None else self
        calls = parallel.calls
        total = self.source.cardinality
        max_size = self.batch_size if total < 0 else max(1, min(self.batch_size, total))
        min_size = self.batch_size if self.drop_remainder else 1
        if function is None and calls is None and source.has_rows:
            return _gathered(source.rows(run), max_size, min_size)
        reader = reader_of(source, run)
        maker = StackingMaker(run, max_size, min_size, function, is_certain=total >= 0)
        if calls is None:
            return batches(maker, reader)
        name = self.name if parallel is self else f"{parallel.name}+{self.name}"
        return ParallelBatches(
            run, reader, maker, calls, name, parallel.deterministic, self.cardinality
        )

    def _unmapped(self) -> tuple[Node, Callable[..., Any] | None]:
        """Fuse preceding maps into this step, unless only the batch is parallel."""
        source = self.source
        if self.calls is not None and isinstance(source, Map) and source.calls is None:
            return source, None
        return unmapped(source)


def cardinality_of_batches(
    source: Node, batch_size: int, *, drop_remainder: bool
) -> int:
    total = source.cardinality
    if total in (INFINITE, UNKNOWN):
        return total
    return total // batch_size if drop_remainder else -(-total // batch_size)


def reader_of(source: Node, run: Run) -> ElementReader:
    """Begin a pass over the source of a batching step."""
    if source.has_rows:
        return RowReader(source.rows(run))
    return IteratorReader(source.elements(run))


def batches(maker: BatchMaker, reader: ElementReader) -> Iterator[Any]:
    """Make batches until the end."""
    with contextlib.closing(reader), maker:
        while (batch := maker.make(reader)) is not None:
            yield batch
            del batch  # so that its block can be reused


def _gathered(stream: RowStream, max_size: int, min_size: int) -> Iterator[Any]:
    take = stream.source.take
    for rows in _regrouped(stream.chunks, max_size):
        if len(rows) >= min_size:
            yield take(rows)


def _regrouped(chunks: Iterator[RowNumbers], size: int) -> Iterator[RowNumbers]:
    """Divide a stream of row numbers into groups of one size."""
    with scope_out():
        group = np.empty(size, np.int64)
    filled = 0
    for chunk in kept(chunks):
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


@dataclass(frozen=True, eq=False)
class Unbatch(UnaryNode):
    """The rows of batches."""

    name: str

    def __post_init__(self) -> None:
        require_arrays(self.source, self.name)
        if not self.source.is_probed:
            map_structure(_row_spec, self.source.element_spec)

    @property
    def element_spec(self) -> Any:
        return map_structure(_row_spec, self.source.element_spec)

    @property
    def cardinality(self) -> int:
        """The number of rows, if all batches are known to have the same size."""
        total = self.source.cardinality
        if total == INFINITE:
            return INFINITE
        if total < 0 or self.source.is_probed:
            return UNKNOWN
        first = flatten(self.source.element_spec)[0]
        size = first.shape[0] if first.shape else None
        return total * size if size else UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        return _rows(self.source.elements(run))


def _rows(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in kept(batches):  # it must live until its last row has been pulled
        yield from rows_of(batch)
        del batch


def _row_spec(spec: TensorSpec) -> TensorSpec:
    if spec.shape is None:
        return TensorSpec(None, spec.dtype)
    if not spec.shape:
        raise ValueError("unbatch needs arrays with a first axis, but one has none")
    return TensorSpec(spec.shape[1:], spec.dtype)
