"""Ops that move elements, and constants."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.errors import GraphError
from memcfg.onnx._emitter import DTYPES, Stored
from memcfg.onnx._symbolic_lengths import Length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.onnx._emitter import Array, Emitter, Form, Perm
    from memcfg.onnx._symbolic_lengths import Number
    from memcfg.onnx._traced_graph import TracedOp

__all__ = [
    "broadcast",
    "cast",
    "concatenate",
    "constant",
    "fill",
    "frames",
    "pad",
    "perm_without",
    "reshape",
    "reverse",
    "slice_of",
    "split",
    "transpose",
    "triangle",
]

_END = 2**63 - 1  # of a slice up to the end


def transpose(emitter: Emitter, op: TracedOp) -> None:
    """Name the axes anew: what is transposed is another layout of the same numbers."""
    (x,), axes = op.inputs, tuple(op.attributes["axes"])
    if not emitter.forms(x):
        emitter.form(x)
    place = {axis: i for i, axis in enumerate(axes)}
    for form in emitter.forms(x):
        perm = tuple(place[axis] for axis in form.perm)
        emitter.add(op.outputs[0], form.name, perm, form.dims)


def reshape(emitter: Emitter, op: TracedOp) -> None:
    """Append a reshape; axes of length 1 come and go in any layout."""
    (x,), (y,) = op.inputs, op.outputs
    old, new = emitter.traces.value(x).shape, emitter.traces.value(y).shape
    if old == new:
        emitter.share(y, x)
        return
    if _without_ones(old) == _without_ones(new) and emitter.forms(x):
        _move_ones(emitter, x, y)
        return
    emitter.add(y, emitter.reshaped(emitter.full(x), new))


def _without_ones(shape: Sequence[Number]) -> list[Number]:
    return [each for each in shape if each != 1]


def _move_ones(emitter: Emitter, x: int, y: int) -> None:
    """Drop and insert axes of length 1 in the layout that a tensor has."""
    old, new = emitter.traces.value(x).shape, emitter.traces.value(y).shape
    form = min(emitter.forms(x), key=lambda form: form.dims.count(1))
    kept = [axis for axis, length in enumerate(old) if length != 1]
    places = [axis for axis, length in enumerate(new) if length != 1]
    to = dict(zip(kept, places, strict=True))
    name, perm, dims = form
    gone = [i for i, axis in enumerate(perm) if axis not in to]
    order = [to[axis] for axis in perm if axis in to]
    lengths = [d for d, axis in zip(dims, perm, strict=True) if axis in to]
    for axis, length in enumerate(new):
        if length == 1:
            after = [i for i, other in enumerate(order) if other > axis]
            place = min(after, key=lambda i: order[i]) if after else len(order)
            order.insert(place, axis)
            lengths.insert(place, 1)
    come = [i for i, axis in enumerate(order) if axis not in to.values()]
    if gone:
        name = emitter.one("Squeeze", name, emitter.int64s(*gone))
    if come:
        name = emitter.one("Unsqueeze", name, emitter.int64s(*come))
    emitter.add(y, name, tuple(order), lengths)


def broadcast(emitter: Emitter, op: TracedOp) -> None:
    """Repeat axes: ONNX's nodes do so of themselves, so it takes none."""
    (x,), (y,) = op.inputs, op.outputs
    old, new = emitter.traces.value(x).shape, emitter.traces.value(y).shape
    more = len(new) - len(old)
    stored = emitter.stored(x)
    if stored is not None and more:
        wide = replace(
            stored,
            shape=(1,) * more + stored.shape,
            read=lambda: stored.read().reshape((1,) * more + stored.shape),
        )
        emitter.add(y, emitter.store(wide), None, wide.shape)
        return
    if not emitter.forms(x):
        emitter.form(x)
    for form in list(emitter.forms(x)):
        name = form.name
        if more:
            name = emitter.once("Unsqueeze", name, emitter.int64s(*range(more)))
        perm = (*range(more), *(axis + more for axis in form.perm))
        emitter.add(y, name, perm, (*(1,) * more, *form.dims))
        if more:
            return


