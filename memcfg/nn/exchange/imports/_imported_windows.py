"""Nodes over windows of images: pooling, resizing, and local normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn import layers, ops
from memcfg.nn.exchange.imports._axis_views import Places, UnsupportedError, View
from memcfg.nn.exchange.imports._imported_products import (
    channels_last,
    channels_second,
    on_images,
    padding_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.exchange.imports._imported_node import Node, Rule, Value

__all__ = ["RULES"]

_POOLING: dict[str, dict[int, Any]] = {
    "MaxPool": {1: layers.MaxPooling1D, 2: layers.MaxPooling2D, 3: layers.MaxPooling3D},
    "AveragePool": {
        1: layers.AveragePooling1D,
        2: layers.AveragePooling2D,
        3: layers.AveragePooling3D,
    },
}
_UPSAMPLING = {1: layers.UpSampling1D, 2: layers.UpSampling2D, 3: layers.UpSampling3D}


def _pool(node: Node) -> list[Value]:
    view = node.view(0)
    window = tuple(node.get("kernel_shape", ()))
    rank = len(window)
    if rank not in _UPSAMPLING or len(view.shape) != rank + 2:
        raise UnsupportedError(f"has windows {window} over {view.shape}")
    ones = (1,) * rank
    strides = tuple(node.get("strides", ones))
    gaps = tuple(node.get("dilations", ones))
    if gaps != ones:
        raise UnsupportedError(f"has windows with gaps, {gaps}")
    sizes = view.shape[2:]
    pads = padding_of(node, sizes, window, strides, ones)
    whole = bool(node.get("count_include_pad", 0)) and any(map(any, pads))
    if node.type == "AveragePool" and whole:
        wide = ops.pad(channels_last(view), [(0, 0), *pads, (0, 0)])
        view = channels_second(wide, view.batch)
        sizes = tuple(n + sum(pair) for n, pair in zip(sizes, pads, strict=True))
        pads = [(0, 0)] * rank
    if node.get("ceil_mode", 0):
        pads = _up(sizes, window, strides, pads)
    padding: Any = tuple(pads) if any(map(any, pads)) else "valid"
    name = node.importer.unique(node.label())
    if len(node.of.outputs) > 1 and rank == 2:
        layer: Any = layers.MaxPooling2D(
            window, strides, padding, return_indices=True, name=name
        )
        made: Any = layer(channels_last(view))
        y, places = made
        return [channels_second(y, view.batch), Places(places)]
    layer = _POOLING[node.type][rank](window, strides, padding, name=name)
    return [on_images(layer, view)]


def _unpool(node: Node) -> Value:
    view, places = node.view(0), node.inputs[1]
    if not isinstance(places, Places) or len(view.shape) != 4:
        raise UnsupportedError("reads places that are not those of a MaxPool of images")
    window = tuple(node.get("kernel_shape", ()))
    strides = tuple(node.get("strides", (1, 1)))
    pads = padding_of(node, view.shape[2:], window, strides, (1, 1))
    sizes = node.setting("output_shape", 2)
    layer = layers.MaxUnpooling2D(
        window,
        strides,
        tuple(pads) if any(map(any, pads)) else "valid",
        output_size=None if sizes is None else (int(sizes[2]), int(sizes[3])),
        name=node.importer.unique(node.label()),
    )
    return channels_second(layer([channels_last(view), places.x]), view.batch)


def _up(
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Return the padding with which lengths are rounded up."""
    result = []
    rows = zip(sizes, window, strides, pads, strict=True)
    for size, length, step, (before, after) in rows:
        total = size + before + after - length
        count = -(-total // step)
        if count * step >= size + before:  # the last window lies in the padding
            count -= 1
        result.append((before, after + max(count * step - total, 0)))
    return result


def _global_average(node: Node) -> Value:
    view = node.view(0)
    places = tuple(i for group in view.axes[2:] for i in group)
    if not places:
        return view
    x = channels_last(view)
    kept = ops.mean(x, axis=tuple(range(1, len(x.shape) - 1)))
    if len(x.shape) == 4:
        name = node.importer.unique(node.label())
        kept = layers.GlobalAveragePooling2D(name=name)(x)
    return View(kept, ((0,), (1,), *((),) * (len(view.axes) - 2)), view.batch)


def _global_max(node: Node) -> Value:
    view = node.view(0)
    x = channels_last(view)
    kept = ops.max(x, axis=tuple(range(1, len(x.shape) - 1)))
    return View(kept, ((0,), (1,), *((),) * (len(view.axes) - 2)), view.batch)


def _factors(node: Node, view: View) -> list[int]:
    """Return the whole factors by which axes grow."""
    places = (2, 3) if node.opset > 10 else (1, None)
    scales = node.setting("scales", places[0]) if node.has(places[0]) else ()
    if not scales and places[1] is not None and node.has(places[1]):
        pairs = zip(node.setting("sizes", places[1]), view.shape, strict=True)
        scales = [size / length for size, length in pairs]
    if node.get("axes") is not None or len(scales or ()) != len(view.shape):
        raise UnsupportedError("resizes some axes only, or by computed numbers")
    factors = [round(each) for each in scales]
    if min(factors) < 1 or not np.allclose(factors, scales) or factors[:2] != [1, 1]:
        raise UnsupportedError(f"resizes by {tuple(scales)}: whole factors are known")
    return factors[2:]


def _resize(node: Node) -> Value:
    view = node.view(0)
    factors = _factors(node, view)
    mode = node.get("mode", "nearest")
    how = node.get("coordinate_transformation_mode", "half_pixel")
    if node.type == "Upsample" or node.opset < 11:
        how = "asymmetric"
    rounding = node.get("nearest_mode", "round_prefer_floor")
    near = {"asymmetric": "floor", "half_pixel": "round_prefer_floor"}
    name = node.importer.unique(node.label())
    rank = len(factors)
    if (mode == "nearest" and near.get(how) == rounding) or (
        mode == "nearest" and node.opset < 11
    ):
        layer: Any = _UPSAMPLING[rank](_size(factors), name=name)
    elif mode == "linear" and how.endswith("half_pixel") and rank == 2:
        layer = layers.UpSampling2D(factors, interpolation="bilinear", name=name)
    else:
        raise UnsupportedError(f"resizes in the mode {mode!r} and {how!r}")
    return on_images(layer, view)


def _size(factors: Sequence[int]) -> Any:
    return factors[0] if len(factors) == 1 else tuple(factors)


def _local_response(node: Node) -> Value:
    view = node.view(0)
    size = int(node.get("size", 1))
    if size % 2 == 0:
        raise UnsupportedError(f"has a window of {size} channels, which is even")
    alpha, beta = float(node.get("alpha", 1e-4)), float(node.get("beta", 0.75))
    x = channels_last(view)
    squares = ops.square(x)
    half = size // 2
    wide = ops.pad(squares, [(0, 0)] * (len(x.shape) - 1) + [(half, half)])
    channels = view.shape[1]
    total = wide[..., 0:channels]
    for begin in range(1, size):
        total = total + wide[..., begin : begin + channels]
    scale = total * (alpha / size) + float(node.get("bias", 1.0))
    return channels_second(x * ops.power(scale, -beta), view.batch)


RULES: dict[str, Rule] = {
    "AveragePool": _pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "LRN": _local_response,
    "MaxPool": _pool,
    "MaxUnpool": _unpool,
    "Resize": _resize,
    "Upsample": _resize,
}
