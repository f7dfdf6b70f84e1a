"""Which elements of a dataset, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from memcfg.data._dataset_core import DatasetCore, integer
from memcfg.data.ops._combine import Concatenate, Enumerate, Filter
from memcfg.data.ops._repeat import Repeat
from memcfg.data.ops._select import Shard, Skip, Take
from memcfg.data.ops._shuffle import Shuffle
from memcfg.data.ops._sources import Slices
from memcfg.data.rows._range_rows import range_rows

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DatasetSelection"]

_MANY = 2**62  # nobody counts so far


class DatasetSelection(DatasetCore):
    """Steps that change no element."""

    def take(self, count: int, name: str | None = None) -> Self:
        """Keep the first elements.

        Parameters
        ----------
        count : int
            How many; a negative number keeps all.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            At most `count` elements.

        Raises
        ------
        TypeError
            If `count` is no integer.
        ValueError
            If it is beyond int64.
        """
        return self._then(Take(self._node, integer(count, "count"), name or "take"))

    def skip(self, count: int, name: str | None = None) -> Self:
        """Leave out the first elements.

        Parameters
        ----------
        count : int
            How many; a negative number leaves out all.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The others.

        Raises
        ------
        TypeError
            If `count` is no integer.
        ValueError
            If it is beyond int64.
        """
        return self._then(Skip(self._node, integer(count, "count"), name or "skip"))

    def repeat(self, count: int | None = None, name: str | None = None) -> Self:
        """Make pass after pass.

        Parameters
        ----------
        count : int, optional
            How many. None or a negative number: without end, unless a pass is empty.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The elements of all passes.

        Raises
        ------
        TypeError
            If `count` is no integer.
        ValueError
            If it is beyond int64.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(3).repeat().take(5)]
        [0, 1, 2, 0, 1]
        """
        passes = -1 if count is None else integer(count, "count")
        return self._then(Repeat(self._node, passes, name or "repeat"))

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Self:
        """Keep every n-th element.

        Parameters
        ----------
        num_shards : int
            n, at least 1.
        index : int
            The first one that is kept, from 0 to ``num_shards - 1``.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Those at the places `index`, ``index + num_shards`` and so on.

        Raises
        ------
        TypeError
            If a number is no integer.
        ValueError
            If one is out of range.
        """
        shards = integer(num_shards, "num_shards")
        first = integer(index, "index")
        if shards < 1:
            raise ValueError(f"num_shards is at least 1, got {shards}")
        if not 0 <= first < shards:
            raise ValueError(f"index is from 0 to {shards - 1}, got {first}")
        return self._then(Shard(self._node, shards, first, name or "shard"))

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Self:
        """Keep the elements of which a function says yes.

        Parameters
        ----------
        predicate : callable
            Takes an element, a tuple as so many arguments; returns one bool.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Of unknown cardinality.

        Raises
        ------
        TypeError
            If `predicate` is not callable.
        ValueError
            In the pass, if it returns no bool.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(9).filter(lambda x: x % 4 == 0)]
        [0, 4, 8]
        """
        if not callable(predicate):
            raise TypeError(f"predicate is callable, not {type(predicate).__name__}")
        return self._then(Filter(self._node, predicate, name or "filter"))

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        name: str | None = None,
    ) -> Self:
        """Put the elements in random order.

        Parameters
        ----------
        buffer_size : int
            How many elements are held; each that goes out is one of them, drawn by
            chance. As many as there are give every order the same chance.
            `UNKNOWN_CARDINALITY` holds all.
        seed : int, optional
            The order depends on it, and is tf.data's for the same seed. None: another
            order each time.
        reshuffle_each_iteration : bool, default True
            Whether each pass has another order.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The same elements. Rows of arrays and files are not held: their numbers are.

        Raises
        ------
        TypeError
            If a number is no integer, or the switch no bool.
        ValueError
            If `buffer_size` is below 1.

        Examples
        --------
        >>> import memcfg as mc
        >>> sorted(int(x) for x in mc.data.Dataset.range(4).shuffle(4, seed=1))
        [0, 1, 2, 3]
        """
        shuffled = Shuffle(
            self._node, buffer_size, seed, reshuffle_each_iteration, name or "shuffle"
        )
        return self._then(shuffled)

    def concatenate(self, dataset: Self, name: str | None = None) -> Self:
        """Append the elements of another dataset.

        Parameters
        ----------
        dataset : Dataset
            Its elements follow.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            With the options of both; where they differ, those of `dataset` count.

        Raises
        ------
        TypeError
            If it is no dataset, or elements differ in structure or dtype.
        """
        if not isinstance(dataset, DatasetCore):
            raise TypeError(
                f"concatenate takes a dataset, not {type(dataset).__name__}"
            )
        node = Concatenate(self._node, dataset._node, name or "concatenate")
        return type(self)(node, self._options.merge(dataset._options))

    def enumerate(self, start: int = 0, name: str | None = None) -> Self:
        """Put a number before each element.

        Parameters
        ----------
        start : int, default 0
            The first number.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Pairs of an int64 and an element.

        Raises
        ------
        TypeError
            If `start` is no integer.
        ValueError
            If it is beyond int64.
        """
        first = integer(start, "start")
        numbers = range(first, min(first + _MANY, 2**63))
        places = Slices(range_rows(numbers, np.int64), "range")
        return self._then(Enumerate((places, self._node), name or "enumerate"))
