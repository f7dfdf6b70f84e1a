"""tf.data: the dataset as a guide writes it, its tensors as they come, or as NumPy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from serve import serve
from workloads import ROW, arrays, augment, file_of, images

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workloads import Workload

AS_NUMPY = sys.argv[2] == "numpy"


def augmented(x: tf.Tensor, y: tf.Tensor) -> tuple:
    found = tf.numpy_function(augment, [x], tf.float32)
    found.set_shape((32, 32, 3))
    return found, y


def decoded(record: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.io.decode_raw(record, tf.float32), (ROW,))


def rows(workload: Workload, folder: Path) -> tf.data.Dataset:
    """Read the file with tf.data's own reader, which stays small."""
    path = file_of(folder, workload.items)
    header = path.stat().st_size - workload.items * ROW * 4
    records = tf.data.FixedLengthRecordDataset([str(path)], ROW * 4, header)
    x = records.map(decoded, num_parallel_calls=tf.data.AUTOTUNE)
    y = tf.data.Dataset.from_tensor_slices(np.arange(workload.items))
    return tf.data.Dataset.zip(x, y)


def make(workload: Workload, folder: Path) -> Callable:
    if workload.kind == "file":
        data = rows(workload, folder)
    else:
        made = arrays if workload.kind == "memory" else images
        data = tf.data.Dataset.from_tensor_slices(made(workload.items))
    if workload.shuffle:
        data = data.shuffle(workload.shuffle)
    if workload.kind == "map":
        data = data.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.batch(workload.batch_size).prefetch(tf.data.AUTOTUNE)
    return data.as_numpy_iterator if AS_NUMPY else data.__iter__


if __name__ == "__main__":
    serve(make)
