"""Readers of what batches are made of: elements, or row numbers to be gathered."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.data._closing import closing
from memcfg.data.elements._structure import (
    flatten,
    is_flat_tuple,
    is_nest,
    map_structure,
    pack,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._rows import RowStream

__all__ = ["ElementReader", "IteratorReader", "RowReader", "rows_of"]

_AT_ONCE = 1 << 20  # bytes of rows that are gathered together


class IteratorReader:
    """Reads elements as they come; one thread at a time reads."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def read(self, count: int) -> list[Any]:
        """Read the next elements."""
        return list(islice(self._source, count))

    def elements(self, items: list[Any]) -> Iterator[Any]:
        """Iterate over what was read; any number of threads may."""
        return iter(items)

    def begin(self, count: int) -> Iterator[Any]:
        """Pass elements on, one after the other."""
        return islice(self._source, count)

    def close(self) -> None:
        """Close the source."""
        with closing(self._source):
            self._source = iter(())


class RowReader:
    """Reads row numbers, and gathers rows, many at a time."""

    def __init__(self, stream: RowStream, run: Run) -> None:
        self._source = stream.source
        self._chunks = stream.chunks
        self._run = run
        self._left: list[int] = []
        self._at_once = 1  # rows, until it is known how large one is

    def read(self, count: int) -> list[Any]:
        """Read the next row numbers."""
        while len(self._left) < count:
            with self._run.outside():
                chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._left += chunk.tolist()
        items = self._left[:count]
        del self._left[:count]
        return items

    def elements(self, items: list[int]) -> Iterator[Any]:
        """Gather rows, and iterate over them."""
        begin = 0
        while begin < len(items):
            end = begin + self._at_once
            yield from self._gathered(items[begin:end])
            begin = end

    def begin(self, count: int) -> Iterator[Any]:
        """Gather the next rows, and iterate over them."""
        return self.elements(self.read(count))

    def close(self) -> None:
        """End the pass."""
        with closing(self._chunks):
            self._chunks, self._left = iter(()), []

    def _gathered(self, numbers: list[int]) -> Iterator[Any]:
        batch = self._source.take(np.array(numbers, np.int64))
        leaves = flatten(batch)
        for leaf in leaves:
            leaf.flags.writeable = False  # as those of a pass that gathers nothing
        nbytes = sum(leaf.nbytes for leaf in leaves) // len(numbers)
        self._at_once = max(1, _AT_ONCE // max(1, nbytes))
        return rows_of(batch)


ElementReader: TypeAlias = IteratorReader | RowReader


def rows_of(batch: Any) -> Iterator[Any]:
    """Iterate over the rows of a batch, with as little Python for each as possible."""
    leaves = flatten(batch)
    for index, leaf in enumerate(leaves):
        if not leaf.ndim:
            raise ValueError(
                f"unbatch needs arrays with a first axis: component {index} is a number"
            )
        if len(leaf) != len(leaves[0]):
            raise ValueError(
                "unbatch needs components of one length: component 0 has "
                f"{len(leaves[0])} rows, component {index} has {len(leaf)}"
            )
    if not is_nest(batch):
        return iter(batch)
    rows = zip(*leaves, strict=True)
    if is_flat_tuple(batch):
        return rows
    form = map_structure(lambda _: None, batch)
    return (pack(form, row) for row in rows)
