"""memcfg.data: the dataset as a guide writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from serve import serve
from workloads import arrays, augment, file_of, images

import memcfg as mc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workloads import Workload

Dataset, AUTOTUNE = mc.data.Dataset, mc.data.AUTOTUNE


def augmented(x: np.ndarray, y: np.int64) -> tuple:
    return augment(x), y


def make(workload: Workload, folder: Path) -> Callable:
    if workload.kind == "file":
        x = np.load(file_of(folder, workload.items), mmap_mode="r")
        data = Dataset.from_tensor_slices((x, np.arange(len(x))))
    else:
        made = arrays if workload.kind == "memory" else images
        data = Dataset.from_tensor_slices(made(workload.items))
    if workload.shuffle:
        data = data.shuffle(workload.shuffle)
    if workload.kind == "map":
        data = data.map(augmented, num_parallel_calls=AUTOTUNE)
    data = data.batch(workload.batch_size).prefetch(AUTOTUNE)
    return data.__iter__


if __name__ == "__main__":
    serve(make)
