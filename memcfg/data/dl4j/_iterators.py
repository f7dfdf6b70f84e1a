"""DL4J's iterators: Python iterators with `has_next`, `reset` and `close`.

They wrap any iterable, or each other: to limit, repeat, group or split batches.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg.data.dl4j._data_sets import Examples, shielded
from memcfg.workspaces import scope_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

_NOTHING = object()
_END = object()


class DataSetIterator(ABC):
    """Base class of iterators over batches that can restart.

    A subclass defines at least `has_next` and `next`. A batch is a `DataSet`, a
    `MultiDataSet` or any other object.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> class Countdown(mc.data.DataSetIterator):
    ...     left = 3
    ...     def has_next(self):
    ...         return self.left > 0
    ...     def next(self):
    ...         self.left -= 1
    ...         return np.full(2, self.left)
    >>> for batch in Countdown():
    ...     print(batch)
    [2 2]
    [1 1]
    [0 0]
    """

    @abstractmethod
    def has_next(self) -> bool:
        """Return whether there is another batch; this may read it.

        Returns
        -------
        bool
            False at the end.
        """

    @abstractmethod
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

    @property
    def reset_supported(self) -> bool:
        """Whether `reset` is supported."""
        return type(self).reset is not DataSetIterator.reset

    @property
    def async_supported(self) -> bool:
        """Whether a thread may read ahead.

        False for iterators that reuse their arrays, read ahead themselves, or whose
        batches depend on when they are read.
        """
        return True

    def reset(self) -> None:
        """Restart.

        Raises
        ------
        RuntimeError
            If `reset_supported` is False.
        """
        raise cannot_reset(self)

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release resources; may be called repeatedly."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self.has_next():
            raise StopIteration
        return self.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ExistingDataSetIterator(DataSetIterator):
    """A `DataSetIterator` over any Python iterable.

    Parameters
    ----------
    iterable : iterable
        The batches. An iterable that can be iterated repeatedly, such as a list or a
        `Dataset`, can restart; an iterator, such as a generator, only if it has
        ``reset()``.

    Raises
    ------
    TypeError
        If `iterable` is not an iterable, or is a mapping or a string.

    Notes
    -----
    Other attributes are the iterable's. `has_next` reads a batch ahead, outside of any
    workspace because it may be kept for long; `next` alone does not. Exceptions of the
    iterable are propagated.

    Examples
    --------
    >>> import memcfg as mc
    >>> batches = mc.data.ExistingDataSetIterator([1, 2])
    >>> list(batches), batches.has_next(), batches.reset(), batches.next()
    ([1, 2], False, None, 1)
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        iterates = hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")
        if not iterates or isinstance(iterable, Mapping | str | bytes):
            raise TypeError(f"an iterable of batches is needed, not {iterable!r:.80}")
        self._iterable = iterable
        self._once = hasattr(iterable, "__next__")
        self._items: Iterator[Any] | None = None
        self._ahead: Any = _NOTHING

    @property
    def reset_supported(self) -> bool:
        if not self._once:
            return True
        resets = callable(getattr(self._iterable, "reset", None))
        return resets and bool(getattr(self._iterable, "reset_supported", True))

    @property
    def async_supported(self) -> bool:
        return bool(getattr(self._iterable, "async_supported", True))

    def has_next(self) -> bool:
        if self._ahead is _NOTHING:
            with scope_out():
                self._ahead = next(self._started(), _END)
        return self._ahead is not _END

    def next(self) -> Any:
        if self._ahead is _END:
            raise StopIteration
        if self._ahead is _NOTHING:
            return next(self._started())
        item, self._ahead = self._ahead, _NOTHING
        return item

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        if not self.reset_supported:
            raise cannot_reset(self)
        self.close()
        if self._once:
            self._iterable.reset()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the iterator of this pass, unless the user passed it."""
        items, self._items, self._ahead = self._items, None, _NOTHING
        close = getattr(items, "close", None)
        if close is not None and not self._once:
            close()

    def _started(self) -> Iterator[Any]:
        if self._items is None:
            self._items = iter(self._iterable)
        return self._items

    def __repr__(self) -> str:
        return f"ExistingDataSetIterator({self._iterable!r:.80})"

    def __getattr__(self, name: str) -> Any:
        return attribute_below(self, "_iterable", name)


class WrappingIterator(DataSetIterator):
    """Base class of iterators over another one, to which attributes are delegated."""

    def __init__(self, base: Iterable[Any]) -> None:
        self._base = as_iterator(base)

    @property
    def reset_supported(self) -> bool:
        return self._base.reset_supported

    @property
    def async_supported(self) -> bool:
        return self._base.async_supported

    def has_next(self) -> bool:
        return self._base.has_next()

    def next(self) -> Any:
        return next(self._base)

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        self._base.reset()

    def close(self) -> None:
        self._base.close()

    def __getattr__(self, name: str) -> Any:
        return attribute_below(self, "_base", name)


class EarlyTerminationDataSetIterator(WrappingIterator):
    """An iterator that ends after a number of batches.

    Parameters
    ----------
    base : iterable
        The batches.
    termination_point : int
        Max. number of batches of a pass.

    Raises
    ------
    TypeError
        If `base` is not an iterable, or the number not an integer.
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
        return self._taken < self._max and super().has_next()

    def next(self) -> Any:
        if self._taken >= self._max:
            raise StopIteration
        item = super().next()
        self._taken += 1
        return item

    def reset(self) -> None:
        super().reset()
        self._taken = 0


