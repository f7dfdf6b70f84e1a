"""Nodes that move, select and repeat elements."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn import layers, ops
from memcfg.nn.exchange.imports._axis_views import (
    BATCH,
    Known,
    UnsupportedError,
    View,
    in_order,
    last,
    natural_order,
    plain,
    reshaped,
    squeezed,
    transposed,
    unsqueezed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.exchange.imports._imported_node import Node, Rule, Value

__all__ = ["RULES"]

_READ = 2**24  # most elements of an array that is made


def _transpose(node: Node) -> Value:
    value = node.value(0)
    rank = len(value.shape)
    perm = node.axes(node.get("perm", tuple(range(rank))[::-1]), rank)
    if sorted(perm) != list(range(rank)):
        raise ValueError(f"{perm} is not a permutation")
    if isinstance(value, Known):
        shape = [value.shape[axis] for axis in perm]
        return value.changed(shape, lambda array: array.transpose(perm))
    return transposed(value, perm)


def _target(shape: Sequence[int], given: Sequence[int], zero: bool) -> list[int]:
    """Return the lengths of a reshape's result."""
    target = [
        shape[i] if length == 0 and not zero else int(length)
        for i, length in enumerate(given)
    ]
    size = prod(shape)
    if -1 in target:
        place = target.index(-1)
        rest = prod(each for i, each in enumerate(target) if i != place)
        target[place] = size // rest if rest else 0
    if min(target, default=1) < 0 or prod(target) != size:
        raise ValueError(f"{shape} cannot be reshaped to {tuple(given)}")
    return target


def _reshape(node: Node) -> Value:
    value = node.value(0)
    given = node.setting("shape", 1, ())
    target = _target(value.shape, given, bool(node.get("allowzero", 0)))
    return _reshaped(value, target)


def _reshaped(value: View | Known, target: Sequence[int]) -> View | Known:
    if isinstance(value, Known):
        return value.changed(target, lambda array: array.reshape(target))
    return reshaped(value, target)


def _flatten(node: Node) -> Value:
    value = node.value(0)
    axis = int(node.get("axis", 1))
    axis += len(value.shape) * (axis < 0)
    target = [prod(value.shape[:axis]), prod(value.shape[axis:])]
    return _reshaped(value, target)


def _squeeze(node: Node) -> Value:
    value = node.value(0)
    given = node.setting("axes", 1)
    if given is None:
        given = [i for i, length in enumerate(value.shape) if length == 1]
    axes = node.axes(given, len(value.shape))
    if isinstance(value, View):
        return squeezed(value, axes)
    if any(value.shape[axis] != 1 for axis in axes):
        raise ValueError(f"axes {axes} of {value.shape} are not of length 1")
    return _reshaped(value, [n for i, n in enumerate(value.shape) if i not in axes])


def _unsqueeze(node: Node) -> Value:
    value = node.value(0)
    given = node.setting("axes", 1)
    given = given if isinstance(given, tuple) else (given,)
    axes = node.axes(given, len(value.shape) + len(given))
    if isinstance(value, View):
        return unsqueezed(value, axes)
    left = iter(value.shape)
    rank = len(value.shape) + len(axes)
    return _reshaped(value, [1 if i in axes else next(left) for i in range(rank)])


def _without_batch(shape: Sequence[int], batch: int) -> tuple[int, ...]:
    """Return lengths with 1 for the batch, along which values are repeated anyway."""
    result = tuple(1 if n == batch == BATCH else int(n) for n in shape)
    _bounded(result)
    return result


def _bounded(shape: Sequence[int]) -> None:
    """Raise UnsupportedError for an array that is too large to be made here."""
    if prod(shape) > _READ:
        raise UnsupportedError(
            f"makes a constant of {prod(shape)} elements, of {_READ} at most"
        )


def _constant_of_shape(node: Node) -> Value:
    shape = _without_batch(node.setting("shape", 0, ()), node.batch)
    value = np.asarray(node.get("value", np.zeros(1, np.float32))).reshape(-1)
    if min(shape, default=1) < 0 or value.size != 1:
        raise ValueError(f"a constant of the shape {shape}")
    return Known.of(np.broadcast_to(value[0], shape))


