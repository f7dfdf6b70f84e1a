"""Products in bfloat16 that read large float32 kernels and round them in blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph._cost import nominal_seconds_of
from memcfg.graph.rewrites._updates import hoist_updates
from memcfg.ops import op_type
from memcfg.ops.of_float32 import OF_FLOAT32

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph._graph import Graph, Op

__all__ = ["read_wide_kernels"]

# The bfloat16 copy of VGG-16's first dense kernel takes 196 MiB, more than any other
# buffer of its step.
_LARGE = 4 << 20  # bytes; for smaller copies more kernel calls do not pay off


def read_wide_kernels(graph: Graph, has: Callable[[str], bool]) -> Graph:
    """Drop casts of large kernels to bfloat16; products read the float32 parameter.

    The cast must be at least 4 MiB, only products may read it, and the device must have
    kernels for products that round the parameter themselves. Updates of these
    parameters are moved after the products.

    Parameters
    ----------
    graph : Graph
        A step.
    has : callable
        ``has(op_type)`` says whether the device has a kernel of that type.

    Returns
    -------
    Graph
        The same step, without those casts.
    """
    gone: dict[int, int] = {}  # index of a dropped cast -> the parameter
    made: dict[int, Op] = {}
    for index, op in enumerate(graph.ops):
        if op.type == "cast" and _is_large(graph, op):
            readers = graph.consumers[op.outputs[0]]
            if readers and all(_reads(graph, i, op.outputs[0], has) for i in readers):
                gone[index] = op.inputs[0]
                for reader in readers:
                    made[reader] = _of_float32(graph, reader, op.inputs[0])
    if not gone:
        return graph
    ops = [made.get(i, op) for i, op in enumerate(graph.ops) if i not in gone]
    dropped = {graph.ops[index].outputs[0] for index in gone}
    left = [tensor for tensor in range(len(graph.tensors)) if tensor not in dropped]
    narrowed = graph.restricted(left, ops)
    if any(op.phase == "update" for op in ops):  # they must follow the new readers
        return hoist_updates(narrowed)
    return narrowed


def _is_large(graph: Graph, cast: Op) -> bool:
    """Return whether a cast rounds a large parameter and its result is not kept."""
    (source,), (copy,) = cast.inputs, cast.outputs
    return (
        graph.tensors[source].role == "parameter"
        and graph.tensors[source].dtype == "float32"
        and graph.tensors[copy].dtype == "bfloat16"
        and graph.tensors[copy].nbytes >= _LARGE
        and copy not in (*graph.keep, *graph.losses)
    )


def _reads(graph: Graph, index: int, kernel: int, has: Callable[[str], bool]) -> bool:
    """Return whether an op is a product that reads a tensor only as its kernel."""
    op = graph.ops[index]
    place = OF_FLOAT32.get(op.type)
    return (
        place is not None
        and op.inputs[place] == kernel
        and op.inputs.count(kernel) == 1
        and has(f"{op.type}_of_float32")
    )


def _of_float32(graph: Graph, index: int, parameter: int) -> Op:
    """Return the product that reads the float32 parameter and rounds it."""
    op = graph.ops[index]
    inputs = list(op.inputs)
    inputs[OF_FLOAT32[op.type]] = parameter
    kind = op_type(f"{op.type}_of_float32")
    return replace(
        op,
        type=kind.name,
        inputs=tuple(inputs),
        seconds=nominal_seconds_of(graph, kind, inputs, op.outputs, op.attributes),
    )
