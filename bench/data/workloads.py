"""What each peer is to iterate over, made from a seed: arrays, a file, a function.

The same bytes and the same NumPy function for everybody. Imported by each peer in a
process of its own, so it imports nothing but NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WORKLOADS", "Workload", "arrays", "augment", "file_of", "images"]


@dataclass(frozen=True)
class Workload:
    """A pass over items in batches, and what is done to them before."""

    name: str
    kind: str  # "memory", "map", or "file"
    items: int
    batch_size: int
    shuffle: int = 0  # elements of the shuffle's buffer; 0: in order


WORKLOADS = {
    each.name: each
    for each in (
        Workload("memory, batch 32", "memory", 60_000, 32, shuffle=10_000),
        Workload("memory, batch 256", "memory", 60_000, 256, shuffle=10_000),
        Workload("map, batch 64", "map", 8_192, 64, shuffle=1_024),
        Workload("file in order, batch 64", "file", 20_000, 64),
        Workload("file shuffled, batch 64", "file", 20_000, 64, shuffle=1_024),
    )
}
ROW = 3_072  # float32 numbers in a row of the file: 12 KiB


def arrays(items: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits of 28 by 28 float32, and their labels."""
    generator = np.random.default_rng(0)
    x = generator.random((items, 784), np.float32)
    return x, generator.integers(0, 10, items)


def images(items: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of 32 by 32 by 3 bytes, and their labels."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (items, 32, 32, 3), np.uint8)
    return x, generator.integers(0, 10, items)


def augment(image: np.ndarray) -> np.ndarray:
    """Scale a picture to zero mean, mirror it, and cut it out of a wider frame."""
    scaled = image.astype(np.float32) * np.float32(1 / 255) - np.float32(0.5)
    framed = np.zeros((40, 40, 3), np.float32)
    framed[4:36, 4:36] = scaled[:, ::-1]
    top, left = int(image[0, 0, 0]) % 9, int(image[0, 0, 1]) % 9
    cut = framed[top : top + 32, left : left + 32]
    return (cut - cut.mean()) / (cut.std() + np.float32(1e-6))


def file_of(folder: Path, items: int) -> Path:
    """Write the rows of a .npy file, some at a time."""
    path = folder / f"rows-{items}.npy"
    if not path.exists():
        rows = np.lib.format.open_memmap(path, "w+", np.float32, (items, ROW))
        generator = np.random.default_rng(0)
        for start in range(0, items, 1_000):
            stop = min(start + 1_000, items)
            rows[start:stop] = generator.random((stop - start, ROW), np.float32)
        rows.flush()
        del rows
    return path
