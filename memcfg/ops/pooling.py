"""Max, average and global average pooling; NHWC.

Max pooling stores the index of the maximum within its window (one byte an element, in
row-major order), so that backward needs neither its input nor its output. The first of
equal maxima is taken, and the first NaN if there is any. Its gradient op, unpooling,
writes values at these indices; unpooling's own gradient is `max_pool2d_at`, which reads
values there.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)
from memcfg.ops._windows import output_length, pad_image, place_slices, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _pooled(inputs: Sequence[Spec], attributes: Attributes) -> tuple[int, ...]:
    x, window = inputs[0].shape, attributes["pool_size"]
    require(len(x) == 4, f"pooling reads [N, H, W, C], not {x}")
    require(
        window[0] * window[1] <= 256, f"a pooling window {window} has over 256 places"
    )
    for i in (0, 1):
        require(
            max(attributes["padding"][i]) < window[i],
            f"a pooling window {window} could lie in the padding alone",
        )
    height, width = (
        output_length(
            x[1 + i], window[i], attributes["strides"][i], 1, attributes["padding"][i]
        )
        for i in (0, 1)
    )
    return (x[0], height, width, x[3])


def _infer_max(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = _pooled(inputs, attributes)
    return [Spec(shape, inputs[0].dtype), Spec(shape, "uint8", "index")]


def _infer_pool(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(_pooled(inputs, attributes), inputs[0].dtype)]


def _infer_global(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x = inputs[0].shape
    require(len(x) == 4, f"pooling reads [N, H, W, C], not {x}")
    return [Spec((x[0], x[3]), inputs[0].dtype)]


def _infer_unpooled(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    index, pooled = inputs
    out = Spec(tuple(attributes["input_shape"]), pooled.dtype)
    require(
        index.shape == pooled.shape == _pooled([out], attributes),
        f"places of {index.shape} and values of {pooled.shape} are not those of "
        f"windows over {out.shape}",
    )
    return [out]


def _infer_at(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    index, x = inputs
    require(
        index.shape == _pooled([x], attributes),
        f"places of {index.shape} are not those of windows over {x.shape}",
    )
    return [Spec(index.shape, x.dtype)]


def _infer_input(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(tuple(attributes["input_shape"]), inputs[-1].dtype)]


def _with_shape(adjoint: Adjoint) -> Attributes:
    return {**adjoint.attributes, "input_shape": adjoint.shape_of(0)}


def _max_rule(adjoint: Adjoint) -> Sequence[int | None]:
    index = adjoint.outputs[1]
    return adjoint.emit(
        "max_pool2d_gradient", (index, adjoint.dy), _with_shape(adjoint)
    )


def _unpooling_rule(adjoint: Adjoint) -> Sequence[int | None]:
    attributes = {k: v for k, v in adjoint.attributes.items() if k != "input_shape"}
    pair = (adjoint.inputs[0], adjoint.dy)
    return None, *adjoint.emit("max_pool2d_at", pair, attributes)


def _at_rule(adjoint: Adjoint) -> Sequence[int | None]:
    pair = (adjoint.inputs[0], adjoint.dy)
    attributes = {**adjoint.attributes, "input_shape": adjoint.shape_of(1)}
    return None, *adjoint.emit("max_pool2d_gradient", pair, attributes)


def _average_rule(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("average_pool2d_gradient", (adjoint.dy,), _with_shape(adjoint))


def _global_rule(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit(
        "global_average_pool2d_gradient", (adjoint.dy,), _with_shape(adjoint)
    )


def _pooling_rule(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the gradient of an average's gradient, which is linear."""
    attributes = {k: v for k, v in adjoint.attributes.items() if k != "input_shape"}
    kind = "average_pool2d" if attributes else "global_average_pool2d"
    return adjoint.emit(kind, (adjoint.dy,), attributes)


def _window_flops(
    inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
) -> int:
    del inputs
    window: tuple[int, int] = attributes["pool_size"]
    return outputs[0].size * window[0] * window[1]


