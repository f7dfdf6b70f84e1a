"""Small pictures of ten classes, 32 by 32 pixels."""

from __future__ import annotations

import numpy as np

from memcfg.nn.datasets._fetched import Parts, batch_of, fetched

__all__ = ["load_data"]

_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


def load_data() -> Parts:
    """Load CIFAR-10, which is downloaded once.

    Returns
    -------
    tuple
        ``(x_train, y_train), (x_test, y_test)``: uint8 images
        (50000, 32, 32, 3) and (10000, 32, 32, 3), and labels (n, 1) from 0 to 9.

    Raises
    ------
    ValueError
        If the downloaded file is another one.
    OSError
        If the file is not there and cannot be downloaded.
    """
    name = "cifar-10-batches-py-target"
    folder = fetched(name, _URL, _SHA256, extract=True) / "cifar-10-batches-py"
    several = [batch_of(folder / f"data_batch_{i}", "labels") for i in range(1, 6)]
    x, y = (np.concatenate(each) for each in zip(*several, strict=True))
    return (x, y), batch_of(folder / "test_batch", "labels")
