"""What `fit` reads: data to train on, and data to look at after each epoch.

Owns holding out. Refuses to begin anything.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.data import DataSet
from memcfg.nn._argument_checks import positive_int, unit_interval
from memcfg.nn._random import check_seed, next_seed
from memcfg.nn.inputs._array_checks import check_x, check_y
from memcfg.nn.inputs._array_source import ArraySource
from memcfg.nn.inputs._reading import BATCH_SIZE, as_stream, is_stream, refuse

if TYPE_CHECKING:
    from memcfg.nn.inputs._reading import Resources
    from memcfg.nn.inputs._source import Source

__all__ = ["Given", "training_data"]


class Given(NamedTuple):
    """The arguments of `fit` that say what is read, unchecked.

    Parameters
    ----------
    x, y : object
        Samples and labels, or batches and None.
    batch_size, validation_batch_size : object
        Samples a step, of arrays; None is the default.
    shuffle, seed : object
        Whether arrays are read in orders of their own, and in which.
    validation_split, validation_data : object
        What is held out.
    """

    x: Any
    y: Any
    batch_size: Any
    validation_batch_size: Any
    shuffle: Any
    seed: Any
    validation_split: Any
    validation_data: Any


def training_data(
    given: Given, resources: Resources, epochs_before: int, steps: int | None
) -> tuple[Source, Source | None]:
    """Check what was given, as far as that needs no model, and hold out a part.

    Parameters
    ----------
    given : Given
        The arguments.
    resources : callable
        Gives the resource that is to hold what is read ahead.
    epochs_before : int
        Epochs that are left out; arrays are read as if they had been run.
    steps : int or None
        How many batches such an epoch had; None: a pass.

    Returns
    -------
    tuple of Source and (Source or None)
        To train on, and to evaluate.

    Raises
    ------
    TypeError
        If something has the wrong type.
    ValueError
        If an array has the wrong shape, an argument goes with arrays only, both ways of
        holding out are used, or a part is empty.
    """
    part = unit_interval(given.validation_split, "validation_split")
    if part and given.validation_data is not None:
        raise ValueError("give validation_split or validation_data, not both")
    if given.shuffle not in (None, True, False):
        raise TypeError(f"shuffle is True or False, not {given.shuffle!r}")
    if not is_stream(given.x, given.y):
        return _arrays(given, part, resources, (epochs_before, steps))
    refuse(
        given.x,
        y=given.y,
        batch_size=given.batch_size,
        shuffle=given.shuffle,
        seed=given.seed,
        validation_split=part or None,
    )
    train = as_stream(given.x, resources, labelled=True)
    return train, _held(given, BATCH_SIZE, resources)


def _arrays(
    given: Given, part: float, resources: Resources, before: tuple[int, int | None]
) -> tuple[Source, Source | None]:
    size = _size(given.batch_size, BATCH_SIZE, "batch_size")
    held_size = _size(given.validation_batch_size, size, "validation_batch_size")
    drawn = next_seed() if given.seed is None else check_seed(given.seed)
    x = check_x(given.x)
    y = check_y(given.y, len(x))
    held = _held(given, size, resources)
    cut = len(x)
    if part:
        cut = _cut(len(x), part, given.validation_split)
        held = ArraySource(x, y, held_size, part=slice(cut, None))
    seed = None if given.shuffle is False else drawn
    epochs, steps = before
    skipped = epochs * (-(-cut // size) if steps is None else steps)
    rows = slice(0, cut)
    return ArraySource(x, y, size, seed=seed, skipped=skipped, part=rows), held


def _cut(samples: int, part: float, given: Any) -> int:
    cut = math.floor(samples * (1 - part))
    if cut in (0, samples):
        raise ValueError(
            f"validation_split={given!r} of {samples} samples leaves one part empty"
        )
    return cut


def _held(given: Given, batch_size: int, resources: Resources) -> Source | None:
    """Return the data that was given to be held out."""
    data, size = given.validation_data, given.validation_batch_size
    if data is None:
        return None
    if _is_pair(data):
        x = check_x(data[0], "validation x")
        y = check_y(data[1], len(x), "validation y")
        number = _size(size, batch_size, "validation_batch_size")
        return ArraySource(x, y, number, what="validation ")
    if isinstance(data, tuple) or not is_stream(data):
        raise ValueError(
            "validation_data is a tuple (x, y), a Dataset or an iterable of batches"
        )
    refuse(data, validation_batch_size=size)
    return as_stream(data, resources, labelled=True)


def _is_pair(data: Any) -> bool:
    """Whether these are samples and labels, not two batches in a list."""
    if not isinstance(data, list | tuple) or len(data) != 2:
        return False
    return isinstance(data, tuple) or not isinstance(data[0], tuple | DataSet)


def _size(given: Any, default: int, what: str) -> int:
    return default if given is None else positive_int(given, what)
