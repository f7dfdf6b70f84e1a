"""Batches as nested arrays, for steps of one's own."""

from __future__ import annotations

from math import floor
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data import DataSet, MultiDataSet
from memcfg.nn._argument_checks import unit_interval
from memcfg.nn._random import fixed_seed, next_seed
from memcfg.nn.inputs._array_likes import as_array
from memcfg.nn.inputs._array_source import orders
from memcfg.nn.inputs._elements import check_masks
from memcfg.nn.inputs._reading import (
    BATCH_SIZE,
    is_arrays,
    is_stream,
    refuse,
    size_of,
)
from memcfg.nn.inputs._stream_source import StreamPass, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from memcfg.data import PipelineReport
    from memcfg.memory import Resource

__all__ = ["ElementSource", "Elements", "element_source", "element_sources"]


class Elements:
    """A batch: nested lists, tuples and dicts of arrays."""

    __slots__ = ("data", "size")

    lengths = ()  # steps of one's own are traced for each shape

    def __init__(self, data: Any, size: int | None = None) -> None:
        self.data = data
        if size is None:
            arrays = _leaves(data)
            size = len(arrays[0]) if arrays and np.ndim(arrays[0]) else 1
        self.size = size

    def release(self) -> None:
        """Drop the arrays."""
        self.data = None


