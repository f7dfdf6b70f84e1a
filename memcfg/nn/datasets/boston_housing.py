"""Houses of Boston, and their values."""

from __future__ import annotations

from memcfg.nn.datasets._fetched import KERAS, Parts, arrays_of, fetched, parts

__all__ = ["load_data"]

_SHA256 = "f553886a1f8d56431e820c5b82552d9d95cfcb96d1e678153f8839538947dff5"


def load_data(
    path: str = "boston_housing.npz",
    test_split: float = 0.2,
    seed: int = 113,
) -> Parts:
    """Load the table, which is downloaded once, in a random order.

    Parameters
    ----------
    path : str, default "boston_housing.npz"
        The name of the file in the folder of `nn.utils.get_file`.
    test_split : float, default 0.2
        The fraction of the rows that is for tests.
    seed : int, default 113
        The seed of the order.

    Returns
    -------
    tuple
        ``(x_train, y_train), (x_test, y_test)``: rows of 13 numbers,
        and values in thousands of dollars.

    Raises
    ------
    ValueError
        If an argument is out of range, or the downloaded file is another one.
    OSError
        If the file is not there and cannot be downloaded.
    """
    x, y = arrays_of(fetched(path, f"{KERAS}boston_housing.npz", _SHA256), "x", "y")
    return parts(x, y, test_split, seed)
