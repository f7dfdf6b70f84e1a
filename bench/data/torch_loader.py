"""torch.utils.data.DataLoader: in this process, or with two worker processes."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from serve import serve
from torch.utils.data import DataLoader, Dataset, TensorDataset
from workloads import arrays, augment, file_of, images

if TYPE_CHECKING:
    from pathlib import Path

    from workloads import Workload

WORKERS = int(sys.argv[2])


class Augmented(Dataset):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple:
        return augment(self.x[row]), self.y[row]


class Rows(Augmented):
    def __getitem__(self, row: int) -> tuple:
        return self.x[row], self.y[row]


def make(workload: Workload, folder: Path) -> partial:
    if workload.kind == "memory":
        data = TensorDataset(*map(torch.from_numpy, arrays(workload.items)))
    elif workload.kind == "map":
        data = Augmented(*images(workload.items))
    else:
        x = np.load(file_of(folder, workload.items), mmap_mode="r+")
        data = Rows(x, np.arange(len(x)))
    # A DataLoader shuffles all items: it knows no buffer.
    return partial(
        DataLoader,
        data,
        workload.batch_size,
        shuffle=workload.shuffle > 0,
        num_workers=WORKERS,
    )


if __name__ == "__main__":
    serve(make)
