"""Files of compressed models: a header, then the sections of each weight.

docs/compressed-format.md has the bytes. A section can be read alone, and each has a
checksum.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._core.rows import crc32c
from memcfg.compression.coding._integer_sections import IntegerForm
from memcfg.documents import (
    Key,
    read_count,
    read_document,
    read_list,
    read_object,
    read_or_null,
    read_positive,
    read_text,
)
from memcfg.errors import FormatError
from memcfg.files import open_file, write_atomically

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from io import BufferedReader
    from typing import Self

__all__ = ["CODECS", "CompressedFile", "Section", "StoredWeight"]

FORMAT = "memcfg.compressed/1"
CODECS = ("plain", "codebook", "range", "integers")
_MAGIC = b"\x89mcz\r\n\x1a\n"
_LENGTH = struct.Struct("<II")  # bytes of the header, and their CRC-32C
_START = len(_MAGIC) + _LENGTH.size
_HEADER = 2**24  # bytes of the header's JSON
_PACKED = 64  # bytes of it per packed byte; a ResNet-152 has 28, 1,000 equal layers 42
_ALWAYS = 2**30  # bytes that the weights of any file may take
_RATIO = 1000  # bytes of weights per byte of a file, above that
_DTYPES = ("float32", "float16", "float64", "int32", "int64", "int8", "uint8")


class Section(NamedTuple):
    """Some columns of a weight, or all, in consecutive bytes of a file."""

    offset: int
    nbytes: int
    checksum: int  # CRC-32C
    shape: tuple[int, ...]


class StoredWeight(NamedTuple):
    """A weight of a file.

    Each of its sections has `columns` of the last axis, the last one what is left.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    codec: str
    columns: int | None
    sections: tuple[Section, ...]
    form: IntegerForm | None = None  # of the codec "integers"

    @property
    def nbytes(self) -> int:
        """The bytes of its sections."""
        return sum(each.nbytes for each in self.sections)

    @property
    def dense_bytes(self) -> int:
        """The bytes of the weight when it is decoded."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class CompressedFile:
    """A file of a compressed model, on a disk or in memory.

    Parameters
    ----------
    description : dict
        The model, as `memcfg.nn` describes it.
    weights : sequence of StoredWeight
        The weights; offsets are set here.
    pieces : sequence of bytes, optional
        The bytes of all sections, of a file in memory.
    path : str, optional
        Where a file on a disk is.
    """

    def __init__(
        self,
        description: dict[str, Any],
        weights: Sequence[StoredWeight],
        pieces: Sequence[bytes] | None = None,
        path: str | None = None,
    ) -> None:
        self.description = description
        self._head = b"" if pieces is None else _header(description, weights)
        offset = len(self._head)
        if pieces is not None:
            placed = []
            for weight in weights:
                sections = []
                for section in weight.sections:
                    sections.append(section._replace(offset=offset))
                    offset += section.nbytes
                placed.append(weight._replace(sections=tuple(sections)))
            weights = placed
        self.weights = tuple(weights)
        self.path = path
        self.pieces = pieces

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read the header of a file; its sections stay on the disk."""
        where = os.fspath(path)
        with open_file(where) as file:
            try:
                return cls(*_read_header(file), path=os.path.abspath(where))
            except FormatError as error:
                raise FormatError(
                    f"{where} is damaged or not a compressed model: {error}"
                ) from None

    @property
    def nbytes(self) -> int:
        """The size of the file in bytes."""
        ends = [s.offset + s.nbytes for w in self.weights for s in w.sections]
        return max(ends, default=len(self._head))

    @property
    def header_bytes(self) -> int:
        """The bytes before the first section."""
        return self.nbytes - sum(weight.nbytes for weight in self.weights)

    def sections(
        self, keys: Collection[str] | None = None
    ) -> Iterator[tuple[StoredWeight, Section, bytes]]:
        """Yield each section with its weight and its bytes, checked.

        `keys` are those of the weights to read; None: all. Raises FormatError if a
        checksum does not match.
        """
        rows = [(weight, each) for weight in self.weights for each in weight.sections]
        if self.pieces is not None:
            for (weight, section), piece in zip(rows, self.pieces, strict=True):
                if keys is None or weight.key in keys:
                    yield weight, section, piece
            return
        assert self.path is not None
        with open_file(self.path) as file:
            for weight, section in rows:
                if keys is not None and weight.key not in keys:
                    continue
                file.seek(section.offset)
                data = file.read(section.nbytes)
                if len(data) < section.nbytes or crc32c(data) != section.checksum:
                    raise FormatError(
                        f"{self.path} is damaged: the checksum of {weight.key!r} does "
                        "not match"
                    )
                yield weight, section, data

    def save(self, path: str | os.PathLike[str], *, overwrite: bool) -> None:
        """Write the file atomically; a file on a disk is copied."""
        head = self._head or _header(self.description, self.weights)

        def pieces() -> Iterator[bytes]:
            yield head
            for _, _, data in self.sections():
                yield data

        write_atomically(path, pieces(), overwrite=overwrite)


