"""Products: dense, matmul, convolutions, their biases, and attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memcfg.errors import GraphError
from memcfg.onnx._emitter import Stored
from memcfg.onnx._symbolic_lengths import Length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.onnx._emitter import Array, Emitter, Perm
    from memcfg.onnx._symbolic_lengths import Number
    from memcfg.onnx._traced_graph import TracedOp

__all__ = [
    "attention",
    "bias",
    "channels_first",
    "convolution",
    "dense",
    "matmul",
    "sides",
    "transposed_convolution",
]

_MASKED = 1e9


def channels_first(rank: int) -> Perm:
    """Return the order of axes with the last one after the batch."""
    return (0, rank - 1, *range(1, rank - 1))


def sides(padding: Sequence[Sequence[int]]) -> list[int]:
    """Return padding in ONNX's order: all begins, then all ends."""
    return [pair[0] for pair in padding] + [pair[1] for pair in padding]


def dense(emitter: Emitter, op: TracedOp) -> None:
    """Append the product of the last axis with a matrix."""
    x, kernel = op.inputs
    name = emitter.one("MatMul", emitter.full(x), emitter.full(kernel))
    emitter.add(op.outputs[0], name)
    emitter.maker[op.outputs[0]] = emitter.nodes[-1]


def matmul(emitter: Emitter, op: TracedOp) -> None:
    """Append a product of matrices; a transposed operand is one in another layout."""
    names = []
    for tensor, key in zip(op.inputs, ("transpose_a", "transpose_b"), strict=True):
        rank = len(emitter.traces.value(tensor).shape)
        perm = tuple(range(rank))
        if op.attributes.get(key):
            perm = (*perm[:-2], rank - 1, rank - 2)
        names.append(emitter.full(tensor, perm))
    emitter.add(op.outputs[0], emitter.one("MatMul", *names))


def convolution(emitter: Emitter, op: TracedOp) -> None:
    """Append a convolution, channels first."""
    x, kernel = op.inputs
    a, rank = op.attributes, len(op.attributes["strides"])
    perm = channels_first(rank + 2)
    weight = emitter.full(kernel, (rank + 1, rank, *range(rank)))
    attributes = {
        "kernel_shape": list(emitter.traces.value(kernel).shape[:rank]),
        "strides": list(a["strides"]),
        "dilations": list(a["dilation"]),
        "pads": sides(a["padding"]),
        "group": a["groups"],
    }
    (name,) = emitter.node("Conv", [emitter.full(x, perm), weight], attributes)
    emitter.add(op.outputs[0], name, perm)
    emitter.maker[op.outputs[0]] = emitter.nodes[-1]


def transposed_convolution(emitter: Emitter, op: TracedOp) -> None:
    """Append the transpose of a convolution, channels first."""
    kernel, x = op.inputs
    a, rank = op.attributes, len(op.attributes["strides"])
    window = emitter.traces.value(kernel).shape[:rank]
    perm = channels_first(rank + 2)
    more = []
    lengths = zip(
        emitter.traces.value(x).shape[1:-1],
        emitter.traces.value(op.outputs[0]).shape[1:-1],
        strict=True,
    )
    for axis, (given, wanted) in enumerate(lengths):
        step, reach = a["strides"][axis], (int(window[axis]) - 1) * a["dilation"][axis]  # type: ignore[arg-type]
        made = _plus(_times(given, step), reach + 1 - step - sum(a["padding"][axis]))
        more.append(_difference(wanted, made))
    if min(more) < 0:
        raise GraphError("has an input that is longer than what it is made of")
    attributes = {
        "kernel_shape": list(window),
        "strides": list(a["strides"]),
        "dilations": list(a["dilation"]),
        "pads": sides(a["padding"]),
        "output_padding": more,
        "group": a["groups"],
    }
    weight = emitter.full(kernel, (rank + 1, rank, *range(rank)))
    (name,) = emitter.node("ConvTranspose", [emitter.full(x, perm), weight], attributes)
    emitter.add(op.outputs[0], name, perm)
    emitter.maker[op.outputs[0]] = emitter.nodes[-1]


def _times(length: Number, by: int) -> Number:
    return length.times(by) if isinstance(length, Length) else length * by


def _plus(length: Number, term: int) -> Number:
    return length.plus(term) if isinstance(length, Length) else length + term


