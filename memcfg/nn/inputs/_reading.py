"""What a user gave to be read: arrays, or a stream of batches.

Owns the choice, and what may be said about each. Refuses to begin anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data import Dataset, DataSetIterator
from memcfg.nn._argument_checks import positive_int
from memcfg.nn.inputs._array_checks import check_x, check_y
from memcfg.nn.inputs._array_source import ArraySource
from memcfg.nn.inputs._origins import DatasetOrigin, IterableOrigin
from memcfg.nn.inputs._stream_source import StreamSource

if TYPE_CHECKING:
    from memcfg.memory import Resource
    from memcfg.nn.inputs._source import Source

__all__ = ["BATCH_SIZE", "Resources", "as_stream", "is_stream", "refuse", "source_of"]

BATCH_SIZE = 32  # of arrays, as in Keras

Resources = Callable[[], "Resource"]


def is_stream(x: Any, y: Any = None) -> bool:
    """Tell whether data comes batch by batch.

    Parameters
    ----------
    x : object
        What was given as samples.
    y : object, optional
        What was given as labels.

    Returns
    -------
    bool
        True for a `Dataset`, a `DataSetIterator`, and without labels for anything that
        can be iterated over and is no array of whatever library.
    """
    if isinstance(x, Dataset | DataSetIterator):
        return True
    is_array = isinstance(x, np.ndarray) or hasattr(x, "__array__")
    is_iterable = hasattr(x, "__iter__") and not isinstance(x, type)
    return y is None and not is_array and is_iterable


def as_stream(data: Any, resources: Resources, *, labelled: bool) -> StreamSource:
    """Return batches that come one by one.

    Parameters
    ----------
    data : Dataset or iterable
        What `is_stream` is true of.
    resources : callable
        Gives the resource that is to hold what is read ahead.
    labelled : bool
        Whether labels are read.

    Returns
    -------
    StreamSource
        Nothing has begun yet.
    """
    if isinstance(data, Dataset):
        return StreamSource(DatasetOrigin(data), resources, labelled=labelled)
    return StreamSource(IterableOrigin(data), resources, labelled=labelled)


def source_of(
    x: Any, y: Any, batch_size: Any, resources: Resources, *, labelled: bool
) -> Source:
    """Return the data of `evaluate` or `predict`.

    Parameters
    ----------
    x : numpy.ndarray, Dataset or iterable
        Samples, or batches.
    y : numpy.ndarray or None
        Labels of an array of samples.
    batch_size : int or None
        Samples a step, of arrays.
    resources : callable
        Gives the resource that is to hold what is read ahead.
    labelled : bool
        Whether labels are read.

    Returns
    -------
    Source
        The data, which is checked as far as that needs no model.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If an array has the wrong shape, or an argument goes with arrays only.
    """
    if is_stream(x, y):
        refuse(x, y=y, batch_size=batch_size)
        return as_stream(x, resources, labelled=labelled)
    size = BATCH_SIZE if batch_size is None else positive_int(batch_size, "batch_size")
    samples = check_x(x)
    return ArraySource(samples, check_y(y, len(samples)) if labelled else None, size)


_WHY = {
    "y": "its elements have the labels: (x, y)",
    "batch_size": "its elements are batches: dataset.batch(batch_size)",
    "validation_batch_size": "its elements are batches: dataset.batch(batch_size)",
    "shuffle": "it has its own order: dataset.shuffle(buffer_size)",
    "seed": "it has its own order: dataset.shuffle(buffer_size, seed)",
    "validation_split": "give validation_data instead, such as dataset.take(n)",
}


def refuse(data: Any, **given: Any) -> None:
    """Refuse arguments that go with arrays only.

    Parameters
    ----------
    data : Dataset or iterable
        What was given in place of arrays.
    **given : object
        The arguments by name; what is false was not given.

    Raises
    ------
    ValueError
        If one was given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{name} goes with arrays, not with a {type(data).__name__}: "
                f"{_WHY[name]}"
            )
