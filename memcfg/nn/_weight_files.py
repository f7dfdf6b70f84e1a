"""Weights as lists and as safetensors files: checked before the first one changes."""

from __future__ import annotations

import json
import math
import os
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
from memcfg.files import open_file, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from io import BufferedReader

    from memcfg.nn._network import Weight

__all__ = [
    "Entry",
    "check_file_name",
    "check_list",
    "read_file",
    "read_metadata",
    "write_file",
]

Floats = npt.NDArray[np.float32]

_WEIGHTS = {"format": "memcfg.weights/1"}
_MODEL = 2**26  # bytes of a whole model's header
_METADATA = 2**20  # bytes of a header for what others note in it
_FOREIGN = 8  # times as long as ours a header may be otherwise
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
    """A tensor of a file, as a `Weight` is one."""

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


def check_list(weights: Sequence[Weight], values: Any) -> list[Floats]:
    """Return values for a model's weights, or say why they are not."""
    if not isinstance(values, list | tuple):
        raise WeightsError(f"weights are a list of arrays, not {type(values).__name__}")
    if len(values) != len(weights):
        raise WeightsError(
            f"the model has {len(weights)} weights, the list has {len(values)}"
        )
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError as error:
        raise WeightsError(f"a weight is not an array: {error}") from error
    for weight, array in zip(weights, arrays, strict=True):
        if array.dtype.kind not in "fiu":
            raise WeightsError(f"{weight.name!r} is {weight.dtype}, not {array.dtype}")
        _check_shape(weight, weight.name, array.shape)
    return [
        array.astype(weight.dtype)
        for weight, array in zip(weights, arrays, strict=True)
    ]


def check_file_name(path: str | os.PathLike[str]) -> None:
    """Refuse a file name that says it is of another format."""
    stem, suffix = os.path.splitext(os.fsdecode(os.fspath(path)))
    other = _SUFFIXES.get(suffix.lower())
    if other is not None:
        raise ValueError(
            f"weights are written as safetensors, and {suffix!r} says {other}: "
            f"save them as {stem + '.safetensors'!r}"
        )


def write_file(
    path: str | os.PathLike[str],
    weights: Sequence[Weight | Entry],
    read: Callable[[str], Floats],
    metadata: Mapping[str, str] = _WEIGHTS,
) -> None:
    """Write weights to a safetensors file, all or nothing, one at a time."""
    ordered = sorted(weights, key=lambda weight: weight.key)

    def pieces() -> Iterator[bytes | memoryview]:
        yield _header(ordered, metadata)
        for weight in ordered:
            yield (
                np.ascontiguousarray(read(weight.name), _stored(weight))
                .reshape(-1)
                .data
            )

    write_atomically(path, pieces())


def _stored(weight: Weight | Entry) -> np.dtype[Any]:
    """Return the dtype of a weight in files, which is little-endian."""
    return np.dtype(weight.dtype).newbyteorder("<")


