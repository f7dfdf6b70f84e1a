"""Products with a matrix whose columns are read from a file part by part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph._cost import nominal_seconds_of
from memcfg.graph._graph import Op, Tensor
from memcfg.ops import op_type
from memcfg.ops.sections import READS

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph

__all__ = ["multiply_by_parts"]


def multiply_by_parts(graph: Graph) -> Graph:
    """Multiply by the parts of a matrix instead of the matrix put together.

    The products are put together. No more than a part of the matrix is then needed at a
    time.

    Parameters
    ----------
    graph : Graph
        A step for inference.

    Returns
    -------
    Graph
        The same step. A matrix stays whole if another op than ``dense`` reads it.
    """
    parts = _parts(graph)
    if not parts:
        return graph
    tensors = list(graph.tensors)
    ops: list[Op] = []
    for op in graph.ops:
        if op.outputs[0] in parts:
            continue
        matrix = op.inputs[1] if op.type == "dense" else None
        if matrix is None or matrix not in parts:
            ops.append(op)
            continue
        products = []
        for number, part in enumerate(parts[matrix]):
            products.append(_product(graph, op, part, number, tensors))
        made = replace(graph, tensors=tuple(tensors))
        results = tuple(each.outputs[0] for each in products)
        attributes = {"axis": len(tensors[op.outputs[0]].shape or ()) - 1}
        joined = Op(
            op.name,
            "concatenate",
            op.phase,
            results,
            op.outputs,
            seconds=nominal_seconds_of(
                made, op_type("concatenate"), results, op.outputs, attributes
            ),
            attributes=attributes,
        )
        ops += [*products, joined]
    made = replace(graph, tensors=tuple(tensors), ops=tuple(ops))
    return made.restricted([i for i in range(len(tensors)) if i not in parts], ops)


def _parts(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Map each matrix that only products read to its parts, which are read."""
    reads = {op.outputs[1] for op in graph.ops if op.type in READS}
    result: dict[int, tuple[int, ...]] = {}
    for op in graph.ops:
        if op.type == "concatenate" and reads.issuperset(op.inputs):
            (whole,) = op.outputs
            rank = len(graph.tensors[whole].shape or ())
            if rank == 2 and op.attributes["axis"] % rank == 1:
                result[whole] = op.inputs
    for op in graph.ops:
        for place, tensor in enumerate(op.inputs):
            if op.type != "dense" or place != 1:
                result.pop(tensor, None)
    for tensor in graph.keep:
        result.pop(tensor, None)
    return result


def _product(graph: Graph, op: Op, part: int, number: int, tensors: list[Tensor]) -> Op:
    """Return the product with a part of the matrix, and append its tensor."""
    like, columns = graph.tensors[op.outputs[0]], graph.tensors[part].shape
    assert like.shape is not None
    assert columns is not None
    name = f"{op.name}/part{number}"
    shape = (*like.shape[:-1], columns[-1])
    nbytes = like.nbytes // like.shape[-1] * columns[-1]
    tensors.append(Tensor(name, nbytes, "activation", shape, like.dtype))
    inputs, outputs = (op.inputs[0], part), (len(tensors) - 1,)
    made = replace(graph, tensors=tuple(tensors))
    seconds = nominal_seconds_of(made, op_type("dense"), inputs, outputs, {})
    return Op(name, "dense", op.phase, inputs, outputs, seconds=seconds)
