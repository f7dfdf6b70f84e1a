"""The framing of TFRecord files.

A record is its length in eight bytes, little endian, the masked CRC-32C of these, its
bytes, and the masked CRC-32C of its bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from memcfg._core.rows import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.sources._byte_stream import ByteStream

_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECK = struct.Struct("<I")


def read_records(stream: ByteStream) -> Iterator[np.bytes_]:
    """Yield the records of a file; FormatError if it is damaged."""
    while head := stream.read(_HEAD.size):
        begin = stream.offset - len(head)
        if len(head) < _HEAD.size:
            raise stream.damaged("it ends within the head of a record", begin)
        length, check = _HEAD.unpack(head)
        if check != _masked(head[: _LENGTH.size]):
            raise stream.damaged("the checksum of a record's length differs", begin)
        data = stream.read(length)
        foot = stream.read(_CHECK.size)
        if len(foot) < _CHECK.size:
            raise stream.damaged(f"it ends within a record of {length} bytes", begin)
        if _CHECK.unpack(foot)[0] != _masked(data):
            raise stream.damaged(
                f"the checksum of a record of {length} bytes differs", begin
            )
        yield np.bytes_(data)


def framed(record: bytes) -> list[bytes]:
    """Return the pieces of a record in a file."""
    length = _LENGTH.pack(len(record))
    head = length + _CHECK.pack(_masked(length))
    return [head, record, _CHECK.pack(_masked(record))]


def _masked(data: bytes) -> int:
    """Return a CRC that can be a part of what another CRC is computed of."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
