"""Arrays of examples: what one is, and how several are put one behind the other.

Owns the checks, and the masks of those that have none. Refuses data sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.ma import MaskedArray  # here: loaded later, its arrays would be in a batch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Array", "Arrays", "checked", "joined"]

Array = np.ndarray[Any, Any]
Arrays = tuple[Array | None, ...]


def checked(value: Any, what: str, examples: int | None = None) -> Array:
    """Return an array of examples, or say what is wrong with it.

    Parameters
    ----------
    value : array_like
        An array is itself, without a copy.
    what : str
        Its name, for the message.
    examples : int, optional
        How many there must be.

    Returns
    -------
    numpy.ndarray
        Its first axis counts examples.

    Raises
    ------
    TypeError
        If it is a masked array, or its elements are objects.
    ValueError
        If it is ragged or a scalar, or the number of examples is another.
    """
    if isinstance(value, MaskedArray):
        raise TypeError(f"{what} is a masked array: fill it, and pass its mask apart")
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"{what} is an array of numbers, not of objects: {value!r:.80}")
    if array.ndim == 0:
        raise ValueError(f"{what} needs a first axis that counts examples")
    if examples is not None and len(array) != examples:
        raise ValueError(
            f"{what} has {len(array)} examples, and the features have {examples}"
        )
    return array


def joined(
    name: str, arrays: Sequence[Array | None], lengths: Sequence[int]
) -> Array | None:
    """Put arrays of several data sets one behind the other.

    Parameters
    ----------
    name : str
        What they are, for the message; one with "mask" in it can be left out.
    arrays : sequence of (numpy.ndarray or None)
        One of each data set.
    lengths : sequence of int
        How many examples each data set has.

    Returns
    -------
    numpy.ndarray or None
        A copy; None where there are none.

    Raises
    ------
    ValueError
        If shapes or dtypes differ, or only some have what is no mask.
    """
    like = next((array for array in arrays if array is not None), None)
    if like is None:
        return None
    present = [
        _ones(name, like, length) if array is None else array
        for array, length in zip(arrays, lengths, strict=True)
    ]
    for array in present:
        if array.shape[1:] != like.shape[1:] or array.dtype != like.dtype:
            raise ValueError(
                f"{name} of {array.dtype}{array.shape} does not merge with "
                f"{like.dtype}{like.shape}"
            )
    return np.concatenate(present)


def _ones(name: str, like: Array, length: int) -> Array:
    """Make the mask of a data set that has none: everything counts."""
    if "mask" not in name:
        raise ValueError(f"some data sets have {name}, and some have none")
    return np.ones((length, *like.shape[1:]), like.dtype)
