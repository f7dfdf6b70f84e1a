"""`PyDataset`: batches that a user's class makes by number."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg.data import Dataset
from memcfg.nn._keras_arguments import refusal
from memcfg.nn._random import next_seed

if TYPE_CHECKING:
    from collections.abc import Iterator


class PyDataset:
    """Base class of data whose batches are made by number, as Keras's.

    A subclass has ``__len__``, the number of batches, and ``__getitem__``, which
    returns a batch: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``. `fit`, `evaluate`
    and `predict` take it.

    Parameters
    ----------
    workers : int, default 1
        Threads that make batches; 0 and 1 are one.
    use_multiprocessing : bool, default False
        Must be False: batches are made by threads.
    max_queue_size : int, default 10
        Batches that are made ahead, within the device's limit; 0 and 1 are one.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> class Squares(mc.nn.utils.PyDataset):
    ...     def __len__(self):
    ...         return 3
    ...     def __getitem__(self, index):
    ...         x = np.full((2, 1), index, np.float32)
    ...         return x, x * x
    >>> [float(y[0, 0]) for x, y in Squares(workers=2)]
    [0.0, 1.0, 4.0]
    """

    def __init__(
        self,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
    ) -> None:
        if use_multiprocessing:
            raise TypeError(refusal(type(self).__name__, "use_multiprocessing"))
        self.workers = count(workers, "workers", minimum=0)
        self.use_multiprocessing = False
        self.max_queue_size = count(max_queue_size, "max_queue_size", minimum=0)

    def __getitem__(self, index: int) -> Any:
        """Return a batch; a subclass has to."""
        raise NotImplementedError(f"{type(self).__name__} must have __getitem__")

    @property
    def num_batches(self) -> int | None:
        """The number of batches; None: there is no end."""
        if hasattr(self, "__len__"):
            return len(self)
        raise NotImplementedError(
            f"{type(self).__name__} must have __len__, or num_batches that is None"
        )

    def on_epoch_begin(self) -> None:
        """Do what is needed before an epoch; a subclass may override it."""

    def on_epoch_end(self) -> None:
        """Do what is needed after an epoch; a subclass may override it."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches, one after the other."""
        number = self.num_batches
        numbers = itertools.count() if number is None else range(number)
        return (self[index] for index in numbers)


class Epochs:
    """The epochs of a `PyDataset`, an iteration each: batches are made ahead."""

    def __init__(self, data: PyDataset, *, shuffle: bool) -> None:
        for name, value in (("workers", 1), ("max_queue_size", 10)):
            if not hasattr(data, name):  # its class does not call our constructor
                setattr(data, name, value)
        self._data = data
        self._shuffle = shuffle
        self.num_batches = data.num_batches

    def __iter__(self) -> Iterator[Any]:
        data, number = self._data, self.num_batches
        data.on_epoch_begin()
        order = Dataset.range(2**62 if number is None else number)
        if self._shuffle and number is not None:
            numbers = np.arange(number)
            random.Random(next_seed()).shuffle(numbers)  # type: ignore[arg-type]
            order = Dataset.from_tensor_slices(numbers)
        threads = data.workers if data.workers > 1 else None
        batches = order.map(lambda index: data[int(index)], num_parallel_calls=threads)
        with iter(batches.prefetch(data.max_queue_size or 1)) as made:
            yield from made
        data.on_epoch_end()