def _expand(node: Node) -> Value:
    value = node.value(0)
    given = node.setting("shape", 1, ())
    rank = max(len(given), len(value.shape))
    given = (1,) * (rank - len(given)) + tuple(int(n) for n in given)
    if isinstance(value, Known):
        shape = _without_batch(given, node.batch)
        wide = np.broadcast_shapes(value.shape, shape)
        if prod(wide) == value.size:  # repeated for samples alone: it stays a weight
            return value.reshaped(wide)
        _bounded(wide)
        return Known.of(np.broadcast_to(value.array(), wide))
    view = unsqueezed(value, range(rank - len(value.shape)))
    shape = view.shape
    wanted = [n if old == 1 else old for old, n in zip(shape, given, strict=True)]
    if any(n not in (1, old) for old, n in zip(wanted, given, strict=True)):
        raise ValueError(f"{shape} does not fit {given}")
    if tuple(wanted) == shape:
        return view
    x, axes = plain(view)
    order = sorted(range(rank), key=lambda axis: axes[axis])
    wide_shape = [wanted[axis] for axis in order[1:]]
    if prod(wide_shape) > 2**40:
        raise UnsupportedError(f"makes samples of {prod(wide_shape)} elements")
    return View(ops.broadcast_to(x, (None, *wide_shape)), axes, view.batch)


def _tile(node: Node) -> Value:
    value, repeats = node.value(0), node.setting("repeats", 1)
    if isinstance(value, Known):
        shape = [a * b for a, b in zip(value.shape, repeats, strict=True)]
        _without_batch(shape, node.batch)
        return Known.of(np.tile(value.array(), repeats))
    x, axes = plain(value)
    counts = [1] * len(repeats)
    for (place,), count in zip(axes, repeats, strict=True):
        counts[place] = int(count)
    if counts[0] != 1:
        raise UnsupportedError("repeats the batch")
    return View(ops.tile(x, counts), axes, value.batch)


def _concat(node: Node) -> Value:
    values = [node.value(i) for i in range(len(node.inputs))]
    rank = len(values[0].shape)
    axis = node.axis(0, rank)
    if node.all_known():
        _bounded((sum(prod(each.shape) for each in values),))
        return Known.of(np.concatenate(node.arrays(), axis))
    views = [each for each in values if isinstance(each, View)]
    if any(0 in each.axes[axis] for each in views):
        raise UnsupportedError("joins values along the batch")
    order = natural_order(max(views, key=lambda view: prod(view.lengths)))
    operands: list[Any] = []
    for value in values:
        if isinstance(value, View):
            x, axes = in_order(value, order)
        else:
            operand = node.operand(_turned(value, order, node.batch))
            one = isinstance(operand, float)
            x = np.full((1,) * rank, operand, np.float32) if one else operand  # type: ignore[assignment]
        operands.append(x)
    made = ops.concatenate(operands, axis=order.index(axis))
    return View(made, axes, node.batch)


def _turned(value: Known, order: Sequence[int], batch: int) -> Known:
    """Return a constant in an order of axes, once for all samples."""
    shape = [value.shape[axis] for axis in order]
    if shape[0] not in (1, batch):
        raise UnsupportedError("has constants that differ between samples")
    if shape[0] != 1:
        raise UnsupportedError("has a constant for each sample of a batch")
    return value.changed(shape, lambda array: array.transpose(order))


def _slice(node: Node) -> Value:
    value = node.value(0)
    rank = len(value.shape)
    starts, ends = node.setting("starts", 1), node.setting("ends", 2)
    axes = node.setting("axes", 3, tuple(range(len(starts))))
    steps = node.setting("steps", 4, (1,) * len(starts))
    keys = [slice(None)] * rank
    for axis, *key in zip(node.axes(axes, rank), starts, ends, steps, strict=True):
        begin, end, step = (int(each) for each in key)
        if step < 0 and end < -value.shape[axis]:
            keys[axis] = slice(begin, None, step)
        else:
            keys[axis] = slice(begin, end, step)
    if isinstance(value, Known):
        return Known.of(value.array()[tuple(keys)])
    for axis, part in enumerate(keys):
        value = _sliced(value, axis, part)
    return value


