"""What of `fit`'s data is trained on, and what is held out."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg.nn._arguments import unit_interval
from memcfg.nn._data import check_x, check_y

__all__ = ["Parts", "split"]

Array = npt.NDArray[Any]


class Parts(NamedTuple):
    """Samples and labels to train on, and those held out.

    Parameters
    ----------
    x : numpy.ndarray
        float32 samples.
    y : numpy.ndarray
        Integer labels of shape ``(n,)``.
    held : tuple of numpy.ndarray, or None
        The same of what is held out.
    """

    x: npt.NDArray[np.float32]
    y: Array
    held: tuple[Array, Array] | None


def split(x: Any, y: Any, part: Any, given: Any) -> Parts:
    """Check arrays, and hold out a part of them if asked.

    Parameters
    ----------
    x, y : numpy.ndarray
        Samples and labels.
    part : float
        The part to hold out, from the end, in ``[0, 1)``.
    given : tuple of numpy.ndarray, or None
        ``(x, y)`` to hold out instead.

    Returns
    -------
    Parts
        Views of the arrays.

    Raises
    ------
    TypeError
        If an array has the wrong type.
    ValueError
        If an array has the wrong shape, both ways of holding out are used, or a
        part is empty.
    """
    samples = check_x(x)
    labels = check_y(y, len(samples))
    fraction = unit_interval(part, "validation_split")
    if given is not None:
        if fraction:
            raise ValueError("give validation_split or validation_data, not both")
        return Parts(samples, labels, _given(given))
    if not fraction:
        return Parts(samples, labels, None)
    cut = math.floor(len(samples) * (1 - fraction))
    if cut in (0, len(samples)):
        raise ValueError(
            f"validation_split={part!r} of {len(samples)} samples leaves one part empty"
        )
    return Parts(samples[:cut], labels[:cut], (samples[cut:], labels[cut:]))


def _given(given: Any) -> tuple[Array, Array]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError("validation_data is a tuple (x, y)")
    x = check_x(given[0], "validation x")
    return x, check_y(given[1], len(x), "validation y")
