"""Weights as lists and safetensors files, checked before any weight changes."""

from __future__ import annotations

import json
import math
import os
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg.documents import (
    Key,
    read_count,
    read_json,
    read_list,
    read_object,
    read_text,
)
from memcfg.errors import FormatError, WeightsError
from memcfg.files import (
    StoredArray,
    open_file,
    remove_abandoned,
    write_atomically,
)
from memcfg.nn.layers._layer import as_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from io import BufferedReader
    from typing import Self

    from memcfg.nn._network import Weight

__all__ = [
    "Entry",
    "WeightFile",
    "check_file_name",
    "check_list",
    "read_file",
    "read_matching",
    "write_file",
]

Floats = npt.NDArray[np.float32]

_WEIGHTS = {"format": "memcfg.weights/1"}
_MODEL = 2**26  # maximum bytes of a whole model's header
_METADATA = 2**20  # bytes of a header allowed for the metadata of other writers
_CHECKSUMS = "checksums"  # key of a tensor; a model's keys contain "/"
_CHECKED = {_CHECKSUMS: "crc32"}  # noted in the metadata of files that have it
_FOREIGN = 8  # factor by which headers of other writers may be longer
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I8": "int8",
    "U8": "uint8",
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_SUFFIXES = {
    **dict.fromkeys((".h5", ".hdf5"), "HDF5"),
    ".keras": "a model of Keras",
    **dict.fromkeys((".npz", ".npy"), "NumPy"),
    **dict.fromkeys((".pt", ".pth"), "PyTorch"),
    ".ckpt": "a checkpoint",
    **dict.fromkeys((".pkl", ".pickle"), "a pickle"),
    ".onnx": "ONNX",
    ".tflite": "TensorFlow Lite",
    ".pb": "TensorFlow",
    ".gguf": "GGUF",
    ".msgpack": "MessagePack",
    ".zip": "an archive",
}
_MAGICS = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes it",
    b"PK\3\4": "a zip archive, as Keras, PyTorch and NumPy write it",
    b"\x93NUMPY": "an array of NumPy's",
    b"\x80": "a pickle",
    b"GGUF": "a GGUF file",
}


class Entry(NamedTuple):
    """A tensor of a file, with the fields of a `Weight`."""

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


def check_list(weights: Sequence[Weight], values: Any) -> list[Floats]:
    """Return values as arrays for a model's weights; WeightsError if they differ."""
    if not isinstance(values, list | tuple):
        raise WeightsError(
            f"weights must be a list of arrays, got {type(values).__name__}"
        )
    if len(values) != len(weights):
        raise WeightsError(
            f"the model has {len(weights)} weights, but the list has {len(values)}"
        )
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError as error:
        raise WeightsError(f"a weight is not an array: {error}") from error
    for weight, array in zip(weights, arrays, strict=True):
        if array.dtype.kind not in "fiu":
            raise WeightsError(f"{weight.name!r} is {weight.dtype}, got {array.dtype}")
        _check_shape(weight, weight.name, array.shape)
    try:
        pairs = zip(weights, arrays, strict=True)
        return [as_weight(array, weight.dtype) for weight, array in pairs]
    except ValueError as error:
        raise WeightsError(str(error)) from None


