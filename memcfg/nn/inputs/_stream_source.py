"""Batches streamed from datasets and iterables."""

from __future__ import annotations

from collections import deque
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core._holders import is_budgeted
from memcfg.data import (
    AsyncDataSetIterator,
    Dataset,
    DataSetIterator,
    ExistingDataSetIterator,
)
from memcfg.data._static_info import BUFFER_SIZE, StaticInfo, begin, static_info
from memcfg.nn.inputs._batches import Batch, Column
from memcfg.nn.inputs._elements import (
    BATCH_FIRST,
    check_spec,
    itemsizes,
    labels_masks,
    sample_shapes_of,
    unpack,
    weights_of,
)
from memcfg.nn.inputs._samples import columns, samples, targets_as_given
from memcfg.nn.loading._py_dataset import Epochs, PyDataset
from memcfg.runtime import with_margin
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Never

    from memcfg.data import PipelineReport
    from memcfg.data.engine._iterator import DatasetIterator
    from memcfg.memory import Resource
    from memcfg.nn.inputs._samples import SampleShapes, Wanted

__all__ = ["StreamPass", "StreamSource", "origin_of"]


class _DatasetOrigin:
    """Origin of passes over a dataset."""

    restartable = True
    threaded = True

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.static_info = static_info(dataset)

    def begin(self, resource: Resource) -> DatasetIterator:
        """Begin an independent pass."""
        return begin(self._dataset, resource)


class _IterableOrigin:
    """Origin of passes over any other iterable of batches."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        if isinstance(iterable, PyDataset):
            iterable = Epochs(iterable, shuffle=False)
        self._made = not isinstance(iterable, DataSetIterator)
        self._base: DataSetIterator = (
            iterable
            if isinstance(iterable, DataSetIterator)
            else ExistingDataSetIterator(iterable)
        )
        self._passes = 0
        count = len(iterable) if isinstance(iterable, list | tuple) else None
        if isinstance(iterable, Epochs):
            count = iterable.num_batches
        self.static_info = StaticInfo(count, False, None, (), 0)

    @property
    def restartable(self) -> bool:
        """Whether there can be more than one pass."""
        return self._base.reset_supported

    @property
    def threaded(self) -> bool:
        """Whether a thread reads ahead."""
        return self._base.async_supported

    def begin(self, resource: Resource) -> _Items:
        """Begin a pass, after a reset if needed, and start a reading thread."""
        base = self._base
        is_over = not self._made and not base.has_next()
        if base.reset_supported and (self._passes or is_over):
            base.reset()
        self._passes += 1
        if not self.threaded:
            return _Items(base, base.close if self._made else lambda: None)
        reading = AsyncDataSetIterator(base, BUFFER_SIZE, resource=resource)
        return _Items(reading, lambda: self._end(reading))

    def _end(self, reading: AsyncDataSetIterator) -> None:
        try:
            reading.close()
        finally:
            if self._made:
                self._base.close()


class _Items:
    """An iterator with a `close` function."""

    def __init__(self, items: Iterator[Any], close: Callable[[], None]) -> None:
        self._items = items
        self.close = close

    def __next__(self) -> Any:
        return next(self._items)

    def report(self) -> None:
        """Return None, since there is no pipeline."""


def origin_of(data: Any) -> _DatasetOrigin | _IterableOrigin:
    """Return the origin of passes over a dataset or an iterable of batches."""
    return _DatasetOrigin(data) if isinstance(data, Dataset) else _IterableOrigin(data)


class StreamSource:
    """Source of batches from a dataset or an iterable."""

    def __init__(
        self,
        wanted: Wanted | None,  # None if the model is unknown
        data: Any,
        resource: Callable[[], Resource],
        *,
        labelled: bool,
        class_weight: Mapping[int, float] | None = None,
    ) -> None:
        self._origin = origin_of(data)
        self._resource = resource
        self._labelled = labelled
        self._class_weight = class_weight
        self._wanted = wanted
        self.keeps_targets = False  # whether batches have y as it was given
        self.keeps_masks = False  # whether data sets may have masks of labels
        self._begun: StreamPass | None = None
        self._last: StreamPass | None = None
        self.lengths: tuple[int, ...] = ()  # of axes of any length, set by `peek`
        self._known = known = self._origin.static_info
        self.steps, self.endless = known.batches, known.endless
        self.sizes = list(known.sizes)
        self.sample_shapes: SampleShapes | None = sample_shapes_of(known.spec)
        self.weights = weights_of(known.spec) or ((),) * (class_weight is not None)

    @property
    def restartable(self) -> bool:
        """Whether there can be more than one pass."""
        return self._origin.restartable

    def count(self, steps: int | None) -> None:
        """Return None, since batches may have any size."""

    def promised(self, wanted: Wanted) -> int:
        """Return the bytes that a reading thread will need once it starts."""
        if self._begun is not None or not (self._origin.threaded and self.sizes):
            return 0
        known, blocks, shuffled = self._known, self._known.blocks, 0
        if is_budgeted(self._resource()):  # more batches take what is left
            blocks = known.least_blocks
            shuffled = known.shuffled * self._bytes_of(1, wanted)
            shuffled += known.numbers * np.dtype(np.int64).itemsize
        if not blocks:
            return shuffled
        nbytes = self._bytes_of(max(self.sizes), wanted)
        return with_margin(blocks * nbytes, blocks) + shuffled

    def _bytes_of(self, size: int, wanted: Wanted) -> int:
        """Return the bytes of a batch."""
        sizes = itemsizes(self._known.spec, wanted)
        return sum(
            align_up(itemsize * size * prod(field.shape))
            for field, itemsize in zip((*wanted.xs, *wanted.ys), sizes, strict=True)
        )

    def buffer_that_fits(self, wanted: Wanted, missing: int) -> int | None:
        """Return the buffer size that saves `missing` bytes, or None if none does."""
        known, promised = self._known, self.promised(wanted)
        if not promised:
            return None
        fits = known.buffer_size + -missing * known.blocks // promised
        return fits if fits > 0 else None

    def peek(self) -> None:
        """Begin the first pass to learn shapes and a batch size."""
        self._begun = self._made()
        first = self._begun.peek(2 if self._origin.threaded else 1)
        self.sizes = self.sizes or [first.size]
        self.weights, self.lengths = first.weights, first.lengths
        first.release()  # an error's frames could keep its arrays alive

    def expect(self, wanted: Wanted) -> None:
        """Check the known specification; each batch is checked as it is read."""
        self._wanted = wanted
        check_spec(self._known.spec, wanted)

    def begin(self) -> StreamPass:
        """Return the pass that `peek` began, or a new one."""
        begun, self._begun = self._begun, None
        return self._made() if begun is None else begun

    def close(self) -> None:
        """Close the pass that `peek` began, if it is still unused."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()

    def report(self) -> PipelineReport | None:
        """Return the pipeline's report on the last closed pass, if there is one."""
        return None if self._last is None else self._last.report

    def _made(self) -> StreamPass:
        items = self._origin.begin(self._resource())
        self._last = StreamPass(items, self._as_batch, once=not self.restartable)
        return self._last

    def _as_batch(self, element: Any) -> Batch:
        """Check an element, also against the model if it is known."""
        x, y, weights = unpack(
            element, labelled=self._labelled, masked=self.keeps_masks
        )
        if isinstance(y, np.generic | int):
            raise ValueError(f"y is one label, {y}, and x one sample: {BATCH_FIRST}")
        wanted = self._wanted
        result = samples(wanted, x, y, weights, labelled=self._labelled)
        table = self._class_weight
        shapes = result.weighing or ((),) * (table is not None)
        if wanted is None:  # only shapes and sizes are needed
            self.sample_shapes = result.sample_shapes
            read = [Column("x", each, in_place=True) for each in result.xs]
            return Batch(read, shapes)
        wanted = wanted.of(result)
        made = columns(result, wanted, table, in_place=True)
        targets = targets_as_given(result) if self.keeps_targets else None
        masks = labels_masks(element) if self.keeps_masks else ()
        return Batch(made, shapes, wanted.lengths, targets, masks)


