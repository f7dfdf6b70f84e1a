"""Steps that choose among elements, by their order or by a function.

`Take`, `Skip` and `Shard` work on row numbers where the step before has them. Counts
are as in tf.data: a negative one is without end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._closing import closing
from memcfg.data.elements._structure import call
from memcfg.data.ops._node import INFINITE, UNKNOWN, UnaryNode
from memcfg.data.rows._rows import RowStream, elements_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._rows import RowNumbers

__all__ = ["Filter", "Shard", "Skip", "Take"]

_END = object()


@dataclass(frozen=True, eq=False)
class Take(UnaryNode):
    """The first elements of another step."""

    count: int
    name: str

    @property
    def cardinality(self) -> int:
        """At most `count`; unknown where it is before."""
        before = self.source.cardinality
        if before == UNKNOWN or self.count < 0:
            return before
        return self.count if before == INFINITE else min(before, self.count)

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass, unless nothing is taken."""
        if self.count == 0:
            return iter(())
        elements = self.source.elements(run)
        return elements if self.count < 0 else self._first(elements)

    @property
    def has_rows(self) -> bool:
        """As the step before, unless nothing is taken: then no pass begins."""
        return self.source.has_rows and self.count != 0

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers."""
        stream = self.source.rows(run)
        if self.count < 0:
            return stream
        return RowStream(stream.source, _first_rows(stream.chunks, self.count))

    def _first(self, elements: Iterator[Any]) -> Iterator[Any]:
        with closing(elements):
            yield from islice(elements, self.count)


@dataclass(frozen=True, eq=False)
class Skip(UnaryNode):
    """All but the first elements of another step."""

    count: int
    name: str

    @property
    def cardinality(self) -> int:
        """What is left; unknown where it is before."""
        before = self.source.cardinality
        if before == UNKNOWN:
            return UNKNOWN
        if self.count < 0:
            return 0
        return before if before == INFINITE else max(0, before - self.count)

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass, unless all is left out."""
        if self.count < 0:
            return iter(())
        if self.has_rows and self.count:
            return elements_of(self.rows(run), run)
        return self._rest(self.source.elements(run), run)

    @property
    def has_rows(self) -> bool:
        """As the step before, unless all is left out: then no pass begins."""
        return self.source.has_rows and self.count >= 0

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers."""
        stream = self.source.rows(run)
        return RowStream(stream.source, _rows_behind(stream.chunks, self.count))

    def _rest(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        with closing(elements):
            with run.outside():  # or what is left out would fill the reader's workspace
                for _ in islice(elements, self.count):
                    if run.closed:
                        return
            yield from elements


@dataclass(frozen=True, eq=False)
class Shard(UnaryNode):
    """Every n-th element of another step."""

    num_shards: int
    index: int
    name: str

    @property
    def cardinality(self) -> int:
        """A part of that of the step before."""
        before = self.source.cardinality
        if before < 0:
            return before
        return len(range(self.index, before, self.num_shards))

    @property
    def has_rows(self) -> bool:
        """As the step before."""
        return self.source.has_rows

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass."""
        if self.has_rows and self.num_shards > 1:
            return elements_of(self.rows(run), run)
        return self._part(self.source.elements(run), run)

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers."""
        stream = self.source.rows(run)
        return RowStream(stream.source, self._part_of_rows(stream.chunks))

    def _part(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        left_out = self.index
        with closing(elements):
            while not run.closed:
                with run.outside():  # or it would fill the reader's workspace
                    for _ in islice(elements, left_out):
                        pass
                element = next(elements, _END)
                if element is _END:
                    return
                yield element
                del element
                left_out = self.num_shards - 1

    def _part_of_rows(self, chunks: Iterator[RowNumbers]) -> Iterator[RowNumbers]:
        first = self.index  # within the chunk
        out = np.empty(0, np.int64)
        with closing(chunks):
            for chunk in chunks:
                part = chunk[first :: self.num_shards]
                if len(part) > len(out):
                    out = np.empty(len(part), np.int64)
                if len(part):
                    out[: len(part)] = part
                    yield out[: len(part)]
                first += len(part) * self.num_shards - len(chunk)


@dataclass(frozen=True, eq=False)
class Filter(UnaryNode):
    """The elements of which a function, called as that of a map is, returns True."""

    predicate: Callable[..., Any]
    name: str

    @property
    def cardinality(self) -> int:
        """Nobody knows."""
        return UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass."""
        return self._chosen(self.source.elements(run), run)

    def _chosen(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        with closing(elements):
            while not run.closed:
                with run.outside():  # or what is left out would fill a workspace
                    element = next(elements, _END)
                    if element is _END:
                        return
                    wanted = _truth(call(self.predicate, element))
                if wanted:
                    yield element
                del element


def _first_rows(chunks: Iterator[RowNumbers], count: int) -> Iterator[RowNumbers]:
    with closing(chunks):
        for chunk in chunks:
            yield chunk[:count]
            count -= len(chunk)
            if count <= 0:
                return


def _rows_behind(chunks: Iterator[RowNumbers], count: int) -> Iterator[RowNumbers]:
    with closing(chunks):
        for chunk in chunks:
            if count < len(chunk):
                yield chunk[count:]
            count = max(0, count - len(chunk))


def _truth(answer: Any) -> bool:
    if isinstance(answer, bool):
        return answer
    dtype, shape = getattr(answer, "dtype", None), getattr(answer, "shape", None)
    if dtype == np.bool_ and shape == ():
        return bool(answer)
    raise ValueError(f"a predicate returns one bool, not {answer!r:.80}")