def _sliced(view: View, axis: int, key: slice) -> View:
    """Return a part of an axis."""
    length = view.shape[axis]
    places = range(*key.indices(length))
    if places == range(length):
        return view
    if not len(places):
        raise UnsupportedError(f"takes no elements of an axis of {length}")
    x, axes = last(view, axis)
    step = places.step
    if step < 0:
        x = ops.flip(x, -1)
        places = range(length - 1 - places[0], length - places[-1], -step)
    end = places[-1] + 1
    return View(x[..., places[0] : end : abs(step)], axes, view.batch)


def _split(node: Node) -> list[Value]:
    value = node.value(0)
    axis = node.axis(0, len(value.shape))
    length = value.shape[axis]
    lengths = node.setting("split", 1)
    if lengths is None:
        count = int(node.get("num_outputs", len(node.of.outputs)))
        each = -(-length // count)
        lengths = [min(each, length - i * each) for i in range(count)]
    if sum(lengths) != length or min(lengths) < 0:
        raise ValueError(f"an axis of {length} is not divided into {lengths}")
    parts: list[Value] = []
    begin = 0
    for each in lengths:
        key = slice(begin, begin + int(each))
        begin += int(each)
        if isinstance(value, Known):
            keys = [slice(None)] * len(value.shape)
            keys[axis] = key
            parts.append(Known.of(value.array()[tuple(keys)]))
        else:
            parts.append(_sliced(value, axis, key))
    return parts


def _gather(node: Node) -> Value:
    data, indices = node.value(0), node.value(1)
    rank = len(data.shape)
    axis = node.axis(0, rank)
    if isinstance(data, Known) and isinstance(indices, Known):
        _bounded(data.shape[:axis] + indices.shape + data.shape[axis + 1 :])
        return Known.of(np.take(data.array(), indices.array(), axis))
    if isinstance(data, Known):
        assert isinstance(indices, View)
        return _embedded(node, data, indices, axis)
    if isinstance(indices, View):
        raise UnsupportedError("takes computed elements of a computed value")
    places = indices.array()
    length = data.shape[axis]
    if places.size and not (-length <= places.min() and places.max() < length):
        raise ValueError(f"an index beyond an axis of {length}")
    places = places % length
    if places.ndim == 0:
        key = slice(int(places), int(places) + 1)
        return squeezed(_sliced(data, axis, key), [axis])
    x, axes = last(data, axis)
    taken = ops.take(x, places.astype(np.int32), axis=-1)
    base = len(x.shape) - 1
    groups = tuple((base + i,) for i in range(places.ndim))
    return View(taken, (*axes[:axis], *groups, *axes[axis + 1 :]), data.batch)


def _embedded(node: Node, table: Known, indices: View, axis: int) -> View:
    """Return rows of a table, by a layer whose weight it is."""
    if axis or np.dtype(table.dtype).kind != "f":
        raise UnsupportedError("takes computed elements of constants")
    rows, *sample = table.shape
    width = prod(sample)
    weight = table.changed((rows, width), lambda array: array.reshape(rows, width))
    layer = node.importer.layer(
        layers.Embedding,
        [weight],
        node.label(table),
        input_dim=rows,
        output_dim=width,
        embeddings_initializer="zeros",
    )
    x = layer(indices.x)
    rank = len(x.shape)
    if sample != [width]:
        x = ops.reshape(x, (-1, *x.sample_shape[:-1], *sample))
    groups = tuple((rank - 1 + i,) for i in range(len(sample)))
    return View(x, (*indices.axes, *groups), indices.batch)


def _pad(node: Node) -> Value:
    value = node.value(0)
    rank = len(value.shape)
    mode = str(node.get("mode", "constant"))
    pads = node.setting("pads", 1, node.get("paddings"))
    number = float(node.setting("value", 2, 0.0) or 0.0)
    axes = node.axes(node.setting("", 3), rank) if node.has(3) else range(rank)
    pairs = [(0, 0)] * rank
    half = len(pads) // 2
    for place, axis in enumerate(axes):
        pairs[axis] = int(pads[place]), int(pads[half + place])
    if isinstance(value, Known):
        return _padded_array(node, value, pairs, number)
    for axis, (before, after) in enumerate(pairs):
        low, high = -min(before, 0), -min(after, 0)
        if low or high:
            value = _sliced(value, axis, slice(low, value.shape[axis] - high))
    pairs = [(max(before, 0), max(after, 0)) for before, after in pairs]
    if not any(map(any, pairs)):
        return value
    x, places, widths = _widths(value, pairs)
    if mode == "constant":
        made = ops.pad(x, widths, constant_values=number)
    elif mode in ("reflect", "edge", "wrap"):
        made = ops.pad(x, widths, mode=mode)
    else:
        raise UnsupportedError(f"pads in the mode {mode!r}")
    return View(made, places, value.batch)


def _padded_array(
    node: Node, value: Known, pairs: Sequence[tuple[int, int]], number: float
) -> Known:
    if node.get("mode", "constant") != "constant":
        raise UnsupportedError(f"pads a constant in the mode {node.get('mode')!r}")
    shape = [n + sum(pair) for n, pair in zip(value.shape, pairs, strict=True)]
    _bounded(shape)
    return Known.of(np.pad(value.array(), pairs, constant_values=number))


def _widths(view: View, pairs: Sequence[tuple[int, int]]) -> tuple[Any, Any, Any]:
    """Return a tensor, its axes, and the padding of each axis of the tensor."""
    padded = [axis for axis, pair in enumerate(pairs) if any(pair)]
    if all(len(view.axes[axis]) == 1 for axis in padded):
        of = {view.axes[axis][0]: pairs[axis] for axis in padded}
        x, places = view.x, view.axes
        widths = [of.get(i, (0, 0)) for i in range(len(view.lengths))]
    else:
        order = natural_order(view)
        x, places = in_order(view, order)
        widths = [pairs[axis] for axis in order]
    if widths[0] != (0, 0):
        raise UnsupportedError("pads the batch")
    return x, places, widths


def _range(node: Node) -> Value:
    start, limit, delta = (node.known(i).array().reshape(()) for i in range(3))
    count = max(0, int(np.ceil((float(limit) - float(start)) / float(delta))))
    _bounded((count,))
    return Known.of(start + delta * np.arange(count).astype(start.dtype))


def _size(node: Node) -> Value:
    return Known.of(np.array(prod(node.value(0).shape), np.int64))


def _depth_to_space(node: Node) -> Value:
    view, block = node.view(0), int(node.get("blocksize", 0))
    batch, channels, height, width = view.shape
    left = channels // block**2
    if node.get("mode", "DCR") == "DCR":
        view = reshaped(view, (batch, block, block, left, height, width))
        view = transposed(view, (0, 3, 4, 1, 5, 2))
    else:
        view = reshaped(view, (batch, left, block, block, height, width))
        view = transposed(view, (0, 1, 4, 2, 5, 3))
    return reshaped(view, (batch, left, height * block, width * block))


def _space_to_depth(node: Node) -> Value:
    view, block = node.view(0), int(node.get("blocksize", 0))
    batch, channels, height, width = view.shape
    high, wide = height // block, width // block
    view = reshaped(view, (batch, channels, high, block, wide, block))
    view = transposed(view, (0, 3, 5, 1, 2, 4))
    return reshaped(view, (batch, channels * block**2, high, wide))


def _trilu(node: Node) -> Value:
    value, upper = node.value(0), bool(node.get("upper", 1))
    diagonal = int(node.setting("k", 1, 0))
    rows, columns = value.shape[-2:]
    _bounded((rows, columns))
    if isinstance(value, Known):
        keep = np.triu if upper else np.tril
        return Known.of(keep(value.array(), diagonal))
    x, axes = plain(value)
    function = ops.triu if upper else ops.tril
    if axes[-2:] != ((len(axes) - 2,), (len(axes) - 1,)):
        raise UnsupportedError("takes the triangle of an axis of the batch")
    return replace(value, x=function(x, diagonal), axes=axes)


def _gather_elements(node: Node) -> Value:
    if node.all_known():
        axis = node.axis(0, len(node.value(0).shape))
        array, places = node.arrays()
        return Known.of(np.take_along_axis(array, places, axis))
    data, indices = node.view(0), node.view(1)
    axis = node.axis(0, len(data.shape))
    order = [each for each in natural_order(data) if each != axis] + [axis]
    x, axes = in_order(data, order)
    chosen, _ = in_order(indices, order)
    return View(ops.take_along_axis(x, chosen, axis=-1), axes, data.batch)


RULES: dict[str, Rule] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
