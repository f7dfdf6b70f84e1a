"""ONNX files as checked nodes and arrays; no array is read before it is wanted.

A file may state shapes larger than memory, name arrays of other files, or have a cycle.
Arrays must have the bytes that their shapes need, lie in the folder of the file, and
every name is made once, before it is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from memcfg.errors import FormatError
from memcfg.files import open_file
from memcfg.files import read_file as read_bytes
from memcfg.onnx._onnx_library import the_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Held", "OnnxGraph", "OnnxInput", "OnnxNode", "read_file"]

Array: TypeAlias = np.ndarray[Any, Any]

_OPSETS = 7, 28
_MOST_NODES = 2**18
_MOST_BYTES = 2**31  # of a file, as protobuf allows
_DTYPES = {  # of ONNX, and what they are read as
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "FLOAT16": "float16",
    "INT64": "int64",
    "INT32": "int32",
    "INT16": "int16",
    "INT8": "int8",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "BOOL": "bool",
}
_KINDS = {"GRAPH", "GRAPHS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO"}


class OnnxInput(NamedTuple):
    """An input of a graph; a length is a number, or a name, or None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Held:
    """An array of a file, read when it is wanted."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]


@dataclass(frozen=True)
class OnnxNode:
    """A node; arrays among its attributes are NumPy's."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.type})"


@dataclass(frozen=True)
class OnnxGraph:
    """What a file has, checked."""

    name: str
    opset: int
    inputs: Sequence[OnnxInput]
    outputs: Sequence[str]
    nodes: Sequence[OnnxNode]
    arrays: Mapping[str, Held]
    readers: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of nodes


def read_file(source: Any) -> OnnxGraph:
    """Read a file, or a model that onnx has loaded.

    Parameters
    ----------
    source : str, path-like, bytes or onnx.ModelProto
        The file, its content, or the model.

    Returns
    -------
    OnnxGraph
        The graph.

    Raises
    ------
    MissingDependencyError
        If onnx is not installed.
    FormatError
        If the file is damaged, or states what its bytes do not have.
    NotImplementedError
        If it has parts that are not supported: other domains, sparse arrays.
    OSError
        If it cannot be read.
    """
    onnx = the_library()
    folder: Path | None = None
    where = "the model"
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        where = str(path)
        source, folder = read_bytes(path, _MOST_BYTES), path.parent
    if isinstance(source, bytes):
        model = onnx.ModelProto()
        try:
            model.ParseFromString(source)
        except Exception:
            raise FormatError(f"{where} is not an ONNX file, or damaged") from None
    elif isinstance(source, onnx.ModelProto):
        model = source
    else:
        raise TypeError(
            "source is a path, bytes or an onnx.ModelProto, not "
            f"{type(source).__name__}"
        )
    try:
        return _Reader(onnx, model, folder, where).graph()
    except (FormatError, NotImplementedError, OSError):
        raise
    except Exception as error:
        problem = str(error).partition("\n")[0]
        raise FormatError(f"{where} is damaged: {problem}") from None


