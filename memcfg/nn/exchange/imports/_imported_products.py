"""Nodes with products and normalisations, which become layers with weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn import layers, ops
from memcfg.nn.exchange.imports._axis_views import (
    Known,
    UnsupportedError,
    View,
    aligned,
    arranged,
    last,
    plain,
    reshaped,
)
from memcfg.nn.exchange.imports._imported_elements import combined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.exchange.imports._imported_node import Node, Rule, Value

__all__ = ["RULES"]


def _following_bias(node: Node, units: int) -> tuple[int, Known] | None:
    """Return the node after this one, if all that it does is to add a bias."""
    found = node.importer.next_reader(node.of.outputs[0])
    if found is None or found[1].type != "Add":
        return None
    place, reader = found
    values = [node.importer.values.get(name) for name in reader.inputs]
    for value in values:
        if isinstance(value, Known) and value.shape == (units,):
            return place, value
    return None


def _dense(
    node: Node, view: View, kernel: Known, bias: Known | None, axis: int = -1
) -> View:
    """Return the product of an axis of a value with a matrix."""
    x, axes = last(view, axis % len(view.shape))
    if view.shape[axis] != kernel.shape[0]:
        raise ValueError(f"values {view.shape} and a matrix {kernel.shape}")
    weights = [kernel] if bias is None else [kernel, bias]
    layer = node.importer.layer(
        layers.Dense,
        weights,
        node.label(kernel),
        units=kernel.shape[1],
        use_bias=bias is not None,
        kernel_initializer="zeros",
    )
    if len(x.shape) == 1:
        raise UnsupportedError("multiplies the batch")
    return View(layer(x), axes, view.batch)


def _matmul(node: Node) -> Value:
    a, b = node.value(0), node.value(1)
    if isinstance(a, Known) and isinstance(b, Known):
        return Known.of(np.matmul(a.array(), b.array()))
    if isinstance(a, View) and isinstance(b, Known) and len(b.shape) == 2:
        bias = _following_bias(node, b.shape[1])
        made = _dense(node, a, b, None if bias is None else bias[1])
        if bias is not None:
            node.importer.finish(bias[0], made)
        return made
    if isinstance(a, Known) and isinstance(b, View) and len(a.shape) == 2:
        kernel = a.changed(a.shape[::-1], np.transpose)
        return _dense(node, b, kernel, None, -2)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise UnsupportedError(f"multiplies {a.shape} by {b.shape}")
    return _product(node, a, b)


def _product(node: Node, a: View | Known, b: View | Known) -> View:
    """Return the products of matrices in the last two axes of two values."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matrices of {a.shape} and {b.shape}")
    for value, free in ((a, -2), (b, -1)):
        if isinstance(value, View) and 0 in (*value.axes[free], *value.axes[-3 - free]):
            raise UnsupportedError("multiplies along the batch")
    laid, axes, batch = aligned([a, b], tail=2)
    count = len({i for group in axes for i in group})
    operands = [node.operand(x) if isinstance(x, Known) else x for x in laid]
    made = ops.matmul(*operands)
    return View(made, (*axes, (count,), (count + 1,)), batch)


def _gemm(node: Node) -> Value:
    alpha, beta = float(node.get("alpha", 1.0)), float(node.get("beta", 1.0))
    a, b = node.view(0), node.value(1)
    if node.get("transA", 0):
        a = View(a.x, a.axes[::-1], a.batch)
    third = node.value(2) if node.has(2) else None
    if not isinstance(b, Known):
        raise UnsupportedError("multiplies two computed matrices")
    turn = bool(node.get("transB", 0))
    shape = b.shape[::-1] if turn else b.shape

    def change(array: Any) -> Any:
        return (array.T if turn else array) * np.float32(alpha)

    kernel = b.changed(shape, change)
    is_bias = isinstance(third, Known) and third.shape in (
        (shape[1],),
        (1, shape[1]),
    )
    bias = None
    if is_bias:
        assert isinstance(third, Known)
        bias = third.changed(
            (shape[1],), lambda array: array.reshape(-1) * np.float32(beta)
        )
    made = _dense(node, a, kernel, bias)
    if third is None or is_bias:
        return made
    if isinstance(third, Known):
        third = third.changed(third.shape, lambda array: array * np.float32(beta))
    elif beta != 1:
        third = View(third.x * beta, third.axes, third.batch)
    return combined(node, [made, third], ops.add)


