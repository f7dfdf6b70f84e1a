"""The inputs of a model that hold indices, and the tables that they index.

Follows the indices of each row lookup back to the model input that holds them, through
ops that keep all elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn.inputs._array_checks import Table
from memcfg.nn.layers._embedding import Embedding, ReversibleEmbedding
from memcfg.nn.training._tracing import ProgramKey, trace

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.nn.training._tracing import TraceSpec

__all__ = ["index_tables"]

_KEEPING = {
    *("broadcast_to", "cast", "concatenate", "flatten", "reshape", "reverse"),
    "transpose",
}


def index_tables(spec: TraceSpec) -> dict[str, Table]:
    """Return the smallest table that each input's elements index, by input name.

    Inputs that index no table, or only with a part of their elements, are left out.
    """
    network = spec.network
    lookups = any(
        isinstance(layer, Embedding | ReversibleEmbedding) for layer in network.leaves
    )
    if not lookups and all(each.sample_dtype == "float32" for each in network.inputs):
        return {}
    size = next((n for each in network.inputs if (n := each.node.batch_size)), 1)
    graph = trace(spec, ProgramKey("predict", size))
    result: dict[str, Table] = {}
    for op in graph.ops:
        if op.type != "gather":
            continue
        table = graph.tensors[op.inputs[0]]
        assert table.shape is not None
        for name in _sources(graph, op.inputs[1]):
            if name not in result or table.shape[0] < result[name].rows:
                result[name] = Table(table.name, table.shape[0])
    return result


def _sources(graph: Graph, tensor: int) -> set[str]:
    """Return the names of the inputs all of whose elements a tensor holds."""
    result: set[str] = set()
    ahead = [tensor]
    while ahead:
        tensor = ahead.pop()
        producer = graph.producer[tensor]
        if producer is None:
            if graph.tensors[tensor].role == "input":
                result.add(graph.tensors[tensor].name)
        elif graph.ops[producer].type in _KEEPING:
            ahead += graph.ops[producer].inputs
    return result
