"""`parse_single_example` and `parse_example`: arrays of serialized examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.data.elements._convert import as_scalars
from memcfg.data.sources._example_messages import features_of, list_of
from memcfg.data.sources._features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
)
from memcfg.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    _Feature: TypeAlias = "FixedLenFeature | VarLenFeature | FixedLenSequenceFeature"

_NAMES = {"S": "bytes", "f": "float32", "i": "int64"}
_KINDS = {1: "S", 2: "f", 3: "i"}  # of dtypes, by the number of a feature's list


def parse_single_example(
    serialized: Any, features: Mapping[str, _Feature]
) -> dict[str, Any]:
    """Parse one serialized `Example`, as TensorFlow's function of this name.

    Parameters
    ----------
    serialized : bytes
        The bytes of the message, such as a record of `TFRecordDataset`.
    features : mapping of str to feature
        A `FixedLenFeature`, `VarLenFeature` or `FixedLenSequenceFeature` for each
        feature that is wanted.

    Returns
    -------
    dict of str to numpy.ndarray or numpy.generic
        The features, in the order of `features`. One of shape ``()`` is a scalar.

    Raises
    ------
    TypeError
        If `serialized` is not bytes, or `features` is no such mapping.
    FormatError
        If the message is damaged, a required feature is missing, or a feature has
        another dtype or another number of values.
    ValueError
        If byte strings that end with zeros would be in an array, which drops them; as a
        scalar they are exact.

    Examples
    --------
    >>> import memcfg as mc
    >>> from memcfg.data import BytesList, Example, Feature, Features
    >>> name = Feature(bytes_list=BytesList(value=[b"cat"]))
    >>> record = Example(features=Features(feature={"name": name})).SerializeToString()
    >>> feature = mc.data.FixedLenFeature((), bytes)
    >>> mc.data.parse_single_example(record, {"name": feature})
    {'name': np.bytes_(b'cat')}
    """
    if not isinstance(serialized, bytes):
        what = getattr(serialized, "shape", type(serialized).__name__)
        raise TypeError(f"serialized must be bytes, not {what}; see parse_example")
    _check(features)
    where = features_of(serialized)
    return {
        name: _value(name, feature, _given(name, feature, serialized, where))
        for name, feature in features.items()
    }


def parse_example(
    serialized: npt.ArrayLike, features: Mapping[str, _Feature]
) -> dict[str, npt.NDArray[Any]]:
    """Parse a batch of serialized examples, as TensorFlow's function of this name.

    Parameters
    ----------
    serialized : array_like of bytes
        The messages, along one axis, such as a batch of records of `TFRecordDataset`.
    features : mapping of str to feature
        As for `parse_single_example`.

    Returns
    -------
    dict of str to numpy.ndarray
        The features, with an axis for the messages in front. Features of any length are
        padded to the longest of the batch.

    Raises
    ------
    TypeError, ValueError
        If `serialized` is not an array of byte strings of one axis, or as for
        `parse_single_example`.
    FormatError
        As for `parse_single_example`.

    Examples
    --------
    >>> import memcfg as mc
    >>> from memcfg.data import Example, Feature, Features, Int64List
    >>> def record(*numbers):
    ...     feature = Feature(int64_list=Int64List(value=numbers))
    ...     return Example(Features({"n": feature})).SerializeToString()
    >>> features = {"n": mc.data.VarLenFeature(int)}
    >>> mc.data.parse_example([record(1), record(2, 3)], features)
    {'n': array([[1, 0],
           [2, 3]])}
    """
    _check(features)
    messages = _messages(serialized)
    found = [features_of(message) for message in messages]
    return {
        name: _stacked(
            name,
            feature,
            [
                _given(name, feature, message, where)
                for message, where in zip(messages, found, strict=True)
            ],
        )
        for name, feature in features.items()
    }


def _check(features: Any) -> None:
    kinds = FixedLenFeature | VarLenFeature | FixedLenSequenceFeature
    for name, feature in features.items():
        if not isinstance(feature, kinds):
            raise TypeError(
                f"features maps names to FixedLenFeature, VarLenFeature or "
                f"FixedLenSequenceFeature, but {name!r} to {feature!r:.80}"
            )


def _messages(serialized: Any) -> list[bytes]:
    """List the messages; those of an array have zeros behind them."""
    if isinstance(serialized, list | tuple) and all(
        isinstance(each, bytes) for each in serialized
    ):
        return list(serialized)
    array = np.ascontiguousarray(serialized)
    if array.dtype.kind != "S" or np.ndim(serialized) != 1:
        raise TypeError(
            "serialized must be an array of bytes with one axis, not "
            f"{array.dtype}{list(np.shape(serialized))}"
        )
    data, size = array.tobytes(), array.dtype.itemsize
    return [data[n * size : (n + 1) * size] for n in range(len(array))]


def _given(name: str, feature: _Feature, data: bytes, where: dict[str, Any]) -> Any:
    """Return the values of a feature; None: it has none."""
    kind, values = list_of(data, where[name]) if name in where else (0, [])
    if not kind:
        return None
    if _KINDS[kind] != feature.dtype.kind:
        raise FormatError(
            f"feature {name!r} has another dtype than {feature.dtype}: "
            f"{_NAMES[_KINDS[kind]]}"
        )
    if isinstance(feature, FixedLenFeature) and len(values) != feature.size:
        raise FormatError(
            f"feature {name!r} has {len(values)} values, and shape {feature.shape} "
            f"needs {feature.size}"
        )
    if isinstance(feature, FixedLenSequenceFeature):
        size = int(np.prod(feature.shape, dtype=int))
        if len(values) % size:
            raise FormatError(
                f"feature {name!r} has {len(values)} values, which are not arrays of "
                f"shape {feature.shape}"
            )
    return values


def _value(name: str, feature: _Feature, values: Any) -> Any:
    """Return the array of one example."""
    if isinstance(feature, FixedLenFeature):
        if values is None:
            return as_scalars(np.array(_default(name, feature)))
        if not feature.shape and feature.dtype.kind == "S":
            return np.bytes_(values[0])  # an array would drop zeros at its end
        return as_scalars(_array(name, feature, values).reshape(feature.shape))
    inner = getattr(feature, "shape", ())
    return _array(name, feature, [] if values is None else values).reshape(-1, *inner)


def _stacked(name: str, feature: _Feature, rows: list[Any]) -> npt.NDArray[Any]:
    """Return the array of a batch."""
    if isinstance(feature, FixedLenFeature):
        if any(row is None for row in rows):
            default = _default(name, feature)
            rows = [default.reshape(-1) if row is None else row for row in rows]
        flat: Any
        if feature.dtype.kind == "S":
            flat = [each for row in rows for each in row]
        else:
            flat = np.concatenate([np.empty(0, feature.dtype), *rows])
        return _array(name, feature, flat).reshape(len(rows), *feature.shape)
    arrays = [_value(name, feature, row) for row in rows]
    longest = max(map(len, arrays), default=0)
    dtype = np.result_type(feature.dtype, *arrays)
    padding = getattr(feature, "default_value", b"" if dtype.kind == "S" else 0)
    inner = getattr(feature, "shape", ())
    batch = np.full((len(arrays), longest, *inner), padding, dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[: len(array)] = array
    return batch


def _default(name: str, feature: FixedLenFeature) -> npt.NDArray[Any]:
    if feature.default_value is None:
        raise FormatError(
            f"feature {name!r} is missing; give FixedLenFeature a default_value if it "
            "may be"
        )
    default: npt.NDArray[Any] = feature.default_value
    return default


def _array(name: str, feature: _Feature, values: Any) -> npt.NDArray[Any]:
    if feature.dtype.kind == "S" and any(each.endswith(b"\0") for each in values):
        raise ValueError(
            f"feature {name!r} has byte strings that end with zeros, which arrays of "
            "text drop: use parse_single_example with FixedLenFeature((), bytes), and "
            "decode them before batch"
        )
    return np.array(values, feature.dtype)