def concatenate(emitter: Emitter, op: TracedOp) -> None:
    """Append a concatenation in the layout that most operands have."""
    perm = emitter.layout(op.inputs)
    axis = perm.index(op.attributes["axis"] % len(perm))
    names = [emitter.full(each, perm) for each in op.inputs]
    emitter.add(op.outputs[0], emitter.node("Concat", names, {"axis": axis})[0], perm)


def split(emitter: Emitter, op: TracedOp) -> None:
    """Append a split of an axis."""
    perm = emitter.layout(op.inputs)
    axis, lengths = op.attributes["axis"] % len(perm), op.attributes["lengths"]
    operands = [emitter.full(op.inputs[0], perm), emitter.shape(lengths)]
    attributes = {"axis": perm.index(axis)}
    names = emitter.node("Split", operands, attributes, count=len(lengths))
    for tensor, name in zip(op.outputs, names, strict=True):
        emitter.add(tensor, name, perm)


def slice_of(emitter: Emitter, op: TracedOp) -> None:
    """Append a slice of the axes that are cut."""
    (x,), a = op.inputs, op.attributes
    shape = emitter.traces.value(x).shape
    steps = a.get("strides") or (1,) * len(shape)
    last = emitter.last.get(x)
    if last is not None and _is_last_step(a["begin"], a["end"], shape):
        emitter.add(op.outputs[0], *last)
        return
    cut = [
        axis
        for axis, (first, end, step) in enumerate(
            zip(a["begin"], a["end"], steps, strict=True)
        )
        if (first, end, step) != (0, shape[axis], 1)
    ]
    perm = emitter.layout(op.inputs)
    if not cut:
        emitter.share(op.outputs[0], x)
        return
    ends = [_END if a["end"][axis] == shape[axis] else a["end"][axis] for axis in cut]
    operands = [
        emitter.full(x, perm),
        emitter.shape([a["begin"][axis] for axis in cut]),
        emitter.shape(ends),
        emitter.int64s(*(perm.index(axis) for axis in cut)),
    ]
    if any(steps[axis] != 1 for axis in cut):
        operands.append(emitter.int64s(*(int(steps[axis]) for axis in cut)))
    emitter.add(op.outputs[0], emitter.one("Slice", *operands), perm)


def _is_last_step(begin: Any, end: Any, shape: Sequence[Number]) -> bool:
    """Return whether a slice of a sequence is its last step."""
    after = begin[1].plus(1) if isinstance(begin[1], Length) else begin[1] + 1
    whole = (begin[0], begin[2], end[0], end[2]) == (0, 0, shape[0], shape[2])
    return whole and after == end[1] == shape[1]


def pad(emitter: Emitter, op: TracedOp) -> None:
    """Append a padding; strides between elements are zeros of their own."""
    (x,), a = op.inputs, op.attributes
    perm = emitter.layout(op.inputs)
    steps = a.get("strides") or (1,) * len(perm)
    dtype = DTYPES[emitter.traces.value(x).dtype]
    name = emitter.full(x, perm)
    value = emitter.constant(a["value"], dtype)
    shape = emitter.traces.value(x).shape
    for axis, step in enumerate(steps):
        if step != 1:
            name = _spread(emitter, name, [shape[i] for i in perm], axis, step, value)
            shape = tuple(
                _spaced(n, step) if i == axis else n for i, n in enumerate(shape)
            )
    counts = [a["before"][axis] for axis in perm] + [a["after"][axis] for axis in perm]
    if any(counts):
        name = emitter.one("Pad", name, emitter.shape(counts), value)
    emitter.add(op.outputs[0], name, perm)


def _spaced(length: Number, step: int) -> Number:
    """Return the length of elements with gaps between them."""
    if isinstance(length, Length):
        return length.times(step).plus(1 - step)
    return (length - 1) * step + 1


