"""Elements in random order: `Dataset.shuffle`, in the order of tf.data's.

`ShuffleOrder` says which element goes out, as a number, so that row numbers can be
shuffled in the stead of elements.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core.rows import RandomWords, ShuffleOrder
from memcfg.data._checks import count, flag
from memcfg.data._closing import closing
from memcfg.data.ops._node import UNKNOWN, Node, UnaryNode
from memcfg.data.rows._rows import RowStream, elements_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from memcfg.data.engine._run import Run

__all__ = ["Shuffle"]

_GRAPH_SEED = 87654321  # TensorFlow's, where no global seed is set
_SEEDS = 2**31 - 1  # a seed counts modulo this, as in TensorFlow
_WHOLE = 2**62  # slots of a buffer that holds everything; it grows as needed
_DRAINED = 4096  # rows of a chunk at the end
_END = object()


class _Seeds:
    """The seeds of each pass, as TensorFlow's seed generators draw them."""

    def __init__(self, seed: int | None, *, changing: bool) -> None:
        if seed is None:
            first, second = np.frombuffer(os.urandom(16), np.int64).tolist()
        else:
            first, second = _GRAPH_SEED, index(seed) % _SEEDS
        self._fixed = None if changing else (first, second)
        self._words = RandomWords(first, second)

    def next(self) -> tuple[int, int]:
        """Return the seeds of the next pass."""
        return self._fixed or self._words.pair()


@dataclass(frozen=True, eq=False)
class Shuffle(UnaryNode):
    """Elements of another step in random order."""

    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True
    name: str = "shuffle"
    _seeds: _Seeds = field(init=False, repr=False)

    def __post_init__(self) -> None:
        flag(self.reshuffle_each_iteration, "reshuffle_each_iteration")
        if self.buffer_size != UNKNOWN:
            count(self.buffer_size, "buffer_size")
        seeds = _Seeds(self.seed, changing=self.reshuffle_each_iteration)
        object.__setattr__(self, "_seeds", seeds)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the step: the copy's first pass is the first of its seed."""
        switch = self.reshuffle_each_iteration
        return type(self), (self.source, self.buffer_size, self.seed, switch, self.name)

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass."""
        if self.has_rows:
            return elements_of(self.rows(run), run)
        return self._shuffled(self._order(run), run)

    @property
    def has_rows(self) -> bool:
        """Whether the step before has rows, and none before it is a shuffle."""
        return self.source.has_rows and not _holds_shuffle(self.source)

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers."""
        order = self._order(run)
        stream = self.source.rows(run)
        return RowStream(stream.source, _shuffled_rows(stream.chunks, order, run))

    def _order(self, run: Run) -> ShuffleOrder:
        size = _WHOLE if self.buffer_size == UNKNOWN else self.buffer_size
        seeds = (0, 0) if run.probing else self._seeds.next()
        return ShuffleOrder(size, *seeds, lambda n: _numbers(run, n))

    def _shuffled(self, order: ShuffleOrder, run: Run) -> Iterator[Any]:
        slots: list[Any] = []  # an element's number in `order` is its slot
        free = -1
        elements = self.source.elements(run)
        with closing(elements):
            while (element := _kept(elements, run)) is not _END:
                if free < 0:
                    free = len(slots)
                    slots.append(element)
                else:
                    slots[free] = element
                del element
                free = order.exchange(free)
                if free >= 0:
                    yield _taken(slots, free)
                elif run.closed:
                    return
        for numbers in _drained(order, run):
            for number in numbers.tolist():
                yield _taken(slots, number)


def _kept(elements: Iterator[Any], run: Run) -> Any:
    """Pull an element that lies in no workspace."""
    with run.outside():
        return next(elements, _END)


def _taken(slots: list[Any], slot: int) -> Any:
    element, slots[slot] = slots[slot], None
    return element


def _shuffled_rows(
    chunks: Iterator[npt.NDArray[np.int64]], order: ShuffleOrder, run: Run
) -> Iterator[npt.NDArray[np.int64]]:
    out = _numbers(run, 0)  # filled again and again: a chunk is read before the next
    with closing(chunks):
        for rows in chunks:
            if len(rows) > len(out):
                out = _numbers(run, len(rows))
            gone = order.exchange_rows(rows, out)
            if gone:
                yield out[:gone]
            elif run.closed:
                return
    yield from _drained(order, run)


def _drained(order: ShuffleOrder, run: Run) -> Iterator[npt.NDArray[np.int64]]:
    out = _numbers(run, min(order.held, _DRAINED))
    while gone := order.drain(out):
        yield out[:gone]


def _numbers(run: Run, length: int) -> npt.NDArray[np.int64]:
    """Make an array that is kept."""
    with run.outside():
        return np.empty(length, np.int64)


def _holds_shuffle(node: Node) -> bool:
    return isinstance(node, Shuffle) or any(map(_holds_shuffle, node.inputs))
