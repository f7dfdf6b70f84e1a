"""Arrays as batches: in their order, or in an order that each pass draws.

Checks that need no model come before. Each source has the same methods.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg._caller import outside
from memcfg.data.rows._file_rows import mapped_column
from memcfg.nn.inputs._array_checks import check_labels, check_shape
from memcfg.nn.inputs._batches import Batch, as_numbers, lies_well

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from memcfg.data.rows._file_rows import FileColumn
    from memcfg.nn.inputs._array_checks import Target
    from memcfg.nn.layers._layer import Shape

__all__ = ["ArraySource"]

_LABELS = 1 << 16  # that are read from a file at once

Array = npt.NDArray[Any]
Order = npt.NDArray[np.intp] | None


class ArraySource:
    """Samples and, except for prediction, their labels."""

    endless = False
    restartable = True

    def __init__(
        self,
        x: Array,
        y: Array | None,
        batch_size: int,
        *,
        seed: int | None = None,
        skipped: int = 0,
        part: slice = slice(None),
        what: str = "",
    ) -> None:
        self._given = x
        self._first = part.start or 0
        self._x = x = x[part]
        self._y = None if y is None else y[part]
        self._file = _file_of(x)
        self._batch_size = batch_size
        self._what = what
        passes, self._skipped = divmod(skipped, self.steps)
        self._orders = _orders(len(x), seed, passes)
        self._in_place = (
            seed is None and self._file is None and lies_well(x, batch_size)
        )

    @property
    def steps(self) -> int:
        """How many batches a pass has."""
        return -(-len(self._x) // self._batch_size)

    @property
    def sample_shape(self) -> Shape:
        """The shape of a sample."""
        return self._x.shape[1:]

    @property
    def sizes(self) -> list[int]:
        """The size of a full batch, if there is one, and that of a shorter last one."""
        full, rest = divmod(len(self._x), self._batch_size)
        return [self._batch_size] * bool(full) + [rest] * bool(rest)

    def count(self, steps: int | None) -> int:
        """Count the samples of some batches."""
        samples = len(self._x)
        return samples if steps is None else min(samples, steps * self._batch_size)

    def promised(self, target: Target) -> int:
        """Return 0: the arrays are there."""
        return 0

    def buffer_that_fits(self, target: Target, missing: int) -> None:
        """Return None: nothing is read ahead."""

    def peek(self) -> None:
        """Do nothing: all is known."""

    def expect(self, target: Target) -> None:
        """Check shape and labels."""
        check_shape(self._given, target.shape, f"{self._what}x")
        if target.classes is not None and self._y is not None:
            name = f"{self._what}y"
            self._y = _labels(self._y, target.classes, name, self._first)

    def begin(self) -> Generator[Batch]:
        """Begin a pass, in the next order."""
        skipped, self._skipped = self._skipped, 0
        return self._pass(next(self._orders), skipped)

    def _pass(self, order: Order, skipped: int) -> Generator[Batch]:
        """Hand out one batch again and again: the one before is let go."""
        batch = Batch(self._x, self._y, in_place=self._in_place, file=self._file)
        samples, size = len(self._x), self._batch_size
        for start in range(skipped * size, samples, size):
            rows = slice(start, min(start + size, samples))
            batch.size = rows.stop - start
            batch.rows = rows if order is None else order[rows]
            yield batch

    def report(self) -> None:
        """Return None: nothing is prepared ahead."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _file_of(array: Array) -> FileColumn | None:
    """Find the file that an array is a map of; its rows are read from there."""
    column, complaint = mapped_column(array)
    if complaint:
        warnings.warn(complaint, stacklevel=outside())
    return column


def _labels(y: Array, classes: int, name: str, first: int) -> npt.NDArray[np.int32]:
    """Return labels as int32, those of a map a part at a time."""
    file = _file_of(y)
    if file is None:
        return check_labels(y, classes, name, first)
    labels = np.empty(len(y), np.int32)
    for start in range(0, len(y), _LABELS):
        rows = slice(start, min(start + _LABELS, len(y)))
        part = file.take(as_numbers(rows))
        labels[rows] = check_labels(part, classes, name, first + start)
    return labels


def _orders(samples: int, seed: int | None, passes: int) -> Iterator[Order]:
    """Yield each pass' order, in one array that is used again."""
    if seed is None:
        while True:
            yield None
    generator = np.random.default_rng(seed)
    identity = np.arange(samples, dtype=np.intp)
    order = identity.copy()
    number = 0
    while True:
        np.copyto(order, identity)
        generator.shuffle(order)
        if number >= passes:
            yield order
        number += 1
