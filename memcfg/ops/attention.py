"""Scaled dot-product attention without a full matrix of scores.

Operands: queries ``[batch, queries, heads, features]``, keys ``[batch, keys, heads,
features]``, values ``[batch, keys, heads, width]``, all without the axis of heads if
there is one head, and masks ``[batch, queries or 1, keys or 1]``. Where the product of
the masks is 0, 1e9 is subtracted from the score; elsewhere it is 1. With ``causal`` the
i-th query attends to the first i + 1 keys. Vaswani et al., "Attention is all you need",
NeurIPS 2017; Dao et al., "FlashAttention", NeurIPS 2022.

With a ``rate``, weights are dropped as the op ``dropout`` would drop elements of an
array ``[batch, heads, queries, keys]``, given ``key`` and the last operand, the step.
Kernels save the maximum and the sum of exponentials of each row, and recompute the
scores for the gradient. Masks have no gradient.
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
    common_dtype,
    parameter_dtype,
    register,
    require,
)
from memcfg.ops.dropout import check_step, keep_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_NAME = "scaled_dot_product_attention"
_MASKED = 1e9
_SAVED = 4  # operands of the gradient between values and masks
_MASKS_MOST = 8


def _check(inputs: Sequence[Spec], masks: Sequence[Spec], a: Attributes) -> None:
    """Raise GraphError for invalid shapes or attributes."""
    unknown = a.keys() - {"scale", "causal", "rate", "key"}
    require(not unknown, f"{_NAME} has no attribute {', '.join(sorted(unknown))}")
    require("scale" in a, f"{_NAME} needs a scale")
    require(("rate" in a) == ("key" in a), f"{_NAME}: a rate needs a key")
    require(0 <= a.get("rate", 0) < 1, f"{_NAME}: rate {a.get('rate')} not in [0, 1)")
    q, k, v = (spec.shape for spec in inputs[:3])
    require(
        len(q) == len(k) == len(v)
        and len(q) in (3, 4)
        and k == (q[0], k[1], *q[2:])
        and v[:-1] == k[:-1],
        f"{_NAME}: queries {q}, keys {k} and values {v}",
    )
    require(k[1] > 0, f"{_NAME}: there are no keys")
    for mask in masks:
        shape = mask.shape
        require(
            len(shape) == 3
            and shape[0] == q[0]
            and shape[1] in (1, q[1])
            and shape[2] in (1, k[1]),
            f"{_NAME}: a mask {shape} for {q[1]} queries and {k[1]} keys",
        )


def _arrays(inputs: Sequence[Spec], a: Attributes, least: int) -> Sequence[Spec]:
    """Return the inputs without the step."""
    count = len(inputs) - ("rate" in a)
    require(count >= least, f"{_NAME} takes queries, keys, values and masks")
    if "rate" in a:
        check_step(inputs[-1], _NAME)
    return inputs[:count]


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    inputs = _arrays(inputs, attributes, 3)
    _check(inputs, inputs[3:], attributes)
    q, x = inputs[0].shape, common_dtype(inputs[:3])
    dtype = parameter_dtype(inputs[0], inputs[3:])
    rows = (q[0], *q[2:-1], q[1])
    return [
        Spec((*q[:-1], inputs[2].shape[-1]), x),
        Spec(rows, dtype, suffix="maximum"),
        Spec(rows, dtype, suffix="sum"),
    ]


def _infer_gradient(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    saved = _infer([*inputs[:3], *inputs[3 + _SAVED :]], attributes)
    inputs = _arrays(inputs, attributes, 3 + _SAVED)
    shapes = [spec.shape for spec in inputs[3 : 3 + _SAVED]]
    require(
        shapes == [*(spec.shape for spec in saved), saved[0].shape],
        f"{_NAME}_gradient: what was saved has shapes {shapes}",
    )
    q, k, v, y, *statistics, dy = inputs[: 3 + _SAVED]
    dtype = common_dtype([q, k, v, y, dy])
    parameter_dtype(q, [*statistics, *inputs[3 + _SAVED :]])
    return [
        Spec(q.shape, dtype),
        Spec(k.shape, dtype, suffix="key"),
        Spec(v.shape, dtype, suffix="value"),
    ]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    q, k, v, *others = adjoint.inputs
    operands = (q, k, v, *adjoint.outputs, adjoint.dy, *others)
    emitted = adjoint.emit(f"{_NAME}_gradient", operands, adjoint.attributes)
    return (*emitted, *[None] * len(others))


def _with_heads(arrays: Arrays) -> list[Array]:
    """Return queries, keys or values with an axis of heads."""
    return [x if x.ndim == 4 else x[:, :, None] for x in arrays]


def _scores(a: Attributes, q: Array, k: Array, masks: Arrays) -> Array:
    """Return the scores [batch, heads, queries, keys]; -inf beyond causal keys."""
    scores: Array = np.einsum("bqhd,bkhd->bhqk", q, k) * a["scale"]
    if masks:
        product = masks[0]
        for mask in masks[1:]:
            product = product * mask
        scores = scores + (product * _MASKED - _MASKED)[:, None]
    if a.get("causal"):
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    return scores


def _kept(a: Attributes, inputs: Arrays, weights: Array) -> Array:
    """Apply dropout to the weights."""
    if "rate" not in a:
        return weights
    kept = keep_mask(a["key"], inputs[-1], weights.size, a["rate"])
    dropped: Array = np.where(
        kept.reshape(weights.shape), weights * (1 / (1 - a["rate"])), 0
    )
    return dropped


def _attend(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    q, k, v = _with_heads(inputs[:3])
    scores = _scores(a, q, k, inputs[3 : len(inputs) - ("rate" in a)])
    most = np.maximum(scores.max(-1), np.finfo(scores.dtype).min)
    powers = np.exp(scores - most[..., None])
    total = powers.sum(-1)
    weights = _kept(a, inputs, powers / total[..., None])
    y = np.einsum("bhqk,bkhv->bqhv", weights, v)
    for output, value in zip(outputs, (y, most, total), strict=True):
        output[...] = value.reshape(output.shape)


def _attend_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    q, k, v, y, dy = _with_heads([*inputs[:4], inputs[6]])
    scores = _scores(a, q, k, inputs[7 : len(inputs) - ("rate" in a)])
    most, total = (x.reshape(*scores.shape[:3], 1) for x in inputs[4:6])
    weights = np.exp(scores - most) / total
    slopes = _kept(a, inputs, np.einsum("bqhv,bkhv->bhqk", dy, v))
    means = np.einsum("bqhv,bqhv->bhq", y, dy)
    slopes = weights * (slopes - means[..., None]) * a["scale"]
    dv = np.einsum("bhqk,bqhv->bkhv", _kept(a, inputs, weights), dy)
    dq = np.einsum("bhqk,bkhd->bqhd", slopes, k)
    dk = np.einsum("bhqk,bqhd->bkhd", slopes, q)
    for output, value in zip(outputs, (dq, dk, dv), strict=True):
        output[...] = value.reshape(output.shape)


def _pairs(inputs: Sequence[Spec], a: Attributes) -> int:
    """Count the scores."""
    batch, queries, *heads, _ = inputs[0].shape
    keys = inputs[1].shape[1]
    pairs = queries * keys
    if a.get("causal"):
        seen = min(queries, keys)
        pairs = seen * (seen + 1) // 2 + (queries - seen) * keys
    return batch * prod(heads) * pairs


def _flops(inputs: Sequence[Spec], _: Sequence[Spec], a: Attributes) -> int:
    features = inputs[0].shape[-1] + inputs[2].shape[-1]
    return _pairs(inputs, a) * (2 * features + 20)


def _flops_gradient(inputs: Sequence[Spec], _: Sequence[Spec], a: Attributes) -> int:
    features = 3 * inputs[0].shape[-1] + 2 * inputs[2].shape[-1]
    return _pairs(inputs, a) * (2 * features + 20)


register(
    OpType(
        _NAME,
        None,
        _infer,
        _attend,
        gradient=_gradient,
        flops=_flops,
        float32_inputs=tuple(range(3, 3 + _MASKS_MOST)),
        contraction=True,
    ),
    OpType(
        f"{_NAME}_gradient",
        None,
        _infer_gradient,
        _attend_gradient,
        flops=_flops_gradient,
        contraction=True,
    ),
)
