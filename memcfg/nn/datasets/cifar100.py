"""Small pictures of a hundred classes, 32 by 32 pixels."""

from __future__ import annotations

from memcfg._checks import unknown
from memcfg.nn.datasets._fetched import Parts, batch_of, fetched

__all__ = ["load_data"]

_URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
_SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"


def load_data(label_mode: str = "fine") -> Parts:
    """Load CIFAR-100, which is downloaded once.

    Parameters
    ----------
    label_mode : {"fine", "coarse"}, default "fine"
        Whether labels are of a hundred classes, or of twenty groups of them.

    Returns
    -------
    tuple
        ``(x_train, y_train), (x_test, y_test)``: uint8 images
        (50000, 32, 32, 3) and (10000, 32, 32, 3), and labels (n, 1).

    Raises
    ------
    ValueError
        If `label_mode` is unknown, or the downloaded file is another one.
    OSError
        If the file is not there and cannot be downloaded.
    """
    if label_mode not in ("fine", "coarse"):
        raise unknown("label_mode", str(label_mode), ("fine", "coarse"))
    name = "cifar-100-python-target"
    folder = fetched(name, _URL, _SHA256, extract=True) / "cifar-100-python"
    train, test = (
        batch_of(folder / each, f"{label_mode}_labels") for each in ("train", "test")
    )
    return train, test
