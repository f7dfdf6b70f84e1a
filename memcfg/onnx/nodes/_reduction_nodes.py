"""Reductions, softmax, normalisations, and ops along an axis by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.onnx._emitter import DTYPES
from memcfg.onnx._symbolic_lengths import Length
from memcfg.onnx.nodes._movement_nodes import perm_without
from memcfg.onnx.nodes._product_nodes import causal, channels_first

if TYPE_CHECKING:
    from memcfg.onnx._emitter import Emitter
    from memcfg.onnx._traced_graph import TracedOp

__all__ = [
    "argmax",
    "batch_moments",
    "batch_normalization",
    "determinant",
    "fourier",
    "gather",
    "layer_normalization",
    "one_hot",
    "order",
    "put_along",
    "reduction",
    "scatter_add",
    "softmax",
    "take_along",
]

_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_mean": "ReduceMean",
    "reduce_max": "ReduceMax",
}


def reduction(emitter: Emitter, op: TracedOp) -> None:
    """Append a reduction in the layout that the operand has."""
    (x,), a = op.inputs, op.attributes
    perm, keep = emitter.layout(op.inputs), bool(a.get("keepdims"))
    axes = sorted(axis % len(perm) for axis in a["axes"])
    if not axes:
        emitter.share(op.outputs[0], x)
        return
    places = emitter.int64s(*sorted(perm.index(axis) for axis in axes))
    kind = _REDUCTIONS[op.type]
    name = emitter.one(kind, emitter.full(x, perm), places, keepdims=int(keep))
    emitter.add(op.outputs[0], name, perm if keep else perm_without(perm, axes))


def softmax(emitter: Emitter, op: TracedOp) -> None:
    """Append a softmax or its logarithm."""
    (x,), a = op.inputs, op.attributes
    rank = len(emitter.traces.value(x).shape)
    axis = a.get("axis", -1) % rank
    perm = tuple(range(rank)) if a.get("causal") else emitter.layout(op.inputs)
    name = emitter.full(x, perm)
    if a.get("causal"):
        mask = causal(emitter, emitter.traces.value(x).shape[-2:])
        name = emitter.one("Add", name, mask)
    kind = "LogSoftmax" if op.type == "log_softmax" else "Softmax"
    emitter.add(op.outputs[0], emitter.one(kind, name, axis=perm.index(axis)), perm)


def layer_normalization(emitter: Emitter, op: TracedOp) -> None:
    """Append a normalisation of the last axis."""
    names = [emitter.full(each) for each in op.inputs]
    attributes = {"axis": -1, "epsilon": op.attributes["epsilon"]}
    (name,) = emitter.node("LayerNormalization", names, attributes)
    emitter.add(op.outputs[0], name)


def batch_normalization(emitter: Emitter, op: TracedOp) -> None:
    """Append a normalisation of each channel by given moments."""
    x, *vectors = op.inputs
    rank = len(emitter.traces.value(x).shape)
    perm = channels_first(rank)
    names = [emitter.full(x, perm), *(emitter.full(each) for each in vectors)]
    attributes = {"epsilon": op.attributes["epsilon"]}
    (name,) = emitter.node("BatchNormalization", names, attributes)
    emitter.add(op.outputs[0], name, perm)


def batch_moments(emitter: Emitter, op: TracedOp) -> None:
    """Append the mean and the variance of each channel."""
    (x,) = op.inputs
    perm = emitter.layout(op.inputs)
    axes = [i for i, axis in enumerate(perm) if axis != len(perm) - 1]
    places = emitter.int64s(*axes)
    given = emitter.full(x, perm)
    mean = emitter.one("ReduceMean", given, places, keepdims=1)
    centered = emitter.one("Sub", given, mean)
    squares = emitter.one("Mul", centered, centered)
    variance = emitter.one("ReduceMean", squares, places, keepdims=0)
    flat = emitter.one("Squeeze", mean, places)
    for tensor, name in zip(op.outputs, (flat, variance), strict=True):
        emitter.add(tensor, name)


def argmax(emitter: Emitter, op: TracedOp) -> None:
    """Append the place of the first maximum along the last axis."""
    (x,) = op.inputs
    name = emitter.one("ArgMax", emitter.full(x), axis=-1, keepdims=0)
    dtype = DTYPES[emitter.traces.value(op.outputs[0]).dtype]
    emitter.add(op.outputs[0], emitter.one("Cast", name, to=dtype))


def gather(emitter: Emitter, op: TracedOp) -> None:
    """Append rows of a table by index."""
    table, indices = op.inputs
    name = emitter.one("Gather", emitter.full(table), emitter.full(indices), axis=0)
    emitter.add(op.outputs[0], name)


def one_hot(emitter: Emitter, op: TracedOp) -> None:
    """Append comparisons with all classes; an index out of range has none."""
    (indices,) = op.inputs
    classes = emitter.constant(range(op.attributes["depth"]), "int32")
    wide = emitter.one("Unsqueeze", emitter.full(indices), emitter.int64s(-1))
    same = emitter.one("Equal", wide, classes)
    emitter.add(op.outputs[0], emitter.one("Cast", same, to="float32"))


def scatter_add(emitter: Emitter, op: TracedOp) -> None:
    """Append sums of rows by index; those out of range go to a row that is dropped."""
    indices, rows = op.inputs
    count = op.attributes["rows"]
    value = emitter.traces.value(indices)
    given = emitter.one("Cast", emitter.full(indices), to="int64")
    more = count.plus(1) if isinstance(count, Length) else count + 1
    last = emitter.length(count)
    known = emitter.one(
        "And",
        emitter.one("GreaterOrEqual", given, emitter.int64s(0)),
        emitter.one("Less", given, last),
    )
    places = emitter.one("Where", known, given, last)
    wide = emitter.one("Unsqueeze", places, emitter.int64s(-1))
    sample = emitter.traces.value(rows).shape[len(value.shape) :]
    zeros = emitter.one("Expand", emitter.constant(0.0), emitter.shape([more, *sample]))
    (total,) = emitter.node(
        "ScatterND", [zeros, wide, emitter.full(rows)], {"reduction": "add"}
    )
    name = emitter.one("Slice", total, emitter.int64s(0), last, emitter.int64s(0))
    emitter.add(op.outputs[0], name)


def order(emitter: Emitter, op: TracedOp) -> None:
    """Append the indices that sort the last axis."""
    (x,) = op.inputs
    length = emitter.length(emitter.traces.value(x).shape[-1])
    attributes = {"axis": -1, "largest": int(bool(op.attributes.get("descending")))}
    _, places = emitter.node("TopK", [emitter.full(x), length], attributes, count=2)
    emitter.add(op.outputs[0], emitter.one("Cast", places, to="int32"))


def take_along(emitter: Emitter, op: TracedOp) -> None:
    """Append elements of the last axis by their indices."""
    names = [emitter.full(each) for each in op.inputs]
    last = {"axis": len(emitter.traces.value(op.inputs[0]).shape) - 1}
    emitter.add(op.outputs[0], emitter.node("GatherElements", names, last)[0])


def put_along(emitter: Emitter, op: TracedOp) -> None:
    """Append sums of elements at their indices along the last axis."""
    indices, values = op.inputs
    shape = emitter.traces.value(op.outputs[0]).shape
    zeros = emitter.one("Expand", emitter.constant(0.0), emitter.shape(shape))
    operands = [zeros, emitter.full(indices), emitter.full(values)]
    attributes = {"axis": len(shape) - 1, "reduction": "add"}
    emitter.add(op.outputs[0], emitter.node("ScatterElements", operands, attributes)[0])


def determinant(emitter: Emitter, op: TracedOp) -> None:
    """Append the determinants of matrices."""
    emitter.add(op.outputs[0], emitter.one("Det", emitter.full(op.inputs[0])))


def fourier(emitter: Emitter, op: TracedOp) -> None:
    """Append a discrete Fourier transform of the last axis."""
    shape = emitter.traces.value(op.inputs[0]).shape
    parts = [
        emitter.one("Unsqueeze", emitter.full(each), emitter.int64s(-1))
        for each in op.inputs
    ]
    both = emitter.one("Concat", *parts, axis=-1)
    inverse = int(bool(op.attributes["inverse"]))
    axis = emitter.constant(len(shape) - 1, "int64")
    (made,) = emitter.node("DFT", [both, "", axis], {"inverse": inverse})
    if inverse:  # that of the op is not divided by the length
        length = emitter.one("Cast", emitter.length(shape[-1]), to="float32")
        made = emitter.one("Mul", made, length)
    for place, tensor in enumerate(op.outputs):
        index = emitter.constant(place, "int64")
        emitter.add(tensor, emitter.one("Gather", made, index, axis=-1))
