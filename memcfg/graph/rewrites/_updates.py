"""Rewrites of updates: when they run, what they read, and in how many blocks.

A gradient that its update consumes immediately need not stay live until the end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memcfg.errors import GraphError
from memcfg.graph._cost import nominal_seconds_of
from memcfg.graph._graph import STATE_ROLES, Graph, Op
from memcfg.ops import op_type
from memcfg.ops.tiled_update import TILED, update_attributes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["hoist_updates", "narrow_updates", "tile_updates", "update_order"]

_LARGE = 4 << 20  # bytes; for smaller gradients more kernel calls do not pay off


def hoist_updates(graph: Graph) -> Graph:
    """Move every update op to the earliest position that the graph allows.

    An update comes after the whole forward phase (so that a step whose loss is not
    finite changes no state), after the producers of its inputs, and after all other
    readers of the state that it overwrites. One that copies state comes just before its
    first reader.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same tensors and ops, with updates moved.

    Raises
    ------
    GraphError
        If there is no such order: an op reads both the old and the new value of a
        state, two updates overwrite one state, or the forward phase reads a new value.
    """
    return replace(graph, ops=tuple(graph.ops[i] for i in update_order(graph)))


def update_order(graph: Graph) -> tuple[int, ...]:
    """Return the order of ops of `hoist_updates`.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    tuple of int
        The indices of all ops.

    Raises
    ------
    GraphError
        If there is no such order; see `hoist_updates`.
    """
    before = _needed(graph)
    waiting = {update: len(ops) for update, ops in before.items()}
    followers: defaultdict[int, list[int]] = defaultdict(list)
    for update, ops in before.items():
        for op in ops:
            followers[op].append(update)
    order: list[int] = []
    ready = [index for index, count in waiting.items() if not count]  # a heap

    def place(index: int) -> None:
        order.append(index)
        for update in followers[index]:
            waiting[update] -= 1
            if not waiting[update]:
                heappush(ready, update)

    for index in range(len(graph.ops)):
        while ready:
            place(heappop(ready))
        if index not in waiting:
            place(index)
    while ready:
        place(heappop(ready))
    _check_order(graph, order)
    return tuple(order)


def _needed(graph: Graph) -> dict[int, set[int]]:
    """Map each update to the ops that it must follow.

    These are the last forward op, the producers of its inputs, and the other readers of
    the state that it overwrites. What copies state, such as this rank's part of it,
    follows what its first reader does, as the copy takes memory. Their total number is
    linear in the graph's operands, since two updates of one state raise GraphError.
    """
    forward = [i for i, op in enumerate(graph.ops) if op.phase == "forward"]
    followed: dict[int, set[int]] = {}
    overwritten: dict[int, int] = {}  # state -> the update that overwrites it
    for index, op in enumerate(graph.ops):
        if op.phase != "update":
            continue
        before = set(forward[-1:])
        for tensor in op.inputs:
            maker = graph.producer[tensor]
            if maker is not None:
                before.add(maker)
        for source, _ in op.in_place:
            if graph.tensors[source].role in STATE_ROLES:
                if overwritten.setdefault(source, index) != index:
                    raise _unordered(graph, op)
                before.update(graph.consumers[source])
        followed[index] = before - {index}
    for index in followed:
        op = graph.ops[index]
        readers = [graph.consumers[tensor][:1] for tensor in op.outputs]
        if _copies_state(graph, op) and any(readers):
            first = min(reader for each in readers for reader in each)
            followed[index] |= followed.get(first, set()) - {index}
    return followed


def _copies_state(graph: Graph, op: Op) -> bool:
    """Return whether an update reads state alone, and overwrites none."""
    made, tensors = graph.producer, graph.tensors
    return not op.in_place and all(
        made[tensor] is None and tensors[tensor].role in STATE_ROLES
        for tensor in op.inputs
    )


def _check_order(graph: Graph, order: list[int]) -> None:
    """Raise GraphError unless each op is in the order, after its inputs' producers."""
    places = {index: place for place, index in enumerate(order)}
    for index, op in enumerate(graph.ops):
        place = places.get(index, -1)
        latest = -1
        for tensor in op.inputs:
            maker = graph.producer[tensor]
            if maker is not None:
                latest = max(latest, places.get(maker, place))
        if latest >= place:
            raise _unordered(graph, op)


def _unordered(graph: Graph, op: Op) -> GraphError:
    return GraphError(
        f"graph {graph.name!r}: op {op.name!r} cannot be ordered. Updates come after "
        "the forward phase, and after other readers of their state"
    )


def narrow_updates(graph: Graph) -> Graph:
    """Drop casts of bfloat16 gradients to float32 that only updates read.

    Updates compute in float32 whatever they read, so the results have the same bits.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same step, without those casts.
    """
    kept = {*graph.keep, *graph.losses}
    before: dict[int, int] = {}  # float32 gradient -> bfloat16 gradient
    gone: set[int] = set()  # indices of dropped casts
    for index, op in enumerate(graph.ops):
        if op.type == "cast" and op.outputs[0] not in kept and _is_read(graph, op):
            before[op.outputs[0]] = op.inputs[0]
            gone.add(index)
    if not gone:
        return graph
    ops = [
        replace(op, inputs=tuple(before.get(tensor, tensor) for tensor in op.inputs))
        for index, op in enumerate(graph.ops)
        if index not in gone
    ]
    left = [tensor for tensor in range(len(graph.tensors)) if tensor not in before]
    return graph.restricted(left, ops)


def _is_read(graph: Graph, cast: Op) -> bool:
    """Return whether a cast reads bfloat16 and only element-wise updates read it."""
    (given,), (made,) = cast.inputs, cast.outputs
    readers = [graph.ops[index] for index in graph.consumers[made]]
    return (
        graph.tensors[given].dtype == "bfloat16"
        and graph.tensors[made].dtype == "float32"
        and graph.producer[given] is not None
        and bool(readers)
        and all(
            op.phase == "update"
            and op_type(op.type).formula is not None
            and made not in {source for source, _ in op.in_place}
            for op in readers
        )
    )


def tile_updates(graph: Graph, has: Callable[[str], bool]) -> Graph:
    """Fuse the gradients of large weights with their updates, in blocks.

    The gradient must be at least 4 MiB, an element-wise update must be its only reader,
    and the device must have a kernel for the fused op. A gradient with other readers
    (clipping by its norm, a sum over several uses of a weight) stays whole, as do that
    of a grouped convolution and one whose bytes the update may write to.

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
            and gradient not in {source for source, _ in update.in_place}
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