def _difference(a: Number, b: Number) -> int:
    """Return the difference of two lengths that is the same for all runs."""
    if isinstance(a, Length) and isinstance(b, Length) and a[:2] == b[:2]:
        return a.term - b.term
    if isinstance(a, Length) or isinstance(b, Length):
        raise GraphError(f"has lengths {a} and {b}, which differ by no fixed number")
    return a - b


def bias(emitter: Emitter, op: TracedOp) -> None:
    """Add a number to each channel, in the node of the product where there is one."""
    x, vector = op.inputs
    made, stored = emitter.maker.get(x), emitter.stored(vector)
    rank = len(emitter.traces.value(x).shape)
    is_gemm = made is not None and made.type == "MatMul" and rank == 2
    if (
        made is not None
        and stored is not None
        and emitter.traces.is_read_once(x)
        and (made.type != "MatMul" or is_gemm)
    ):
        made.inputs.append(emitter.full(vector))
        if is_gemm:
            made.type = "Gemm"
        emitter.share(op.outputs[0], x)
        return
    perm = emitter.layout([x])
    narrow = emitter.form(x, perm)
    place = perm.index(rank - 1)
    name = emitter.full(vector)
    if place != rank - 1:
        shape = [1] * rank
        shape[place] = -1
        if stored is not None:
            name = emitter.store(_shaped(stored, tuple(shape)))
        else:
            name = emitter.one("Reshape", name, emitter.int64s(*shape))
    dims = list(narrow.dims)
    dims[place] = emitter.traces.value(x).shape[-1]
    emitter.add(op.outputs[0], emitter.one("Add", narrow.name, name), perm, dims)


def _shaped(stored: Stored, shape: tuple[int, ...]) -> Stored:
    """Return a stored vector in another shape, in which -1 stands for its length."""

    def read() -> Array:
        return stored.read().reshape(shape)

    full = tuple(stored.shape[0] if each == -1 else each for each in shape)
    return replace(stored, shape=full, read=read)


def attention(emitter: Emitter, op: TracedOp) -> None:
    """Append scaled dot-product attention as two products around a softmax."""
    a = op.attributes
    if "rate" in a:
        raise GraphError("drops weights at random")
    q, k, v, *masks = op.inputs
    rank = len(emitter.traces.value(q).shape)
    before = (0,) if rank == 3 else (0, 2)  # the batch, and heads
    rows, columns = (*before, 1, rank - 1), (*before, rank - 1, 1)
    scores = emitter.one("MatMul", emitter.full(q, rows), emitter.full(k, columns))
    scores = emitter.one("Mul", scores, emitter.constant(np.float32(a["scale"])))
    for mask in _product(emitter, masks):
        if rank == 4:
            mask = emitter.one("Unsqueeze", mask, emitter.int64s(1))
        hidden = emitter.one("Mul", mask, emitter.constant(_MASKED))
        hidden = emitter.one("Sub", hidden, emitter.constant(_MASKED))
        scores = emitter.one("Add", scores, hidden)
    if a.get("causal"):
        shapes = [emitter.traces.value(each).shape[1] for each in (q, k)]
        scores = emitter.one("Add", scores, causal(emitter, shapes))
    weights = emitter.one("Softmax", scores, axis=-1)
    name = emitter.one("MatMul", weights, emitter.full(v, rows))
    emitter.add(op.outputs[0], name, rows)


def _product(emitter: Emitter, masks: Sequence[int]) -> list[str]:
    """Append the product of masks; none, if there are none."""
    names = [emitter.full(mask) for mask in masks]
    while len(names) > 1:
        names[:2] = [emitter.one("Mul", *names[:2])]
    return names


def causal(emitter: Emitter, shape: Sequence[Number]) -> str:
    """Append a matrix that is -inf above its diagonal, and 0 elsewhere."""
    if not any(isinstance(each, Length) for each in shape):
        rows, columns = (int(each) for each in shape)  # type: ignore[arg-type]
        label = "causal"

        def read() -> Array:
            above = np.triu(np.ones((rows, columns), np.bool_), 1)
            return np.where(above, -math.inf, 0.0).astype(np.float32)

        key = Stored((rows, columns), "float32", read, label)
        return emitter.store(key)
    ones = emitter.one("Expand", emitter.constant(1.0), emitter.shape(shape))
    above = emitter.one("Trilu", ones, emitter.constant(1, "int64"), upper=1)
    is_above = emitter.one("Cast", above, to="bool")
    return emitter.one(
        "Where", is_above, emitter.constant(-math.inf), emitter.constant(0.0)
    )
