"""What arrays of samples and labels must be.

Nothing is converted that would copy a user's samples; labels, four bytes each, are.
"""

from __future__ import annotations

from inspect import isfunction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg.data import DataSet, MultiDataSet
from memcfg.nn.layers._layer import Shape, show_shape
from memcfg.workspaces import check_valid

__all__ = ["Target", "check_labels", "check_shape", "check_x", "check_y"]


class Target(NamedTuple):
    """What a model wants of a batch."""

    shape: Shape
    classes: int | None


def check_x(x: Any, what: str = "x") -> npt.NDArray[np.float32]:
    """Return samples as a plain array, or say what is wrong with them."""
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a NumPy array of float32, not {type(x).__name__}" + _hint(x)
        )
    if x.dtype != np.float32:
        raise TypeError(
            f'{what} must be float32, got {x.dtype}: pass {what}.astype("float32")'
        )
    if x.ndim < 2:
        raise ValueError(
            f"{what} needs an axis of samples and one more at least, got {x.shape}"
        )
    if x.size == 0:
        raise ValueError(f"{what} is empty: its shape is {x.shape}")
    check_valid(x, f"read {what}")
    return np.asarray(x)


def _hint(x: Any) -> str:
    """Tell what to do with what is no plain array."""
    if isinstance(x, np.ndarray):
        return "; fill its masked places first"
    if isinstance(x, DataSet | MultiDataSet):
        return "; in a list it is a stream of one batch: [data_set]"
    if isfunction(x):
        return "; if it makes batches, call it, or give Dataset.from_generator of it"
    return ""


def check_shape(x: npt.NDArray[np.float32], wanted: Shape, what: str = "x") -> None:
    """Refuse samples of another shape than the model's input."""
    if x.shape[1:] != wanted:
        raise ValueError(
            f"{what} has shape {x.shape}, but the model reads {show_shape(wanted)}"
        )


def check_y(y: Any, samples: int, what: str = "y") -> npt.NDArray[Any]:
    """Return labels as a one-dimensional array, or say what is wrong with them."""
    if not isinstance(y, np.ndarray) or isinstance(y, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a NumPy array of integer labels, not {type(y).__name__}"
        )
    if y.ndim == 0 or y.shape[1:] not in ((), (1,)):
        raise ValueError(
            f"{what} has shape {y.shape}; labels have shape ({samples},) or "
            f"({samples}, 1), one integer a sample"
            + (f": if they are one-hot, pass {what}.argmax(1)" if y.ndim == 2 else "")
        )
    if y.dtype.kind not in "iu":
        raise TypeError(
            f"{what} holds integer class labels; got {y.dtype}: pass "
            f'{what}.astype("int64") if its values are labels'
        )
    if len(y) != samples:
        raise ValueError(
            f"the samples and their labels differ in number: {samples} samples, "
            f"{what} has shape {y.shape}"
        )
    check_valid(y, f"read {what}")
    return np.asarray(y).reshape(samples)


def check_labels(
    y: npt.NDArray[Any], classes: int | None, what: str = "y", first: int = 0
) -> npt.NDArray[np.int32]:
    """Return labels as int32 after checking each against the number of classes."""
    if classes is None:
        return np.ascontiguousarray(y, np.int32)
    # Not min() and max(): each is a call of Python, and this is amid each step.
    if np.minimum.reduce(y) < 0 or np.maximum.reduce(y) >= classes:
        place = int(np.flatnonzero((y < 0) | (y >= classes))[0])
        raise ValueError(
            f"label {int(y[place])} at {what}[{first + place}] is out of range: the "
            f"model has {classes} outputs, so labels are 0 to {classes - 1}"
        )
    return np.ascontiguousarray(y, np.int32)
