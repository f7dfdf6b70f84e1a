"""Ops that move elements: transpose, slice, pad, reverse, broadcast_to.

``slice`` {begin, end, strides} takes elements; ``pad`` {before, after, value, strides}
surrounds them by a value. Strides are 1 by default. Each is the other's gradient.
Attributes cover all axes, including the batch. Each op is a copy between two strided
views, so all five share one kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _list(attributes: Attributes, name: str, rank: int, least: int = 0) -> list[int]:
    """Return an attribute with a number for each axis; GraphError if below `least`."""
    value = attributes.get(name)
    if value is None and name == "strides":
        return [1] * rank
    require(value is not None and len(value) == rank, f"{name} {value} of {rank} axes")
    numbers = list(value or ())
    require(min(numbers, default=least) >= least, f"{name} {value} below {least}")
    return numbers


def _infer_transpose(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape, axes = inputs[0].shape, tuple(attributes["axes"])
    require(
        sorted(axes) == list(range(len(shape))),
        f"transpose: axes {axes} are not a permutation of those of {shape}",
    )
    return [Spec(tuple(shape[axis] for axis in axes), inputs[0].dtype)]


def _transpose_rule(adjoint: Adjoint) -> Sequence[int | None]:
    axes = adjoint.attributes["axes"]
    inverse = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    return adjoint.emit("transpose", (adjoint.dy,), {"axes": inverse})


def _transpose(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0].transpose(a["axes"])


def _infer_slice(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = inputs[0].shape
    begin, end = (
        _list(attributes, "begin", len(shape)),
        _list(attributes, "end", len(shape)),
    )
    strides = _list(attributes, "strides", len(shape), 1)
    for first, last, length in zip(begin, end, shape, strict=True):
        require(first < last <= length, f"slice: {begin} to {end} of {shape}")
    lengths = (
        -(-(last - first) // step)
        for first, last, step in zip(begin, end, strides, strict=True)
    )
    return [Spec(tuple(lengths), inputs[0].dtype)]


def _slice_rule(adjoint: Adjoint) -> Sequence[int | None]:
    shape, a = adjoint.shape_of(0), adjoint.attributes
    strides = _list(a, "strides", len(shape), 1)
    taken = adjoint.emitter.shape(adjoint.outputs[0])
    after = tuple(
        length - first - (count - 1) * step - 1
        for length, first, count, step in zip(
            shape, a["begin"], taken, strides, strict=True
        )
    )
    return adjoint.emit(
        "pad",
        (adjoint.dy,),
        {
            "before": tuple(a["begin"]),
            "after": after,
            "value": 0.0,
            "strides": tuple(strides),
        },
    )


def _slice(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    strides = _list(a, "strides", x.ndim, 1)
    outputs[0][...] = x[tuple(map(slice, a["begin"], a["end"], strides))]


def _infer_pad(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = inputs[0].shape
    before, after = (
        _list(attributes, name, len(shape)) for name in ("before", "after")
    )
    strides = _list(attributes, "strides", len(shape), 1)
    lengths = (
        first + (length - 1) * step + 1 + last
        for first, length, step, last in zip(before, shape, strides, after, strict=True)
    )
    return [Spec(tuple(lengths), inputs[0].dtype)]


def _places(a: Attributes, shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices of `pad`'s output that receive the elements of its input."""
    strides = _list(a, "strides", len(shape), 1)
    return tuple(
        slice(first, first + (length - 1) * step + 1, step)
        for first, length, step in zip(a["before"], shape, strides, strict=True)
    )


def _pad_rule(adjoint: Adjoint) -> Sequence[int | None]:
    places = _places(adjoint.attributes, adjoint.shape_of(0))
    attributes = {
        "begin": tuple(place.start for place in places),
        "end": tuple(place.stop for place in places),
        "strides": tuple(place.step for place in places),
    }
    return adjoint.emit("slice", (adjoint.dy,), attributes)


def _pad(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = a["value"]
    outputs[0][_places(a, inputs[0].shape)] = inputs[0]


def _infer_reverse(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = inputs[0].shape
    for axis in attributes["axes"]:
        require(-len(shape) <= axis < len(shape), f"reverse: no axis {axis} of {shape}")
    return [Spec(shape, inputs[0].dtype)]


def _reverse_rule(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("reverse", (adjoint.dy,), adjoint.attributes)


def _reverse(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = np.flip(inputs[0], tuple(a["axes"]))


def _infer_broadcast(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape, wide = inputs[0].shape, tuple(attributes["shape"])
    ends = wide[len(wide) - len(shape) :]
    require(
        len(shape) <= len(wide)
        and all(a in (1, b) for a, b in zip(shape, ends, strict=True)),
        f"broadcast_to: {shape} does not fit {wide}",
    )
    return [Spec(wide, inputs[0].dtype)]


def _broadcast_rule(adjoint: Adjoint) -> Sequence[int | None]:
    shape, wide = adjoint.shape_of(0), adjoint.emitter.shape(adjoint.outputs[0])
    more = len(wide) - len(shape)
    axes = tuple(
        axis
        for axis, length in enumerate(wide)
        if axis < more or shape[axis - more] != length
    )
    dx = adjoint.dy
    if axes:
        (dx,) = adjoint.emit("reduce_sum", (dx,), {"axes": axes, "keepdims": True})
    if more:
        (dx,) = adjoint.emit("reshape", (dx,), {"shape": shape})
    return [dx]


def _broadcast(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0]


register(
    OpType("transpose", 1, _infer_transpose, _transpose, gradient=_transpose_rule),
    OpType("slice", 1, _infer_slice, _slice, gradient=_slice_rule),
    OpType("pad", 1, _infer_pad, _pad, gradient=_pad_rule),
    OpType("reverse", 1, _infer_reverse, _reverse, gradient=_reverse_rule),
    OpType("broadcast_to", 1, _infer_broadcast, _broadcast, gradient=_broadcast_rule),
)
