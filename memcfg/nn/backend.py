"""Keras's settings of numbers and names, as `keras.backend` has them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, NoReturn

from memcfg._missing import by_name, refuse
from memcfg.nn._attributes import check_name, forget_names, next_number
from memcfg.nn._batch_parts import is_keras_tensor, standardize_dtype

__all__ = [
    "backend",
    "clear_session",
    "epsilon",
    "floatx",
    "get_uid",
    "image_data_format",
    "is_float_dtype",
    "is_int_dtype",
    "is_keras_tensor",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "standardize_dtype",
]

_EPSILON = 1e-7
_OLDER = by_name(  # of Keras before 3
    {
        "get_value eval": "use variable.numpy()",
        "set_value": "use variable.assign(value)",
        "batch_get_value": "use model.get_weights()",
        "batch_set_value": "use model.set_weights(values)",
        "function": "use Model(inputs, outputs), which predicts, or memcfg.function",
        "gradients": "use memcfg.GradientTape",
        "placeholder": "use Input",
        "int_shape": "use x.shape",
        "learning_phase set_learning_phase": "give calls training=True or False",
    }
)


def backend() -> str:
    """Return the name of what computes.

    Returns
    -------
    str
        ``"memcfg"``.
    """
    return "memcfg"


def clear_session(free_memory: bool = True) -> None:
    """Start over: automatic names of layers are numbered from the beginning.

    A model that is in use keeps its memory; `Model.close` returns it at once.

    Parameters
    ----------
    free_memory : bool, default True
        Whether to collect models without references, and free their memory.
    """
    forget_names()
    if free_memory:
        gc.collect()


def get_uid(prefix: str = "") -> int:
    """Return how often this was called with a prefix, this time included.

    Parameters
    ----------
    prefix : str, default ""
        The prefix.

    Returns
    -------
    int
        The number, from 1 after `clear_session`.
    """
    return next_number(f"uid/{prefix}") + 1


def epsilon() -> float:
    """Return the small number that divisors and logarithms are kept above.

    Returns
    -------
    float
        1e-7.
    """
    return _EPSILON


def set_epsilon(value: float) -> None:
    """Accept the number that `epsilon` returns, and no other.

    Parameters
    ----------
    value : float
        1e-7.

    Raises
    ------
    ValueError
        For any other number.
    """
    if value != _EPSILON:
        raise ValueError(
            f"epsilon is {_EPSILON} in all ops, and cannot be {value!r}: pass epsilon "
            "to the layer or the optimizer"
        )


def floatx() -> str:
    """Return the dtype of weights.

    Returns
    -------
    str
        ``"float32"``.
    """
    return "float32"


def set_floatx(value: str) -> None:
    """Accept the dtype that `floatx` returns, and no other.

    Parameters
    ----------
    value : str
        ``"float32"``.

    Raises
    ------
    ValueError
        For any other dtype.
    """
    if value != "float32":
        raise ValueError(
            f"weights are float32, not {value}: to compute in bfloat16, use "
            "set_dtype_policy('mixed_bfloat16')"
        )


def image_data_format() -> str:
    """Return where the channels of images are by default.

    Returns
    -------
    str
        ``"channels_last"``.
    """
    return "channels_last"


def set_image_data_format(data_format: str) -> None:
    """Accept the format that `image_data_format` returns, and no other.

    Parameters
    ----------
    data_format : str
        ``"channels_last"``.

    Raises
    ------
    ValueError
        For any other format.
    """
    if data_format != "channels_last":
        raise ValueError(
            f"the default is channels_last, not {data_format!r}: pass "
            "data_format='channels_first' to layers"
        )


def is_float_dtype(dtype: Any) -> bool:
    """Return whether a dtype is one of floating-point numbers.

    Parameters
    ----------
    dtype : str or dtype
        The dtype.

    Returns
    -------
    bool
        Whether it is, such as ``"bfloat16"``.
    """
    return "float" in standardize_dtype(dtype)


def is_int_dtype(dtype: Any) -> bool:
    """Return whether a dtype is one of integers.

    Parameters
    ----------
    dtype : str or dtype
        The dtype.

    Returns
    -------
    bool
        Whether it is, such as ``"uint8"``; not for bool.
    """
    return "int" in standardize_dtype(dtype)


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        check_name(name)
        why = _OLDER.get(name, "the functions of tensors are in nn.ops")
        refuse(__name__, name, f": {why}")
