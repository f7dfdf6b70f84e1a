"""Steps that select, repeat or reorder elements without changing them.

They work on row numbers if the source has them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count, flag
from memcfg._core import scope_out
from memcfg._core.rows import RandomWords, ShuffleOrder
from memcfg.data.elements._held import given, has_bytes, held
from memcfg.data.elements._structure import call
from memcfg.data.engine._run import closing, kept
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node, UnaryNode
from memcfg.data.rows._rows import RowStream, elements_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._file_rows import RowNumbers

_END = object()
_MAX = 2**63 - 1  # a cardinality is an int64
_GRAPH_SEED = 87654321  # TensorFlow's default graph seed
_SEEDS = 2**31 - 1  # seeds are taken modulo this, as in TensorFlow
_WHOLE = 2**62  # size of a buffer for all elements; it grows as needed
_DRAINED = 4096  # rows of a chunk when the buffer is emptied at the end


@dataclass(frozen=True, eq=False)
class Select(UnaryNode):
    """The elements that a slice selects: `take`, `skip` and `shard`.

    If `stop` is 0, the source is not started. Only one of `start` and `stop` is set.
    """

    start: int
    stop: int | None
    step: int
    name: str

    @property
    def cardinality(self) -> int:
        before = self.source.cardinality
        if before == INFINITE and self.stop is not None:
            return self.stop
        if before < 0:
            return before
        return len(range(before)[self.start : self.stop : self.step])

    @property
    def has_rows(self) -> bool:
        return self.source.has_rows and self.stop != 0

    def elements(self, run: Run) -> Iterator[Any]:
        if self.stop == 0:
            return iter(())
        if self.has_rows and (self.start or self.step > 1):
            return elements_of(self.rows(run))
        return self._chosen(self.source.elements(run), run)

    def rows(self, run: Run) -> RowStream:
        stream = self.source.rows(run)
        return RowStream(stream.source, self._chosen_rows(stream.chunks))

    def _chosen(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        left_out = self.start
        with closing(elements):
            while True:
                with scope_out():  # skipped elements would fill the reader's workspace
                    for _ in islice(elements, left_out):
                        if run.closed:
                            return
                if self.step == 1:
                    yield from islice(elements, self.stop)
                    return
                element = next(elements, _END)
                if element is _END or run.closed:
                    return
                yield element
                del element
                left_out = self.step - 1

    def _chosen_rows(self, chunks: Iterator[RowNumbers]) -> Iterator[RowNumbers]:
        first, stop = self.start, self.stop  # within the chunk
        with closing(chunks):
            for chunk in chunks:
                part = chunk[first : stop : self.step]
                if len(part):
                    yield np.ascontiguousarray(part)
                first += len(part) * self.step - len(chunk)
                if stop is not None:
                    stop -= len(chunk)
                    if stop <= 0:
                        return


@dataclass(frozen=True, eq=False)
class Filter(UnaryNode):
    """The elements for which a function returns True."""

    predicate: Callable[..., Any]
    name: str

    cardinality = UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        return self._chosen(self.source.elements(run), run)

    def _chosen(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        with closing(elements):
            while not run.closed:
                with scope_out():  # dropped elements would fill a workspace
                    element = next(elements, _END)
                    if element is _END:
                        return
                    wanted = _truth(call(self.predicate, element))
                if wanted:
                    yield element
                del element


@dataclass(frozen=True, eq=False)
class Repeat(UnaryNode):
    """Repeated passes over another step; without limit if the count is negative."""

    count: int
    name: str

    @property
    def cardinality(self) -> int:
        before = self.source.cardinality
        if self.count == 0 or before == 0:
            return 0
        if self.count < 0:
            return INFINITE
        return before if before < 0 else min(before * self.count, _MAX)

    @property
    def has_rows(self) -> bool:
        """Whether the source has rows and there is at least one element."""
        return self.source.has_rows and self.cardinality != 0

    def elements(self, run: Run) -> Iterator[Any]:
        if self.count == 0 or self.source.cardinality == 0:
            return iter(())
        if self.count == 1:
            return self.source.elements(run)
        part = run.part()
        return self._passes(self.source.elements(part), part, run)

    def rows(self, run: Run) -> RowStream:
        stream = self.source.rows(run)
        return RowStream(stream.source, self._row_passes(stream.chunks, run))

    def _passes(self, elements: Iterator[Any], part: Run, run: Run) -> Iterator[Any]:
        for more in self._counted(run):
            try:
                with closing(elements):
                    first = next(elements, _END)
                    if first is _END and self.count < 0:
                        return
                    if first is not _END:
                        yield first
                        del first
                        yield from elements
            finally:
                part.close()
            if more:
                part = run.part()
                elements = self.source.elements(part)
        with closing(elements):  # a pass that was begun but is not read
            part.close()

    def _row_passes(
        self, chunks: Iterator[RowNumbers], run: Run
    ) -> Iterator[RowNumbers]:
        for more in self._counted(run):
            empty = True
            for chunk in chunks:
                empty = False
                yield chunk
            if empty and self.count < 0:
                return
            if more:
                chunks = self.source.rows(run).chunks

    def _counted(self, run: Run) -> Iterator[bool]:
        """Yield for each pass whether to begin another one when it ends."""
        fused = self.count == 1 or isinstance(self.source, Shuffle)
        begun = 0
        while begun != self.count and not run.closed:
            begun += 1
            yield begun != self.count or not fused


@dataclass(frozen=True, eq=False)
class Shuffle(UnaryNode):
    """Elements of another step in random order, the same as tf.data's.

    `ShuffleOrder` orders integers: row numbers, or slots of a buffer of elements.
    """

    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True
    name: str = "shuffle"
    # Returns the seeds of a pass.
    _seeds: Callable[[], tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        flag(self.reshuffle_each_iteration, "reshuffle_each_iteration")
        if self.buffer_size != UNKNOWN:
            count(self.buffer_size, "buffer_size")
        if self.seed is None:
            first, second = np.frombuffer(os.urandom(16), np.int64).tolist()
        else:
            first, second = _GRAPH_SEED, index(self.seed) % _SEEDS
        changing = RandomWords(first, second).pair
        seeds = changing if self.reshuffle_each_iteration else lambda: (first, second)
        object.__setattr__(self, "_seeds", seeds)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the step; the copy starts again with the seed's first pass."""
        switch = self.reshuffle_each_iteration
        return type(self), (self.source, self.buffer_size, self.seed, switch, self.name)

    @property
    def repeats(self) -> bool:
        return not self.reshuffle_each_iteration and self.source.repeats

    @property
    def has_rows(self) -> bool:
        """Whether the source has rows and contains no shuffle."""
        return self.source.has_rows and not _holds_shuffle(self.source)

    def elements(self, run: Run) -> Iterator[Any]:
        if run.probing:  # the first one says as much as any, and fills no buffer
            return self.source.elements(run)
        if self.has_rows:
            return elements_of(self.rows(run))
        return self._shuffled(self._order(run), run)

    def rows(self, run: Run) -> RowStream:
        order = self._order(run)
        stream = self.source.rows(run)
        return RowStream(stream.source, _shuffled_rows(stream.chunks, order, run))

    def _order(self, run: Run) -> ShuffleOrder:
        size = _WHOLE if self.buffer_size == UNKNOWN else self.buffer_size
        seeds = (0, 0) if run.probing else self._seeds()
        return ShuffleOrder(size, *seeds, _numbers)

    def _shuffled(self, order: ShuffleOrder, run: Run) -> Iterator[Any]:
        slots: list[Any] = []  # an element's number in `order` is its slot
        free, holds = -1, None
        for element in kept(self.source.elements(run)):
            if holds is None:
                holds = has_bytes(element)
            if holds:
                element = held(element)
            if free < 0:
                free = len(slots)
                slots.append(element)
            else:
                slots[free] = element
            del element
            free = order.exchange(free)
            if free >= 0:
                yield given(_taken(slots, free)) if holds else _taken(slots, free)
            elif run.closed:
                return
        for numbers in _drained(order, run):
            for number in numbers.tolist():
                yield given(_taken(slots, number)) if holds else _taken(slots, number)


