"""A file read forward through a buffer of the pool, decompressed if needed."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import scope_out
from memcfg.errors import FormatError
from memcfg.files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

BUFFER_BYTES = 256 << 10  # tf.data's default
_LEAST = 4096  # bytes of a buffer; smaller ones would cost a system call each
WINDOW_BITS = {"": 0, "ZLIB": 15, "GZIP": 31}  # of zlib


class ByteStream:
    """The bytes of a file, in order; `offset` counts them after decompression.

    Buffers are arrays of the allocator that is current when the stream is opened, so
    they count under the limit of the device.
    """

    def __init__(self, path: str, compression: str, buffer_bytes: int) -> None:
        self.path = path
        self.offset = 0
        size = max(_LEAST, buffer_bytes)
        with scope_out():  # longer than an element
            self._buffer = np.empty(size, np.uint8).data
            packed = np.empty(size if compression else 0, np.uint8)
        self._packed = packed.data
        self._bits = WINDOW_BITS[compression]
        self._inflate: Any = zlib.decompressobj(self._bits) if compression else None
        self._left = memoryview(b"")  # compressed bytes that are not inflated yet
        self._begin = self._end = 0  # of the unread bytes in the buffer
        self._file = open_file(path)

    def some(self) -> memoryview:
        """Take the bytes that are in the buffer, valid until the next call.

        It is empty only at the end of the file.
        """
        if self._begin == self._end:
            self._begin, self._end = 0, self._filled()
        part = self._buffer[self._begin : self._end]
        self.offset += len(part)
        self._begin = self._end
        return part

    def read(self, count: int) -> bytes:
        """Take so many bytes; fewer only if the file ends."""
        begin = self._begin
        if count <= self._end - begin:  # the usual case
            self._begin += count
            self.offset += count
            return bytes(self._buffer[begin : begin + count])
        pieces = []
        while count > 0 and (part := self.some()):
            extra = max(0, len(part) - count)
            self._begin -= extra
            self.offset -= extra
            pieces.append(bytes(part[: len(part) - extra]))
            count -= len(pieces[-1])
        return b"".join(pieces)

    def lines(self) -> Iterator[bytes]:
        """Take the lines, without their ends; the last need not have one.

        Meanwhile `offset` is where the next line begins.
        """
        pieces: list[bytes] = []
        while part := self.some():
            end = self.offset
            self.offset -= len(part)
            first, *others = bytes(part).split(b"\n")
            pieces.append(first)
            for line in others:
                self.offset += len(pieces[-1]) + 1
                yield b"".join(pieces)
                pieces = [line]
            self.offset = end
        if any(pieces):
            yield b"".join(pieces)

    def damaged(self, why: str, offset: int | None = None) -> FormatError:
        """Return the error for a damaged file."""
        at = self.offset if offset is None else offset
        where = " after decompression" if self._inflate is not None else ""
        return FormatError(f"{self.path!r} is damaged at byte {at}{where}: {why}")

    def close(self) -> None:
        self._file.close()
        self._buffer = self._packed = self._left = memoryview(b"")
        self._begin = self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _filled(self) -> int:
        if self._inflate is None:
            return self._file.readinto(self._buffer)
        while True:
            if not self._left:
                count = self._file.readinto(self._packed)
                self._left = self._packed[:count]
            ended = not self._left
            data = self._inflated()
            if data:
                self._buffer[: len(data)] = data
                return len(data)
            if ended:
                self._check_end()
                return 0

    def _inflated(self) -> bytes:
        """Inflate what has been read, as much as there is space for."""
        given = self._left
        if self._inflate.eof and given:  # files may be put together: the next begins
            self._inflate = zlib.decompressobj(self._bits)
        try:
            data: bytes = self._inflate.decompress(given, len(self._buffer))
        except zlib.error as error:
            raise self.damaged(f"it cannot be decompressed ({error})") from error
        rest = len(self._inflate.unconsumed_tail) + len(self._inflate.unused_data)
        self._left = given[len(given) - rest :]
        return data

    def _check_end(self) -> None:
        """Raise FormatError if the compressed data has no end; nothing is whole."""
        if not self._inflate.eof and self._file.tell():
            raise self.damaged("it ends within its compressed data")
