"""Steps that choose among the elements of another step, by their places.

Owns `Take`, `Skip` and `Shard`. They work on row numbers where the step before
has them. Counts are as in tf.data: a negative one is without end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._closing import closing
from memcfg.data.ops._node import INFINITE, UNKNOWN, RowStream
from memcfg.data.ops._selection import Selection
from memcfg.data.rows._rows import elements_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._rows import RowNumbers

__all__ = ["Shard", "Skip", "Take"]

_END = object()


@dataclass(frozen=True, eq=False)
class Take(Selection):
    """The first elements of another step.

    Parameters
    ----------
    source : Node
        The step before.
    count : int
        How many; a negative number takes all.
    name : str
        For reports.
    """

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
        """Begin a pass, unless nothing is taken.

        Parameters
        ----------
        run : Run
            The pass.

        Returns
        -------
        iterator
            Over the elements.
        """
        if self.count == 0:
            return iter(())
        elements = self.source.elements(run)
        return elements if self.count < 0 else self._first(elements)

    @property
    def has_rows(self) -> bool:
        """As the step before, unless nothing is taken: then no pass begins."""
        return self.source.has_rows and self.count != 0

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers.

        Parameters
        ----------
        run : Run
            The pass.

        Returns
        -------
        RowStream
            The first rows of the step before.
        """
        stream = self.source.rows(run)
        if self.count < 0:
            return stream
        return RowStream(stream.source, _first_rows(stream.chunks, self.count))

    def _first(self, elements: Iterator[Any]) -> Iterator[Any]:
        with closing(elements):
            yield from islice(elements, self.count)


@dataclass(frozen=True, eq=False)
class Skip(Selection):
    """All but the first elements of another step.

    Parameters
    ----------
    source : Node
        The step before.
    count : int
        How many are left out; a negative number leaves out all.
    name : str
        For reports.
    """

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
        """Begin a pass, unless all is left out.

        Parameters
        ----------
        run : Run
            The pass.

        Returns
        -------
        iterator
            Over the elements.
        """
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
        """Begin a pass over row numbers.

        Parameters
        ----------
        run : Run
            The pass.

        Returns
        -------
        RowStream
            What is left of the step before.
        """
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
class Shard(Selection):
    """Every n-th element of another step.

    Parameters
    ----------
    source : Node
        The step before.
    num_shards : int
        n, at least 1.
    index : int
        Which is the first one.
    name : str
        For reports.
    """

    num_shards: int
    index: int
    name: str

    @property
    def cardinality(self) -> int:
        """A share of that of the step before."""
        before = self.source.cardinality
        if before < 0:
            return before
        return len(range(self.index, before, self.num_shards))

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            The pass.

        Returns
        -------
        iterator
            Over the elements.
        """
        if self.has_rows and self.num_shards > 1:
            return elements_of(self.rows(run), run)
        return self._share(self.source.elements(run), run)

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers.

        Parameters
        ----------
        run : Run
            The pass.

        Returns
        -------
        RowStream
            Every n-th row of the step before.
        """
        stream = self.source.rows(run)
        return RowStream(stream.source, self._share_of_rows(stream.chunks))

    def _share(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
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

    def _share_of_rows(self, chunks: Iterator[RowNumbers]) -> Iterator[RowNumbers]:
        first = self.index  # its place in the chunk
        room = np.empty(0, np.int64)
        with closing(chunks):
            for chunk in chunks:
                part = chunk[first :: self.num_shards]
                if len(part) > len(room):
                    room = np.empty(len(part), np.int64)
                if len(part):
                    room[: len(part)] = part
                    yield room[: len(part)]
                first += len(part) * self.num_shards - len(chunk)


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
