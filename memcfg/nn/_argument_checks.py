"""Checks of numbers, windows, padding and activations, shared by layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.ops import op_types
from memcfg.ops.mathematics import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "activation_name",
    "check_channels_last",
    "constant",
    "integer",
    "limit_elsewhere",
    "nonnegative",
    "numbers",
    "padding_name",
    "padding_of",
    "pair",
    "real",
    "resolve_padding",
    "sides",
    "unit_interval",
]

Pair = tuple[int, int]
Sides = tuple[Pair, ...]  # (before, after) of each axis

_ALIASES = {"swish": "silu", "hard_swish": "hard_silu"}
_ALONG_AN_AXIS = ("log_softmax", "softmax")  # activations along the last axis
_FUNCTIONS = {"absolute", "log1p", "reciprocal_root"}  # not shown as activations
_LARGEST = float(np.finfo(np.float32).max)


def integer(value: Any, what: str, least: int | None = 1) -> int:
    """Return an int that is at least `least`; None allows any int."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{what} must be an integer, got {value!r}")
    if least is not None and value < least:
        wanted = {0: "zero or more", 1: "positive"}.get(least, f"{least} or more")
        raise ValueError(f"{what} must be {wanted}, got {value}")
    return int(value)


def limit_elsewhere(limit: Any) -> str:
    """Return where to set a limit that was given to a model."""
    if not isinstance(limit, int | str) or isinstance(limit, bool):
        limit = "1GiB"
    return (
        "limits of memory are set for a device, by memcfg.config.set_memory_limit("
        f"'CPU:0', {limit!r}), or for a block, by `with memcfg.budget({limit!r}):`"
    )


def pair(value: Any, what: str) -> Pair:
    """Return (height, width) from one integer or a pair."""
    if not isinstance(value, list | tuple):
        number = integer(value, what)
        return number, number
    if len(value) != 2:
        raise ValueError(f"{what} must be one integer or two, got {value!r}")
    return integer(value[0], what), integer(value[1], what)


def numbers(value: Any, count: int, what: str) -> tuple[int, ...]:
    """Return one positive integer per dimension, from a single one or a list."""
    if count == 2:
        return pair(value, what)
    if not isinstance(value, list | tuple):
        return (integer(value, what),) * count
    if len(value) != count:
        more = " or three" if count == 3 else ""
        raise ValueError(f"{what} must be one integer{more}, got {value!r}")
    return tuple(integer(each, what) for each in value)


def sides(value: Any, axes: int, what: str) -> Sides:
    """Return (before, after) of each axis from a number, one per axis, or pairs."""
    if not isinstance(value, list | tuple):
        value = (value,) * axes if axes > 1 else ((value, value),)
    elif axes == 1 and len(value) == 2 and not isinstance(value[0], list | tuple):
        value = (value,)
    if len(value) != axes:
        raise ValueError(f"{what} must have {axes} entries, got {value!r}")
    result = []
    for each in value:
        both = tuple(each) if isinstance(each, list | tuple) else (each, each)
        if len(both) != 2:
            raise ValueError(f"{what} must be one number or two per axis, got {each!r}")
        result.append((integer(both[0], what, 0), integer(both[1], what, 0)))
    return tuple(result)


def unit_interval(value: Any, what: str) -> float:
    """Return a number that lies in ``[0, 1)``, also when rounded to float32."""
    number = real(value, what)
    if not 0 <= number < 1:
        raise ValueError(f"{what} must be in [0, 1), got {value!r}")
    if np.float32(number) == 1:
        raise ValueError(f"{what} must be below 1 in float32, got {value!r}")
    return number


def real(value: Any, what: str) -> float:
    """Return a number that is finite in float32."""
    if isinstance(value, bool | str) or not isinstance(
        value, int | float | np.integer | np.floating
    ):
        raise TypeError(f"{what} must be a number, got {value!r}")
    number = int(value) if isinstance(value, int | np.integer) else float(value)
    if not -_LARGEST <= number <= _LARGEST:  # False for NaN, too
        raise ValueError(f"{what} must be finite in float32, got {value!r}")
    return float(number)


def constant(value: Any, what: str) -> float:
    """Return a number like `real`, but permit infinity and NaN."""
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return float(value)
    return real(value, what)


def nonnegative(value: Any, what: str) -> float:
    """Return a finite number of zero or more."""
    number = real(value, what)
    if number < 0:
        raise ValueError(f"{what} must be zero or more, got {value!r}")
    return number


def check_channels_last(data_format: str | None, layer: str) -> None:
    """Raise ValueError for any data format except channels-last."""
    if data_format not in (None, "channels_last"):
        raise ValueError(
            f"{layer} supports data_format='channels_last' only, got {data_format!r}"
        )


def activation_name(activation: Any, layer: str) -> Any:
    """Return the op type of an activation such as ``"relu"``; None for identity.

    A function of the user's, which layers trace, is returned as it is.
    """
    if activation in (None, "linear"):
        return None
    activation = getattr(activation, "activation", activation)
    if activation == "linear":
        return None
    if isinstance(activation, str):
        activation = _ALIASES.get(activation, str(activation))  # also of NumPy's
    known = sorted(
        kind.name for kind in op_types() if kind.formula and kind.formula.is_activation
    )
    known += _ALONG_AN_AXIS
    if isinstance(activation, str) and activation in known:
        return activation
    if not isinstance(activation, str):
        if callable(activation) and not isinstance(activation, type):
            return activation
        raise ValueError(
            f"{layer}: activation must be a name such as 'relu' or a function of a "
            f"symbolic tensor, got {activation!r}"
        )
    shown = [name for name in known if name not in FUNCTIONS | _FUNCTIONS]
    raise unknown("activation", activation, ["linear", *shown], f"{layer}: ")


def padding_name(
    padding: Any, layer: str, known: Sequence[str] = ("valid", "same")
) -> str:
    """Return the name of a padding mode that a layer supports, in lower case."""
    name = padding.lower() if isinstance(padding, str) else padding
    if name not in known:
        *first, last = map(repr, known)
        raise ValueError(
            f"{layer}: padding must be {', '.join(first)} or {last}, got {padding!r}"
        )
    return str(name)


def padding_of(
    padding: Any, axes: int, layer: str, known: Sequence[str] = ("valid", "same")
) -> str | Sides:
    """Return a padding mode by name, or numbers of zeros on each side."""
    if isinstance(padding, int | np.integer | list | tuple):
        return sides(padding, axes, f"{layer}: padding")
    return padding_name(padding, layer, known)


def resolve_padding(
    padding: str | Sides,
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> Sides:
    """Return the padding of all axes in zeros, by TensorFlow's rules for names.

    Numbers are of the last axes, and causal padding is of the last one.
    """
    none = ((0, 0),) * len(sizes)
    if not isinstance(padding, str):
        return (*none, *padding)[-len(sizes) :]
    dilation = (1,) * len(sizes) if dilation is None else dilation
    if padding == "valid":
        return none
    if padding == "causal":
        return (*none[1:], ((window[-1] - 1) * dilation[-1], 0))
    return tuple(map(_same, sizes, window, strides, dilation))


def _same(size: int, window: int, stride: int, dilation: int) -> Pair:
    places = -(-size // stride)
    reach = (window - 1) * dilation + 1
    total = max((places - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2
