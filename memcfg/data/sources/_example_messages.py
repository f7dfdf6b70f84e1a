"""The messages of `tf.train.Example`: named lists of bytes, floats or integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.data.sources import _wire
from memcfg.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    _List: TypeAlias = "list[bytes] | npt.NDArray[np.float32] | npt.NDArray[np.int64]"

_LISTS = {1: "bytes_list", 2: "float_list", 3: "int64_list"}  # fields of a feature


@dataclass(frozen=True)
class BytesList:
    """A list of byte strings.

    Parameters
    ----------
    value : iterable of bytes, default ()
        The byte strings.

    Raises
    ------
    TypeError
        If one of them is not bytes.
    """

    value: Iterable[bytes] = ()

    def __post_init__(self) -> None:
        values: list[Any] = list(self.value)
        for each in values:  # of bytes themselves they are int
            if not isinstance(each, bytes):
                raise TypeError(
                    f"a BytesList has a list of bytes, not of {type(each).__name__}: "
                    f"{self.value!r:.80}"
                )
        object.__setattr__(self, "value", values)

    def _data(self) -> bytes:
        return b"".join(_wire.field(1, each) for each in self.value)


@dataclass(frozen=True, eq=False)
class FloatList:
    """A list of floats of 32 bits.

    Parameters
    ----------
    value : array_like of float, default ()
        The numbers, of one axis.

    Raises
    ------
    TypeError, ValueError
        If they are not numbers, or have several axes.
    """

    value: Any = ()

    def __post_init__(self) -> None:
        numbers = np.array(self.value if np.size(self.value) else [], np.float32)
        object.__setattr__(self, "value", _flat(numbers, "FloatList"))

    def _data(self) -> bytes:
        data: bytes = self.value.astype("<f4").tobytes()
        return _wire.field(1, data) if data else b""


@dataclass(frozen=True, eq=False)
class Int64List:
    """A list of integers of 64 bits.

    Parameters
    ----------
    value : array_like of int, default ()
        The numbers, of one axis.

    Raises
    ------
    TypeError, ValueError
        If they are not integers, do not fit 64 bits, or have several axes.
    """

    value: Any = ()

    def __post_init__(self) -> None:
        numbers = np.array(self.value) if np.size(self.value) else np.array([], int)
        if numbers.dtype.kind not in "biu":
            raise TypeError(f"an Int64List has integers, not {numbers!r:.70}")
        if numbers.dtype == np.uint64 and numbers.max(initial=0) >= 2**63:
            raise ValueError(f"an Int64List has no {numbers!r:.70}")
        object.__setattr__(self, "value", _flat(numbers.astype(int), "Int64List"))

    def _data(self) -> bytes:
        data = _wire.packed_varints(self.value)
        return _wire.field(1, data) if data else b""


@dataclass(frozen=True, eq=False)
class Feature:
    """One of the three lists.

    Parameters
    ----------
    bytes_list : BytesList, optional
        Byte strings.
    float_list : FloatList, optional
        Floats.
    int64_list : Int64List, optional
        Integers.

    Raises
    ------
    TypeError
        If an argument is of another class.
    ValueError
        If several lists are given.
    """

    bytes_list: BytesList | None = None
    float_list: FloatList | None = None
    int64_list: Int64List | None = None

    def __post_init__(self) -> None:
        kinds = {"bytes_list": BytesList, "float_list": FloatList}
        for name, value in vars(self).items():
            kind = kinds.get(name, Int64List)
            if value is not None and not isinstance(value, kind):
                raise TypeError(
                    f"{name} must be {kind.__name__}, not {type(value).__name__}"
                )
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"a Feature has one list, not {' and '.join(given)}")

    def _data(self) -> bytes:
        for number, name in _LISTS.items():
            part = getattr(self, name)
            if part is not None:
                return _wire.field(number, part._data())
        return b""


@dataclass(frozen=True, eq=False)
class Features:
    """Features by name.

    Parameters
    ----------
    feature : mapping of str to Feature, optional
        The features.

    Raises
    ------
    TypeError
        If a name is not text, or a value no `Feature`.
    """

    feature: Mapping[str, Feature] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.feature.items():
            if not (isinstance(name, str) and isinstance(value, Feature)):
                raise TypeError(
                    f"feature maps text to Feature, not {name!r} to "
                    f"{type(value).__name__}"
                )

    def _data(self) -> bytes:
        entries = (
            _wire.field(1, name.encode()) + _wire.field(2, value._data())
            for name, value in self.feature.items()
        )
        return b"".join(_wire.field(1, entry) for entry in entries)


@dataclass(frozen=True, eq=False)
class Example:
    """A message with features by name, as TensorFlow's class of this name.

    Parameters
    ----------
    features : Features, optional
        The features.

    Raises
    ------
    TypeError
        If it is of another class.

    Examples
    --------
    >>> import memcfg as mc
    >>> numbers = mc.data.Feature(int64_list=mc.data.Int64List(value=[3, 4]))
    >>> example = mc.data.Example(features=mc.data.Features(feature={"n": numbers}))
    >>> record = example.SerializeToString()
    >>> mc.data.parse_single_example(record, {"n": mc.data.FixedLenFeature([2], int)})
    {'n': array([3, 4])}
    """

    features: Features = field(default_factory=Features)

    def __post_init__(self) -> None:
        if not isinstance(self.features, Features):
            raise TypeError(
                f"features must be Features, not {type(self.features).__name__}"
            )

    def SerializeToString(self) -> bytes:  # noqa: N802  protobuf's name
        """Return the bytes of the message.

        Returns
        -------
        bytes
            The bytes.
        """
        return _wire.field(1, self.features._data())

    @classmethod
    def FromString(cls, s: bytes) -> Example:  # noqa: N802  protobuf's name
        """Return the message of bytes.

        Parameters
        ----------
        s : bytes
            The bytes.

        Returns
        -------
        Example
            The message.

        Raises
        ------
        FormatError
            If they are not those of an `Example`.
        """
        features: dict[str, Feature] = {}
        for name, where in features_of(s).items():
            number, values = list_of(s, where)
            kinds: dict[int, Any] = {1: BytesList, 2: FloatList, 3: Int64List}
            lists = {_LISTS[number]: kinds[number](values)} if number else {}
            features[name] = Feature(**lists)
        return cls(Features(features))


def features_of(data: bytes) -> dict[str, tuple[int, int]]:
    """Return where each feature of an example begins and ends.

    Zeros at the end are padding: a field has no number 0.
    """
    found: dict[str, tuple[int, int]] = {}
    end = len(data)
    for number, kind, begin, stop in _wire.fields(data, 0, _without_padding(data, end)):
        if (number, kind) == (1, _wire.BYTES):
            for entry in _entries(data, begin, stop):
                found.update([entry])
    return found


def list_of(data: bytes, where: tuple[int, int]) -> tuple[int, _List]:
    """Return the number of a feature's list, 0 for none, and its values."""
    result: tuple[int, _List] = (0, [])
    for number, kind, begin, end in _wire.fields(data, *where):
        if kind == _wire.BYTES and number in _READERS:
            result = number, _READERS[number](data, begin, end)
    return result


