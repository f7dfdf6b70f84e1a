"""Iterators over other iterators: fewer or more batches, several at a time, shields."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from memcfg.data._checks import count
from memcfg.data.dl4j._data_sets import Examples, shielded
from memcfg.data.dl4j._iterators import DataSetIterator, WrappingIterator

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AsyncShieldDataSetIterator",
    "AsyncShieldMultiDataSetIterator",
    "DummyBlockDataSetIterator",
    "EarlyTerminationDataSetIterator",
    "ListDataSetIterator",
    "MultipleEpochsIterator",
    "WorkspacesShieldDataSetIterator",
]


class EarlyTerminationDataSetIterator(WrappingIterator):
    """An iterator that ends after some batches.

    Parameters
    ----------
    base : iterable
        What it is over.
    termination_point : int
        How many batches a pass has at most.

    Raises
    ------
    TypeError
        If `base` is no iterable, or the number not an integer.
    ValueError
        If the number is not positive.

    Examples
    --------
    >>> import memcfg as mc
    >>> few = mc.data.EarlyTerminationDataSetIterator(range(1000), 2)
    >>> list(few), few.has_next()
    ([0, 1], False)
    """

    def __init__(self, base: Iterable[Any], termination_point: int) -> None:
        super().__init__(base)
        self._max = count(termination_point, "termination_point")
        self._taken = 0

    def has_next(self) -> bool:
        """Tell whether there is a batch.

        Returns
        -------
        bool
            False at the end.
        """
        return self._taken < self._max and super().has_next()

    def next(self) -> Any:
        """Return the next batch.

        Returns
        -------
        object
            The batch.

        Raises
        ------
        StopIteration
            At the end.
        """
        if self._taken >= self._max:
            raise StopIteration
        item = super().next()
        self._taken += 1
        return item

    def reset(self) -> None:
        """Restart.

        Raises
        ------
        RuntimeError
            If the iterator below cannot.
        """
        super().reset()
        self._taken = 0


class MultipleEpochsIterator(WrappingIterator):
    """Several passes over an iterator as one.

    Parameters
    ----------
    num_epochs : int
        How many passes.
    base : iterable
        What is passed over.

    Attributes
    ----------
    epoch : int
        The number of the running pass, from 0.

    Raises
    ------
    TypeError
        If `base` is no iterable, or the number not an integer.
    ValueError
        If the number is not positive, or more than 1 and `base` cannot restart.

    Examples
    --------
    >>> import memcfg as mc
    >>> list(mc.data.MultipleEpochsIterator(2, ["a", "b"]))
    ['a', 'b', 'a', 'b']
    """

    def __init__(self, num_epochs: int, base: Iterable[Any]) -> None:
        super().__init__(base)
        self._epochs = count(num_epochs, "num_epochs")
        self.epoch = 0
        if self._epochs > 1 and not self.reset_supported:
            raise ValueError(f"{base!r} can be passed over only once")

    def has_next(self) -> bool:
        """Tell whether there is a batch; begins the next pass if that is needed.

        Returns
        -------
        bool
            False at the end.
        """
        while not super().has_next():
            if not self._turn_over():
                return False
        return True

    def next(self) -> Any:
        """Return the next batch.

        Returns
        -------
        object
            The batch.

        Raises
        ------
        StopIteration
            At the end of the last pass.
        """
        while True:
            try:
                return super().next()
            except StopIteration:
                if not self._turn_over():
                    raise

    def reset(self) -> None:
        """Begin with the first pass.

        Raises
        ------
        RuntimeError
            If the iterator below cannot restart.
        """
        super().reset()
        self.epoch = 0

    def _turn_over(self) -> bool:
        """Begin the next pass; False if there is none."""
        if self.epoch + 1 >= self._epochs:
            return False
        super().reset()
        self.epoch += 1
        return True


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
        """Restart."""
        self._place = 0

    def __len__(self) -> int:
        return -(-len(self._all) // self.batch)


class DummyBlockDataSetIterator(WrappingIterator):
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


class AsyncShieldDataSetIterator(WrappingIterator):
    """An iterator that no thread reads ahead of.

    `fit` and `evaluate` read it in the thread that calls them, and an
    `AsyncDataSetIterator` refuses it. If a fault is gone with it, the fault has to do
    with reading ahead.

    Parameters
    ----------
    base : iterable
        What it is over. All but `async_supported` is that one's.

    Raises
    ------
    TypeError
        If it is no iterable.

    Examples
    --------
    >>> import memcfg as mc
    >>> shield = mc.data.AsyncShieldDataSetIterator([1, 2])
    >>> list(shield), shield.async_supported
    ([1, 2], False)
    """

    @property
    def async_supported(self) -> bool:
        """False."""
        return False


class AsyncShieldMultiDataSetIterator(WrappingIterator):
    """The same, under the name that DL4J has for iterators over `MultiDataSet`.

    Parameters
    ----------
    base : iterable
        What it is over.

    Raises
    ------
    TypeError
        If it is no iterable.
    """

    @property
    def async_supported(self) -> bool:
        """False."""
        return False


class WorkspacesShieldDataSetIterator(WrappingIterator):
    """An iterator whose batches are in no workspace but the consumer's.

    A batch that is in another workspace, such as the ring of a thread that reads ahead,
    is copied: into the current workspace, or out of all where none is current. What is
    in none stays as it is.

    Parameters
    ----------
    base : iterable
        What it is over. Its batches are data sets, arrays, or tuples, lists or dicts
        of them.

    Raises
    ------
    TypeError
        If it is no iterable.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> def batches():
    ...     with mc.workspace("reader"):
    ...         batch = np.ones(3)
    ...     yield batch
    >>> [mc.is_attached(each) for each in batches()]
    [True]
    >>> shield = mc.data.WorkspacesShieldDataSetIterator(batches())
    >>> [mc.is_attached(each) for each in shield]
    [False]
    >>> mc.destroy_all_workspaces()
    """

    def next(self) -> Any:
        """Return the next batch.

        Returns
        -------
        object
            The batch, or a copy.

        Raises
        ------
        StopIteration
            At the end.
        TypeError
            If it has a form in which arrays cannot be found.
        WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError, MemoryError
            What `memcfg.detach` raises.
        """
        return shielded(super().next())
