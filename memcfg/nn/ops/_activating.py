"""Activations that are no element-wise ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn.activations import sigmoid
from memcfg.nn.ops._along_axes import max as max_of
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._declaring import axis_of, documented, lengths_of, tensor_of
from memcfg.nn.ops._of_elements import maximum, stop_gradient, where
from memcfg.nn.ops._sequences import cumsum
from memcfg.nn.ops._shapes import moveaxis, part
from memcfg.nn.ops._sorting import top_k

__all__ = [
    "glu",
    "sparsemax",
]


@documented
def glu(x: Any, axis: int = -1) -> Any:
    """Return the first half along an axis times the sigmoid of the second."""
    place = axis_of(tensor_of(x, "glu"), axis)
    length = lengths_of(x)[place]
    if length % 2:
        raise ValueError(f"glu: axis {axis} of {x!r} has no halves: {length} elements")
    half = length // 2
    return part(x, place, 0, half) * sigmoid(part(x, place, half, length))


@documented
def sparsemax(x: Any, axis: int = -1) -> Any:
    """Project onto the probabilities along an axis (Martins and Astudillo, 2016)."""
    place = axis_of(tensor_of(x, "sparsemax"), axis)
    x = moveaxis(x, place, -1)
    last, length = len(x.shape) - 1, lengths_of(x)[-1]
    x = x - stop_gradient(max_of(x, last, keepdims=True))
    ordered = top_k(x, length)[0]
    sums = cumsum(ordered, last)
    counts = np.arange(1, length + 1, dtype=np.float32)
    within = stop_gradient(1.0 + ordered * counts > sums)
    count = sum_of(within, last, keepdims=True)
    total = sum_of(where(within, ordered, 0.0), last, keepdims=True)
    result = maximum(x - (total - 1.0) / count, 0.0)
    return moveaxis(result, -1, place)
