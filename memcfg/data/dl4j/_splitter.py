"""One iterator as several, each over a part of its batches, and no other's."""

from __future__ import annotations

import hashlib
import threading
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._checks import count
from memcfg.data.dl4j._data_sets import Examples
from memcfg.data.dl4j._iterators import DataSetIterator, as_iterator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["DataSetIteratorSplitter"]


class DataSetIteratorSplitter:
    """Splits the batches of an iterator, such as into those to train and to test on.

    Parameters
    ----------
    base : iterable
        What is split. Its batches come in the same order in each pass; it is left at
        its start.
    total_batches : int or sequence of int
        How many batches it has, or how many each part gets.
    ratio : float or sequence of float, optional
        The fraction of the first part, between 0 and 1, or that of each, 1 in sum.
        Only with a number of batches.

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
        If an argument is of another type.
    ValueError
        If a part would be empty, or the fractions are not 1 in sum.

    Notes
    -----
    A part that is read out of order passes over the batches of those before it, after
    having `base` restart where that is needed. Reading raises RuntimeError when
    `base` ends before the last part does, or its first batch is another than in the
    first pass: then it shuffles, or was read by somebody else, and the parts would
    overlap. Batches of arrays are compared, others are not.

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
            raise ValueError(f"{len(self.iterators)} parts are not one to test on")
        return self.iterators[1]


class _SharedBatches:
    """The iterator that is split, and how far it is."""

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
                f"{self._total} batches: it has fewer, or was read by somebody else"
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
        found = digest.digest()
        if self._first not in (None, found):
            raise RuntimeError(
                "the first batch is another than in the first pass, so the parts would "
                "overlap: split before shuffling, and read the parts only"
            )
        self._first = found


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
    """Return how many batches end with each part."""
    if isinstance(total, list | tuple):
        if ratio is not None:
            raise TypeError("either numbers of batches or fractions, not both")
        ends = list(accumulate(count(each, "total_batches") for each in total))
    else:
        ends = _divided(count(total, "total_batches"), ratio)
    if not ends or any(end <= begin for begin, end in pairwise([0, *ends])):
        raise ValueError(f"total_batches={total!r}, ratio={ratio!r}: a part is empty")
    return ends


def _divided(total: int, ratio: float | Sequence[float] | None) -> list[int]:
    if isinstance(ratio, bool) or not isinstance(ratio, float | int | list | tuple):
        raise TypeError(f"ratio is a fraction or a list of fractions, not {ratio!r}")
    fractions = list(ratio) if isinstance(ratio, list | tuple) else [ratio, 1 - ratio]
    if not all(0 < each <= 1 for each in fractions) or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions are positive and 1 in sum, not {ratio!r}")
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
