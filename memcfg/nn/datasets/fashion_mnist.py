"""Pictures of clothes, 28 by 28 pixels."""

from __future__ import annotations

import gzip

import numpy as np

from memcfg.nn.datasets._fetched import KERAS, Parts, fetched

__all__ = ["load_data"]


def _read(name: str, before: int) -> np.ndarray:
    """Return the bytes of a file behind those that say its shape."""
    folder = "datasets/fashion-mnist"
    path = fetched(name, KERAS + name, cache_subdir=folder)
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=before)


def load_data() -> Parts:
    """Load Fashion-MNIST, which is downloaded once.

    Returns
    -------
    tuple
        ``(x_train, y_train), (x_test, y_test)``: uint8 images
        (60000, 28, 28) and (10000, 28, 28), and labels from 0 to 9.

    Raises
    ------
    ValueError
        If a file has another size.
    OSError
        If the file is not there and cannot be downloaded.
    """
    made = []
    for part in ("train", "t10k"):
        labels = _read(f"{part}-labels-idx1-ubyte.gz", 8)
        images = _read(f"{part}-images-idx3-ubyte.gz", 16)
        made.append((images.reshape(len(labels), 28, 28), labels))
    train, test = made
    return train, test