class MultipleEpochsIterator(WrappingIterator):
    """An iterator that repeats another one.

    Parameters
    ----------
    num_epochs : int
        Number of passes.
    base : iterable
        The batches.

    Attributes
    ----------
    epoch : int
        The number of the current pass, from 0.

    Raises
    ------
    TypeError
        If `base` is not an iterable, or the number not an integer.
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
            raise ValueError(f"{base!r} can be iterated only once")

    def has_next(self) -> bool:
        while not super().has_next():
            if not self._turn_over():
                return False
        return True

    def next(self) -> Any:
        while True:
            try:
                return super().next()
            except StopIteration:
                if not self._turn_over():
                    raise

    def reset(self) -> None:
        super().reset()
        self.epoch = 0

    def _turn_over(self) -> bool:
        """Begin the next pass; return False if there is none."""
        if self.epoch + 1 >= self._epochs:
            return False
        super().reset()
        self.epoch += 1
        return True


class ListDataSetIterator(DataSetIterator):
    """An iterator over a list of data sets.

    Parameters
    ----------
    data_sets : iterable
        Data sets, such as `DataSet.as_list` returns, or any batches.
    batch_size : int, default 1
        Number of data sets that are merged to a batch; the last batch may have fewer.

    Attributes
    ----------
    batch : int
        The batch size.
    total_examples : int
        The number of data sets.

    Raises
    ------
    TypeError
        If `batch_size` is not an integer, or is more than 1 and not all items are data
        sets of one class.
    ValueError
        If `batch_size` is not positive.

    Notes
    -----
    DL4J merges five data sets by default. `next` raises ValueError if data sets cannot
    be merged.

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
        """Number of data sets."""
        return len(self._all)

    def has_next(self) -> bool:
        return self._place < len(self._all)

    def next(self) -> Any:
        if not self.has_next():
            raise StopIteration
        some = self._all[self._place : self._place + self.batch]
        self._place += self.batch
        return some[0] if self.batch == 1 else type(some[0]).merge(some)

    def reset(self) -> None:
        self._place = 0

    def __len__(self) -> int:
        return -(-len(self._all) // self.batch)


class DummyBlockDataSetIterator(WrappingIterator):
    """An iterator that can return several batches at a time.

    Parameters
    ----------
    base : iterable
        The batches.

    Raises
    ------
    TypeError
        If `base` is not an iterable.

    Examples
    --------
    >>> import memcfg as mc
    >>> blocks = mc.data.DummyBlockDataSetIterator(range(4))
    >>> blocks.next(3), blocks.next(3), blocks.has_anything()
    ([0, 1, 2], [3], False)
    """

    def has_anything(self) -> bool:
        """Return whether there is another batch, as `has_next` does.

        Returns
        -------
        bool
            False at the end.
        """
        return self.has_next()

    def next(self, max_data_sets: int | None = None) -> Any:
        """Return the next batch or batches.

        Parameters
        ----------
        max_data_sets : int, optional
            Max. number of batches. None: one batch, not in a list.

        Returns
        -------
        object or list of object
            A batch, or a list of at least one batch, in order.

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
    """An iterator that must not be read ahead.

    `fit` and `evaluate` read it in the thread that calls them, and an
    `AsyncDataSetIterator` refuses it. Use it to find out whether a fault is caused by
    reading ahead.

    Parameters
    ----------
    base : iterable
        The batches. All attributes but `async_supported` are those of `base`.

    Raises
    ------
    TypeError
        If `base` is not an iterable.

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
    """`AsyncShieldDataSetIterator` under DL4J's name for iterators over `MultiDataSet`.

    Parameters
    ----------
    base : iterable
        The batches.

    Raises
    ------
    TypeError
        If `base` is not an iterable.
    """

    @property
    def async_supported(self) -> bool:
        """False."""
        return False


class WorkspacesShieldDataSetIterator(WrappingIterator):
    """An iterator that copies batches out of workspaces other than the consumer's.

    A batch in another workspace, such as the ring of a thread that reads ahead, is
    copied into the current workspace, or out of all workspaces if none is current.
    Batches in no workspace are not copied.

    Parameters
    ----------
    base : iterable
        The batches: data sets, arrays, or tuples, lists or dicts of them.

    Raises
    ------
    TypeError
        If `base` is not an iterable.

    Notes
    -----
    `next` raises TypeError for batches of other types, and the exceptions of
    `memcfg.detach`.

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
        return shielded(super().next())


def as_iterator(base: Any) -> DataSetIterator:
    """Return a `DataSetIterator` unchanged, and wrap any other iterable."""
    if isinstance(base, DataSetIterator):
        return base
    return ExistingDataSetIterator(base)


def attribute_below(iterator: DataSetIterator, below: str, name: str) -> Any:
    """Return an attribute of the wrapped iterable, which is the attribute `below`."""
    if name.startswith("_") or (result := getattr(iterator, below)) is None:
        raise AttributeError(f"{type(iterator).__name__} has no attribute {name!r}")
    try:
        return getattr(result, name)
    except AttributeError as error:
        raise AttributeError(
            f"neither the iterator nor the underlying iterable has an attribute "
            f"{name!r} ({error})"
        ) from error


def cannot_reset(iterator: DataSetIterator) -> RuntimeError:
    """Return the error that says that an iterator cannot restart."""
    return RuntimeError(
        f"{iterator!r} cannot restart: give an iterable that makes a new iterator "
        "each time, such as a Dataset or a class with __iter__"
    )


class DataSetIteratorSplitter:
    """Splits the batches of an iterator into parts, such as to train and to test on.

    Parameters
    ----------
    base : iterable
        The batches, which must come in the same order in each pass. It must be at its
        start.
    total_batches : int or sequence of int
        The number of batches of `base`, or of each part.
    ratio : float or sequence of float, optional
        The fraction of the first part, between 0 and 1, or of each part, summing to 1.
        Required if `total_batches` is an int, and not allowed otherwise.

    Attributes
    ----------
    iterators : tuple of DataSetIterator
        The parts.
    train_iterator : DataSetIterator
        The first part.
    test_iterator : DataSetIterator
        The second part.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a part would be empty, or the fractions do not sum to 1.

    Notes
    -----
    To read a part out of order, `base` is reset if needed and the batches before it are
    skipped. Reading raises RuntimeError if `base` ends before the last part does, or if
    its first batch differs from that of the first pass: `base` then shuffles, or was
    read by other code, and the parts would overlap. Only arrays are compared.

    Examples
    --------
    >>> import memcfg as mc
    >>> splitter = mc.data.DataSetIteratorSplitter(range(10), 10, 0.7)
    >>> list(splitter.test_iterator), next(splitter.train_iterator)
    ([7, 8, 9], 0)
    """

    def __init__(
        self,
        base: Iterable[Any],
        total_batches: int | Sequence[int],
        ratio: float | Sequence[float] | None = None,
    ) -> None:
        ends = _ends(total_batches, ratio)
        shared = _SharedBatches(as_iterator(base), ends[-1])
        bounds = pairwise([0, *ends])
        self.iterators = tuple(_Part(shared, begin, end) for begin, end in bounds)

    @property
    def train_iterator(self) -> DataSetIterator:
        """The first part."""
        return self.iterators[0]

    @property
    def test_iterator(self) -> DataSetIterator:
        """The second part."""
        if len(self.iterators) != 2:
            raise ValueError(
                f"there are {len(self.iterators)} parts: test_iterator needs two"
            )
        return self.iterators[1]


class _SharedBatches:
    """The iterator that is split, and its position."""

    def __init__(self, base: DataSetIterator, total: int) -> None:
        self.base = base
        self._total = total
        self._index = 0
        self._first: bytes | None = None
        self._lock = threading.Lock()  # parts may be read ahead by threads

    def take(self, index: int) -> Any:
        with self._lock:
            if index < self._index:
                self.base.reset()
                self._index = 0
            while self._index < index:
                self._read()
            return self._read()

    def _read(self) -> Any:
        try:
            item = next(self.base)
        except StopIteration:
            raise RuntimeError(
                f"the iterator that is split ended after {self._index} of "
                f"{self._total} batches: it has fewer, or other code has read it"
            ) from None
        if self._index == 0:
            self._compare(item)
        self._index += 1
        return item

    def _compare(self, item: Any) -> None:
        digest = hashlib.blake2b()
        for array in _arrays(item):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
        first = digest.digest()
        if self._first not in (None, first):
            raise RuntimeError(
                "the first batch differs from that of the first pass, so the parts "
                "would overlap: split before shuffling, and read only the parts"
            )
        self._first = first


class _Part(DataSetIterator):
    """A part: the batches numbered from `begin` up to `end`."""

    def __init__(self, shared: _SharedBatches, begin: int, end: int) -> None:
        self._shared = shared
        self._begin = begin
        self._end = end
        self._index = begin

    @property
    def reset_supported(self) -> bool:
        return self._shared.base.reset_supported

    @property
    def async_supported(self) -> bool:
        return self._shared.base.async_supported

    def has_next(self) -> bool:
        return self._index < self._end

    def next(self) -> Any:
        if not self.has_next():
            raise StopIteration
        item = self._shared.take(self._index)
        self._index += 1
        return item

    def reset(self) -> None:
        if self._index > self._begin and not self.reset_supported:
            raise RuntimeError("the iterator that is split cannot restart")
        self._index = self._begin

    def __len__(self) -> int:
        return self._end - self._begin


def _ends(
    total: int | Sequence[int], ratio: float | Sequence[float] | None
) -> list[int]:
    """Return the number of the batch at which each part ends."""
    if isinstance(total, list | tuple):
        if ratio is not None:
            raise TypeError("give either numbers of batches or fractions, not both")
        ends = list(accumulate(count(each, "total_batches") for each in total))
    else:
        ends = _divided(count(total, "total_batches"), ratio)
    if not ends or any(end <= begin for begin, end in pairwise([0, *ends])):
        raise ValueError(f"total_batches={total!r}, ratio={ratio!r}: a part is empty")
    return ends


def _divided(total: int, ratio: float | Sequence[float] | None) -> list[int]:
    if isinstance(ratio, bool) or not isinstance(ratio, float | int | list | tuple):
        raise TypeError(
            f"ratio must be a fraction or a list of fractions, not {ratio!r}"
        )
    fractions = list(ratio) if isinstance(ratio, list | tuple) else [ratio, 1 - ratio]
    if not all(0 < each <= 1 for each in fractions) or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions must be positive and sum to 1, not {ratio!r}")
    *ends, _ = (int(round(each * total, 6)) for each in accumulate(fractions))
    return [*ends, total]


def _arrays(item: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(item, np.ndarray | np.generic):
        yield np.asarray(item)
    elif isinstance(item, Examples):
        yield from item._present()
    elif isinstance(item, tuple | list | dict):
        for each in item.values() if isinstance(item, dict) else item:
            yield from _arrays(each)
