"""The interchange format ``memcfg.graph/1``: graphs as JSON text.

Owns the grammar: which keys there are, of which type, and the words in which a
departure is refused. Returns plain fields; `_graph` makes values of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from memcfg.errors import FormatError

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph, Op, Tensor

__all__ = ["read_graph", "write_graph"]

FORMAT = "memcfg.graph/1"

_Reader = Callable[[Any, str], Any]


def write_graph(graph: Graph) -> str:
    """Write a graph as JSON text, one tensor and one op a line."""
    tensors = ",\n  ".join(json.dumps(_tensor_fields(t)) for t in graph.tensors)
    ops = ",\n  ".join(json.dumps(_op_fields(op)) for op in graph.ops)
    return (
        f'{{"format": {json.dumps(FORMAT)}, "name": {json.dumps(graph.name)},\n'
        f' "tensors": [\n  {tensors}],\n "ops": [\n  {ops}],\n'
        f' "keep": {json.dumps(list(graph.keep))}}}\n'
    )


def _tensor_fields(tensor: Tensor) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": tensor.name,
        "bytes": tensor.nbytes,
        "role": tensor.role,
    }
    if tensor.shape is not None:
        fields["shape"] = list(tensor.shape)
    if tensor.dtype is not None:
        fields["dtype"] = tensor.dtype
    return fields


def _op_fields(op: Op) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": op.name,
        "type": op.type,
        "phase": op.phase,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "seconds": op.seconds,
        "scratch_bytes": op.scratch_bytes,
        "replayable": op.replayable,
        "in_place": [list(pair) for pair in op.in_place],
    }
    if op.algorithms:
        fields["algorithms"] = [
            {"name": a.name, "seconds": a.seconds, "scratch_bytes": a.scratch_bytes}
            for a in op.algorithms
        ]
    return fields


def read_graph(
    text: str,
) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]], tuple[int, ...]]:
    """Read JSON text into (name, tensor fields, op fields, keep)."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from error
    _check_format(document)
    fields = _read(document, "graph", _GRAPH)
    return fields["name"], fields["tensors"], fields["ops"], fields["keep"]


def _check_format(document: Any) -> None:
    if not isinstance(document, dict) or "format" not in document:
        raise FormatError(f"not a graph: no 'format' key; expected {FORMAT!r}")
    if document["format"] != FORMAT:
        raise FormatError(
            f"format is {document['format']!r}; this version reads {FORMAT!r}"
        )


def _read(
    value: Any, where: str, keys: Mapping[str, tuple[str, _Reader, bool, Any]]
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, found {value!r}")
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise FormatError(f"{where}: unknown key {unknown[0]!r}")
    fields: dict[str, Any] = {}
    for key, (field, reader, required, default) in keys.items():
        if key in value:
            fields[field] = reader(value[key], f"{where}: {key!r}")
        elif required:
            raise FormatError(f"{where}: key {key!r} is missing")
        else:
            fields[field] = default
    fields.pop("format", None)
    return fields


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{where} should be a string, not {value!r}")
    return value


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"{where} should be a whole number, not {value!r}")
    return value


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{where} should be a number, not {value!r}")
    return float(value)


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise FormatError(f"{where} should be true or false, not {value!r}")
    return value


def _list(item: _Reader) -> Callable[[Any, str], list[Any]]:
    def read(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise FormatError(f"{where} should be a list, not {value!r}")
        return [item(entry, f"{where}[{i}]") for i, entry in enumerate(value)]

    return read


def _ids(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_list(_count)(value, where))


def _pair(value: Any, where: str) -> tuple[int, ...]:
    pair = _ids(value, where)
    if len(pair) != 2:
        raise FormatError(f"{where} should be a pair [input, output], not {value!r}")
    return pair


def _pairs(value: Any, where: str) -> tuple[tuple[int, ...], ...]:
    return tuple(_list(_pair)(value, where))


def _object(keys: Mapping[str, tuple[str, _Reader, bool, Any]]) -> _Reader:
    return lambda value, where: _read(value, where, keys)


# JSON key -> (field, reader, required, default)
_TENSOR: dict[str, tuple[str, _Reader, bool, Any]] = {
    "name": ("name", _text, True, None),
    "bytes": ("nbytes", _count, True, None),
    "role": ("role", _text, True, None),
    "shape": ("shape", _ids, False, None),
    "dtype": ("dtype", _text, False, None),
}
_ALGORITHM: dict[str, tuple[str, _Reader, bool, Any]] = {
    "name": ("name", _text, True, None),
    "seconds": ("seconds", _real, True, None),
    "scratch_bytes": ("scratch_bytes", _count, True, None),
}
_OP: dict[str, tuple[str, _Reader, bool, Any]] = {
    "name": ("name", _text, True, None),
    "type": ("type", _text, True, None),
    "phase": ("phase", _text, True, None),
    "inputs": ("inputs", _ids, True, None),
    "outputs": ("outputs", _ids, True, None),
    "seconds": ("seconds", _real, False, 0.0),
    "scratch_bytes": ("scratch_bytes", _count, False, 0),
    "replayable": ("replayable", _flag, False, True),
    "in_place": ("in_place", _pairs, False, ()),
    "algorithms": ("algorithms", _list(_object(_ALGORITHM)), False, []),
}
_GRAPH: dict[str, tuple[str, _Reader, bool, Any]] = {
    "format": ("format", _text, True, None),
    "name": ("name", _text, True, None),
    "tensors": ("tensors", _list(_object(_TENSOR)), True, None),
    "ops": ("ops", _list(_object(_OP)), True, None),
    "keep": ("keep", _ids, True, None),
}
