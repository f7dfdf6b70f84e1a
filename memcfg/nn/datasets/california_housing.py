"""Blocks of California, and the values of their houses."""

from __future__ import annotations

from memcfg._checks import unknown
from memcfg.nn.datasets._fetched import KERAS, Parts, arrays_of, fetched, parts

__all__ = ["load_data"]

_SHA256 = "1a2e3a52e0398de6463aebe6f4a8da34fb21fbb6b934cf88c3425e766f2a1a6f"


def load_data(
    version: str = "large",
    path: str = "california_housing.npz",
    test_split: float = 0.2,
    seed: int = 113,
) -> Parts:
    """Load the table, which is downloaded once, in a random order.

    Parameters
    ----------
    version : {"large", "small"}, default "large"
        Whether all rows are taken, or the first 600.
    path : str, default "california_housing.npz"
        The name of the file in the folder of `nn.utils.get_file`.
    test_split : float, default 0.2
        The fraction of the rows that is for tests.
    seed : int, default 113
        The seed of the order.

    Returns
    -------
    tuple
        ``(x_train, y_train), (x_test, y_test)``: rows of 8 numbers,
        and values in dollars.

    Raises
    ------
    ValueError
        If an argument is out of range, or the downloaded file is another one.
    OSError
        If the file is not there and cannot be downloaded.
    """
    if version not in ("large", "small"):
        raise unknown("version", str(version), ("large", "small"))
    x, y = arrays_of(fetched(path, f"{KERAS}california_housing.npz", _SHA256), "x", "y")
    if version == "small":
        x, y = x[:600], y[:600]
    return parts(x, y, test_split, seed)
