"""The wire format of protocol buffers, as far as the messages of records need it.

A field is a tag, ``number << 3 | kind``, and a value of the kind: a varint (0), eight
bytes (1), bytes behind their length (2) or four bytes (5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_SIZES = {EIGHT: 8, FOUR: 4}
_SEVEN = np.uint64(7)
_LONGEST = 10  # bytes of a varint of 64 bits


def fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, Any, int]]:
    """Yield number, kind, and where the value begins and ends; of a varint, its value.

    FormatError if the message is damaged.
    """
    while begin < end:
        tag, begin = varint(data, begin, end)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, begin = varint(data, begin, end)
            yield number, kind, value, begin
            continue
        size = _SIZES.get(kind)
        if kind == BYTES:
            size, begin = varint(data, begin, end)
        if size is None or not number:
            raise FormatError(f"a message has a field of an unknown kind at {begin}")
        if size > end - begin:
            raise FormatError(
                f"a message ends early: {size} bytes are to follow, and {end - begin} "
                "are left"
            )
        yield number, kind, begin, begin + size
        begin += size


def varint(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Return the number at a place, and where what follows it begins."""
    value = shift = 0
    while begin < end and shift < 7 * _LONGEST:
        byte = data[begin]
        begin += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, begin
        shift += 7
    raise FormatError("a message ends within a number")


def varints(data: bytes, begin: int, end: int) -> npt.NDArray[np.int64]:
    """Return all numbers of a packed field."""
    raw = np.frombuffer(data, np.uint8, end - begin, begin)
    last = np.flatnonzero(raw < 0x80)
    if len(raw) and (not len(last) or last[-1] != len(raw) - 1):
        raise FormatError("a message ends within a number")
    first = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    lengths = last - first + 1
    if len(lengths) and lengths.max() > _LONGEST:
        raise FormatError(f"a number has more than {_LONGEST} bytes")
    places = np.arange(len(raw)) - np.repeat(first, lengths)
    parts = (raw & 0x7F).astype(np.uint64) << (places.astype(np.uint64) * _SEVEN)
    whole = np.add.reduceat(parts, first) if len(first) else parts
    return whole.view(np.int64)


def packed_varints(numbers: npt.NDArray[np.int64]) -> bytes:
    """Return the bytes of a packed field."""
    left = np.ascontiguousarray(numbers).view(np.uint64).reshape(-1)
    groups = np.empty((len(left), _LONGEST), np.uint8)
    used = np.zeros((len(left), _LONGEST), bool)
    for place in range(_LONGEST):
        used[:, place] = True if place == 0 else left != 0
        groups[:, place] = left & np.uint64(0x7F)
        left = left >> _SEVEN
        groups[:, place] |= (left != 0).astype(np.uint8) << 7
    return groups[used].tobytes()


def field(number: int, value: bytes) -> bytes:
    """Return a field of bytes."""
    return _varint_bytes(number << 3 | BYTES) + _varint_bytes(len(value)) + value


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
