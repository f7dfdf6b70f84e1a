"""Records and fields of CSV, by the rules of RFC 4180."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.sources._byte_stream import ByteStream

_INTEGER = re.compile(rb"\s*[+-]?[0-9]+\s*")
_HEXADECIMAL = re.compile(rb"\s*[+-]?0[xX][0-9a-fA-F]+\s*")


@dataclass(frozen=True)
class Dialect:
    """How fields are separated, and whether quotes may enclose them."""

    delimiter: bytes
    quotes: bool

    def records(self, stream: ByteStream) -> Iterator[list[bytes]]:
        """Yield the fields of each record; FormatError if quotes are wrong."""
        special = (b'"' if self.quotes else b"") + b"\r"
        pending: list[bytes] = []  # lines of a record with a line end within quotes
        begin = stream.offset
        for line in stream.lines():
            if not pending and not any(map(line.__contains__, _each(special))):
                yield line.split(self.delimiter)
                begin = stream.offset
                continue
            pending.append(line)
            parts, opened = self._split_at_returns(b"\n".join(pending))
            pending = [parts.pop()] if opened else []
            for part in parts:
                yield self._fields(part, stream, begin)
            if not opened:
                begin = stream.offset
        if pending:
            raise stream.damaged("the file ends within quotes", begin)

    def _split_at_returns(self, text: bytes) -> tuple[list[bytes], bool]:
        """Split at carriage returns outside of quotes, which end records, too.

        Returns the parts, and whether a quote is open at the end of the last.
        """
        parts, start, opened = [], 0, False
        for place, byte in enumerate(text):
            if byte == ord('"') and self.quotes:
                opened = not opened
            elif byte == ord("\r") and not opened:
                parts.append(text[start:place])
                start = place + 1
        if start < len(text) or not start:
            parts.append(text[start:])
        return parts, opened

    def _fields(self, text: bytes, stream: ByteStream, begin: int) -> list[bytes]:
        if not (self.quotes and b'"' in text):
            return text.split(self.delimiter)
        fields = []
        for raw in self._pieces(text):
            if not raw.startswith(b'"'):
                if b'"' in raw:
                    raise stream.damaged("a field without quotes has one", begin)
                fields.append(raw)
                continue
            inner = raw[1:-1].replace(b'""', b"")
            if len(raw) < 2 or not raw.endswith(b'"') or b'"' in inner:
                raise stream.damaged("a quote within quotes is not doubled", begin)
            fields.append(raw[1:-1].replace(b'""', b'"'))
        return fields

    def _pieces(self, text: bytes) -> Iterator[bytes]:
        """Split a record at delimiters outside of quotes."""
        piece: list[bytes] = []
        for part in text.split(self.delimiter):
            piece.append(part)
            whole = self.delimiter.join(piece)
            if whole.count(b'"') % 2 == 0:
                yield whole
                piece = []


def _each(special: bytes) -> list[bytes]:
    return [special[i : i + 1] for i in range(len(special))]


def _number(text: bytes, pattern: re.Pattern[bytes], kind: type) -> Any:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return kind(text)


def _float(text: bytes) -> float:
    if b"_" in text:
        raise ValueError(text)
    if _HEXADECIMAL.fullmatch(text):
        return float(int(text, 16))
    return float(text)


def converter(dtype: np.dtype[Any]) -> Callable[[bytes], Any]:
    """Return the function that makes a scalar of a field; ValueError: it cannot."""
    if dtype.kind == "S":
        return np.bytes_
    if dtype.kind == "f":
        return lambda text: _in_float_range(_float(text), dtype)
    limits = np.iinfo(dtype)

    def integer(text: bytes) -> Any:
        value = _number(text, _INTEGER, int)
        if not limits.min <= value <= limits.max:
            raise ValueError(text)
        return dtype.type(value)

    return integer


def _in_float_range(value: float, dtype: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore"):  # infinity, as in TensorFlow
        return dtype.type(value)