def on_images(layer: Any, view: View) -> View:
    """Return what a layer makes of images or sequences, channels-last.

    Samples may be parts of those of the model, which then are further steps.
    """
    first, channels, *sides = view.axes
    if first == (0,):
        x = layer(arranged(view, [first, *sides, channels]))
        more = 0
    elif first[:1] == (0,):
        x = arranged(view, [(0,), first[1:], *sides, channels])
        name = f"{layer.name}.steps"
        x = layers.TimeDistributed(layer, name=name)(x)
        more = 1
    else:
        raise UnsupportedError("has no batch of samples in its first axis")
    return channels_second(x, view.batch, more)


def channels_last(view: View) -> Any:
    """Return images or sequences with the channels last."""
    if view.axes[0] != (0,):
        raise UnsupportedError("has no batch of samples in its first axis")
    return arranged(view, [view.axes[0], *view.axes[2:], view.axes[1]])


def channels_second(x: Any, batch: int, more: int = 0) -> View:
    """Return a channels-last tensor as ONNX sees it; `more` axes are of the batch."""
    rank = len(x.shape)
    sides = ((i,) for i in range(1 + more, rank - 1))
    return View(x, (tuple(range(1 + more)), (rank - 1,), *sides), batch)


def padding_of(
    node: Node,
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """Return the padding of each axis, before and after."""
    rank = len(window)
    mode = node.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        rows = zip(sizes, window, strides, dilations, strict=True)
        for size, length, step, gap in rows:
            wanted = (-(-size // step) - 1) * step + (length - 1) * gap + 1
            total = max(wanted - size, 0)
            small = total // 2
            pair = (small, total - small)
            pairs.append(pair if mode == "SAME_UPPER" else pair[::-1])
        return pairs
    if mode == "VALID":
        return [(0, 0)] * rank
    pads = node.get("pads", (0,) * (2 * rank))
    return [(int(pads[i]), int(pads[rank + i])) for i in range(rank)]


_CONVOLUTIONS = {1: layers.Conv1D, 2: layers.Conv2D, 3: layers.Conv3D}
_TRANSPOSED = {
    1: (layers.Conv1DTranspose, layers.Cropping1D),
    2: (layers.Conv2DTranspose, layers.Cropping2D),
    3: (layers.Conv3DTranspose, layers.Cropping3D),
}


def _window_of(node: Node, weight: Known) -> tuple[int, Any, Any, Any]:
    rank = len(weight.shape) - 2
    if rank not in _CONVOLUTIONS:
        raise UnsupportedError(f"has a kernel of the shape {weight.shape}")
    ones = (1,) * rank
    return (
        rank,
        tuple(weight.shape[2:]),
        tuple(node.get("strides", ones)),
        tuple(node.get("dilations", ones)),
    )


def _conv(node: Node) -> Value:
    view, weight = node.view(0), node.known(1)
    rank, window, strides, dilations = _window_of(node, weight)
    groups = int(node.get("group", 1))
    if len(view.shape) != rank + 2 or view.shape[1] != weight.shape[1] * groups:
        raise ValueError(f"images {view.shape} and a kernel {weight.shape}")
    order = (*range(2, rank + 2), 1, 0)
    kernel = weight.changed(
        [weight.shape[i] for i in order], lambda array: array.transpose(order)
    )
    weights = [kernel, node.known(2)] if node.has(2) else [kernel]
    pads = padding_of(node, view.shape[2:], window, strides, dilations)
    layer = node.importer.layer(
        _CONVOLUTIONS[rank],
        weights,
        node.label(weight),
        filters=weight.shape[0],
        kernel_size=window,
        strides=strides,
        padding=tuple(pads) if any(map(any, pads)) else "valid",
        dilation_rate=dilations,
        groups=groups,
        use_bias=len(weights) > 1,
        kernel_initializer="zeros",
    )
    return on_images(layer, view)


def _conv_transpose(node: Node) -> Value:
    view, weight = node.view(0), node.known(1)
    rank, window, strides, dilations = _window_of(node, weight)
    if int(node.get("group", 1)) != 1:
        raise UnsupportedError("is a transposed convolution of several groups")
    if node.get("output_shape") or node.get("auto_pad", "NOTSET") != "NOTSET":
        raise UnsupportedError("is told its output's shape, and not its padding")
    order = (*range(2, rank + 2), 1, 0)
    kernel = weight.changed(
        [weight.shape[i] for i in order], lambda array: array.transpose(order)
    )
    kind, cropping = _TRANSPOSED[rank]
    layer = node.importer.layer(
        kind,
        [kernel],
        node.label(weight),
        filters=weight.shape[1],
        kernel_size=window,
        strides=strides,
        dilation_rate=dilations,
        use_bias=False,
        kernel_initializer="zeros",
    )
    x = layer(channels_last(view))
    pads = padding_of(node, view.shape[2:], window, strides, dilations)
    more = node.get("output_padding", (0,) * rank)
    crops, zeros = [], []
    for axis in range(rank):
        reach = (window[axis] - 1) * dilations[axis] + 1
        # Layers keep a length of size * stride where the window is shorter.
        kept = view.shape[2 + axis] * strides[axis] + max(reach - strides[axis], 0)
        before, after = pads[axis]
        wanted = (view.shape[2 + axis] - 1) * strides[axis] + reach + int(more[axis])
        end = kept - (wanted - after)
        crops.append((before, max(end, 0)))
        zeros.append((0, max(-end, 0)))
    if any(map(any, crops)):
        given = crops[0] if rank == 1 else tuple(crops)
        x = cropping(given, name=node.importer.unique(f"{node.label(weight)}.crop"))(x)
    if any(map(any, zeros)):
        x = ops.pad(x, [(0, 0), *zeros, (0, 0)])
    result = channels_second(x, view.batch)
    if not node.has(2):
        return result
    bias = node.known(2)
    shape = (bias.size, *(1,) * rank)
    wide = bias.changed(shape, lambda array: array.reshape(shape))
    return combined(node, [result, wide], ops.add)


def _batch_normalization(node: Node) -> list[Value]:
    view = node.view(0)
    x, axes = last(view, 1)
    weights = [node.known(i) for i in range(1, 5)]
    layer = node.importer.layer(
        layers.BatchNormalization,
        weights,
        node.label(weights[0]),
        momentum=float(node.get("momentum", 0.9)),
        epsilon=float(node.get("epsilon", 1e-5)),
    )
    return [View(layer(x), axes, view.batch)]


def _layer_normalization(node: Node) -> list[Value]:
    view = node.view(0)
    rank = len(view.shape)
    axis = node.axis(-1, rank)
    shape = view.shape
    scale = node.known(1)
    flat = reshaped(view, (*shape[:axis], int(np.prod(shape[axis:]))))
    if scale.size != flat.shape[-1]:
        raise UnsupportedError(f"has scales of the shape {scale.shape}")
    weights = [
        each.changed((each.size,), lambda array: array.reshape(-1))
        for each in (scale, *([node.known(2)] if node.has(2) else []))
    ]
    x, axes = last(flat, axis)
    layer = node.importer.layer(
        layers.LayerNormalization,
        weights,
        node.label(scale),
        epsilon=float(node.get("epsilon", 1e-5)),
        center=len(weights) > 1,
    )
    return [reshaped(View(layer(x), axes, view.batch), shape)]


def _groups(node: Node, groups: int, weights: list[Known]) -> Value:
    view = node.view(0)
    layer = node.importer.layer(
        layers.GroupNormalization,
        weights,
        node.label(weights[0]),
        groups=groups,
        epsilon=float(node.get("epsilon", 1e-5)),
    )
    return channels_second(layer(channels_last(view)), view.batch)


def _instance_normalization(node: Node) -> Value:
    weights = [node.known(1), node.known(2)]
    return _groups(node, node.view(0).shape[1], weights)


def _group_normalization(node: Node) -> Value:
    groups, channels = int(node.get("num_groups", 1)), node.view(0).shape[1]
    weights = [node.known(1), node.known(2)]
    if weights[0].size == groups != channels:  # opset 18: a scale for each group
        by = channels // groups
        weights = [
            each.changed((channels,), lambda array: np.repeat(array, by))
            for each in weights
        ]
    return _groups(node, groups, weights)


def _einsum(node: Node) -> Value:
    equation = str(node.get("equation", "")).replace(" ", "")
    if "..." in equation or "->" not in equation:
        raise UnsupportedError(f"has the equation {equation!r}")
    terms, result = equation.split("->")
    operands: list[Any] = []
    named, label = [], ""
    for place, term in enumerate(terms.split(",")):
        value = node.value(place)
        if isinstance(value, Known):
            operands.append(node.operand(value))
            named.append(term)
            continue
        x, axes = plain(value)
        order = sorted(range(len(term)), key=lambda i, of=axes: of[i])  # type: ignore[misc]
        operands.append(x)
        named.append("".join(term[i] for i in order))
        label = named[-1][0]
    if label not in result:
        raise UnsupportedError("sums over the batch")
    made = label + result.replace(label, "")
    x = ops.einsum(f"{','.join(named)}->{made}", *operands)
    return View(x, tuple((made.index(each),) for each in result), node.batch)


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "MatMul": _matmul,
}