class _Reader:
    """The reader of one model."""

    def __init__(self, onnx: Any, model: Any, folder: Path | None, where: str) -> None:
        self._onnx = onnx
        self._folder = folder
        self._where = where
        self._model = model
        if len(model.functions):
            self._model = onnx.inliner.inline_local_functions(model)

    def _damaged(self, problem: str) -> FormatError:
        return FormatError(f"{self._where}: {problem}")

    def graph(self) -> OnnxGraph:
        graph = self._model.graph
        opset = self._opset()
        if len(graph.sparse_initializer):
            raise NotImplementedError(f"{self._where} has sparse arrays")
        if len(graph.node) > _MOST_NODES:
            raise self._damaged(f"{len(graph.node)} nodes, of {_MOST_NODES} at most")
        if not len(graph.output):
            raise self._damaged("there is no graph, or it has no outputs")
        arrays: dict[str, Held] = {}
        for tensor in graph.initializer:
            if tensor.name in arrays:
                raise self._damaged(f"two arrays are named {tensor.name!r}")
            arrays[tensor.name] = self._held(tensor)
        inputs = [self._input(x) for x in graph.input if x.name not in arrays]
        nodes = [self._node(place, node) for place, node in enumerate(graph.node)]
        outputs = [each.name for each in graph.output]
        self._check_names(inputs, outputs, nodes, arrays)
        readers: dict[str, list[int]] = {}
        for place, made in enumerate(nodes):
            for name in made.inputs:
                readers.setdefault(name, []).append(place)
        name = graph.name if isinstance(graph.name, str) else ""
        return OnnxGraph(
            name or "model", opset, inputs, outputs, nodes, arrays, readers
        )

    def _opset(self) -> int:
        versions = {each.domain: each.version for each in self._model.opset_import}
        version = int(versions.get("", versions.get("ai.onnx", 0)))
        if not versions:
            raise FormatError(f"{self._where} is not an ONNX file: it states no opset")
        low, high = _OPSETS
        if not low <= version <= high:
            raise NotImplementedError(
                f"{self._where} has the opset {version}: those from {low} to {high} "
                "are read"
            )
        return version

    def _check_names(
        self,
        inputs: Sequence[OnnxInput],
        outputs: Sequence[str],
        nodes: Sequence[OnnxNode],
        arrays: Mapping[str, Held],
    ) -> None:
        """Raise FormatError unless each name is made once, before it is read."""
        names = [each.name for each in inputs]
        self._check_text([*arrays, *outputs, *names], nodes)
        if len({*names}) < len(names):
            raise self._damaged(f"inputs of one name: {names}")
        known = {"", *arrays, *names}  # "" is an input that is left out
        for node in nodes:
            for name in node.inputs:
                if name not in known:
                    raise self._damaged(f"{node} reads {name!r} before it is made")
            for name in node.outputs:
                if name in known and name:
                    raise self._damaged(f"{node} makes {name!r}, which there is")
                known.add(name)
        for name in outputs:
            if name not in known:
                raise self._damaged(f"no node makes the output {name!r}")

    def _check_text(self, names: list[Any], nodes: Sequence[OnnxNode]) -> None:
        for node in nodes:
            names += [node.name, node.type, *node.inputs, *node.outputs]
        if not all(isinstance(each, str) for each in names):
            raise self._damaged("a name is not text")

    def _node(self, place: int, node: Any) -> OnnxNode:
        name = node.name or (node.output[0] if node.output else f"node_{place}")
        if node.domain not in ("", "ai.onnx"):
            raise NotImplementedError(
                f"{self._where}: node {name!r} ({node.op_type}) is of the domain "
                f"{node.domain!r}, and those of ONNX itself are read"
            )
        attributes: dict[str, Any] = {}
        for each in node.attribute:
            kind = self._onnx.AttributeProto.AttributeType.Name(each.type)
            if kind in _KINDS:
                raise NotImplementedError(
                    f"{self._where}: node {name!r} ({node.op_type}) has an attribute "
                    f"{each.name!r}, a {kind.lower()}, which is not supported"
                )
            value = self._onnx.helper.get_attribute_value(each)
            if kind == "TENSOR":
                value = self._held(value).read()
            elif kind == "STRING":
                value = value.decode("utf-8", "replace")
            elif kind in ("INTS", "FLOATS"):
                value = tuple(value)
            elif kind == "STRINGS":
                value = tuple(text.decode("utf-8", "replace") for text in value)
            attributes[each.name] = value
        return OnnxNode(
            name, node.op_type, tuple(node.input), tuple(node.output), attributes
        )

    def _input(self, info: Any) -> OnnxInput:
        if not info.type.HasField("tensor_type"):
            raise NotImplementedError(
                f"{self._where}: input {info.name!r} is not a tensor"
            )
        kind = info.type.tensor_type
        shape: list[int | str | None] = []
        for dim in kind.shape.dim:
            if dim.HasField("dim_value"):
                shape.append(int(dim.dim_value))
            else:
                shape.append(str(dim.dim_param) or None)
        return OnnxInput(info.name, self._dtype(kind.elem_type, info.name), (*shape,))

    def _dtype(self, code: int, name: str) -> str:
        known = self._onnx.TensorProto.DataType.Name(code)
        if known not in _DTYPES:
            raise NotImplementedError(
                f"{self._where}: {name!r} is of the dtype {known}, which is not "
                "supported"
            )
        return _DTYPES[known]

    def _held(self, tensor: Any) -> Held:
        """Return an array whose bytes are there."""
        dtype = self._dtype(tensor.data_type, tensor.name)
        shape = tuple(int(each) for each in tensor.dims)
        what = f"array {tensor.name!r}"
        if min(shape, default=0) < 0:
            raise self._damaged(f"{what} has a negative length in {shape}")
        count = prod(shape)
        nbytes = count * np.dtype(dtype).itemsize
        outside = self._onnx.TensorProto.EXTERNAL
        if tensor.data_location == outside:
            read = self._external(tensor, what, shape, dtype, nbytes)
            return Held(tensor.name, shape, dtype, read)
        if tensor.HasField("raw_data"):
            given, wanted = len(tensor.raw_data), nbytes
        else:
            lists = (tensor.float_data, tensor.int32_data, tensor.int64_data)
            more = (tensor.double_data, tensor.uint64_data)
            given, wanted = sum(map(len, (*lists, *more))), count
        if given != wanted:
            raise self._damaged(
                f"{what} of the shape {shape} needs {wanted} bytes or numbers, and has "
                f"{given}"
            )

        def numbers() -> Array:
            made: Array = self._onnx.numpy_helper.to_array(tensor)
            return made

        return Held(tensor.name, shape, dtype, numbers)

    def _external(
        self, tensor: Any, what: str, shape: tuple[int, ...], dtype: str, nbytes: int
    ) -> Callable[[], Array]:
        """Return the reader of an array of another file in the same folder."""
        if self._folder is None:
            raise self._damaged(f"{what} lies in another file: read the file by path")
        entries = {each.key: each.value for each in tensor.external_data}
        location = entries.get("location", "")
        folder = self._folder.resolve()
        path = (folder / location).resolve()
        if not location or not path.is_relative_to(folder) or not path.is_file():
            raise self._damaged(f"{what} lies in {location!r}, no file of its folder")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", nbytes))
        except ValueError:
            raise self._damaged(f"{what} begins at no number") from None
        end = path.stat().st_size
        if length != nbytes or offset < 0 or offset + nbytes > end:
            raise self._damaged(
                f"{what} of the shape {shape} needs {nbytes} bytes, and {location!r} "
                f"has {end} bytes, of which {length} from {offset} on are named"
            )

        def read() -> Array:
            kind = np.dtype(dtype).newbyteorder("<")
            with open_file(path) as stream:
                stream.seek(offset)
                made = np.fromfile(stream, kind, prod(shape)).reshape(shape)
            return made.astype(dtype, copy=False)

        return read
