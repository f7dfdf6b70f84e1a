"""Products with a matrix whose columns are read from a file part by part."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from memcfg.graph._cost import nominal_seconds_of
from memcfg.graph._graph import Op, Tensor
from memcfg.ops import op_type
from memcfg.ops.sections import READS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.graph._graph import Graph

__all__ = ["multiply_by_parts"]

# Products by codes take less time than decoding and a dense product, on one thread,
# where entries are at most this share of the elements, and at most so many for each
# element in all rows (bench/results/coded_products.json).
_MOST_ENTRIES, _MOST_PRODUCTS = 0.3, 3.2

# A thread reads the next part meanwhile.
_BESIDE_READ = {"beside_read": True}


def multiply_by_parts(graph: Graph, has: Callable[[str], bool]) -> Graph:
    """Multiply by the parts of a matrix instead of the matrix put together.

    The products are put together. No more than a part of the matrix is then needed at a
    time. Where the parts may stay in their codes, and few entries make that faster, the
    product is made of the codes.

    Parameters
    ----------
    graph : Graph
        A step for inference.
    has : callable
        ``has(op_type)`` says whether the device has a kernel of that type.

    Returns
    -------
    Graph
        The same step. A matrix stays whole if another op than ``dense`` reads it.
    """
    parts = _parts(graph)
    if not parts:
        return graph
    made = {op.outputs[-1]: op for op in graph.ops}
    reads = {matrix: [made[part] for part in own] for matrix, own in parts.items()}
    by_codes = _by_codes(graph, reads) if has("coded_dense") else frozenset()
    gone = {matrix for matrix, own in parts.items() if own != (matrix,)}
    gone |= {part for matrix in by_codes for part in parts[matrix]}
    tensors = list(graph.tensors)
    codes: dict[int, int] = {}  # matrix -> its codes
    ops: list[Op] = []
    for op in graph.ops:
        if op.outputs[-1] in gone:
            continue
        matrix = op.inputs[1] if op.type == "dense" else -1
        if matrix in by_codes:
            if matrix not in codes:
                name = graph.tensors[matrix].name
                ops.append(_reading(graph, reads[matrix], name, tensors))
                codes[matrix] = ops[-1].outputs[1]
            ops.append(_coded(graph, op, reads[matrix], codes[matrix], tensors))
        elif len(parts.get(matrix, ())) > 1:
            ops += _products(graph, op, parts[matrix], tensors)
        else:
            ops.append(op)
    changed = replace(graph, tensors=tuple(tensors), ops=tuple(ops))
    left = {tensor for op in ops for tensor in (*op.inputs, *op.outputs)}
    lost = {tensor for op in graph.ops for tensor in op.outputs} - left
    return changed.restricted([i for i in range(len(tensors)) if i not in lost], ops)


def _by_codes(graph: Graph, reads: Mapping[int, Sequence[Op]]) -> frozenset[int]:
    """Return the matrices of which all products are faster by codes."""
    result = {*reads}
    for op in graph.ops:
        if op.type == "dense" and op.inputs[1] in result:
            matrix, rows = op.inputs[1], graph.tensors[op.inputs[0]].shape or ()
            if not _codes_pay(graph, reads[matrix], prod(rows[:-1])):
                result.discard(matrix)
    return frozenset(result)


def _codes_pay(graph: Graph, reads: Sequence[Op], rows: int) -> bool:
    """Return whether a product by codes takes less time than by decoded parts."""
    if any("entries" not in op.attributes for op in reads):
        return False
    entries: int = sum(op.attributes["entries"] for op in reads)
    size = sum(prod(graph.tensors[op.outputs[1]].shape or ()) for op in reads)
    return entries <= _MOST_ENTRIES * size and entries * rows <= _MOST_PRODUCTS * size


def _reading(graph: Graph, reads: Sequence[Op], name: str, tensors: list[Tensor]) -> Op:
    """Return the op that reads the codes of sections, and append its tensors."""
    first = reads[0]
    nbytes = sum(op.attributes["code_bytes"] for op in reads)
    attributes = {
        "source": first.attributes["source"],
        "section": first.attributes["section"],
        "sections": len(reads),
        "nbytes": nbytes,
    }
    work = graph.tensors[first.outputs[0]]
    tensors.append(replace(work, name=f"{name}/codes:work"))
    tensors.append(Tensor(f"{name}/codes", nbytes, "activation", (nbytes,), "uint8"))
    return _op(
        f"{name}/codes",
        "read_codes",
        first.inputs,
        (len(tensors) - 2, len(tensors) - 1),
        attributes,
        replace(graph, tensors=tuple(tensors)),
    )


def _coded(
    graph: Graph, op: Op, reads: Sequence[Op], codes: int, tensors: list[Tensor]
) -> Op:
    """Return the product by codes."""
    attributes = {
        "source": reads[0].attributes["source"],
        "section": reads[0].attributes["section"],
        "ends": [*accumulate(each.attributes["code_bytes"] for each in reads)],
        "columns": (graph.tensors[reads[0].outputs[1]].shape or ())[-1],
        "units": (graph.tensors[op.outputs[0]].shape or ())[-1],
        "entries": sum(each.attributes["entries"] for each in reads),
    }
    return _op(
        op.name,
        "coded_dense",
        (op.inputs[0], codes),
        op.outputs,
        attributes,
        replace(graph, tensors=tuple(tensors)),
    )


def _op(
    name: str,
    kind: str,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    attributes: Mapping[str, Any],
    graph: Graph,
) -> Op:
    """Return a forward op with its nominal time."""
    of = op_type(kind)
    pairs = tuple((inputs[i], outputs[o]) for i, o in of.in_place)
    return Op(
        name,
        kind,
        "forward",
        inputs,
        outputs,
        seconds=nominal_seconds_of(graph, of, inputs, outputs, attributes),
        replayable=of.replayable,
        in_place=pairs,
        attributes=attributes,
    )


def _products(
    graph: Graph, op: Op, parts: Sequence[int], tensors: list[Tensor]
) -> list[Op]:
    """Return the products with the parts, and the op that puts them together."""
    like = graph.tensors[op.outputs[0]]
    assert like.shape is not None
    ops = []
    for number, part in enumerate(parts):
        columns = (graph.tensors[part].shape or ())[-1]
        name, shape = f"{op.name}/part{number}", (*like.shape[:-1], columns)
        nbytes = like.nbytes // like.shape[-1] * columns
        tensors.append(Tensor(name, nbytes, "activation", shape, like.dtype))
        made = replace(graph, tensors=tuple(tensors))
        inputs, outputs = (op.inputs[0], part), (len(tensors) - 1,)
        ops.append(_op(name, "dense", inputs, outputs, _BESIDE_READ, made))
    results = tuple(each.outputs[0] for each in ops)
    made = replace(graph, tensors=tuple(tensors))
    axis = {"axis": len(like.shape) - 1}
    return [*ops, _op(op.name, "concatenate", results, op.outputs, axis, made)]


def _parts(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Map each matrix that only products read to its parts, which are read.

    One that is read whole is its only part.
    """
    reads = {op.outputs[1] for op in graph.ops if op.type in READS}
    result: dict[int, tuple[int, ...]] = {
        each: (each,) for each in reads if len(graph.tensors[each].shape or ()) == 2
    }
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