def _header(description: dict[str, Any], weights: Sequence[StoredWeight]) -> bytes:
    """Return the bytes before the first section."""
    document = {
        "format": FORMAT,
        "model": description,
        "weights": [_described(weight) for weight in weights],
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > _HEADER:
        raise ValueError(
            f"the architecture and the sections take {len(text)} bytes of JSON, and a "
            f"file has at most {_HEADER}: pass larger section_bytes, or shorter names"
        )
    packed = zlib.compress(text, 9)
    if len(text) > _PACKED * len(packed):  # as for names of repeated letters
        packed = zlib.compress(text, 0)
    return _MAGIC + _LENGTH.pack(len(packed), crc32c(packed)) + packed


def _described(weight: StoredWeight) -> dict[str, Any]:
    result: dict[str, Any] = {"key": weight.key, "shape": list(weight.shape)}
    if weight.dtype != "float32":
        result["dtype"] = weight.dtype
    if weight.codec != "plain":
        result["codec"] = weight.codec
    if weight.columns is not None:
        result["columns"] = weight.columns
    if weight.form is not None:
        result["bits"] = weight.form.bits
        if weight.form.group is not None:
            result["group"] = weight.form.group
        if weight.form.products:
            result["products"] = "int8"
    return {**result, "sections": [[s.nbytes, s.checksum] for s in weight.sections]}


def _read_header(file: BufferedReader) -> tuple[dict[str, Any], list[StoredWeight]]:
    size = os.fstat(file.fileno()).st_size
    start = file.read(_START)
    if len(start) < _START or not start.startswith(_MAGIC):
        raise FormatError("it does not begin as one")
    length, checksum = _LENGTH.unpack_from(start, len(_MAGIC))
    if length > size - _START:
        raise FormatError("it is truncated")
    packed = file.read(length)
    if len(packed) < length or crc32c(packed) != checksum:
        raise FormatError("the checksum of its header does not match")
    document = read_document(_unpacked(packed), "compressed model", FORMAT, _DOCUMENT)
    weights, end = _placed(document["weights"], _START + length)
    if end != size:
        raise FormatError(f"it has {size} bytes, but its header says {end}")
    dense = sum(weight.dense_bytes for weight in weights)
    if dense > max(_ALWAYS, _RATIO * size):
        raise FormatError(f"{size} bytes would unpack to {dense}")
    if not isinstance(document["model"], dict):
        raise FormatError("its model is not an object")
    return document["model"], weights


def _unpacked(packed: bytes) -> str:
    unpacker = zlib.decompressobj()
    most = min(_HEADER, _PACKED * len(packed))
    try:
        text = unpacker.decompress(packed, most + 1)
    except zlib.error as error:
        raise FormatError(f"its header is not compressed by zlib: {error}") from None
    if len(text) > most or not unpacker.eof or unpacker.unused_data:
        raise FormatError("its header is too long, or cut off")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"its header is not UTF-8 text: {error}") from None


