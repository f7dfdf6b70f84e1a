"""The interchange format ``memcfg.graph/1``: graphs as JSON text.

Owns the grammar: which keys there are, and of which type; `memcfg.documents` reads by
it. Returns plain fields; `_graph` makes values of them and checks what they mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.documents import (
    Key,
    read_count,
    read_document,
    read_flag,
    read_list,
    read_object,
    read_seconds,
    read_text,
    write_json,
)
from memcfg.errors import FormatError

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph, Op, Tensor

__all__ = ["read_graph", "write_graph"]

FORMAT = "memcfg.graph/1"


def write_graph(graph: Graph) -> str:
    """Write a graph as JSON text, one tensor and one op a line."""
    tensors = ",\n  ".join(write_json(_tensor_fields(t)) for t in graph.tensors)
    ops = ",\n  ".join(write_json(_op_fields(op)) for op in graph.ops)
    return (
        f'{{"format": {write_json(FORMAT)}, "name": {write_json(graph.name)},\n'
        f' "tensors": [\n  {tensors}],\n "ops": [\n  {ops}],\n'
        f' "keep": {write_json(list(graph.keep))}}}\n'
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


def read_graph(text: str) -> dict[str, Any]:
    """Read JSON text into the fields of a graph; tensors and ops are dicts."""
    return read_document(text, "graph", FORMAT, _GRAPH)


def _read_pair(value: Any, where: str) -> tuple[int, ...]:
    pair: tuple[int, ...] = _IDS(value, where)
    if len(pair) != 2:
        raise FormatError(f"{where} should be a pair [input, output]")
    return pair


def _read_tensor(value: Any, where: str) -> dict[str, Any]:
    return read_object(value, where, _TENSOR)


def _read_algorithm(value: Any, where: str) -> dict[str, Any]:
    return read_object(value, where, _ALGORITHM)


def _read_op(value: Any, where: str) -> dict[str, Any]:
    return read_object(value, where, _OP)


_IDS = read_list(read_count)
_TENSOR = {
    "name": Key(read_text),
    "bytes": Key(read_count, field="nbytes"),
    "role": Key(read_text),
    "shape": Key(_IDS, required=False),
    "dtype": Key(read_text, required=False),
}
_ALGORITHM = {
    "name": Key(read_text),
    "seconds": Key(read_seconds),
    "scratch_bytes": Key(read_count),
}
_OP = {
    "name": Key(read_text),
    "type": Key(read_text),
    "phase": Key(read_text),
    "inputs": Key(_IDS),
    "outputs": Key(_IDS),
    "seconds": Key(read_seconds, required=False, default=0.0),
    "scratch_bytes": Key(read_count, required=False, default=0),
    "replayable": Key(read_flag, required=False, default=True),
    "in_place": Key(read_list(_read_pair), required=False, default=()),
    "algorithms": Key(read_list(_read_algorithm), required=False, default=()),
}
_GRAPH = {
    "name": Key(read_text),
    "tensors": Key(read_list(_read_tensor)),
    "ops": Key(read_list(_read_op)),
    "keep": Key(_IDS),
}
