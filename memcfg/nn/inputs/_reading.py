"""What a user gave to be read: arrays, or a stream of batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data import DataSet, Dataset, DataSetIterator
from memcfg.nn._argument_checks import integer, unit_interval
from memcfg.nn._random import fixed_seed, next_seed
from memcfg.nn.inputs._array_checks import check_x, check_y
from memcfg.nn.inputs._array_source import ArraySource
from memcfg.nn.inputs._stream_source import StreamSource

if TYPE_CHECKING:
    from memcfg.memory import Resource

__all__ = ["Source", "fit_sources", "source_of"]

_BATCH_SIZE = 32  # of arrays, as in Keras

Source = ArraySource | StreamSource
Resources = Callable[[], "Resource"]  # called when the first batch is read ahead


def source_of(
    x: Any, y: Any, batch_size: Any, resources: Resources, *, labelled: bool
) -> Source:
    """Return the data of `evaluate` or `predict`."""
    if _is_stream(x, y):
        _refuse(x, y=y, batch_size=batch_size)
        return StreamSource(x, resources, labelled=labelled)
    size = _size(batch_size, _BATCH_SIZE, "batch_size")
    samples = check_x(x)
    return ArraySource(samples, check_y(y, len(samples)) if labelled else None, size)


def fit_sources(
    x: Any,
    y: Any,
    *,
    batch_size: Any,
    validation_split: Any,
    validation_data: Any,
    validation_batch_size: Any,
    shuffle: Any,
    seed: Any,
    resources: Resources,
    epochs_before: int,
    steps: int | None,
) -> tuple[Source, Source | None]:
    """Return the data to train on, and to evaluate after each epoch."""
    part = unit_interval(validation_split, "validation_split")
    if part and validation_data is not None:
        raise ValueError("give validation_split or validation_data, not both")
    if shuffle not in (None, True, False):
        raise TypeError(f"shuffle is True or False, not {shuffle!r}")
    if _is_stream(x, y):
        _refuse(
            x,
            y=y,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            validation_split=part or None,
        )
        held = _held(validation_data, validation_batch_size, _BATCH_SIZE, resources)
        return StreamSource(x, resources, labelled=True), held
    size = _size(batch_size, _BATCH_SIZE, "batch_size")
    held_size = _size(validation_batch_size, size, "validation_batch_size")
    given = fixed_seed(seed)
    drawn = next_seed() if given is None else given
    x = check_x(x)
    y = check_y(y, len(x))
    held = _held(validation_data, validation_batch_size, size, resources)
    split = len(x)
    if part:
        split = math.floor(len(x) * (1 - part))
        if split in (0, len(x)):
            raise ValueError(
                f"validation_split={validation_split!r} of {len(x)} samples leaves one "
                "part empty"
            )
        held = ArraySource(x, y, held_size, part=slice(split, None))
    train = ArraySource(
        x,
        y,
        size,
        seed=None if shuffle is False else drawn,
        skipped=epochs_before * (-(-split // size) if steps is None else steps),
        part=slice(0, split),
    )
    return train, held


def _held(
    data: Any, given_size: Any, batch_size: int, resources: Resources
) -> Source | None:
    """Return the data that was given to be held out."""
    if data is None:
        return None
    if _is_pair(data):
        x = check_x(data[0], "validation x")
        y = check_y(data[1], len(x), "validation y")
        size = _size(given_size, batch_size, "validation_batch_size")
        return ArraySource(x, y, size, what="validation ")
    if isinstance(data, tuple) or not _is_stream(data):
        raise ValueError(
            "validation_data is a tuple (x, y), a Dataset or an iterable of batches"
        )
    _refuse(data, validation_batch_size=given_size)
    return StreamSource(data, resources, labelled=True)


def _is_stream(x: Any, y: Any = None) -> bool:
    """Tell whether data comes batch by batch."""
    if isinstance(x, Dataset | DataSetIterator):
        return True
    is_array = isinstance(x, np.ndarray) or hasattr(x, "__array__")
    is_iterable = hasattr(x, "__iter__") and not isinstance(x, type)
    return y is None and not is_array and is_iterable


def _is_pair(data: Any) -> bool:
    """Whether these are samples and labels, not two batches in a list."""
    if not isinstance(data, list | tuple) or len(data) != 2:
        return False
    return isinstance(data, tuple) or not isinstance(data[0], tuple | DataSet)


def _size(given: Any, default: int, what: str) -> int:
    return default if given is None else integer(given, what)


_WHY = {
    "y": "its elements have the labels: (x, y)",
    "batch_size": "its elements are batches: dataset.batch(batch_size)",
    "validation_batch_size": "its elements are batches: dataset.batch(batch_size)",
    "shuffle": "it has its own order: dataset.shuffle(buffer_size)",
    "seed": "it has its own order: dataset.shuffle(buffer_size, seed)",
    "validation_split": "give validation_data instead, such as dataset.take(n)",
}


def _refuse(data: Any, **given: Any) -> None:
    """Refuse arguments that go with arrays only."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{name} goes with arrays, not with a {type(data).__name__}: "
                f"{_WHY[name]}"
            )
