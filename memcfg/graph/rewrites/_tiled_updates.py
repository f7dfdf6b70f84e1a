"""Tiled updates: a large gradient is computed and applied block by block."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph._cost import nominal_seconds_of
from memcfg.ops import op_type
from memcfg.ops.tiled_update import TILED, update_attributes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph._graph import Graph, Op

__all__ = ["tile_updates"]

_LARGE = 4 << 20  # bytes; for smaller gradients more kernel calls do not pay off


def tile_updates(graph: Graph, has: Callable[[str], bool]) -> Graph:
    """Fuse the gradients of large weights with their updates, in blocks.

    The gradient must be at least 4 MiB, an element-wise update must be its only reader,
    and the device must have a kernel for the fused op. A gradient with other readers
    (clipping by its norm, a sum over several uses of a weight) stays whole, as does
    that of a grouped convolution.

    Parameters
    ----------
    graph : Graph
        A training step.
    has : callable
        ``has(op_type)`` says whether the device has a kernel of that type.

    Returns
    -------
    Graph
        The same step; the updates have become ``dense_update`` or ``conv2d_update``.
    """
    kept = {*graph.keep, *graph.losses}
    gone: set[int] = set()  # indices of dropped ops
    made: dict[int, Op] = {}  # index of the update -> fused op
    for index, op in enumerate(graph.ops):
        tiled = TILED.get(op.type)
        if tiled is None or not has(tiled) or op.outputs[0] in kept:
            continue
        if op.attributes.get("groups", 1) != 1:
            continue
        (gradient,) = op.outputs
        readers = graph.consumers[gradient]
        if graph.tensors[gradient].nbytes < _LARGE or len(readers) != 1:
            continue
        update = graph.ops[readers[0]]
        formula = op_type(update.type).formula
        if (
            update.phase == "update"
            and formula is not None
            and update.inputs.count(gradient) == 1
            and _shape_of_all(graph, update, gradient)
        ):
            gone.add(index)
            made[readers[0]] = _tiled(graph, tiled, op, update)
    if not made:
        return graph
    ops = [made.get(i, op) for i, op in enumerate(graph.ops) if i not in gone]
    dropped = {graph.ops[index].outputs[0] for index in gone}
    left = [i for i in range(len(graph.tensors)) if i not in dropped]
    return graph.restricted(left, ops)


def _shape_of_all(graph: Graph, update: Op, gradient: int) -> bool:
    """Return whether the update's operands have the gradient's shape or are scalars."""
    shape = graph.tensors[gradient].shape
    read = (graph.tensors[tensor].shape for tensor in update.inputs)
    written = (graph.tensors[tensor].shape for tensor in update.outputs)
    return all(each in ((), shape) for each in read) and all(
        each == shape for each in written
    )


def _tiled(graph: Graph, name: str, product: Op, update: Op) -> Op:
    place = update.inputs.index(product.outputs[0])
    others = (*update.inputs[:place], *update.inputs[place + 1 :])
    inputs = (*product.inputs, *others)
    attributes = {
        **product.attributes,
        **update_attributes(update.type, update.attributes, place),
    }
    return replace(
        update,
        type=name,
        inputs=inputs,
        seconds=nominal_seconds_of(
            graph, op_type(name), inputs, update.outputs, attributes
        ),
        attributes=attributes,
    )
