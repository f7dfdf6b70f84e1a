"""Large kernels of products in bfloat16: read as float32, and rounded in blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph._cost import nominal_seconds_of
from memcfg.graph._updates import hoist_updates
from memcfg.ops import op_type
from memcfg.ops.of_float32 import OF_FLOAT32

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph._graph import Graph, Op

__all__ = ["read_wide_kernels"]

# The bfloat16 copy of VGG-16's first dense kernel takes 196 MiB, more than any other
# buffer of its step.
_LARGE = 4 << 20  # bytes of a copy; smaller ones are not worth more calls


def read_wide_kernels(graph: Graph, has: Callable[[str], bool]) -> Graph:
    """Have products of bfloat16 read large kernels as they are, and round them.

    That is done where products alone read a parameter's cast, which then does not
    exist, and where a device has kernels for them. Updates of such kernels come behind
    the products.

    Parameters
    ----------
    graph : Graph
        A step.
    has : callable
        Whether the device has a kernel of a type's own.

    Returns
    -------
    Graph
        The same step, without those casts.
    """
    gone: dict[int, int] = {}  # a cast's index: the parameter
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
    if any(op.phase == "update" for op in ops):  # which now wait for these readers
        return hoist_updates(narrowed)
    return narrowed


def _is_large(graph: Graph, cast: Op) -> bool:
    """Return whether it rounds a parameter, for ops of this step alone."""
    (source,), (copy,) = cast.inputs, cast.outputs
    return (
        graph.tensors[source].role == "parameter"
        and graph.tensors[source].dtype == "float32"
        and graph.tensors[copy].dtype == "bfloat16"
        and graph.tensors[copy].nbytes >= _LARGE
        and copy not in (*graph.keep, *graph.losses)
    )


def _reads(graph: Graph, index: int, kernel: int, has: Callable[[str], bool]) -> bool:
    """Return whether an op is a product whose kernel a tensor is, and nothing else."""
    op = graph.ops[index]
    place = OF_FLOAT32.get(op.type)
    return (
        place is not None
        and op.inputs[place] == kernel
        and op.inputs.count(kernel) == 1
        and has(f"{op.type}_of_float32")
    )


def _of_float32(graph: Graph, index: int, parameter: int) -> Op:
    """Return the product that rounds the parameter."""
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