def _entries(data: bytes, begin: int, end: int) -> list[tuple[str, tuple[int, int]]]:
    entries = []
    for number, kind, first, last in _wire.fields(data, begin, end):
        if (number, kind) != (1, _wire.BYTES):
            continue
        name, where = b"", (last, last)
        for part, form, start, stop in _wire.fields(data, first, last):
            if form == _wire.BYTES and part == 1:
                name = data[start:stop]
            elif form == _wire.BYTES and part == 2:
                where = start, stop
        try:
            entries.append((name.decode(), where))
        except UnicodeDecodeError as error:
            raise FormatError(f"the name of a feature is no text: {name!r}") from error
    return entries


def _byte_strings(data: bytes, begin: int, end: int) -> list[bytes]:
    return [
        data[start:stop]
        for number, kind, start, stop in _wire.fields(data, begin, end)
        if (number, kind) == (1, _wire.BYTES)
    ]


def _floats(data: bytes, begin: int, end: int) -> npt.NDArray[np.float32]:
    parts = []
    for number, kind, start, stop in _wire.fields(data, begin, end):
        if number == 1 and kind in (_wire.BYTES, _wire.FOUR):
            if (stop - start) % 4:
                raise FormatError("a message ends within a float")
            parts.append(np.frombuffer(data, "<f4", (stop - start) // 4, start))
    return _joined(parts, np.float32)


def _integers(data: bytes, begin: int, end: int) -> npt.NDArray[np.int64]:
    parts = []
    for number, kind, start, stop in _wire.fields(data, begin, end):
        if (number, kind) == (1, _wire.BYTES):
            parts.append(_wire.varints(data, start, stop))
        elif (number, kind) == (1, _wire.VARINT):
            parts.append(np.array([start % 2**64], np.uint64).view(np.int64))
    return _joined(parts, np.int64)


_READERS: dict[int, Any] = {1: _byte_strings, 2: _floats, 3: _integers}


def _joined(parts: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts], dtype=dtype)


def _without_padding(data: bytes, end: int) -> int:
    """Return where the fields of a message end that zeros may follow."""
    begin = 0
    while begin < end and data[begin]:
        tag, begin = _wire.varint(data, begin, end)
        if tag & 7 == _wire.BYTES:
            size, begin = _wire.varint(data, begin, end)
            begin += size
        elif tag & 7 == _wire.VARINT:
            _, begin = _wire.varint(data, begin, end)
        else:
            begin += {_wire.EIGHT: 8, _wire.FOUR: 4}.get(tag & 7, 0)
    # What follows may be no padding, or be missing: reading it is the error then.
    return end if begin > end or any(data[begin:end]) else begin


def _flat(numbers: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    if numbers.ndim != 1:
        raise ValueError(f"a {what} has one axis, not the shape {numbers.shape}")
    return numbers