class StreamPass:
    """A pass over a stream, which releases each batch before the next one."""

    def __init__(
        self,
        items: DatasetIterator | _Items,
        as_batch: Callable[[Any], Batch],
        *,
        once: bool,
    ) -> None:
        self._items = items
        self._once = once  # whether the data cannot be read again
        self._as_batch = as_batch
        self._ahead: deque[Any] = deque()  # elements taken but not handed out
        self._handed: Batch | None = None
        self._number = 1  # number of the next batch
        self.report: PipelineReport | None = None  # set when the pass is closed
        self._over = False
        # raised after the elements taken ahead
        self._failure: BaseException | None = None

    def peek(self, count: int) -> Batch:
        """Read up to `count` elements ahead; return the first without consuming it."""
        self._take()
        if not self._ahead:
            raise ValueError(
                "the data is empty: it has no batch"
                + (" left, or never had one" if self._once else "")
            )
        try:
            while len(self._ahead) < count and not self._over:
                self._take()
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            self._over, self._failure = True, error
        return self._checked(self._ahead[0])

    def __next__(self) -> Batch:
        self._release()
        if not self._ahead:
            self._take()
        if not self._ahead:
            self._end()
        self._handed = self._checked(self._ahead.popleft())
        self._number += 1
        return self._handed

    def close(self) -> None:
        """Release all batches and end the pass."""
        if self.report is None:
            self.report = self._items.report()
        self._over, self._failure = True, None
        self._release()
        self._ahead.clear()
        self._items.close()

    def _take(self) -> None:
        if self._over:
            return
        try:
            self._ahead.append(next(self._items))
        except StopIteration:
            self._over = True

    def _end(self) -> Never:
        failure, self._failure = self._failure, None
        try:
            raise StopIteration if failure is None else failure
        finally:
            del failure  # its traceback refers to this frame

    def _release(self) -> None:
        handed, self._handed = self._handed, None
        if handed is not None:
            handed.release()

    def _checked(self, element: Any) -> Batch:
        try:
            return self._as_batch(element)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            problem = kind(f"batch {self._number}: {error}")
        del element
        try:
            raise problem
        finally:
            del problem  # its traceback refers to this frame