def check_file_name(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for a file name with the suffix of another format."""
    stem, suffix = os.path.splitext(os.fsdecode(os.fspath(path)))
    other = _SUFFIXES.get(suffix.lower())
    if other is not None:
        keras = f", or for Keras as {stem + '.weights.h5'!r}" * (suffix == ".h5")
        raise ValueError(
            f"weights are saved as safetensors, but {suffix!r} means {other}: save "
            f"them as {stem + '.safetensors'!r}{keras}"
        )


def write_file(
    path: str | os.PathLike[str],
    weights: Sequence[Weight | Entry],
    read: Callable[[str], Floats],
    metadata: Mapping[str, str] = _WEIGHTS,
    *,
    overwrite: bool = True,
    checksums: bool = False,
) -> None:
    """Write weights to a safetensors file atomically, one weight at a time.

    With checksums, the last tensor holds the CRC-32 of the header and of each tensor
    before it, in their order. `WeightFile` compares them with what it reads.
    """
    ordered = sorted(weights, key=lambda weight: weight.key)
    count = len(ordered) + 1 if checksums else 0
    checked = [Entry("", _CHECKSUMS, (4 * count,), "uint8")] if checksums else []
    notes = {**metadata, **(_CHECKED if checksums else {})}

    def pieces() -> Iterator[bytes | memoryview]:
        header = _header([*ordered, *checked], notes)
        found = np.empty(count, "<u4")
        if count:
            found[0] = zlib.crc32(header)
        yield header
        for place, weight in enumerate(ordered, 1):
            values = np.ascontiguousarray(read(weight.name), _stored(weight))
            data = values.reshape(-1).view(np.uint8).data
            if count:
                found[place] = zlib.crc32(data)
            yield data
            del values, data  # freed before the next one is read
        yield found.tobytes()

    write_atomically(path, pieces(), overwrite=overwrite)


def _stored(weight: Weight | Entry) -> np.dtype[Any]:
    """Return the little-endian dtype of a weight in files."""
    return np.dtype(weight.dtype).newbyteorder("<")


def _header(
    weights: Sequence[Weight | Entry], metadata: Mapping[str, str] = _WEIGHTS
) -> bytes:
    """Return the header and its length, byte for byte as safetensors writes it."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for weight in weights:
        begin, end = end, end + weight.nbytes
        entries[weight.key] = {
            "dtype": _CODES[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class WeightFile:
    """An open safetensors file, whose reads all come from the same save.

    Opening removes abandoned temporary files from its folder.

    Parameters
    ----------
    path : str or path-like
        The file.
    header_bytes : int, default 2**23
        Expected size of the header in bytes; headers of other writers may be longer.

    Attributes
    ----------
    where : str
        The path, for messages.
    metadata : dict
        The metadata stored with the tensors.

    Raises
    ------
    OSError
        If the file cannot be read.
    FormatError
        If the file has no valid header.
    """

    def __init__(
        self, path: str | os.PathLike[str], header_bytes: int = _MODEL // _FOREIGN
    ) -> None:
        self.where = os.fspath(path)
        self._file = open_file(path)
        try:
            remove_abandoned(path)
            self._start, self._entries = _read_header(self._file, header_bytes)
            notes = self._entries.pop("__metadata__", {})
            self.metadata: dict[str, Any] = notes if isinstance(notes, dict) else {}
            self._held: dict[str, npt.NDArray[np.uint8]] = {}  # read by `verify`
            self._checksums: dict[str, int] = {}
            self._read_checksums()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(
        self,
        weights: Sequence[Weight | Entry],
        key_of: Callable[[str], str | None] | None = None,
    ) -> list[Floats]:
        """Return a model's weights; WeightsError if the file has others.

        FormatError if it is damaged. `key_of` maps names in the file to keys, or to
        None for tensors to skip.
        """
        spans = self._spans(weights, key_of)
        return [
            self._bytes(weight.key, *spans[weight.key])
            .view(_stored(weight))
            .reshape(weight.shape)
            .astype(weight.dtype, copy=False)
            for weight in weights
        ]

    def later(
        self, weights: Sequence[Weight | Entry], unread: Collection[str] = ()
    ) -> dict[str, StoredArray]:
        """Return what reads a model's weights, by name, while the file is open.

        Raises as `read` does, for what the header says. `unread` are keys to skip.
        """
        spans = self._spans(weights, lambda name: None if name in unread else name)

        def reading(key: str) -> Callable[[npt.NDArray[np.uint8]], None]:
            where = f"{self.where} is damaged: "
            return lambda values: self._fill(key, spans[key][0], values, where)

        return {
            each.name: StoredArray(each.shape, _stored(each), reading(each.key))
            for each in weights
        }

    def _spans(
        self,
        weights: Sequence[Weight | Entry],
        key_of: Callable[[str], str | None] | None,
    ) -> dict[str, tuple[int, int]]:
        """Return where the weights of a model lie, by key, after checks."""
        names = {
            name: name if key_of is None else key_of(name) for name in self._entries
        }
        _check_names(names, weights, self.where)
        read = self._tensors
        result = {key: read[name] for name, key in names.items() if key is not None}
        for weight in weights:
            _check_entry(weight, result[weight.key], self.where)
        return {key: each["data_offsets"] for key, each in result.items()}

    def has(self, weight: Weight | Entry) -> bool:
        """Return whether there is a tensor of a weight's key, shape and dtype."""
        known = self._tensors.get(weight.key, {"shape": None, "dtype": ""})
        same = known["shape"] == weight.shape
        return bool(same and known["dtype"] == _CODES[weight.dtype])

    def verify(self) -> None:
        """Read the whole file into memory and compare it with its checksums.

        The file may be closed afterwards. Raises FormatError if a checksum is missing
        or does not match.
        """
        if not self._checksums:
            raise FormatError("it has no checksums")
        self._held = {
            key: self._bytes(key, *each["data_offsets"])
            for key, each in self._tensors.items()
        }

    def _read_checksums(self) -> None:
        """Read the checksums of tensors, and compare that of the header.

        There are none in files of weights alone, and of other writers.
        """
        if self.metadata.get(_CHECKSUMS) != _CHECKED[_CHECKSUMS]:
            return
        spans = {key: each["data_offsets"] for key, each in self._tensors.items()}
        *names, last = sorted(spans, key=spans.__getitem__) or [""]
        if last != _CHECKSUMS or spans[last][1] - spans[last][0] != 4 * len(spans):
            raise FormatError("it has not one checksum for each tensor")
        of_header, *found = self._bytes(last, *spans[last]).view("<u4").tolist()
        self._file.seek(0)
        if of_header != zlib.crc32(self._file.read(self._start)):
            raise FormatError("the checksum of its header differs")
        del self._entries[last], self._tensors[last]
        self._checksums = dict(zip(names, found, strict=True))

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        """The header's entry of each tensor, checked against the file's size."""
        read = {
            name: read_object(entry, repr(name), _ENTRY)
            for name, entry in self._entries.items()
        }
        _check_offsets(read, os.fstat(self._file.fileno()).st_size - self._start)
        return read

    def _bytes(self, key: str, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor."""
        if key in self._held:
            return self._held[key]
        values = np.empty(end - begin, np.uint8)
        self._fill(key, begin, values)
        return values

    def _fill(
        self, key: str, begin: int, values: npt.NDArray[np.uint8], where: str = ""
    ) -> None:
        """Read the bytes of a tensor into an array, and compare its checksum.

        Errors begin with `where`.
        """
        self._file.seek(self._start + begin)
        if values.size and self._file.readinto(values.data) < values.nbytes:
            raise FormatError(f"{where}it was truncated while it was read")
        if self._checksums.get(key) not in (None, zlib.crc32(values.data)):
            raise FormatError(f"{where}the checksum of {key!r} differs")


def read_file(
    path: str | os.PathLike[str],
    weights: Sequence[Weight | Entry],
    key_of: Callable[[str], str | None] | None = None,
) -> list[Floats]:
    """Read weights from a safetensors file, as `WeightFile.read` does."""
    try:
        with WeightFile(path, len(_header(weights))) as file:
            return file.read(weights, key_of)
    except FormatError as error:
        raise _damaged(os.fspath(path), error) from None


def read_matching(
    path: str | os.PathLike[str], weights: Sequence[Weight]
) -> list[tuple[Weight, Floats]]:
    """Read the weights that a safetensors file has in the shapes of the model."""
    try:
        with WeightFile(path) as file:
            found = [each for each in weights if file.has(each)]
            keys = {each.key for each in found}
            values = file.read(found, lambda name: name if name in keys else None)
            return list(zip(found, values, strict=True))
    except FormatError as error:
        raise _damaged(os.fspath(path), error) from None


def _damaged(where: str, error: FormatError) -> WeightsError:
    return WeightsError(
        f"{where} is damaged or not a safetensors file of float32 weights: {error}"
    )


def _read_header(file: BufferedReader, expected: int) -> tuple[int, dict[str, Any]]:
    """Return the offset of the data and the entries; `expected` is in bytes."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(16)
    length = int.from_bytes(first[:8], "little")
    if length > size - 8 or first[8:9] != b"{":
        for magic, kind in _MAGICS.items():
            if first.startswith(magic):
                raise FormatError(f"it is {kind}")
        raise FormatError("it is truncated or has no header")
    if length > _FOREIGN * expected + _METADATA:
        raise FormatError(
            f"its header of {length} bytes belongs to a much larger model"
        )
    file.seek(8)
    try:
        entries = read_json(file.read(length), "header")
    except FormatError:
        raise FormatError("its header is not JSON") from None
    if not isinstance(entries, dict):
        raise FormatError("its header is not a JSON object")
    return 8 + length, entries


def _check_names(
    keys: Mapping[str, str | None], weights: Sequence[Weight | Entry], where: str
) -> None:
    """Raise WeightsError for missing or extra weights; `keys` maps the file's names."""
    wanted = {weight.key for weight in weights}
    met: set[str | None] = {None}
    extra = []
    for name, key in keys.items():
        if key is not None and (key in met or key not in wanted):
            extra.append(name)
        met.add(key)
    missing, extra = sorted(wanted - met), sorted(extra)
    if extra and not missing and extra[0].startswith(("optimizer/", "state/")):
        raise WeightsError(
            f"{where} holds a whole model with its optimizer: read it with "
            "nn.models.load_model"
        )
    if missing or extra:
        raise WeightsError(
            f"{where} holds the weights of another architecture. Missing: "
            f"{_some(missing)}; unexpected: {_some(extra)}"
        )


def _check_offsets(tensors: Mapping[str, Any], size: int) -> None:
    """Raise FormatError for tensors that overlap, leave gaps or exceed the file."""
    end = 0
    for begin, stop in sorted(entry["data_offsets"] for entry in tensors.values()):
        if begin != end or stop < begin:
            raise FormatError(f"no tensor starts at byte {end} after its header")
        end = stop
    if end != size:
        raise FormatError(f"it has {size} bytes of data, but its header says {end}")


def _check_entry(weight: Weight | Entry, entry: Mapping[str, Any], where: str) -> None:
    _check_shape(weight, weight.key, entry["shape"])
    dtype = entry["dtype"]
    if dtype != _CODES[weight.dtype]:
        raise WeightsError(
            f"{where}: {weight.key!r} is {_DTYPES.get(dtype, dtype)}, but "
            f"{weight.dtype} in the model"
        )
    begin, end = entry["data_offsets"]
    if end - begin != weight.nbytes:
        raise FormatError(
            f"{weight.key!r} does not have as many bytes as its shape requires"
        )


def _read_span(value: Any, where: str) -> tuple[int, ...]:
    span: tuple[int, ...] = _COUNTS(value, where)
    if len(span) != 2:
        raise FormatError(f"{where} must be a pair [begin, end]")
    return span


def _check_shape(weight: Weight | Entry, name: str, shape: tuple[int, ...]) -> None:
    if shape != weight.shape:
        raise WeightsError(
            f"{name!r} has shape {weight.shape} in the model, got {shape}"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (shown or "nothing") + more


_COUNTS = read_list(read_count)
_ENTRY = {
    "dtype": Key(read_text),
    "shape": Key(_COUNTS),
    "data_offsets": Key(_read_span),
}
