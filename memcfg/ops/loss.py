"""Softmax cross-entropy with integer labels, and ops of accuracy metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.errors import GraphError
from memcfg.ops._op_type import (
    UNIT,
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    like,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _check(inputs: Sequence[Spec]) -> Spec:
    logits, labels = inputs
    require(
        len(logits.shape) == 2 and labels.shape == logits.shape[:1],
        f"cross-entropy: logits {logits.shape} and labels {labels.shape}",
    )
    require(labels.dtype == "int32", f"labels are int32, not {labels.dtype}")
    return logits


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    logits = _check(inputs)
    return [
        Spec((), logits.dtype, role="output"),
        Spec(logits.shape, logits.dtype, suffix="probabilities"),
    ]


def _infer_number(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec((), _check(inputs).dtype, role="output")]


def _infer_gradient(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec(inputs[0].shape, inputs[0].dtype)]


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    dy, dlogits = adjoint.dys[0], None
    if dy is not None:
        (dlogits,) = adjoint.emit(
            "softmax_cross_entropy_gradient", (adjoint.outputs[1], adjoint.inputs[1])
        )
        if dy != UNIT:
            scaled = (dlogits, dy)
            (dlogits,) = adjoint.emit("scale", scaled, suffix="gradient_scaled")
    return _with_probabilities(adjoint, dlogits), None


def _with_probabilities(adjoint: Adjoint, dlogits: int | None) -> int | None:
    """Add the gradient of the second output, which gradients of gradients have."""
    dy = adjoint.dys[1]
    if dy is None:
        return dlogits
    (more,) = adjoint.emit("softmax_gradient", (adjoint.outputs[1], dy))
    return more if dlogits is None else adjoint.emit("add", (dlogits, more))[0]


def _difference(op: Adjoint) -> int:
    """Append the probabilities less those of the labels."""
    probabilities, labels = op.inputs[:2]
    (hits,) = op.emit("one_hot", (labels,), {"depth": op.shape_of(0)[-1]})
    return op.emit("subtract", (probabilities, hits))[0]


def _parts(op: Adjoint) -> Sequence[int | None]:
    factor = {"factor": 1 / op.shape_of(0)[0], "term": 0.0}
    return op.emit("affine", (_difference(op),), factor)


def _parts_of_rows(op: Adjoint) -> Sequence[int | None]:
    dy = op.inputs[2]
    ignored = op.attributes.get("ignored")
    if ignored is not None:
        raise GraphError(f"op {op.name!r} has no gradient where labels are ignored")
    (dy,) = op.emit("reshape", (dy,), {"shape": (*op.shape_of(2), 1)})
    (dy,) = op.emit("broadcast_to", (dy,), {"shape": op.shape_of(0)})
    return op.emit("multiply", (_difference(op), dy))


def _hits(logits: Array, labels: Array) -> Array:
    """Return a one-hot array of labels; a row of a label out of range is all False."""
    hits: Array = np.arange(logits.shape[-1]) == labels[..., None]
    return hits


def _softmax_cross_entropy(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
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
    _: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    probabilities, labels = inputs
    difference = probabilities - _hits(probabilities, labels)
    outputs[0][...] = difference / len(labels)


def _rows_of(inputs: Sequence[Spec]) -> tuple[int, ...]:
    logits, labels = inputs[:2]
    require(
        len(logits.shape) > 0 and labels.shape == logits.shape[:-1],
        f"outputs {logits.shape} and labels {labels.shape}",
    )
    require(labels.dtype == "int32", f"labels are int32, not {labels.dtype}")
    return labels.shape


def _infer_rows(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    rows, logits = _rows_of(inputs), inputs[0]
    probabilities = Spec(logits.shape, logits.dtype, suffix="probabilities")
    return [Spec(rows, logits.dtype), probabilities]


def _rows_rule(adjoint: Adjoint) -> Sequence[int | None]:
    dlogits = None
    if adjoint.dys[0] is not None:
        dy = adjoint.tensor(adjoint.dys[0])
        (dlogits,) = adjoint.emit(
            "cross_entropy_rows_gradient",
            (adjoint.outputs[1], adjoint.inputs[1], dy),
            adjoint.attributes,
        )
    return _with_probabilities(adjoint, dlogits), None


def _cross_entropy_rows(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    logits, labels = inputs
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=-1, keepdims=True, dtype=np.float64)
    chosen = np.where(_hits(logits, labels), shifted, 0).sum(axis=-1)
    known = (labels >= 0) & (labels < logits.shape[-1])
    losses = np.log(totals[..., 0]) - np.where(known, chosen, np.nan)
    outputs[0][...] = np.where(labels == a.get("ignored"), 0, losses)
    outputs[1][...] = exponentials / totals


def _cross_entropy_rows_gradient(
    a: Attributes, inputs: Arrays, outputs: Arrays
) -> None:
    probabilities, labels, dy = inputs
    factor = np.where(labels == a.get("ignored"), 0, dy)
    difference = probabilities - _hits(probabilities, labels)
    outputs[0][...] = difference * factor[..., None]


def _infer_argmax(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    require(len(inputs[0].shape) > 0, "argmax needs at least one axis")
    return [Spec(inputs[0].shape[:-1], "int32")]


def _argmax(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    outputs[0][...] = inputs[0].argmax(axis=-1)


def _infer_hits(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    return [Spec(_rows_of(inputs), inputs[0].dtype)]


def _find_hits(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Mark rows whose label is the first maximum (k = 0) or among the k largest."""
    x, labels = inputs
    if a["k"] == 0:
        outputs[0][...] = x.argmax(axis=-1) == labels
        return
    hits = _hits(x, labels)
    value = np.where(hits, x, 0).sum(axis=-1, keepdims=True)
    greater = (x > value).sum(axis=-1)
    valid = hits.any(axis=-1) & ~np.isnan(value[..., 0])
    outputs[0][...] = valid & (greater < a["k"])


