"""Concatenations: backward reads parts in the whole; gradients are not split."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph.rewrites._kept_activations import backward_readers, changed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.graph._graph import Graph, Op, Tensor

__all__ = ["read_concatenations", "split_convolution_gradients"]

# Plans have no views, so producers cannot write their parts directly into the whole:
# the forward phase copies each part, which then ends.
_OF_PARTS = {  # op type -> type that reads its first input inside of a wider array
    "relu_gradient": "relu_gradient_at",
    "bias_relu_gradient": "bias_relu_gradient_at",
    "batch_normalization_relu_gradient": "batch_normalization_relu_gradient",
    "batch_normalization_relu6_gradient": "batch_normalization_relu6_gradient",
}


def split_convolution_gradients(graph: Graph) -> Graph:
    """Compute the gradients of concatenated inputs of a convolution separately.

    The gradient of the whole input is not computed, since it would only be split: the
    gradient of some input channels depends on these channels of the kernel only.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same step.
    """
    made: dict[int, list[Op]] = {}  # index of a split -> its replacement
    gone: set[int] = set()  # indices of dropped convolution gradients
    tensors = list(graph.tensors)
    for index, op in enumerate(graph.ops):
        maker = _split_convolution(graph, index, op)
        if maker is not None:
            gone.add(maker)
            made[index] = _convolutions_of_parts(graph, graph.ops[maker], op, tensors)
    if not made:
        return graph
    dropped = {graph.ops[index].outputs[0] for index in gone}
    dropped.update(
        part
        for index, parts in made.items()
        for part in set(graph.ops[index].outputs).difference(
            *(each.outputs for each in parts)
        )
    )
    ops = [
        each
        for index, op in enumerate(graph.ops)
        if index not in gone
        for each in made.get(index, [op])
    ]
    left = [tensor for tensor in range(len(tensors)) if tensor not in dropped]
    return replace(graph, tensors=tuple(tensors)).restricted(left, ops)


def _split_convolution(graph: Graph, index: int, op: Op) -> int | None:
    """Return the convolution gradient whose output is only split into channels."""
    if op.type != "split" or op.phase != "backward":
        return None
    (whole,) = op.inputs
    maker, rank = graph.producer[whole], len(graph.tensors[whole].shape or ())
    if maker is None or graph.ops[maker].type != "conv2d_gradient_input":
        return None
    grouped = graph.ops[maker].attributes["groups"] != 1
    seen = graph.consumers[whole] != (index,) or whole in (*graph.keep, *graph.losses)
    return None if grouped or seen or op.attributes["axis"] % rank < rank - 1 else maker


def _convolutions_of_parts(
    graph: Graph, convolution: Op, split: Op, tensors: list[Tensor]
) -> list[Op]:
    """Return ops that compute each part, and append tensors for parts of the kernel."""
    kernel, dy = convolution.inputs
    height, width, channels, filters = graph.tensors[kernel].shape or ()
    ops: list[Op] = []
    lengths = split.attributes["lengths"]
    for place, part in enumerate(split.outputs):
        if not graph.consumers[part] and part not in graph.keep:
            continue
        first = sum(lengths[:place])
        last = first + lengths[place]
        name = f"{convolution.name}/part{place}"
        tensors.append(
            replace(
                graph.tensors[kernel],
                name=f"{name}/kernel",
                role="activation_gradient",
                shape=(height, width, lengths[place], filters),
                nbytes=graph.tensors[kernel].nbytes // channels * lengths[place],
            )
        )
        longer = replace(graph, tensors=tuple(tensors))
        taken = len(tensors) - 1
        ops.append(
            changed(
                longer,
                replace(split, name=f"{name}/kernel", attributes={}),
                "slice",
                (kernel,),
                (taken,),
                {
                    "begin": (0, 0, first, 0),
                    "end": (height, width, last, filters),
                    "strides": (1, 1, 1, 1),
                },
            )
        )
        ops.append(
            changed(
                longer,
                replace(convolution, name=name),
                convolution.type,
                (taken, dy),
                (part,),
                {"input_shape": graph.tensors[part].shape},
            )
        )
    return ops


def read_concatenations(graph: Graph) -> Graph:
    """Let backward read concatenated parts inside of the whole array.

    Gradient ops that can read some channels of a wider array do so if that lowers the
    live bytes of the step: the parts then end with the forward phase.

    Parameters
    ----------
    graph : Graph
        A training step after fusion, with updates in their final positions.

    Returns
    -------
    Graph
        The same step.
    """
    wholes = dict(_wholes(graph))
    for whole in dict.fromkeys(whole for whole, _ in wholes.values()):
        ops = list(graph.ops)
        for part, (where, first) in wholes.items():
            readers = backward_readers(graph, part)
            if where == whole and all(_reads_part(graph, i, part) for i in readers):
                for i in readers:
                    op = graph.ops[i]
                    inputs = (whole, *op.inputs[1:])
                    place = {"first": first}
                    kind = _OF_PARTS[op.type]
                    ops[i] = changed(graph, op, kind, inputs, op.outputs, place)
        made = replace(graph, ops=tuple(ops))
        if _live_bytes(made) < _live_bytes(graph):
            graph = made
    return graph


def _wholes(graph: Graph) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield tensors with the widest array that contains them and their first channel.

    Both are given as ``part, (whole, first)``.
    """
    wholes: dict[int, tuple[int, int]] = {}
    kept = {*graph.keep, *graph.losses}
    for op in reversed(graph.ops):  # wider arrays are produced later
        if op.type != "concatenate" or op.phase != "forward":
            continue
        (whole,) = op.outputs
        rank = len(graph.tensors[whole].shape or ())
        if op.attributes["axis"] % rank != rank - 1:
            continue
        widest, first = wholes.get(whole, (whole, 0))
        for part in op.inputs:
            if part not in kept and graph.producer[part] is not None:
                wholes.setdefault(part, (widest, first))
            first += (graph.tensors[part].shape or (0,))[-1]
    yield from wholes.items()


def _reads_part(graph: Graph, index: int, part: int) -> bool:
    op = graph.ops[index]
    return (
        op.type in _OF_PARTS
        and op.inputs.index(part) == 0
        and op.inputs.count(part) == 1
        and "first" not in op.attributes
    )


def _live_bytes(graph: Graph) -> int:
    """Return the peak of live bytes without in-place ops."""
    ends = [-1] * len(graph.tensors)
    for index, op in enumerate(graph.ops):
        for tensor in (*op.inputs, *op.outputs):
            ends[tensor] = index
    for tensor in graph.keep:
        ends[tensor] = len(graph.ops)
    live = most = 0
    for index, op in enumerate(graph.ops):
        for tensor in op.outputs:
            live += graph.tensors[tensor].nbytes
        most = max(most, live)
        for tensor in {*op.inputs, *op.outputs}:
            if ends[tensor] == index and graph.producer[tensor] is not None:
                live -= graph.tensors[tensor].nbytes
    return most
