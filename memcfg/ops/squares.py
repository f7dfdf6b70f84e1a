"""Squares: the norm of gradients, and the factored moments of Adafactor.

Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
ICML 2018. All sums are in double precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_LARGEST = float(np.finfo(np.float32).max)  # norms of finite arrays are clipped to it


def _infer_norm(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    dtype = common_dtype(inputs)
    require("float" in dtype, f"norm computes floats, not {dtype}")
    return [Spec((), dtype)]


def _norm(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    total = np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in inputs))
    outputs[0][...] = np.minimum(total, _LARGEST) if np.isfinite(total) else total


def _infer_means(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    shape, dtype = inputs[0].shape, inputs[0].dtype
    require(len(shape) > 1, f"factored_means: two axes or more, not {shape}")
    return [
        Spec(shape[:-1], dtype, "rows"),
        Spec((*shape[:-2], shape[-1]), dtype, "columns"),
    ]


def _factored_means(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    squares = np.square(inputs[0], dtype=np.float64) + a["epsilon"]
    outputs[0][...] = squares.mean(axis=-1)
    outputs[1][...] = squares.mean(axis=-2)


def _infer_over(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    gradient, rows, columns = (spec.shape for spec in inputs)
    require(
        len(gradient) > 1
        and rows == gradient[:-1]
        and columns == (*gradient[:-2], gradient[-1]),
        f"over_factored_root: {rows} and {columns} are not the moments of {gradient}",
    )
    return [Spec(gradient, common_dtype(inputs))]


def _over_factored_root(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    gradient, rows, columns = inputs
    means = rows.mean(axis=-1, keepdims=True, dtype=np.float64)
    # Two roots: the product of tiny moments, where gradients are 0, would underflow.
    roots = np.sqrt(rows / means).astype(rows.dtype)
    outputs[0][...] = gradient / (roots[..., None] * np.sqrt(columns[..., None, :]))


register(
    OpType(
        "norm",
        None,
        _infer_norm,
        _norm,
        flops=lambda i, _o, _a: 2 * sum(spec.size for spec in i),
        float32_inputs=None,
    ),
    OpType(
        "factored_means",
        1,
        _infer_means,
        _factored_means,
        flops=lambda i, _o, _a: 4 * i[0].size,
    ),
    OpType(
        "over_factored_root",
        3,
        _infer_over,
        _over_factored_root,
        ((0, 0),),
        flops=lambda i, _o, _a: 3 * i[0].size,
    ),
)
