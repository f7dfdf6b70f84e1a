"""Max, average and global average pooling; NHWC.

Max pooling keeps the winner's place in its window (one byte an element), so that
backward needs neither its input nor its output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph._convolution import window_output
from memcfg.graph._definition import Adjoint, Attributes, Definition, Spec, require

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFINITIONS"]


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
        window_output(
            x[1 + i], window[i], attributes["strides"][i], 1, attributes["padding"][i]
        )
        for i in (0, 1)
    )
    return (x[0], height, width, x[3])


def _infer_max(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    shape = _pooled(inputs, attributes)
    return [Spec(shape), Spec(shape, "uint8", "index")]


def _infer_pool(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(_pooled(inputs, attributes))]


def _infer_global(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x = inputs[0].shape
    require(len(x) == 4, f"pooling reads [N, H, W, C], not {x}")
    return [Spec((x[0], x[3]))]


def _infer_input(_: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    return [Spec(tuple(attributes["input_shape"]))]


def _with_shape(adjoint: Adjoint) -> Attributes:
    return {**adjoint.attributes, "input_shape": adjoint.shape_of(0)}


def _max_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    index = adjoint.outputs[1]
    return adjoint.emit(
        "max_pool2d_gradient", (index, adjoint.dy), _with_shape(adjoint)
    )


def _average_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("average_pool2d_gradient", (adjoint.dy,), _with_shape(adjoint))


def _global_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit(
        "global_average_pool2d_gradient", (adjoint.dy,), _with_shape(adjoint)
    )


def _window_flops(
    inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
) -> int:
    del inputs
    window: tuple[int, int] = attributes["pool_size"]
    return outputs[0].size * window[0] * window[1]


DEFINITIONS = (
    Definition(
        "max_pool2d", 1, _infer_max, gradient=_max_gradient, flops=_window_flops
    ),
    Definition("max_pool2d_inference", 1, _infer_pool, flops=_window_flops),
    Definition("max_pool2d_gradient", 2, _infer_input),
    Definition(
        "average_pool2d",
        1,
        _infer_pool,
        gradient=_average_gradient,
        flops=_window_flops,
    ),
    Definition("average_pool2d_gradient", 1, _infer_input),
    Definition("global_average_pool2d", 1, _infer_global, gradient=_global_gradient),
    Definition("global_average_pool2d_gradient", 1, _infer_input),
)