def _windows(a: Attributes, x: Array, value: float) -> Array:
    """Return every window of x, padded by `value` and flattened: [..., KH * KW]."""
    padded = pad_image(x, a["padding"], value)
    view = windows(padded, a["pool_size"], a["strides"], (1, 1))
    return view.reshape(*view.shape[:4], -1)


def _in_image(a: Attributes, height: int, width: int) -> Array:
    """Return a mask of the window places in the image: [1, OH, OW, 1, KH * KW]."""
    return _windows(a, np.ones((1, height, width, 1)), 0) > 0


def _max_pool2d(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    view = _windows(a, x, -np.inf)
    index = view.argmax(axis=-1)
    outputs[0][...] = np.take_along_axis(view, index[..., None], axis=-1)[..., 0]
    if len(outputs) > 1:
        inside = np.broadcast_to(_in_image(a, *x.shape[1:3]), view.shape)
        hit = np.take_along_axis(inside, index[..., None], axis=-1)[..., 0]
        # In a window of -inf alone, take the first place that is not padding.
        outputs[1][...] = np.where(hit, index, inside.argmax(axis=-1))


def _max_pool2d_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    index, dy = inputs
    padded = pad_image(np.zeros_like(outputs[0]), a["padding"])
    for (i, j), under in place_slices(dy.shape[1:3], a["pool_size"], a["strides"]):
        place = i * a["pool_size"][1] + j
        padded[under] += np.where(index == place, dy, 0)
    _crop(a, padded, outputs[0])


def _max_pool2d_at(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    index, x = inputs
    view = _windows(a, x, 0)
    taken = np.take_along_axis(view, index[..., None].astype(np.intp), axis=-1)
    outputs[0][...] = taken[..., 0]


def _average_pool2d(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    places = _in_image(a, *x.shape[1:3]).sum(axis=-1)
    outputs[0][...] = _windows(a, x, 0).sum(axis=-1) / places


def _average_pool2d_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (dy,) = inputs
    share = dy / _in_image(a, *outputs[0].shape[1:3]).sum(axis=-1)
    padded = pad_image(np.zeros_like(outputs[0]), a["padding"])
    for _, under in place_slices(dy.shape[1:3], a["pool_size"], a["strides"]):
        padded[under] += share
    _crop(a, padded, outputs[0])


def _crop(a: Attributes, padded: Array, out: Array) -> None:
    (top, _), (left, _) = a["padding"]
    out[...] = padded[:, top : top + out.shape[1], left : left + out.shape[2]]


def _global_average_pool2d(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0].mean(axis=(1, 2))


def _global_average_pool2d_gradient(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    pixels = prod(outputs[0].shape[1:3])
    outputs[0][...] = inputs[0][:, None, None, :] / pixels


register(
    OpType("max_pool2d", 1, _infer_max, _max_pool2d, (), _max_rule, _window_flops),
    OpType("max_pool2d_inference", 1, _infer_pool, _max_pool2d, flops=_window_flops),
    OpType(
        "max_pool2d_gradient",
        2,
        _infer_unpooled,
        _max_pool2d_gradient,
        gradient=_unpooling_rule,
    ),
    OpType("max_pool2d_at", 2, _infer_at, _max_pool2d_at, gradient=_at_rule),
    OpType(
        "average_pool2d",
        1,
        _infer_pool,
        _average_pool2d,
        gradient=_average_rule,
        flops=_window_flops,
    ),
    OpType(
        "average_pool2d_gradient",
        1,
        _infer_input,
        _average_pool2d_gradient,
        gradient=_pooling_rule,
    ),
    OpType(
        "global_average_pool2d",
        1,
        _infer_global,
        _global_average_pool2d,
        gradient=_global_rule,
    ),
    OpType(
        "global_average_pool2d_gradient",
        1,
        _infer_input,
        _global_average_pool2d_gradient,
        gradient=_pooling_rule,
    ),
)
