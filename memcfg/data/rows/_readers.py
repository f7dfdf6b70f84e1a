"""What batches are made of, some elements at a time.

Owns the two kinds of it: elements as they come, and row numbers, whose elements are
gathered together.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memcfg.data._closing import closing
from memcfg.data.elements._structure import flatten
from memcfg.data.ops._unbatch import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.ops._node import RowSource, RowStream

__all__ = ["Drawer", "ElementDrawer", "RowDrawer", "RowGatherer"]

AT_ONCE = 1 << 20  # bytes of rows that are gathered together


class Drawer(Protocol):
    """A pass over what batches are made of. One thread at a time draws."""

    def draw(self, count: int) -> list[Any]:
        """Take what the next elements are made of.

        Parameters
        ----------
        count : int
            How many at most.

        Returns
        -------
        list
            One for each; fewer at the end.
        """

    def elements(self, drawn: list[Any]) -> Iterator[Any]:
        """Make elements; any number of threads may.

        Parameters
        ----------
        drawn : list
            What was drawn.

        Returns
        -------
        iterator
            Over the elements. It may keep arrays until it is closed.
        """

    def begin(self, count: int) -> Iterator[Any]:
        """Make the next elements, one after the other.

        Parameters
        ----------
        count : int
            How many at most.

        Returns
        -------
        iterator
            Over them; to be closed before the next is drawn.
        """

    def close(self) -> None:
        """End the pass."""


class ElementDrawer:
    """Draws elements.

    Parameters
    ----------
    source : iterator
        Over them; closed with this.
    """

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def draw(self, count: int) -> list[Any]:
        """Take the next elements.

        Parameters
        ----------
        count : int
            How many at most.

        Returns
        -------
        list
            Of elements.
        """
        return list(islice(self._source, count))

    def elements(self, drawn: list[Any]) -> Iterator[Any]:
        """Iterate over them.

        Parameters
        ----------
        drawn : list
            Elements.

        Returns
        -------
        iterator
            Over the same.
        """
        return iter(drawn)

    def begin(self, count: int) -> Iterator[Any]:
        """Pass elements on, one after the other.

        Parameters
        ----------
        count : int
            How many at most.

        Returns
        -------
        iterator
            Over them. It keeps none.
        """
        return islice(self._source, count)

    def close(self) -> None:
        """Close the source."""
        with closing(self._source):
            self._source = iter(())


class RowDrawer:
    """Draws row numbers.

    Parameters
    ----------
    stream : RowStream
        The pass.
    run : Run
        The pass over the pipeline.
    """

    def __init__(self, stream: RowStream, run: Run) -> None:
        self._gatherer = RowGatherer(stream.source)
        self._chunks = stream.chunks
        self._run = run
        self._left: list[int] = []

    def draw(self, count: int) -> list[Any]:
        """Take the next row numbers.

        Parameters
        ----------
        count : int
            How many at most.

        Returns
        -------
        list
            Of int.
        """
        while len(self._left) < count:
            with self._run.outside():
                chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._left += chunk.tolist()
        drawn = self._left[:count]
        del self._left[:count]
        return drawn

    def elements(self, drawn: list[Any]) -> Iterator[Any]:
        """Gather rows, and iterate over them.

        Parameters
        ----------
        drawn : list of int
            Row numbers.

        Returns
        -------
        iterator
            Over elements, which are read-only.
        """
        return self._gatherer.elements(drawn)

    def begin(self, count: int) -> Iterator[Any]:
        """Gather the next rows, and iterate over them.

        Parameters
        ----------
        count : int
            How many at most.

        Returns
        -------
        iterator
            Over elements, which are read-only.
        """
        return self.elements(self.draw(count))

    def close(self) -> None:
        """End the pass."""
        with closing(self._chunks):
            self._chunks, self._left = iter(()), []


class RowGatherer:
    """Makes elements of row numbers, many at a time.

    Parameters
    ----------
    source : RowSource
        What the numbers mean.

    Notes
    -----
    To gather a mebibyte of rows at once costs less than to look at one row after the
    other, and a file is read in pieces of that size.
    """

    def __init__(self, source: RowSource) -> None:
        self.source = source
        self._at_once = 1  # until it is known how large a row is

    def elements(self, numbers: list[int]) -> Iterator[Any]:
        """Gather rows, and iterate over them.

        Parameters
        ----------
        numbers : list of int
            Row numbers.

        Yields
        ------
        nest of numpy.ndarray and numpy.generic
            Elements, which are read-only.
        """
        begin = 0
        while begin < len(numbers):
            end = begin + self._at_once
            yield from self._gathered(numbers[begin:end])
            begin = end

    def _gathered(self, numbers: list[int]) -> Iterator[Any]:
        batch = self.source.take(np.array(numbers, np.int64))
        leaves = flatten(batch)
        for leaf in leaves:
            leaf.flags.writeable = False  # as those of a pass that gathers nothing
        nbytes = sum(leaf.nbytes for leaf in leaves) // len(numbers)
        self._at_once = max(1, AT_ONCE // max(1, nbytes))
        return rows_of(batch)