def _header(
    weights: Sequence[Weight | Entry], metadata: Mapping[str, str] = _WEIGHTS
) -> bytes:
    """Write the header as safetensors does, byte for byte, with its length."""
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


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what a safetensors file notes beside its tensors."""
    with open_file(path) as file:
        try:
            _, entries = _read_header(file, _MODEL // _FOREIGN)
        except FormatError as error:
            raise FormatError(f"{os.fspath(path)} holds no model: {error}") from None
    found = entries.get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def read_file(
    path: str | os.PathLike[str],
    weights: Sequence[Weight | Entry],
    *,
    whole: bool = False,
    key_of: Callable[[str], str | None] | None = None,
) -> list[Floats]:
    """Read a model's weights from a safetensors file; `whole`: of a whole model.

    `key_of` says the key that a name in the file stands for; None: it is passed over.
    """
    where = os.fspath(path)
    with open_file(path) as file:
        try:
            expected = _MODEL // _FOREIGN if whole else len(_header(weights))
            start, entries = _read_header(file, expected)
            entries.pop("__metadata__", None)
            keys = {name: name if key_of is None else key_of(name) for name in entries}
            _check_names(keys, weights, where)
            read = {
                name: read_object(entry, repr(name), _ENTRY)
                for name, entry in entries.items()
            }
            _check_offsets(read, os.fstat(file.fileno()).st_size - start)
            found = {key: read[name] for name, key in keys.items() if key is not None}
            for weight in weights:
                _check_entry(weight, found[weight.key], where)
            offsets = [
                start + found[weight.key]["data_offsets"][0] for weight in weights
            ]
            return [
                _read_values(file, offset, weight)
                for offset, weight in zip(offsets, weights, strict=True)
            ]
        except FormatError as error:
            raise WeightsError(
                f"{where} is damaged or not a safetensors file of float32 weights: "
                f"{error}"
            ) from None


def _read_header(file: BufferedReader, expected: int) -> tuple[int, dict[str, Any]]:
    """Read where values begin, and the entries; `expected`: bytes that ours has."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(16)
    length = int.from_bytes(first[:8], "little")
    if length > size - 8 or first[8:9] != b"{":
        for magic, kind in _MAGICS.items():
            if first.startswith(magic):
                raise FormatError(f"it is {kind}")
        raise FormatError("it is truncated, or has no header")
    if length > _FOREIGN * expected + _METADATA:
        raise FormatError(f"its header of {length} bytes is of a far larger model")
    file.seek(8)
    entries = read_json(file.read(length), "header")
    if not isinstance(entries, dict):
        raise FormatError("its header is no object")
    return 8 + length, entries


def _check_names(
    keys: Mapping[str, str | None], weights: Sequence[Weight | Entry], where: str
) -> None:
    """Refuse a file that lacks a weight, or has others; `keys` by names in it."""
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
            f"{where} holds a whole model with its optimizer: nn.models.load_model "
            "reads it"
        )
    if missing or extra:
        raise WeightsError(
            f"{where} holds the weights of another architecture: missing "
            f"{_some(missing)}; not in the model {_some(extra)}"
        )


def _check_offsets(found: Mapping[str, Any], size: int) -> None:
    """Refuse values that overlap, leave a gap, or end elsewhere than the file."""
    end = 0
    for begin, stop in sorted(entry["data_offsets"] for entry in found.values()):
        if begin != end or stop < begin:
            raise FormatError(f"no value begins at byte {end} behind its header")
        end = stop
    if end != size:
        raise FormatError(f"it has {size} bytes of values, its header says {end}")


def _check_entry(weight: Weight | Entry, entry: Mapping[str, Any], where: str) -> None:
    _check_shape(weight, weight.key, entry["shape"])
    dtype = entry["dtype"]
    if dtype != _CODES[weight.dtype]:
        raise WeightsError(
            f"{where}: {weight.key!r} is {_DTYPES.get(dtype, dtype)}, the model's is "
            f"{weight.dtype}"
        )
    begin, end = entry["data_offsets"]
    if end - begin != weight.nbytes:
        raise FormatError(f"{weight.key!r} has not as many bytes as its shape says")


def _read_values(file: BufferedReader, offset: int, weight: Weight | Entry) -> Floats:
    values = np.empty(weight.size, _stored(weight))
    file.seek(offset)
    if values.size and file.readinto(values.view(np.uint8).data) < values.nbytes:
        raise FormatError("it became shorter while it was read")
    return values.reshape(weight.shape).astype(weight.dtype, copy=False)


def _read_span(value: Any, where: str) -> tuple[int, ...]:
    span: tuple[int, ...] = _COUNTS(value, where)
    if len(span) != 2:
        raise FormatError(f"{where} should be a pair [begin, end]")
    return span


def _check_shape(weight: Weight | Entry, name: str, shape: tuple[int, ...]) -> None:
    if shape != weight.shape:
        raise WeightsError(
            f"{name!r} has shape {weight.shape} in the model, not {shape}"
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
