"""Where data sets come from, and how their files are read."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from memcfg.errors import FormatError
from memcfg.nn.loading._get_file import get_file

__all__ = ["KERAS", "arrays_of", "batch_of", "fetched", "parts"]

KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
Parts = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

_RECONSTRUCT = np.zeros(0).__reduce__()[0]
# What a pickle of arrays calls, and nothing else.
_CALLED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, how: text.encode(how),
}


def fetched(
    name: str, origin: str, file_hash: str | None = None, **options: Any
) -> Path:
    """Return the path of a file, or of the folder of an archive."""
    return Path(get_file(name, origin, file_hash=file_hash, **options))


def arrays_of(path: Path, *names: str) -> list[np.ndarray]:
    """Return arrays of a file of NumPy's, which has no pickles."""
    with np.load(path, allow_pickle=False) as file:
        return [file[name] for name in names]


def parts(x: np.ndarray, y: np.ndarray, test_split: float, seed: int) -> Parts:
    """Return rows in Keras's random order, in two parts."""
    if not 0 <= test_split < 1:
        raise ValueError(f"test_split must be in [0, 1), not {test_split!r}")
    order = np.arange(len(x))
    np.random.RandomState(seed).shuffle(order)
    cut = int(len(x) * (1 - test_split))
    first, second = order[:cut], order[cut:]
    return (x[first], y[first]), (x[second], y[second])


class _Arrays(pickle.Unpickler):
    """Reads pickles of arrays, lists and dicts; nothing else is called."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the functions that arrays are made by."""
        known = _CALLED.get((module, name))
        if known is None:
            raise FormatError(f"a file of images would call {module}.{name}")
        return known


def batch_of(path: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 32, 32, 3) and labels (n, 1) of a file of CIFAR."""
    data = _Arrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    images = data[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.array(data[label.encode()], np.uint8)
    return images, labels[:, None]