def _spread(
    emitter: Emitter,
    name: str,
    dims: Sequence[Number],
    axis: int,
    step: int,
    value: str,
) -> str:
    """Append gaps between the elements along an axis of the ONNX value."""
    rank = len(dims)
    wide = emitter.one("Unsqueeze", name, emitter.int64s(axis + 1))
    counts = [0] * (2 * rank + 2)
    counts[rank + 1 + axis + 1] = step - 1
    wide = emitter.one("Pad", wide, emitter.int64s(*counts), value)
    length = dims[axis]
    flat = list(dims)
    flat[axis] = length.times(step) if isinstance(length, Length) else length * step
    joined = emitter.reshaped(wide, flat)
    end = emitter.shape([_spaced(length, step)])
    return emitter.one("Slice", joined, emitter.int64s(0), end, emitter.int64s(axis))


def reverse(emitter: Emitter, op: TracedOp) -> None:
    """Append a slice from the end to the start."""
    (x,) = op.inputs
    perm = emitter.layout(op.inputs)
    axes = [perm.index(axis % len(perm)) for axis in op.attributes["axes"]]
    count = len(axes)
    name = emitter.one(
        "Slice",
        emitter.full(x, perm),
        emitter.int64s(*[-1] * count),
        emitter.int64s(*[-_END] * count),
        emitter.int64s(*axes),
        emitter.int64s(*[-1] * count),
    )
    emitter.add(op.outputs[0], name, perm)


def triangle(emitter: Emitter, op: TracedOp) -> None:
    """Append the triangle of matrices."""
    a = op.attributes
    name = emitter.one(
        "Trilu",
        emitter.full(op.inputs[0]),
        emitter.constant(a["offset"], "int64"),
        upper=int(not a["lower"]),
    )
    emitter.add(op.outputs[0], name)


def fill(emitter: Emitter, op: TracedOp) -> None:
    """Keep one number, which ONNX's nodes repeat."""
    (y,), a = op.outputs, op.attributes
    shape, dtype = emitter.traces.value(y).shape, DTYPES[a["dtype"]]
    if not any(isinstance(each, Length) for each in shape):
        lengths = tuple(int(each) for each in shape)  # type: ignore[arg-type]
        if prod(lengths) <= 1 << 16:

            def read() -> Array:
                return np.full(lengths, a["value"], dtype)

            emitter.keep(y, Stored(lengths, dtype, read, op.name))
    ones = np.full((1,) * len(shape), a["value"], dtype)
    emitter.add(y, emitter.constant(ones, dtype), None, ones.shape)


def constant(emitter: Emitter, op: TracedOp) -> None:
    """Keep an array."""
    shape = tuple(op.attributes["shape"])
    data = op.attributes["data"]

    def read() -> Array:
        return np.frombuffer(bytes.fromhex(data), ">f4").astype("f4").reshape(shape)

    emitter.keep(op.outputs[0], Stored(shape, "float32", read, op.name))


def cast(emitter: Emitter, op: TracedOp) -> None:
    """Append a conversion; one between floats of 32 bits needs none."""
    (x,), (y,) = op.inputs, op.outputs
    value = emitter.traces.value(x)
    source, target = DTYPES[value.dtype], DTYPES[op.attributes["dtype"]]
    if source == target:
        emitter.share(y, x)
        return
    perm = emitter.layout(op.inputs)
    form: Form = emitter.form(x, perm)
    emitter.add(y, emitter.one("Cast", form.name, to=target), perm, form.dims)


def frames(emitter: Emitter, op: TracedOp) -> None:
    """Append a gather of the windows of the last axis."""
    (x,), (y,), a = op.inputs, op.outputs, op.attributes
    count = emitter.traces.value(y).shape[-2]
    if isinstance(count, Length):
        raise GraphError("cuts windows out of an axis of any length")
    starts = np.arange(count)[:, None] * a["step"]
    places = starts + np.arange(a["length"]) * a["dilation"]
    indices = emitter.constant(places, "int64")
    emitter.add(y, emitter.one("Gather", emitter.full(x), indices, axis=-1))


def perm_without(perm: Perm, axes: Sequence[int]) -> Perm:
    """Return an order of the axes that are left."""
    left = sorted(axis for axis in perm if axis not in axes)
    return tuple(left.index(axis) for axis in perm if axis not in axes)
