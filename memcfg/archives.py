"""Archives of NumPy arrays, as `numpy.savez` writes them, read safely without pickles.

Reading any file gives arrays or a `FormatError`, and takes memory in proportion to the
file. Sizes that an archive states are checked before memory is allocated. Arrays may
take up to 1 GiB, or 100 times the size of the file if that is more.
"""

from __future__ import annotations

import errno
import io
import math
import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.errors import FormatError
from memcfg.files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

__all__ = ["read_arrays", "write_arrays"]

_ALWAYS = 2**30  # bytes that any archive may unpack to
_RATIO = 100  # bytes of arrays per byte of a file, above that
_DEFLATED = 1032  # most bytes that one compressed byte unpacks to
_HEADER = 10_000  # bytes of an array's header; NumPy reads no longer ones either
_ENCRYPTED = 0x1  # flag of a zip entry
_METHODS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _DEFLATED}


def write_arrays(
    arrays: Mapping[str, NDArray[Any]], *, compress: bool = False
) -> bytes:
    """Return arrays as an archive's bytes, compressed if they can be read again."""
    stream = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    save(stream, allow_pickle=False, **arrays)
    nbytes = sum(array.nbytes + _HEADER for array in arrays.values())
    if compress and nbytes > _max_unpacked(stream.tell()):
        return write_arrays(arrays)
    return stream.getvalue()


def read_arrays(
    path: str | os.PathLike[str], what: str, names: Iterable[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Return all or some arrays by name; `what` is the expected file, for messages."""
    with open_file(path) as file:
        try:
            if not zipfile.is_zipfile(file):
                raise ValueError("no .npz archive")
            with zipfile.ZipFile(file) as archive:
                return _read(archive, os.fstat(file.fileno()).st_size, names)
        except OSError as error:
            # raised for an offset before the file's first byte
            if error.errno != errno.EINVAL:
                raise
            raise FormatError(f"{path} is not a {what}: {error}") from None
        except (
            EOFError,
            OverflowError,
            RuntimeError,  # unsupported features, and recursion
            ValueError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise FormatError(f"{path} is not a {what}: {error}") from None


def _max_unpacked(nbytes: int) -> int:
    """Return how many bytes a file of a given size may unpack to."""
    return max(_ALWAYS, _RATIO * nbytes)


def _read(
    archive: zipfile.ZipFile, nbytes: int, names: Iterable[str] | None
) -> dict[str, NDArray[Any]]:
    by_filename = {entry.filename: entry for entry in archive.infolist()}
    if len(by_filename) < len(archive.infolist()):
        raise ValueError("two arrays have one name")
    if names is None:
        names = [name.removesuffix(".npy") for name in by_filename]
    wanted = list(names)
    for name in wanted:
        if f"{name}.npy" not in by_filename:
            raise ValueError(f"it has no array {name!r}")
    entries = {name: by_filename[f"{name}.npy"] for name in wanted}
    total = sum(entry.file_size for entry in entries.values())
    if total > _max_unpacked(nbytes):
        raise ValueError(f"{nbytes} bytes would unpack to {total}")
    for entry in entries.values():
        _check(entry, nbytes)
    return {name: _array(archive, entry) for name, entry in entries.items()}


def _check(entry: zipfile.ZipInfo, nbytes: int) -> None:
    """Refuse an entry whose sizes cannot be right, before memory is allocated."""
    ratio = _METHODS.get(entry.compress_type)
    if entry.flag_bits & _ENCRYPTED:
        raise ValueError(f"{entry.filename!r} is encrypted")
    if ratio is None:
        raise ValueError(f"{entry.filename!r} is compressed in an unknown way")
    if entry.file_size > ratio * min(entry.compress_size, nbytes):
        raise ValueError(f"{entry.filename!r} is larger than its bytes can say")


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        shape, dtype, end = _header(file.read(min(entry.file_size, _HEADER)))
    if dtype.hasobject:
        raise ValueError(f"{entry.filename!r} has Python objects")
    if dtype.itemsize == 0:  # NumPy would allocate more
        raise ValueError(f"{entry.filename!r} has elements of no bytes")
    if math.prod(shape) * dtype.itemsize != entry.file_size - end:
        raise ValueError(f"{entry.filename!r} has another size than its header says")
    with archive.open(entry) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # the checksum is verified at the end
            raise ValueError(f"{entry.filename!r} is too long")
    return array


def _header(start: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Read a NumPy header: shape, dtype, and the position of the values."""
    stream = io.BytesIO(start)
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"there is no version {version} of arrays")
    try:
        shape, _, dtype = readers[version](stream)
    except Exception as error:
        raise ValueError(f"an array's header is none: {error}") from None
    if any(length < 0 for length in shape):
        raise ValueError(f"an array has the shape {shape}")
    return shape, dtype, stream.tell()
