"""What `parse_example` takes: the dtypes and shapes of an example's features."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count, flag

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXT = np.dtype("S")
_DTYPES = (np.dtype(np.float32), np.dtype(np.int64), _TEXT)


@dataclass(frozen=True, init=False)
class FixedLenFeature:
    """A feature of a known number of values.

    Parameters
    ----------
    shape : iterable of int
        The shape of the array; ``()`` is a scalar.
    dtype : dtype
        float32, int64, or bytes (also ``"string"``).
    default_value : array_like, optional
        The value where an example lacks the feature: one of the shape, or a scalar.
        None: the feature is required.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, the dtype is another, or the default value
        has another shape.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    default_value: Any

    def __init__(
        self, shape: Iterable[int], dtype: Any, default_value: Any = None
    ) -> None:
        _set(self, shape=_as_shape(shape), dtype=_as_dtype(dtype))
        default = default_value
        if default is not None:
            default = np.broadcast_to(np.array(default, self.dtype), self.shape)
        _set(self, default_value=default)

    @property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)


@dataclass(frozen=True, init=False)
class VarLenFeature:
    """A feature of any number of values, which become an array of one axis.

    Parameters
    ----------
    dtype : dtype
        float32, int64, or bytes (also ``"string"``).

    Raises
    ------
    TypeError
        If the dtype is another.

    Notes
    -----
    TensorFlow makes a sparse tensor of it; here arrays are dense. The rows of
    `parse_example` are padded with zeros or empty byte strings.
    """

    dtype: np.dtype[Any]

    def __init__(self, dtype: Any) -> None:
        _set(self, dtype=_as_dtype(dtype))


@dataclass(frozen=True, init=False)
class FixedLenSequenceFeature:
    """A feature of any number of arrays of one shape.

    Parameters
    ----------
    shape : iterable of int
        The shape of an array; the result has one more axis in front.
    dtype : dtype
        float32, int64, or bytes (also ``"string"``).
    allow_missing : bool, default False
        Must be True: an example that lacks the feature has no arrays.
    default_value : scalar, optional
        What pads the rows of `parse_example`; 0 or the empty byte string by default.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, `allow_missing` is False, the shape has no
        elements, or the dtype is another.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    allow_missing: bool
    default_value: Any

    def __init__(
        self,
        shape: Iterable[int],
        dtype: Any,
        allow_missing: bool = False,
        default_value: Any = None,
    ) -> None:
        if not flag(allow_missing, "allow_missing"):
            raise ValueError("FixedLenSequenceFeature needs allow_missing=True")
        _set(self, shape=_as_shape(shape), dtype=_as_dtype(dtype), allow_missing=True)
        if not prod(self.shape):
            raise ValueError(f"the arrays of a sequence have elements, not {shape}")
        default = (b"" if self.dtype == _TEXT else 0) if default_value is None else None
        chosen = default_value if default is None else default
        _set(self, default_value=np.array(chosen, self.dtype)[()])


def _set(feature: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(feature, name, value)


def _as_shape(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if hasattr(shape, "__index__") else shape
    return tuple(count(size, "a size", minimum=0) for size in sizes)


def _as_dtype(dtype: Any) -> np.dtype[Any]:
    name = getattr(dtype, "name", dtype)
    if dtype is bytes or name == "string":
        return _TEXT
    result: np.dtype[Any] = np.dtype(dtype)
    if result not in _DTYPES:
        raise TypeError(f"a feature is float32, int64 or bytes, not {dtype!r}")
    return result
