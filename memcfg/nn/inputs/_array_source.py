"""Batches of arrays, in order or shuffled anew for each pass.

The arrays have passed all checks that need no model. The methods are those of
`StreamSource`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg._caller import outside
from memcfg.data.rows._file_rows import mapped_column
from memcfg.nn.inputs._array_checks import conform_x, target_column
from memcfg.nn.inputs._array_likes import Frame
from memcfg.nn.inputs._batches import Batch, Column, lies_well
from memcfg.nn.inputs._samples import targets_as_given, weight_columns

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from memcfg.data.rows._file_rows import FileColumn
    from memcfg.nn.inputs._batches import Targets
    from memcfg.nn.inputs._samples import Samples, SampleShapes, Wanted

__all__ = ["ArraySource", "orders"]

_SOME = 1 << 14  # sample indices written at once

Order = npt.NDArray[Any] | None  # None for the given order


class ArraySource:
    """Source of batches from arrays of samples, targets and weights."""

    endless = False
    restartable = True

    def __init__(
        self,
        given: Samples,
        batch_size: int,
        *,
        seed: int | None = None,
        skipped: int = 0,
        part: slice = slice(None),
        class_weight: Mapping[int, float] | None = None,
    ) -> None:
        self._given = given
        self._found = found = given if part == slice(None) else given.part(part)
        self._first = part.start or 0
        self._class_weight = class_weight
        self._files = [_file_of(x) for x in found.xs]
        self._batch_size = batch_size
        self._samples = len(found.xs[0])
        passes, self._skipped = divmod(skipped, self.steps)
        self._orders = orders(self._samples, seed, passes)
        self._shuffled = seed is not None
        self._columns: list[Column] = []  # filled by `expect`
        self.keeps_targets = False  # whether batches have y as it was given
        self.keeps_masks = False  # arrays have no masks of labels
        self._targets: Targets | None = None
        self.lengths: tuple[int, ...] = ()  # of axes of any length, set by `expect`
        self.weights = given.weighing or ((),) * (class_weight is not None)

    @property
    def steps(self) -> int:
        """The number of batches in a pass."""
        return -(-self._samples // self._batch_size)

    @property
    def sample_shapes(self) -> SampleShapes:
        """The shape of a sample for each input."""
        return self._given.sample_shapes

    @property
    def sizes(self) -> list[int]:
        """The sizes of batches: full ones, if any, and a smaller last one, if any."""
        full, rest = divmod(self._samples, self._batch_size)
        return [self._batch_size] * bool(full) + [rest] * bool(rest)

    def count(self, steps: int | None) -> int:
        """Return the number of samples in `steps` batches, or in a pass if None."""
        samples = self._samples
        return samples if steps is None else min(samples, steps * self._batch_size)

    def promised(self, wanted: Wanted) -> int:
        """Return 0, since no memory is needed to read ahead."""
        return 0

    def buffer_that_fits(self, wanted: Wanted, missing: int) -> None:
        """Return None, since nothing is read ahead."""

    def peek(self) -> None:
        """Do nothing, since shapes and sizes are known."""

    def expect(self, wanted: Wanted) -> None:
        """Check shapes, dtypes and labels against a model."""
        given, found = self._given.arranged(wanted), self._found.arranged(wanted)
        wanted = wanted.of(given)
        self.lengths = wanted.lengths
        ys: list[Column] = []
        made = []
        for i, field in enumerate(wanted.xs):
            conform_x(given.xs[i], field, given.x_names[i])
            x: Any = found.xs[i]
            file = self._files[i]
            in_place = (
                not self._shuffled
                and file is None
                and not isinstance(x, Frame)
                and x.dtype == field.dtype
                and lies_well(x, self._batch_size)
            )
            made.append(Column(field.name, x, in_place=in_place, file=file))
        if wanted.ys:
            for y, name, field in zip(found.ys, found.y_names, wanted.ys, strict=True):
                ys.append(target_column(y, field, name, self._first, _file_of(y)))
            made += ys
            made += weight_columns(found.weights, ys, wanted, self._class_weight)
        self._columns = made
        if self.keeps_targets:
            self._targets = targets_as_given(found, _file_of)

    def begin(self) -> Generator[Batch]:
        """Begin a pass in the next order."""
        skipped, self._skipped = self._skipped, 0
        return self._pass(next(self._orders), skipped)

    def _pass(self, order: Order, skipped: int) -> Generator[Batch]:
        """Yield the batches of a pass, all as one object that is updated in place."""
        batch = Batch(self._columns, self.weights, self.lengths, self._targets)
        samples, size = self._samples, self._batch_size
        for start in range(skipped * size, samples, size):
            rows = slice(start, min(start + size, samples))
            batch.size = rows.stop - start
            batch.rows = rows if order is None else order[rows].astype(np.intp)
            yield batch

    def report(self) -> None:
        """Return None, since there is no pipeline."""

    def close(self) -> None:
        """Do nothing, since nothing is held."""


def _file_of(array: Any) -> FileColumn | None:
    """Return the file that an array maps, from which its rows are read, or None."""
    if isinstance(array, Frame):
        return None
    column, complaint = mapped_column(array)
    if complaint:
        warnings.warn(complaint, stacklevel=outside())
    return column


def orders(samples: int, seed: int | None, passes: int) -> Iterator[Order]:
    """Yield the order of each pass, in one array that is overwritten."""
    if seed is None:
        while True:
            yield None
    generator = np.random.default_rng(seed)
    order = np.empty(samples, np.uint32 if samples <= 1 << 32 else np.intp)
    number = 0
    while True:
        for start in range(0, samples, _SOME):
            stop = min(start + _SOME, samples)
            order[start:stop] = np.arange(start, stop)
        generator.shuffle(order)
        if number >= passes:
            yield order
        number += 1
