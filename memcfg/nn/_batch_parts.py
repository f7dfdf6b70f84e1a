"""Small functions of Keras's utilities: parts of batches, symbolic tensors, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._network import traverse
from memcfg.nn.layers._layer import InputLayer, SymbolicTensor

__all__ = [
    "get_source_inputs",
    "is_keras_tensor",
    "pack_x_y_sample_weight",
    "standardize_dtype",
    "unpack_x_y_sample_weight",
]


def pack_x_y_sample_weight(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Return a batch of samples, targets and sample weights, without absent ones.

    Parameters
    ----------
    x, y, sample_weight : object
        The parts of a batch, or None for those that are absent.

    Returns
    -------
    object
        ``x``, or ``(x,)`` if x is a list or a tuple; ``(x, y)``; or ``(x, y,
        sample_weight)``.
    """
    if y is None and sample_weight is None:
        return (x,) if isinstance(x, list | tuple) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def unpack_x_y_sample_weight(data: Any) -> tuple[Any, Any, Any]:
    """Return samples, targets and sample weights of a batch, with None for absent ones.

    Parameters
    ----------
    data : object
        ``x``, ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``.

    Returns
    -------
    tuple
        ``(x, y, sample_weight)``.

    Raises
    ------
    ValueError
        If the batch has more parts.
    """
    given = tuple(data) if isinstance(data, list | tuple) else (data,)
    if len(given) > 3:
        raise ValueError(
            f"a batch is x, (x, y) or (x, y, sample_weight), got {len(given)} parts"
        )
    return (*given, None, None)[:3]


def is_keras_tensor(x: Any) -> bool:
    """Return whether an object is a symbolic tensor.

    Parameters
    ----------
    x : object
        Any object.

    Returns
    -------
    bool
        Whether it is a `SymbolicTensor`.
    """
    return isinstance(x, SymbolicTensor)


def get_source_inputs(tensor: SymbolicTensor) -> list[SymbolicTensor]:
    """Return the inputs that a symbolic tensor is computed from.

    Parameters
    ----------
    tensor : SymbolicTensor
        The result of layers.

    Returns
    -------
    list of SymbolicTensor
        Results of `Input`, in the order of a traversal from the tensor.

    Raises
    ------
    TypeError
        If the argument is no symbolic tensor.
    """
    if not isinstance(tensor, SymbolicTensor):
        raise TypeError(f"a symbolic tensor is expected, got {tensor!r}")
    nodes, _ = traverse([tensor.node])
    return [node.outputs[0] for node in nodes if isinstance(node.layer, InputLayer)]


def standardize_dtype(dtype: Any) -> str:
    """Return the name of a dtype.

    Parameters
    ----------
    dtype : str, dtype or None
        What `numpy.dtype` takes, ``"bfloat16"``, or a dtype with a name, such as one of
        PyTorch. None: the default of weights, float32.

    Returns
    -------
    str
        The name, such as ``"float32"``.

    Raises
    ------
    ValueError
        If it is no dtype.
    """
    if dtype is None:
        return "float32"
    text = str(dtype).rpartition(".")[2] if not isinstance(dtype, type) else dtype
    if text == "bfloat16":
        return "bfloat16"
    try:
        return np.dtype(text).name
    except TypeError:
        raise ValueError(f"{dtype!r} is no dtype") from None
