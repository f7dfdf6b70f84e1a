"""Normalizations, losses and attention as functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import constant
from memcfg.nn.activations import softmax, softplus, tanh
from memcfg.nn.layers._operators import as_tensor
from memcfg.nn.ops._along_axes import logsumexp, mean
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._contractions import einsum
from memcfg.nn.ops._declaring import (
    axes_of,
    axis_of,
    documented,
    lengths_of,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._indexing import one_hot
from memcfg.nn.ops._of_elements import (
    clip,
    divide,
    log,
    multiply,
    negative,
    rsqrt,
    square,
    subtract,
    where,
)
from memcfg.nn.ops._shapes import repeat

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "batch_normalization",
    "binary_crossentropy",
    "categorical_crossentropy",
    "dot_product_attention",
    "layer_normalization",
    "rms_normalization",
    "sparse_categorical_crossentropy",
]

_EPSILON = 1e-7  # Keras's backend.epsilon()


def _along(values: Any, x: Any, axes: Sequence[int]) -> Any:
    """Return numbers for each place of some axes in the rank of x."""
    numbers = as_tensor(values, "a scale or an offset")
    shape = [n if i in axes else 1 for i, n in enumerate(lengths_of(x))]
    return reshaped(numbers, shape)


@documented
def layer_normalization(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    axis: Any = -1,
    epsilon: float | None = None,
) -> Any:
    """Subtract the mean along axes and divide by the deviation; scale and shift."""
    x = tensor_of(x, "layer_normalization")
    axes = axes_of(x, axis)
    least = _EPSILON if epsilon is None else constant(epsilon, "epsilon")
    apart = x - mean(x, axes, keepdims=True)
    y = apart * rsqrt(mean(square(apart), axes, keepdims=True) + least)
    y = y if gamma is None else y * _along(gamma, x, axes)
    return y if beta is None else y + _along(beta, x, axes)


@documented
def rms_normalization(
    x: Any, scale: Any = None, axis: Any = -1, epsilon: float | None = None
) -> Any:
    """Divide by the root of the mean square along axes (Zhang and Sennrich, 2019)."""
    x = tensor_of(x, "rms_normalization")
    axes = axes_of(x, axis)
    least = _EPSILON if epsilon is None else constant(epsilon, "epsilon")
    y = x * rsqrt(mean(square(x), axes, keepdims=True) + least)
    return y if scale is None else y * _along(scale, x, axes)


@documented
def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    axis: int,
    offset: Any = None,
    scale: Any = None,
    epsilon: float = 1e-3,
) -> Any:
    """Subtract a mean for each place of an axis and divide by the deviation."""
    x = tensor_of(x, "batch_normalization")
    axes = (axis_of(x, axis),)
    spread = as_tensor(variance, "batch_normalization: variance")
    y = subtract(x, _along(mean, x, axes))
    y = multiply(y, _along(rsqrt(spread + constant(epsilon, "epsilon")), x, axes))
    y = y if scale is None else multiply(y, _along(scale, x, axes))
    return y if offset is None else y + _along(offset, x, axes)


@documented
def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """Return the cross-entropy of each probability, or of each logit."""
    if from_logits:
        return subtract(softplus(tensor_of(output, "output")), multiply(output, target))
    p = clip(tensor_of(output, "output"), _EPSILON, 1 - _EPSILON)
    rest = multiply(subtract(1.0, target), log(1.0 - p))
    return negative(multiply(target, log(p)) + rest)


@documented
def categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Any:
    """Return the cross-entropy along an axis of probabilities, or of logits."""
    output = tensor_of(output, "categorical_crossentropy")
    place = axis_of(output, axis)
    if from_logits:
        logs = output - logsumexp(output, place, keepdims=True)
    else:
        p = divide(output, sum_of(output, place, keepdims=True))
        logs = log(clip(p, _EPSILON, 1 - _EPSILON))
    return negative(sum_of(multiply(target, logs), place))


@documented
def sparse_categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Any:
    """Return the cross-entropy of the classes that integers name."""
    output = tensor_of(output, "sparse_categorical_crossentropy")
    place = axis_of(output, axis)
    labels = as_tensor(target, "sparse_categorical_crossentropy: target")
    if len(labels.shape) == len(output.shape):
        lengths = lengths_of(labels)
        labels = reshaped(labels, [*lengths[:place], *lengths[place + 1 :]])
    hot = one_hot(labels, lengths_of(output)[place], axis=place)
    return categorical_crossentropy(hot, output, from_logits, place)


@documented
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Any:
    """Return the values by the similarity of keys and queries (N, steps, heads, size).

    Keys and values may have fewer heads, each for as many heads of the query. The mask,
    (N, heads or 1, queries, keys), is not 0 where a key counts.
    """
    if flash_attention:
        raise ValueError(
            "dot_product_attention: flash_attention must be None or False: the layer "
            "MultiHeadAttention computes scores in blocks"
        )
    q, k, v = (tensor_of(each, "attention") for each in (query, key, value))
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise ValueError(
            "dot_product_attention is of (None, steps, heads, size), got "
            f"{q.shape}, {k.shape} and {v.shape}"
        )
    times, left = divmod(lengths_of(q)[2], lengths_of(k)[2])
    if left or lengths_of(k)[2] != lengths_of(v)[2]:
        raise ValueError(
            f"dot_product_attention: {lengths_of(q)[2]} heads of the query are no "
            f"multiple of {lengths_of(k)[2]} and {lengths_of(v)[2]}"
        )
    k, v = (repeat(each, times, 2) if times > 1 else each for each in (k, v))
    factor = 1 / math.sqrt(lengths_of(q)[3]) if scale is None else float(scale)
    scores = einsum("bqhd,bkhd->bhqk", q * factor, k)
    if attn_logits_soft_cap is not None:
        cap = constant(attn_logits_soft_cap, "attn_logits_soft_cap")
        scores = tanh(scores / cap) * cap
    scores = scores if bias is None else scores + bias
    least = -0.7 * float(np.finfo(np.float32).max)
    if mask is not None:
        scores = where(mask, scores, least)
    if is_causal:
        steps = lengths_of(scores)[2:]
        scores = where(np.tri(*steps, dtype=np.float32), scores, least)
    return einsum("bhqk,bkhd->bqhd", softmax(scores), v)
