"""Sources of batches for `fit`, `evaluate` and `predict`, from a user's data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memcfg.data import DataSet, Dataset, DataSetIterator
from memcfg.data.engine._iterator import first_spec
from memcfg.nn._argument_checks import integer, real, unit_interval
from memcfg.nn._nesting import are_arrays, holds_numbers, is_array, leaves
from memcfg.nn._random import fixed_seed, next_seed
from memcfg.nn.inputs._array_source import ArraySource
from memcfg.nn.inputs._samples import samples
from memcfg.nn.inputs._stream_source import StreamSource
from memcfg.nn.loading._py_dataset import Epochs, PyDataset

if TYPE_CHECKING:
    from memcfg.memory import Resource
    from memcfg.nn.inputs._samples import Wanted

__all__ = [
    "BATCH_SIZE",
    "Source",
    "check_class_weight",
    "fit_sources",
    "is_arrays",
    "is_stream",
    "refuse",
    "size_of",
    "source_of",
    "with_first_targets",
]

BATCH_SIZE = 32  # default for arrays, as in Keras

Source = ArraySource | StreamSource
Resources = Callable[[], "Resource"]  # called when the first batch is read ahead


def source_of(
    wanted: Wanted | None,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: Any,
    resources: Resources,
    *,
    labelled: bool,
) -> Source:
    """Return the source for `evaluate` or `predict`; `wanted` is None if unbuilt."""
    if is_stream(wanted, x, y):
        refuse(x, y=y, batch_size=batch_size, sample_weight=sample_weight)
        return StreamSource(wanted, x, resources, labelled=labelled)
    size = size_of(batch_size, BATCH_SIZE, "batch_size")
    return ArraySource(samples(wanted, x, y, sample_weight, labelled=labelled), size)


def fit_sources(
    wanted: Wanted | None,
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
    resources: Resources,
    epochs_before: int,
    steps: int | None,
) -> tuple[Source, Source | None]:
    """Return the sources for training and for validation, the latter or None."""
    part = unit_interval(validation_split, "validation_split")
    if part and validation_data is not None:
        raise ValueError("give validation_split or validation_data, not both")
    if shuffle not in (None, True, False):
        raise TypeError(f"shuffle is True or False, not {shuffle!r}")
    table = check_class_weight(class_weight)
    if isinstance(x, PyDataset):
        x, shuffle = Epochs(x, shuffle=shuffle is not False), None
    if is_stream(wanted, x, y):
        refuse(
            x,
            y=y,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            sample_weight=sample_weight,
            validation_split=part or None,
        )
        held = _held(
            wanted, validation_data, validation_batch_size, BATCH_SIZE, resources
        )
        train = StreamSource(wanted, x, resources, labelled=True, class_weight=table)
        return train, held
    size = size_of(batch_size, BATCH_SIZE, "batch_size")
    held_size = size_of(validation_batch_size, size, "validation_batch_size")
    given = fixed_seed(seed)
    drawn = next_seed() if given is None else given
    result = samples(wanted, x, y, sample_weight, labelled=True)
    count = len(result.xs[0])
    held = _held(wanted, validation_data, validation_batch_size, size, resources)
    split = count
    if part:
        split = math.floor(count * (1 - part))
        if split in (0, count):
            raise ValueError(
                f"validation_split={validation_split!r} of {count} samples leaves one "
                "part empty"
            )
        held = ArraySource(result, held_size, part=slice(split, None))
    return ArraySource(
        result,
        size,
        seed=None if shuffle is False else drawn,
        skipped=epochs_before * (-(-split // size) if steps is None else steps),
        part=slice(0, split) if part else slice(None),
        class_weight=table,
    ), held


def check_class_weight(class_weight: Any) -> dict[int, float] | None:
    """Return class weights by label; TypeError or ValueError if they are invalid."""
    if class_weight is None:
        return None
    if not isinstance(class_weight, Mapping):
        raise TypeError(
            f"class_weight is a dict such as {{0: 1.0, 1: 5.0}}, not {class_weight!r}"
        )
    return {
        integer(label, "a class in class_weight", 0): real(weight, "a class's weight")
        for label, weight in class_weight.items()
    }


def _held(
    wanted: Wanted | None,
    data: Any,
    given_size: Any,
    batch_size: int,
    resources: Resources,
) -> Source | None:
    """Return the source of `validation_data`, or None."""
    if data is None:
        return None
    if is_arrays(data):
        x, y, weights = (*data, None)[:3]
        result = samples(wanted, x, y, weights, labelled=True, prefix="validation ")
        size = size_of(given_size, batch_size, "validation_batch_size")
        return ArraySource(result, size)
    if isinstance(data, tuple) or not is_stream(None, data):
        raise ValueError(
            "validation_data is a tuple (x, y) or (x, y, sample_weight), a Dataset or "
            "an iterable of batches"
        )
    refuse(data, validation_batch_size=given_size)
    return StreamSource(wanted, data, resources, labelled=True)


def is_stream(wanted: Wanted | None, x: Any, y: Any = None) -> bool:
    """Return whether data is a stream of batches."""
    if isinstance(x, dict) or _is_group(wanted, x):
        return False
    if isinstance(x, Dataset | DataSetIterator):
        return True
    if y is not None or is_array(x) or holds_numbers(x):
        return False
    return hasattr(x, "__iter__") and not isinstance(x, type)


def with_first_targets(x: Any, check: Callable[[], object]) -> tuple[Any, Any]:
    """Return a stream, and the targets of its first batch, or their specs.

    They are None where there are none. An iterator is replaced by one that begins with
    the batch that was taken from it, after a check of what else is given.
    """
    first = None
    if isinstance(x, Dataset):
        spec = x.element_spec
        targets = leaves(spec[1]) if isinstance(spec, tuple) and len(spec) > 1 else ()
        if all(each.shape and None not in each.shape[1:] for each in targets):
            first = spec
        else:  # of a user's function
            first = first_spec(x._node)
    elif isinstance(x, PyDataset | list | tuple):
        first = x[0] if x else None
    elif isinstance(x, Iterator) and not hasattr(x, "reset"):
        check()
        taken = list(itertools.islice(x, 1))
        x, first = itertools.chain(taken, x), taken[0] if taken else None
    return x, first[1] if isinstance(first, tuple) and len(first) > 1 else None


def _is_group(wanted: Wanted | None, x: Any) -> bool:
    """Return whether x is a list of one array for each input, of any model if None."""
    if not isinstance(x, list | tuple):
        return False
    if wanted is None:
        return bool(x) and are_arrays(x)
    count, takes = len(wanted.xs), wanted.takes
    if takes.form is not None and type(x) is takes.kind:
        return len(x) == len(takes.form)
    return (
        count > 1
        and len(x) == count
        and all(is_array(each) or holds_numbers(each) for each in x)
    )


def is_arrays(data: Any) -> bool:
    """Return whether data is (x, y) or (x, y, weights) and no list of batches."""
    if isinstance(data, tuple):
        return len(data) in (2, 3)
    if not isinstance(data, list) or len(data) != 2:
        return False
    return not isinstance(data[0], tuple | DataSet)


def size_of(given: Any, default: int, what: str) -> int:
    """Return a batch size, checked if it is given."""
    return default if given is None else integer(given, what)


_WHY = {
    "y": "its elements have the labels: (x, y)",
    "sample_weight": "its elements have the weights: (x, y, sample_weight)",
    "batch_size": "its elements are batches: dataset.batch(batch_size)",
    "validation_batch_size": "its elements are batches: dataset.batch(batch_size)",
    "shuffle": "it has its own order: dataset.shuffle(buffer_size)",
    "seed": "it has its own order: dataset.shuffle(buffer_size, seed)",
    "validation_split": "give validation_data instead, such as dataset.take(n)",
}


def refuse(data: Any, **given: Any) -> None:
    """Refuse arguments that apply to arrays only."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{name} goes with arrays, not with a {type(data).__name__}: "
                f"{_WHY[name]}"
            )