class _Arrays:
    """Passes over arrays, in order or shuffled anew for each pass."""

    endless = False
    restartable = True

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        part: slice = slice(None),
        seed: int | None = None,
        skipped: int = 0,
    ) -> None:
        self._data = data
        self._first, stop, _ = part.indices(len(_leaves(data)[0]))
        self._samples = stop - self._first
        self._batch_size = batch_size
        passes, self._skipped = divmod(skipped, self.steps)
        self._orders = orders(self._samples, seed, passes)

    @property
    def steps(self) -> int:
        """The number of batches in a pass."""
        return -(-self._samples // self._batch_size)

    def begin(self) -> Generator[Elements]:
        """Begin a pass in the next order."""
        skipped, self._skipped = self._skipped, 0
        order, size = next(self._orders), self._batch_size
        for start in range(skipped * size, self._samples, size):
            end = min(start + size, self._samples)
            rows: Any
            if order is None:
                rows = slice(start + self._first, end + self._first)
            else:
                rows = order[start:end].astype(np.intp) + self._first
            yield Elements(_mapped(self._data, itemgetter(rows)), end - start)

    def report(self) -> None:
        """Return None, since there is no pipeline."""

    def close(self) -> None:
        """Do nothing, since nothing is held."""


class _Stream:
    """Passes over a dataset or an iterable of batches."""

    def __init__(self, data: Any, resource: Callable[[], Resource]) -> None:
        self._origin = origin_of(data)
        self._resource = resource
        self._last: StreamPass | None = None
        known = self._origin.static_info
        self.steps, self.endless = known.batches, known.endless

    @property
    def restartable(self) -> bool:
        """Whether there can be more than one pass."""
        return self._origin.restartable

    def begin(self) -> StreamPass:
        """Begin a pass."""
        items = self._origin.begin(self._resource())
        once = not self.restartable
        self._last = StreamPass(items, _element, once=once)  # type: ignore[arg-type]
        return self._last

    def report(self) -> PipelineReport | None:
        """Return the pipeline's report on the last closed pass, if there is one."""
        return None if self._last is None else self._last.report

    def close(self) -> None:
        """Do nothing: passes are closed by those who read them."""


ElementSource = _Arrays | _Stream


def element_source(
    x: Any, y: Any, sample_weight: Any, batch_size: Any, resource: Any
) -> ElementSource:
    """Return the source of batches for `evaluate` or `predict`."""
    if is_stream(None, x, y):
        refuse(x, y=y, sample_weight=sample_weight, batch_size=batch_size)
        return _Stream(x, resource)
    return _Arrays(
        _packed(x, y, sample_weight), size_of(batch_size, BATCH_SIZE, "batch_size")
    )


def element_sources(
    x: Any,
    y: Any,
    *,
    batch_size: Any,
    validation_split: Any,
    validation_data: Any,
    validation_batch_size: Any,
    shuffle: Any,
    seed: Any,
    class_weight: Any,
    sample_weight: Any,
    resources: Callable[[], Resource],
    epochs_before: int,
    steps: int | None,
) -> tuple[ElementSource, ElementSource | None]:
    """Return the sources of batches for training and for validation, or None."""
    if class_weight is not None:
        raise ValueError(
            "class_weight is for the built-in step: a step of your own gets "
            "sample_weight, such as class_weights[y]"
        )
    if shuffle not in (None, True, False):
        raise TypeError(f"shuffle is True or False, not {shuffle!r}")
    split = unit_interval(validation_split, "validation_split")
    if split and validation_data is not None:
        raise ValueError("give validation_split or validation_data, not both")
    held: ElementSource | None = None
    size = size_of(batch_size, BATCH_SIZE, "batch_size")
    if validation_data is not None:
        given = validation_data if is_arrays(validation_data) else ()
        vx, vy, weights = (*(given or (validation_data,)), None, None)[:3]
        held_size = validation_batch_size
        if not is_stream(None, vx, vy):
            held_size = size_of(held_size, size, "validation_batch_size")
        held = element_source(vx, vy, weights, held_size, resources)
    if is_stream(None, x, y):
        refuse(
            x,
            y=y,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            sample_weight=sample_weight,
            validation_split=split or None,
        )
        return _Stream(x, resources), held
    data = _packed(x, y, sample_weight)
    given_seed = fixed_seed(seed)
    drawn = next_seed() if given_seed is None else given_seed
    count = stop = len(_leaves(data)[0])
    if split:
        stop = floor(count * (1 - split))
        if stop in (0, count):
            raise ValueError(
                f"validation_split={validation_split!r} of {count} samples leaves one "
                "part empty"
            )
        held_size = size_of(validation_batch_size, size, "validation_batch_size")
        held = _Arrays(data, held_size, part=slice(stop, None))
    train = _Arrays(
        data,
        size,
        part=slice(0, stop),
        seed=None if shuffle is False else drawn,
        skipped=epochs_before * (-(-stop // size) if steps is None else steps),
    )
    return train, held


def _packed(x: Any, y: Any, sample_weight: Any) -> Any:
    """Return arrays as a step gets them: ``x``, ``(x, y)`` or with weights."""
    if sample_weight is not None:
        data: Any = (x, y, sample_weight)
    elif y is not None:
        data = (x, y)
    else:
        data = (x,) if isinstance(x, list | tuple) else x
    data = _mapped(data, lambda each: np.asarray(as_array(each, "x")))
    lengths = [len(each) if each.ndim else 0 for each in _leaves(data)]
    if len({*lengths}) != 1 or not lengths[0]:
        raise ValueError(
            "arrays of samples must have the same number of them, at least one, got "
            f"{', '.join(map(str, lengths))}"
        )
    return data


def _element(element: Any) -> Elements:
    """Return what a stream yields as a batch."""
    if isinstance(element, DataSet):
        check_masks(element.features_mask, element.labels_mask)
    elif isinstance(element, MultiDataSet):
        check_masks(*element.features_masks, *element.labels_masks)
    if isinstance(element, DataSet | MultiDataSet):
        element = (element.features, element.labels)
    return Elements(_mapped(element, np.asarray))


def _mapped(data: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested data with a function applied to its arrays."""
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_mapped(each, function) for each in data))
    if isinstance(data, list | tuple):
        return type(data)([_mapped(each, function) for each in data])
    if isinstance(data, dict):
        return {key: _mapped(each, function) for key, each in data.items()}
    return None if data is None else function(data)


def _leaves(data: Any) -> Sequence[Any]:
    """Return the arrays of nested data."""
    result: list[Any] = []
    _mapped(data, result.append)
    return result
