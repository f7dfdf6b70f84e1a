"""`timeseries_dataset_from_array`: windows of a series in batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg._checks import count, flag
from memcfg.data import AUTOTUNE, Dataset
from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import takes_arguments


@takes_arguments
def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Dataset:
    """Make a dataset of windows of a series, and of their targets.

    Parameters
    ----------
    data : array_like
        The series; axis 0 is time. A memory-mapped array is read part by part.
    targets : array_like or None
        The targets, one for each time at which a window begins. None: no targets.
    sequence_length : int
        Times of a window.
    sequence_stride : int, default 1
        Times from the beginning of a window to that of the next.
    sampling_rate : int, default 1
        Times from one row of a window to the next.
    batch_size : int or None, default 128
        Windows of a batch. None: elements are single windows.
    shuffle : bool, default False
        Whether the windows are in random order, another one in each pass.
    seed : int, optional
        The seed of the order.
    start_index : int, optional
        Times at the beginning that are not used.
    end_index : int, optional
        The time at which the used part ends.

    Returns
    -------
    Dataset
        Windows, or windows and targets.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> data = mc.nn.utils.timeseries_dataset_from_array(np.arange(5), None, 3)
    >>> next(iter(data))
    array([[0, 1, 2],
           [1, 2, 3],
           [2, 3, 4]])
    """
    series = np.asanyarray(data)
    length = len(series)
    start = 0 if start_index is None else integer(start_index, "start_index", 0)
    end = length if end_index is None else integer(end_index, "end_index")
    if not start < end <= length or (end_index is not None and end == length):
        raise ValueError(
            f"start_index ({start}) must be below end_index ({end}), and that below "
            f"the length of the data ({length})"
        )
    size = count(sequence_length, "sequence_length")
    rate = _below(sampling_rate, "sampling_rate", length)
    stride = _below(sequence_stride, "sequence_stride", length)
    windows = end - start - (size - 1) * rate
    values = None if targets is None else np.asanyarray(targets)
    if values is not None:
        values = values[start:end]
        windows = min(windows, len(values))
    starts = np.arange(0, windows, stride)
    if not len(starts):
        raise ValueError(
            f"a window takes {(size - 1) * rate + 1} times, and there are {end - start}"
        )
    used = series[start:end]
    reach = (size - 1) * rate + 1

    def window(begin: Any) -> Any:
        rows = used[begin : begin + reach : rate]
        return rows if values is None else (rows, values[begin])

    if flag(shuffle, "shuffle"):
        if seed is None:
            seed = int(np.random.default_rng().integers(10**6))
        # As in Keras, to the same order.
        np.random.RandomState(seed).shuffle(starts)
    result = Dataset.from_tensor_slices(starts).map(window).prefetch(AUTOTUNE)
    if shuffle:
        ahead = 1024 if batch_size is None else 8 * batch_size
        result = result.shuffle(ahead, seed=seed)
    if batch_size is not None:
        result = result.batch(batch_size)
    return result


def _below(value: Any, what: str, length: int) -> int:
    number = count(value, what)
    if number >= length:
        raise ValueError(
            f"{what} must be below the length of the data ({length}), not {number}"
        )
    return number
