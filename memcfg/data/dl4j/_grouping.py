"""Iterators that make one of several: data sets to batches, batches to blocks.

Owns how many go together. Refuses to read ahead.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from memcfg.data._checks import count
from memcfg.data.dl4j._examples import Examples
from memcfg.data.dl4j._iterators import DataSetIterator
from memcfg.data.dl4j._over import Over

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DummyBlockDataSetIterator", "ListDataSetIterator"]


class ListDataSetIterator(DataSetIterator):
    """An iterator over data sets that are there already.

    Parameters
    ----------
    data_sets : iterable
        What `DataSet.as_list` returns, or any batches.
    batch_size : int, default 1
        How many data sets are merged to a batch; the last may be of fewer.

    Attributes
    ----------
    batch : int
        The batch size.
    total_examples : int
        How many data sets there are.

    Raises
    ------
    TypeError
        If the batch size is not an integer, or more than 1 and not all are data sets of
        one class.
    ValueError
        If it is not positive.

    Notes
    -----
    DL4J merges five data sets where it is told nothing.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> data = mc.data.DataSet(np.ones((5, 3)), np.arange(5))
    >>> for batch in mc.data.ListDataSetIterator(data.as_list(), 2):
    ...     print(batch.labels)
    [0 1]
    [2 3]
    [4]
    """

    def __init__(self, data_sets: Iterable[Any], batch_size: int = 1) -> None:
        self._all = list(data_sets)
        self.batch = count(batch_size, "batch_size")
        kinds = {type(each) for each in self._all}
        if self.batch > 1 and not (
            len(kinds) <= 1 and all(issubclass(kind, Examples) for kind in kinds)
        ):
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise TypeError(f"only data sets of one class can be merged, not {names}")
        self._place = 0

    @property
    def total_examples(self) -> int:
        """How many data sets there are."""
        return len(self._all)

    def has_next(self) -> bool:
        """Tell whether there is a batch.

        Returns
        -------
        bool
            False at the end.
        """
        return self._place < len(self._all)

    def next(self) -> Any:
        """Return the next batch.

        Returns
        -------
        object
            A data set as it was given, or several merged.

        Raises
        ------
        StopIteration
            At the end.
        ValueError
            If data sets do not merge.
        """
        if not self.has_next():
            raise StopIteration
        some = self._all[self._place : self._place + self.batch]
        self._place += self.batch
        return some[0] if self.batch == 1 else type(some[0]).merge(some)

    def reset(self) -> None:
        """Begin anew."""
        self._place = 0

    def __len__(self) -> int:
        return -(-len(self._all) // self.batch)


class DummyBlockDataSetIterator(Over):
    """An iterator that gives several batches at a time.

    Parameters
    ----------
    base : iterable
        What it is over.

    Raises
    ------
    TypeError
        If it is no iterable.

    Examples
    --------
    >>> import memcfg as mc
    >>> blocks = mc.data.DummyBlockDataSetIterator(range(4))
    >>> blocks.next(3), blocks.next(3), blocks.has_anything()
    ([0, 1, 2], [3], False)
    """

    def has_anything(self) -> bool:
        """Tell whether there is a batch, as `has_next` does.

        Returns
        -------
        bool
            False at the end.
        """
        return self.has_next()

    def next(self, max_data_sets: int | None = None) -> Any:
        """Return the next batch, or the next few.

        Parameters
        ----------
        max_data_sets : int, optional
            How many at most. None: one, which is no list then.

        Returns
        -------
        object or list of object
            One batch or more, in order.

        Raises
        ------
        StopIteration
            At the end.
        TypeError
            If the number is not an integer.
        ValueError
            If it is not positive.
        """
        if max_data_sets is None:
            return super().next()
        some = list(islice(self._base, count(max_data_sets, "max_data_sets")))
        if not some:
            raise StopIteration
        return some
