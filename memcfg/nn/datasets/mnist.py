"""Handwritten digits, 28 by 28 pixels."""

from __future__ import annotations

from memcfg.nn.datasets._fetched import KERAS, Parts, arrays_of, fetched

__all__ = ["load_data"]

_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"


def load_data(path: str = "mnist.npz") -> Parts:
    """Load MNIST, which is downloaded once.

    Parameters
    ----------
    path : str, default "mnist.npz"
        The name of the file in the folder of `nn.utils.get_file`.

    Returns
    -------
    tuple
        ``(x_train, y_train), (x_test, y_test)``: uint8 images
        (60000, 28, 28) and (10000, 28, 28), and labels from 0 to 9.

    Raises
    ------
    ValueError
        If the downloaded file is another one.
    OSError
        If the file is not there and cannot be downloaded.
    """
    names = ("x_train", "y_train", "x_test", "y_test")
    a, b, c, d = arrays_of(fetched(path, f"{KERAS}mnist.npz", _SHA256), *names)
    return (a, b), (c, d)
