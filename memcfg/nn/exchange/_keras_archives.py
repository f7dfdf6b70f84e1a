"""The archives that Keras writes, ``.keras``: a description and a file of weights.

Nothing is extracted. The description is read within a limit of its size, and weights
are read where they lie in the archive, which Keras does not compress.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from memcfg.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

__all__ = ["ASSETS", "KerasArchive", "opened_archive"]

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
ASSETS = "assets/"  # the folder of what layers have adapted to
_ENCRYPTED = 0x1  # flag of an entry
_HEADER = 30  # bytes before the name of an entry
_LONGEST = 2**26  # bytes of a description, or of words
_PIECE = 2**20  # bytes of which the checksum is computed at a time


class KerasArchive:
    """An open archive."""

    def __init__(self, file: BufferedReader, where: str) -> None:
        self.where = where
        self._file = file
        self._archive = zipfile.ZipFile(file)
        self._entries = {each.filename: each for each in self._archive.infolist()}
        if len(self._entries) < len(self._archive.infolist()):
            raise FormatError(f"{where}: two of its entries have one name")
        for name in (CONFIG, WEIGHTS):
            if name not in self._entries:
                raise FormatError(f"{where} is no model of Keras: it has no {name}")
            if self._entries[name].flag_bits & _ENCRYPTED:
                raise FormatError(f"{where}: {name} is encrypted")

    @property
    def assets(self) -> list[str]:
        """The names of files with what layers have adapted to, such as words."""
        return [
            name
            for name, each in self._entries.items()
            if name.startswith(ASSETS) and not each.is_dir()
        ]

    def text(self, name: str) -> bytes:
        """Return the content of an entry, within the limit of its size."""
        entry = self._entries[name]
        if entry.file_size > _LONGEST:
            raise FormatError(
                f"{self.where}: {name} has {entry.file_size} bytes, of which at most "
                f"{_LONGEST} are read"
            )
        with self._archive.open(entry) as file:
            text = file.read(_LONGEST + 1)
            if len(text) != entry.file_size or file.read(1):
                raise FormatError(f"{self.where}: {name} is longer than it says")
        return text

    def weights(self) -> IO[bytes]:
        """Return the file of the weights, after its checksum was verified."""
        entry = self._entries[WEIGHTS]
        if entry.compress_type != zipfile.ZIP_STORED:
            raise FormatError(
                f"{self.where}: {WEIGHTS} is compressed, which Keras does not do: "
                "unzip the file, and zip it without compression (zip -0)"
            )
        self._file.seek(entry.header_offset)
        header = self._file.read(_HEADER)
        lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        start = entry.header_offset + _HEADER + sum(lengths)
        size = os.fstat(self._file.fileno()).st_size
        if header[:4] != b"PK\3\4" or start + entry.file_size > size:
            raise FormatError(f"{self.where}: {WEIGHTS} is truncated")
        part: IO[bytes] = io.BufferedReader(_Part(self._file, start, entry.file_size))
        check = 0
        while piece := part.read(_PIECE):
            check = zlib.crc32(piece, check)
        if check != entry.CRC:
            raise FormatError(f"{self.where}: {WEIGHTS} is damaged")
        part.seek(0)
        return part


class _Part(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BufferedReader, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(0, self._size - self._at))
        self._file.seek(self._start + self._at)
        data = self._file.read(length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextmanager
def opened_archive(file: BufferedReader, where: str) -> Iterator[KerasArchive]:
    """Open an archive; FormatError if it is damaged."""
    try:
        yield KerasArchive(file, where)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise FormatError(f"{where} is damaged: {error}") from None
