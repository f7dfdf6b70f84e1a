"""`split_dataset`: two parts of a dataset or of arrays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from memcfg._checks import flag
from memcfg.data import AUTOTUNE, Dataset
from memcfg.data.ops._batch import Batch
from memcfg.data.ops._sources import sliced
from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import takes_arguments


@takes_arguments
def split_dataset(
    dataset: Any,
    left_size: float | None = None,
    right_size: float | None = None,
    shuffle: bool = False,
    seed: int | None = None,
) -> tuple[Dataset, Dataset]:
    """Split a dataset or arrays into two datasets.

    Parameters
    ----------
    dataset : Dataset, array, or tuple or list of arrays
        What is split. A dataset that ends in `batch` is split by samples, and the parts
        have batches of the same size.
    left_size, right_size : int or float, optional
        The size of a part, in samples or as a fraction. One of them may be None: the
        rest.
    shuffle : bool, default False
        Whether the samples are shuffled before. The elements of a dataset are then kept
        in the device's pool; rows of arrays are not copied.
    seed : int, optional
        The seed of the order.

    Returns
    -------
    left, right : Dataset
        The first and the last samples.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If both sizes are missing, or a part would be empty, or the parts do not fit the
        samples.

    Notes
    -----
    A dataset whose length is not known is read once to count its samples.

    Examples
    --------
    >>> import memcfg as mc
    >>> left, right = mc.nn.utils.split_dataset(mc.data.Dataset.range(10), 0.8)
    >>> len(left), [int(n) for n in right]
    (8, [8, 9])
    """
    batch = rows = None
    if isinstance(dataset, Dataset):
        whole, node = dataset, dataset._node
        if isinstance(node, Batch):
            batch = node.batch_size
            whole = Dataset(node.source, dataset.options())
    elif isinstance(dataset, np.ndarray | list | tuple):
        nest = tuple(dataset) if isinstance(dataset, list | tuple) else dataset
        rows = sliced(nest, "split_dataset")
        whole = Dataset(rows)
    else:
        raise TypeError(
            f"split_dataset takes a Dataset or arrays, not {type(dataset).__name__}"
        )
    total = int(whole.cardinality())
    if total == -1:
        raise ValueError("the dataset is infinite: call take(n) before")
    element: Any = rows and rows.source.element
    if flag(shuffle, "shuffle") and isinstance(dataset, Dataset):
        elements = list(whole)
        total, element = len(elements), elements.__getitem__
    elif total < 0:
        total = sum(1 for _ in whole)
    left, right = _sizes(left_size, right_size, total)
    if shuffle:
        numbers = list(range(total))
        random.Random(seed).shuffle(numbers)  # as in Keras, to the same order
        order = Dataset.from_tensor_slices(np.array(numbers))
        whole = order.map(lambda number: element(int(number)))
    parts = [whole.take(left), whole.skip(total - right)]
    if batch is not None:
        parts = [part.batch(batch) for part in parts]
    return parts[0].prefetch(AUTOTUNE), parts[1].prefetch(AUTOTUNE)


def _sizes(left: Any, right: Any, total: int) -> tuple[int, int]:
    if left is None and right is None:
        raise ValueError("left_size or right_size must be given")
    if isinstance(left, float) and isinstance(right, float) and left + right > 1:
        raise ValueError(f"left_size and right_size are {left + right} of the samples")
    sizes = [_size(left, "left_size", total), _size(right, "right_size", total)]
    first = sizes[0] if sizes[0] is not None else total - (sizes[1] or 0)
    second = sizes[1] if sizes[1] is not None else total - first
    if first + second > total or not first or not second:
        raise ValueError(
            f"parts of {first} and {second} samples cannot be taken of {total}"
        )
    return first, second


def _size(size: Any, what: str, total: int) -> int | None:
    if size is None:
        return None
    if isinstance(size, float):
        if not 0 < size < 1:
            raise ValueError(f"{what} must be between 0 and 1, not {size}")
        return round(size * total)
    number = integer(size, what)
    if number >= total:
        raise ValueError(f"{what} must be below the {total} samples, not {number}")
    return number
