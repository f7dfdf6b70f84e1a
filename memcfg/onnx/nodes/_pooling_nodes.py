"""Pooling, unpooling and linear interpolation, channels first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.errors import GraphError
from memcfg.onnx._emitter import Form
from memcfg.onnx.nodes._product_nodes import channels_first, sides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.onnx._emitter import Emitter
    from memcfg.onnx._traced_graph import TracedOp

__all__ = ["global_average", "interpolate", "pool", "unpool"]

_PERM = channels_first(4)


def pool(emitter: Emitter, op: TracedOp) -> None:
    """Append a max or average pooling; that of places gives ONNX's own places."""
    a, kind = op.attributes, op.type
    attributes = {
        "kernel_shape": list(a["pool_size"]),
        "strides": list(a["strides"]),
        "pads": sides(a["padding"]),
    }
    x = emitter.full(op.inputs[0], _PERM)
    has_places = len(op.outputs) > 1 and op.outputs[1] in emitter.traces.consumers
    node = "MaxPool" if kind.startswith("max") else "AveragePool"
    names = emitter.node(node, [x], attributes, count=1 + has_places)
    for tensor, name in zip(op.outputs, names, strict=False):
        emitter.add(tensor, name, _PERM)


def unpool(emitter: Emitter, op: TracedOp) -> None:
    """Append what puts pooled values back to the places of the maxima."""
    a = op.attributes
    places, x = op.inputs
    maker = emitter.traces.maker(places)
    if maker is None or not maker.type.startswith("max_pool2d"):
        raise GraphError("reads places that no max pooling makes")
    attributes = {
        "kernel_shape": list(a["pool_size"]),
        "strides": list(a["strides"]),
        "pads": sides(a["padding"]),
    }
    shape = emitter.traces.value(op.outputs[0]).shape
    wanted = emitter.shape([shape[axis] for axis in _PERM])
    operands = [emitter.full(x, _PERM), emitter.full(places, _PERM)]
    if tuple(a["pool_size"]) == tuple(a["strides"]):
        (name,) = emitter.node("MaxUnpool", [*operands, wanted], attributes)
    else:
        name = _summed(emitter, operands, wanted)
    emitter.add(op.outputs[0], name, _PERM)


def _summed(emitter: Emitter, operands: Sequence[str], shape: str) -> str:
    """Append sums at places, which ONNX counts through the whole batch."""
    values, places = (
        emitter.one("Reshape", each, emitter.int64s(-1)) for each in operands
    )
    count = emitter.one("ReduceProd", shape, keepdims=1)
    zeros = emitter.one("Expand", emitter.constant(0.0), count)
    attributes = {"axis": 0, "reduction": "add"}
    (total,) = emitter.node("ScatterElements", [zeros, places, values], attributes)
    return emitter.one("Reshape", total, shape)


def global_average(emitter: Emitter, op: TracedOp) -> None:
    """Append the mean of each channel."""
    x = emitter.full(op.inputs[0], _PERM)
    wide = emitter.one("GlobalAveragePool", x)
    emitter.add(op.outputs[0], emitter.one("Flatten", wide, axis=1))


def interpolate(emitter: Emitter, op: TracedOp) -> None:
    """Append a linear resize along one axis, or one along two for two ops."""
    (tensor,), axis, factor = op.inputs, op.attributes["axis"], op.attributes["factor"]
    rank = len(emitter.traces.value(tensor).shape)
    perm = emitter.layout([tensor])
    if rank == 4 and perm == tuple(range(4)):
        perm = _PERM
    scales = {axis: factor}
    before = emitter.traces.maker(tensor)
    if (
        before is not None
        and before.type == "interpolate"
        and before.attributes["axis"] != axis
        and emitter.traces.is_read_once(tensor)
    ):
        scales[before.attributes["axis"]] = before.attributes["factor"]
        (tensor,) = before.inputs
    form = Form(emitter.full(tensor, perm), perm, ())
    name = _resized(emitter, form, [scales.get(each, 1) for each in perm])
    emitter.add(op.outputs[0], name, perm)


def _resized(emitter: Emitter, form: Form, scales: Sequence[int]) -> str:
    attributes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    factors = emitter.constant([float(each) for each in scales])
    return emitter.node("Resize", [form.name, "", factors], attributes)[0]