def _taken(slots: list[Any], slot: int) -> Any:
    element, slots[slot] = slots[slot], None
    return element


def _shuffled_rows(
    chunks: Iterator[RowNumbers], order: ShuffleOrder, run: Run
) -> Iterator[RowNumbers]:
    out = _numbers(0)  # reused: a chunk is valid only until the next
    with closing(chunks):
        for rows in chunks:
            if len(rows) > len(out):
                out = _numbers(len(rows))
            gone = order.exchange_rows(rows, out)
            if gone:
                yield out[:gone]
            elif run.closed:
                return
    yield from _drained(order, run)


def _drained(order: ShuffleOrder, run: Run) -> Iterator[RowNumbers]:
    out = _numbers(min(order.held, _DRAINED))
    while not run.closed and (gone := order.drain(out)):
        yield out[:gone]


def _numbers(length: int) -> RowNumbers:
    """Allocate an array outside of workspaces."""
    with scope_out():
        return np.empty(length, np.int64)


def _holds_shuffle(node: Node) -> bool:
    return isinstance(node, Shuffle) or any(map(_holds_shuffle, node.inputs))


def _truth(answer: Any) -> bool:
    if isinstance(answer, bool):
        return answer
    dtype, shape = getattr(answer, "dtype", None), getattr(answer, "shape", None)
    if dtype == np.bool_ and shape == ():
        return bool(answer)
    raise ValueError(f"a predicate must return one bool, not {answer!r:.80}")
