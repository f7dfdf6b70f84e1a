"""Composites: ops that kernels compute in one pass over the data instead of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.ops._composite import composite
from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    op_type,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.ops._composite import Call, Value

__all__: list[str] = []


def _dense_bias(call: Call, x: Value, kernel: Value, bias: Value) -> Any:
    return call("bias", call("dense", x, kernel), bias)


def _convolution_bias(call: Call, x: Value, kernel: Value, bias: Value) -> Any:
    return call("bias", call("conv2d", x, kernel), bias)


def _biased(call: Call, x: Value, bias: Value) -> Any:
    return call("relu", call("bias", x, bias))


def _biased_gradient(call: Call, y: Value, dy: Value) -> Any:
    dx = call("relu_gradient", y, dy)
    return dx, call("bias_gradient", dx)


composite("bias_relu", _biased, ((0, 0),))
composite("bias_relu_gradient", _biased_gradient, ((0, 0), (1, 0)))
# After the patterns with a ReLU, whose kernel adds the bias in its own pass.
composite("dense_bias", _dense_bias)
composite("conv2d_bias", _convolution_bias)


def _in_inference(product: str) -> None:
    """Register a product with a bias and an added array, a ReLU or both."""

    def biased(call: Call, *inputs: Value) -> Any:
        x, kernel, bias = inputs
        return call("bias", call(product, x, kernel), bias)

    def trace(call: Call, x: Value, kernel: Value, bias: Value) -> Any:
        return call("relu", biased(call, x, kernel, bias))

    def trace_add(
        call: Call, x: Value, kernel: Value, bias: Value, other: Value
    ) -> Any:
        return call("add", biased(call, x, kernel, bias), other)

    def trace_add_relu(
        call: Call, x: Value, kernel: Value, bias: Value, other: Value
    ) -> Any:
        return call("relu", trace_add(call, x, kernel, bias, other))

    kind = f"{product}_bias"
    composite(f"{kind}_relu", trace, for_inference=True)
    composite(f"{kind}_add", trace_add, ((3, 0),), for_inference=True)
    composite(f"{kind}_add_relu", trace_add_relu, ((3, 0),), for_inference=True)


def _normalized_convolution(end: str) -> None:
    """Register normalised convolutions, with and without a bias and an added array."""
    kind = "batch_normalization_inference"

    def finish(
        call: Call, y: Value, parameters: tuple[Value, ...], *others: Value
    ) -> Any:
        y = call(kind, y, *parameters)
        for other in others:
            y = call("add", y, other)
        return call("relu", y) if end else y

    def trace(
        call: Call,
        x: Value,
        kernel: Value,
        gamma: Value,
        beta: Value,
        mean: Value,
        variance: Value,
    ) -> Any:
        y = call("conv2d", x, kernel)
        return finish(call, y, (gamma, beta, mean, variance))

    def trace_biased(
        call: Call,
        x: Value,
        kernel: Value,
        bias: Value,
        gamma: Value,
        beta: Value,
        mean: Value,
        variance: Value,
    ) -> Any:
        y = call("bias", call("conv2d", x, kernel), bias)
        return finish(call, y, (gamma, beta, mean, variance))

    def trace_add(
        call: Call,
        x: Value,
        kernel: Value,
        gamma: Value,
        beta: Value,
        mean: Value,
        variance: Value,
        other: Value,
    ) -> Any:
        y = call("conv2d", x, kernel)
        return finish(call, y, (gamma, beta, mean, variance), other)

    def trace_biased_add(
        call: Call,
        x: Value,
        kernel: Value,
        bias: Value,
        gamma: Value,
        beta: Value,
        mean: Value,
        variance: Value,
        other: Value,
    ) -> Any:
        y = call("bias", call("conv2d", x, kernel), bias)
        return finish(call, y, (gamma, beta, mean, variance), other)

    for before, plain, added, place in (
        ("conv2d", trace, trace_add, 6),
        ("conv2d_bias", trace_biased, trace_biased_add, 7),
    ):
        name = f"{before}_{kind}"
        composite(f"{name}{end}", plain, for_inference=True)
        composite(f"{name}_add{end}", added, ((place, 0),), for_inference=True)


def _of_part(kind: str) -> OpType:
    """Make an activation's gradient that reads the channels from `first` on as y."""

    def infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
        y, dy = inputs
        last = attributes["first"] + dy.shape[-1]
        require(
            y.shape[:-1] == dy.shape[:-1] and last <= y.shape[-1],
            f"channels {attributes['first']} to {last} of {y.shape} for {dy.shape}",
        )
        return op_type(kind).infer([dy, dy], {})

    def numpy(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        (y, dy), first = inputs, attributes["first"]
        part = y[..., first : first + dy.shape[-1]]
        op_type(kind).numpy({}, [part, dy], outputs)

    return OpType(f"{kind}_at", 2, infer, numpy, ((1, 0),))


register(_of_part("relu_gradient"), _of_part("bias_relu_gradient"))


def _normalize_add(kind: str, activation: str) -> None:
    """Register a batch normalisation, an added array and an activation."""

    def trace(
        call: Call,
        x: Value,
        gamma: Value,
        beta: Value,
        mean: Value,
        variance: Value,
        other: Value,
    ) -> Any:
        y = call("add", call(kind, x, gamma, beta, mean, variance), other)
        return call(activation, y) if activation else y

    end = f"_add_{activation}" if activation else "_add"
    composite(f"{kind}{end}", trace, ((0, 0), (5, 0)))


def _normalize_activate(kind: str, activation: str) -> None:
    """Register a batch normalisation with an activation."""

    def trace(
        call: Call, x: Value, gamma: Value, beta: Value, mean: Value, variance: Value
    ) -> Any:
        return call(activation, call(kind, x, gamma, beta, mean, variance))

    composite(f"{kind}_{activation}", trace, ((0, 0),))


def _gradient_of_both(
    call: Call,
    x: Value,
    dy: Value,
    y: Value,
    gamma: Value,
    mean: Value,
    variance: Value,
) -> Any:
    """Trace the gradients of batch normalisation and of the added array, dz."""
    dz = call("relu_gradient", y, dy)
    kind = "batch_normalization_gradient"
    return *call(kind, x, dz, gamma, mean, variance, outputs=3), dz


for _kind in ("batch_normalization", "batch_normalization_inference"):
    _normalize_add(_kind, "")
    _normalize_add(_kind, "relu")
    _normalize_activate(_kind, "relu")
    _normalize_activate(_kind, "relu6")
_in_inference("conv2d")
_in_inference("dense")
_normalized_convolution("")
_normalized_convolution("_relu")
composite(  # dz is computed in place of dy or y, then dx in place of x
    "batch_normalization_add_relu_gradient", _gradient_of_both, ((0, 0), (1, 3), (2, 3))
)
