"""Weights as lists and as files.

Owns the check that weights belong to a model, and the safetensors format. Refuses
half measures: everything is checked before the first weight changes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from memcfg.errors import WeightsError
from memcfg.files import open_file, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.nn._network import Weight

__all__ = ["check_list", "check_mapping", "read_file", "write_file"]

Floats = npt.NDArray[np.float32]


def check_list(weights: Sequence[Weight], values: Any) -> list[Floats]:
    """Return values for a model's weights, or say why they are not.

    Parameters
    ----------
    weights : sequence of Weight
        The model's, in order.
    values : sequence of array_like
        One for each; converted to float32.

    Returns
    -------
    list of numpy.ndarray
        float32.

    Raises
    ------
    WeightsError
        If there are more or fewer, or one is not numbers of the right shape.
    """
    if not isinstance(values, list | tuple):
        raise WeightsError(f"weights are a list of arrays, not {type(values).__name__}")
    if len(values) != len(weights):
        raise WeightsError(
            f"the model has {len(weights)} weights, the list has {len(values)}"
        )
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError as error:
        raise WeightsError(f"a weight is not an array: {error}") from error
    for weight, array in zip(weights, arrays, strict=True):
        if array.dtype.kind not in "fiu":
            raise WeightsError(f"{weight.name!r} is float32, not {array.dtype}")
        _check_shape(weight, weight.name, array)
    return [array.astype(np.float32) for array in arrays]


def check_mapping(
    weights: Sequence[Weight], values: Mapping[str, npt.NDArray[Any]], where: str
) -> list[Floats]:
    """Return values for a model's weights from a file's, or say why they are not.

    Parameters
    ----------
    weights : sequence of Weight
        The model's, in order.
    values : mapping of str to numpy.ndarray
        By name in the file.
    where : str
        The file, for the message.

    Returns
    -------
    list of numpy.ndarray
        float32.

    Raises
    ------
    WeightsError
        If a weight is missing or has another shape or dtype, or the file has more.
    """
    wanted = {weight.key for weight in weights}
    missing = sorted(wanted - values.keys())
    extra = sorted(values.keys() - wanted)
    if missing or extra:
        raise WeightsError(
            f"{where} holds the weights of another architecture: missing "
            f"{_some(missing)}; not in the model {_some(extra)}"
        )
    for weight in weights:
        array = values[weight.key]
        _check_shape(weight, weight.key, array)
        if array.dtype != np.float32:
            raise WeightsError(
                f"{where}: {weight.key!r} is {array.dtype}, the model's is float32"
            )
    return [np.asarray(values[weight.key], np.float32) for weight in weights]


def write_file(path: str | os.PathLike[str], values: Mapping[str, Floats]) -> None:
    """Write weights to a safetensors file, all or nothing.

    Parameters
    ----------
    path : str or path-like
        The file; replaced if it exists.
    values : mapping of str to numpy.ndarray
        By name.

    Raises
    ------
    OSError
        If it cannot be written; a file that was there is as it was.
    """
    data = save(dict(values), metadata={"format": "memcfg.weights/1"})
    write_atomically(path, data)


def read_file(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """Read a safetensors file.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    dict of str to numpy.ndarray
        By name.

    Raises
    ------
    OSError
        If it cannot be read.
    WeightsError
        If it is truncated or not a safetensors file.
    """
    with open_file(path) as file:
        data = file.read()
    try:
        return load(data)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{os.fspath(path)} is damaged or not a safetensors file of float32 "
            f"weights: {error}"
        ) from error


def _check_shape(weight: Weight, name: str, array: npt.NDArray[Any]) -> None:
    if array.shape != weight.shape:
        raise WeightsError(
            f"{name!r} has shape {weight.shape} in the model, not {array.shape}"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (shown or "nothing") + more
