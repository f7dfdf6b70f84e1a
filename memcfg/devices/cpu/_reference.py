"""The NumPy reference: one plain function for every type of op.

Owns the table and the simple ops; convolutions, pooling and dropout have files of
their own. Refuses speed: each function is what the op means, and the other kernels
are tested against it.

Every function is ``f(attributes, inputs, outputs)``: it fills the outputs, which may
share memory with an input where the op allows it, and works for every float type.
"""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from memcfg.devices.cpu._reference_convolution import CONVOLUTION
from memcfg.devices.cpu._reference_dropout import dropout
from memcfg.devices.cpu._reference_pooling import POOLING
from memcfg.devices.cpu._reference_types import Array, Attributes, ReferenceFunction

__all__ = ["REFERENCE", "Array", "ReferenceFunction"]

Arrays = list[Array]


def _dense(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, kernel = inputs
    outputs[0][...] = x @ kernel


def _dense_gradient_kernel(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, dy = (operand.reshape(-1, operand.shape[-1]) for operand in inputs)
    outputs[0][...] = x.T @ dy


def _dense_gradient_input(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    kernel, dy = inputs
    outputs[0][...] = dy @ kernel.T


def _bias(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, b = inputs
    np.add(x, b, out=outputs[0])


def _bias_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (dy,) = inputs
    outputs[0][...] = dy.sum(axis=_all_but_last(dy))


def _relu(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x,) = inputs
    outputs[0][...] = np.where(x < 0, 0, x)  # NaN stays NaN


def _relu_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    y, dy = inputs
    outputs[0][...] = np.where(y > 0, dy, 0)


def _add(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    np.add(inputs[0], inputs[1], out=outputs[0])


def _reshape(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0].reshape(outputs[0].shape)


def _global_average_pool2d(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0].mean(axis=(1, 2))


def _global_average_pool2d_gradient(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    pixels = prod(outputs[0].shape[1:3])
    outputs[0][...] = inputs[0][:, None, None, :] / pixels


def _batch_normalization(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, gamma, beta = inputs
    mean, variance = x.mean(axis=_all_but_last(x)), x.var(axis=_all_but_last(x))
    outputs[0][...] = _normalized(a, x, gamma, beta, mean, variance)
    outputs[1][...] = mean
    outputs[2][...] = variance


def _batch_normalization_inference(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    x, gamma, beta, mean, variance = inputs
    outputs[0][...] = _normalized(a, x, gamma, beta, mean, variance)


def _batch_normalization_gradient(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    x, dy, gamma, mean, variance = inputs
    axes = _all_but_last(x)
    inverse = 1 / np.sqrt(variance + a["epsilon"])
    normalized = (x - mean) * inverse
    dgamma, dbeta = (dy * normalized).sum(axis=axes), dy.sum(axis=axes)
    rows = prod(x.shape[:-1])
    dx = gamma * inverse * (dy - dbeta / rows - normalized * (dgamma / rows))
    outputs[0][...], outputs[1][...], outputs[2][...] = dx, dgamma, dbeta


def _normalized(
    a: Attributes, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array
) -> Array:
    y: Array = (x - mean) * (gamma / np.sqrt(variance + a["epsilon"])) + beta
    return y


def _softmax_cross_entropy(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    logits, labels = inputs
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True, dtype=np.float64)
    chosen = np.where(_hits(logits, labels), shifted, 0).sum(axis=1)
    known = (labels >= 0) & (labels < logits.shape[1])
    losses = np.log(totals[:, 0]) - np.where(known, chosen, np.nan)
    outputs[0][...] = losses.mean()
    if len(outputs) > 1:
        outputs[1][...] = exponentials / totals


def _softmax_cross_entropy_gradient(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    probabilities, labels = inputs
    difference = probabilities - _hits(probabilities, labels)
    outputs[0][...] = difference / len(labels)


def _correct_count(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    logits, labels = inputs
    outputs[0][...] = np.count_nonzero(logits.argmax(axis=1) == labels)


def _moving_average(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    moving, value = inputs
    momentum = a["momentum"]
    outputs[0][...] = momentum * moving + (1 - momentum) * value


def _sgd(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    w, g, rate = inputs
    outputs[0][...] = w - rate * g


def _sgd_momentum(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    w, g, v, rate = inputs
    momentum = a["momentum"]
    velocity = momentum * v - rate * g
    step = momentum * velocity - rate * g if a["nesterov"] else velocity
    outputs[0][...] = w + step
    outputs[1][...] = velocity


def _adam(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    w, g, m, v, rate, step = inputs
    t = int(step) + 1
    alpha = float(rate) * sqrt(1 - a["beta_2"] ** t) / (1 - a["beta_1"] ** t)
    first = m + (g - m) * (1 - a["beta_1"])
    second = v + (g * g - v) * (1 - a["beta_2"])
    outputs[0][...] = w - alpha * first / (np.sqrt(second) + a["epsilon"])
    outputs[1][...] = first
    outputs[2][...] = second


def _all_but_last(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def _hits(logits: Array, labels: Array) -> Array:
    """Where each row's label is; a row without a hit has a label out of range."""
    hits: Array = np.arange(logits.shape[1]) == labels[:, None]
    return hits


REFERENCE: dict[str, ReferenceFunction] = {
    **CONVOLUTION,
    **POOLING,
    "adam": _adam,
    "add": _add,
    "batch_normalization": _batch_normalization,
    "batch_normalization_gradient": _batch_normalization_gradient,
    "batch_normalization_inference": _batch_normalization_inference,
    "bias": _bias,
    "bias_gradient": _bias_gradient,
    "correct_count": _correct_count,
    "dense": _dense,
    "dense_gradient_input": _dense_gradient_input,
    "dense_gradient_kernel": _dense_gradient_kernel,
    "dropout": dropout,
    "flatten": _reshape,
    "global_average_pool2d": _global_average_pool2d,
    "global_average_pool2d_gradient": _global_average_pool2d_gradient,
    "moving_average": _moving_average,
    "relu": _relu,
    "relu_gradient": _relu_gradient,
    "reshape": _reshape,
    "sgd": _sgd,
    "sgd_momentum": _sgd_momentum,
    "softmax_cross_entropy": _softmax_cross_entropy,
    "softmax_cross_entropy_gradient": _softmax_cross_entropy_gradient,
    "softmax_cross_entropy_inference": _softmax_cross_entropy,
}