def _placed(
    fields: Sequence[dict[str, Any]], offset: int
) -> tuple[list[StoredWeight], int]:
    """Return the weights, and where the last section ends."""
    result = []
    for each in fields:
        if each["dtype"] not in _DTYPES or each["codec"] not in CODECS:
            raise FormatError(
                f"{each['key']!r} has an unknown dtype or codec: {each['dtype']!r}, "
                f"{each['codec']!r}"
            )
        form = _form(each)
        kept = {name: each[name] for name in _KEPT}
        weight = StoredWeight(**kept, sections=(), form=form)
        if len(each["sections"]) != _count_sections(weight):
            raise FormatError(f"{weight.key!r} lacks sections, or has too many")
        shapes = section_shapes(weight.shape, weight.columns)
        if weight.codec != "plain" and weight.dtype != "float32":
            raise FormatError(f"{weight.key!r} is coded and not float32")
        sections = []
        for (nbytes, checksum), shape in zip(each["sections"], shapes, strict=True):
            dense = math.prod(shape) * np.dtype(weight.dtype).itemsize
            if form is not None:
                dense = form.nbytes(shape)
            if weight.codec in ("plain", "integers") and nbytes != dense:
                raise FormatError(f"{weight.key!r} lacks bytes, or has too many")
            sections.append(Section(offset, nbytes, checksum, shape))
            offset += nbytes
        result.append(weight._replace(sections=tuple(sections)))
    if len({weight.key for weight in result}) < len(result):
        raise FormatError("two weights have one key")
    return result, offset


def _form(fields: dict[str, Any]) -> IntegerForm | None:
    """Return how a weight of integers is held; None for another codec."""
    bits, group, products = (fields[each] for each in ("bits", "group", "products"))
    if fields["codec"] != "integers":
        if (bits, group, products) != (None, None, None):
            raise FormatError(f"{fields['key']!r} has bits and is not of integers")
        return None
    if bits not in (4, 8) or products not in (None, "int8") or not fields["shape"]:
        raise FormatError(
            f"{fields['key']!r} has integers of {bits!r} bits, of shape "
            f"{fields['shape']}, or unknown products: {products!r}"
        )
    return IntegerForm(bits, group, products == "int8")


def _count_sections(weight: StoredWeight) -> int:
    """Return how many sections a weight has, which may be any number."""
    if weight.columns is None:
        return 1
    if not weight.shape:
        raise FormatError(f"{weight.key!r} has columns and no axis")
    return -(-weight.shape[-1] // weight.columns)


def section_shapes(
    shape: tuple[int, ...], columns: int | None
) -> list[tuple[int, ...]]:
    """Return the shape of each section of a weight."""
    if columns is None:
        return [shape]
    return [
        (*shape[:-1], min(columns, shape[-1] - begin))
        for begin in range(0, shape[-1], columns)
    ]


def _read_section(value: Any, where: str) -> tuple[int, ...]:
    section: tuple[int, ...] = read_list(read_count)(value, where)
    if len(section) != 2 or section[1] >= 2**32:
        raise FormatError(f"{where} must be a pair [bytes, CRC-32C]")
    return section


_KEPT = ("key", "shape", "dtype", "codec", "columns")  # of a `StoredWeight`
_WEIGHT = {
    "key": Key(read_text),
    "shape": Key(read_list(read_count)),
    "dtype": Key(read_text, required=False, default="float32"),
    "codec": Key(read_text, required=False, default="plain"),
    "columns": Key(read_or_null(read_positive), required=False),
    "bits": Key(read_or_null(read_positive), required=False),
    "group": Key(read_or_null(read_positive), required=False),
    "products": Key(read_or_null(read_text), required=False),
    "sections": Key(read_list(_read_section)),
}
_DOCUMENT = {
    "model": Key(lambda value, where: value),
    "weights": Key(read_list(lambda v, where: read_object(v, where, _WEIGHT))),
}
