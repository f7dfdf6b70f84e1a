"""Sums and products up to each place, and labels of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers._operators import Outputs, Several, as_tensor
from memcfg.nn.ops._along_axes import argmax
from memcfg.nn.ops._along_axes import max as max_of
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._control import associative_scan
from memcfg.nn.ops._declaring import documented, reordered, tensor_of
from memcfg.nn.ops._indexing import take_along_axis
from memcfg.nn.ops._of_elements import (
    add,
    cast,
    equal,
    isnan,
    less,
    multiply,
    negative,
    where,
)
from memcfg.nn.ops._shapes import concatenate, expand_dims, vector_of
from memcfg.nn.ops._sorting import argsort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "ctc_decode",
    "ctc_loss",
    "cumprod",
    "cumsum",
    "nancumprod",
    "nancumsum",
]


def _cumulated(f: Any, x: Any, axis: Any, dtype: str | None) -> Any:
    if axis is None:
        x, axis = vector_of(x), 0
    made = associative_scan(f, x, axis=axis)
    return made if dtype in (None, "float32") else cast(made, dtype)


@documented
def cumsum(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the sums up to each element along an axis."""
    return _cumulated(add, tensor_of(x, "cumsum"), axis, dtype)


@documented
def cumprod(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the products up to each element along an axis."""
    return _cumulated(multiply, tensor_of(x, "cumprod"), axis, dtype)


@documented
def nancumsum(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the sums up to each element along an axis without NaN."""
    return cumsum(where(isnan(x), 0.0, x), axis, dtype)


@documented
def nancumprod(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the products up to each element along an axis without NaN."""
    return cumprod(where(isnan(x), 1.0, x), axis, dtype)


# Labels of sequences


def _of_batch(name: str, logits: Any, integers: Sequence[Any]) -> list[SymbolicTensor]:
    """Return logits and what belongs to their samples, in int32."""
    tensors = [as_tensor(logits, name, floats=True)]
    for each in integers:
        x = as_tensor(each, name)
        tensors.append(x if x.sample_dtype == "int32" else cast(x, "int32"))
    if len({each.whole for each in tensors}) > 1:
        raise ValueError(
            f"{name}: {' and '.join(map(repr, tensors))} must all have a batch, or none"
        )
    if len(tensors[0].shape) != 3:
        raise ValueError(
            f"{name}: logits must have shape (N, steps, classes), got {tensors[0]!r}"
        )
    return tensors


def _blank(name: str, index: Any, logits: SymbolicTensor) -> int:
    """Return the class of blanks; a negative one counts from the end."""
    classes = int(logits.shape[-1] or 1)
    result = integer(index, f"{name}: mask_index", None)
    if not -classes <= result < classes:
        raise ValueError(f"{name}: mask_index {index} is none of {classes} classes")
    return result % classes


@documented
def ctc_loss(
    target: Any,
    output: Any,
    target_length: Any,
    output_length: Any,
    mask_index: int = 0,
) -> Any:
    """Return the loss of connectionist temporal classification of each sample.

    It is infinite where no alignment of the steps has the labels, and NaN for labels or
    lengths out of range.
    """
    operands = _of_batch("ctc_loss", output, (target, target_length, output_length))
    given = {"blank": _blank("ctc_loss", mask_index, operands[0])}
    return Several("ctc_loss", given)(operands)


@documented
def ctc_decode(
    inputs: Any,
    sequence_lengths: Any,
    strategy: str = "greedy",
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
    mask_index: int = 0,
) -> tuple[Any, Any]:
    """Return the labels of sequences, -1 after their ends, and scores.

    Labels have shape (paths, N, steps), or with a batch (N, paths, steps), and are one
    path with the negative sum of its logits, or several with the logarithms of their
    probabilities.
    """
    x, lengths = _of_batch("ctc_decode", inputs, (sequence_lengths,))
    blank = _blank("ctc_decode", mask_index, x)
    if strategy == "greedy":
        labels, scores = _greedy(x, lengths, bool(merge_repeated), blank)
    elif strategy == "beam_search":
        width = integer(beam_width, "ctc_decode: beam_width")
        paths = integer(top_paths, "ctc_decode: top_paths")
        if paths > width:
            raise ValueError(
                f"ctc_decode: top_paths is {paths}, more than beam_width, {width}"
            )
        given = {"blank": blank, "beam_width": width, "top_paths": paths}
        labels, scores = Outputs("ctc_beam_search", given)([x, lengths])
    else:
        raise ValueError(
            f"ctc_decode: strategy must be 'greedy' or 'beam_search', got {strategy!r}"
        )
    return (reordered(labels, [1, 0, 2]) if x.whole else labels), scores


def _greedy(x: Any, lengths: Any, merge: bool, blank: int) -> tuple[Any, Any]:
    """Return the most probable classes of steps without blanks, and their score."""
    steps = int(x.shape[1])
    places = np.arange(steps, dtype=np.float32)
    within = less(places, expand_dims(cast(lengths, "float32"), -1))
    labels = where(within, cast(argmax(x, -1), "float32"), float(blank))
    if merge and steps > 1:
        repeated = equal(labels[:, 1:], labels[:, :-1])
        rest = where(repeated, float(blank), labels[:, 1:])
        labels = concatenate([labels[:, :1], rest], 1)
    gone = equal(labels, float(blank))
    order = argsort(where(gone, float(steps), places), -1)
    labels = take_along_axis(where(gone, -1.0, labels), order, -1)
    scores = negative(sum_of(where(within, max_of(x, -1), 0.0), 1, keepdims=True))
    return expand_dims(cast(labels, "int32"), 1), scores