def _infer_counts(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    require(
        len(inputs) in (2, 3) and inputs[0].shape == inputs[1].shape,
        f"threshold_counts: shapes {[each.shape for each in inputs]}",
    )
    if len(inputs) == 3:
        weights = inputs[2].shape
        require(
            inputs[0].shape[: len(weights)] == weights,
            f"threshold_counts: weights {weights} of {inputs[0].shape}",
        )
    length = len(attributes["threshold_bits"]) + 1
    dtype = inputs[1].dtype
    return [Spec((length,), dtype), Spec((length,), dtype, "false")]


def _threshold_counts(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Sum the weights of all and of those above each threshold, by target 1 and 0."""
    targets, x = (each.reshape(-1) for each in inputs[:2])
    weights = inputs[2].reshape(-1) if len(inputs) > 2 else np.ones(1)
    weights = np.repeat(weights, x.size // weights.size)
    bits = np.asarray(a["threshold_bits"], np.uint32).view(np.float32)
    above = np.vstack([np.ones(x.shape), x > bits[:, None]])
    for output, chosen in zip(outputs, (targets != 0, targets == 0), strict=True):
        output[...] = above @ (weights * chosen)


def _correct_count(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    logits, labels = inputs
    outputs[0][...] = np.count_nonzero(logits.argmax(axis=1) == labels)


def _flops(inputs: Sequence[Spec], _o: Sequence[Spec], _a: Attributes) -> int:
    return 8 * inputs[0].size


register(
    OpType(
        "softmax_cross_entropy",
        2,
        _infer,
        _softmax_cross_entropy,
        ((0, 1),),
        _gradient,
        flops=_flops,
        float32_inputs=None,
    ),
    OpType(
        "softmax_cross_entropy_inference",
        2,
        _infer_number,
        _softmax_cross_entropy,
        flops=_flops,
        float32_inputs=None,
    ),
    OpType(
        "softmax_cross_entropy_gradient",
        2,
        _infer_gradient,
        _softmax_cross_entropy_gradient,
        ((0, 0),),
        parts=_parts,
    ),
    OpType(
        "cross_entropy_rows",
        2,
        _infer_rows,
        _cross_entropy_rows,
        ((0, 1),),
        _rows_rule,
        flops=_flops,
        float32_inputs=None,
    ),
    OpType(
        "cross_entropy_rows_gradient",
        3,
        like(),
        _cross_entropy_rows_gradient,
        ((0, 0),),
        parts=_parts_of_rows,
    ),
    OpType("argmax", 1, _infer_argmax, _argmax, float32_inputs=None),
    OpType("hits", 2, _infer_hits, _find_hits, float32_inputs=None),
    OpType(
        "threshold_counts", None, _infer_counts, _threshold_counts, float32_inputs=None
    ),
    OpType("correct_count", 2, _infer_number, _correct_count, float32_inputs=None),
)
