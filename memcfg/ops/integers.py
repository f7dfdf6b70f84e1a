"""`dense_int8`, a product with a kernel of 8-bit integers.

Each row is rounded to integers from -127 to 127, with its own scale, so that sums are
integers of 32 bits: exact, and the same in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_LARGEST = 127
_MOST = (2**31 - 1) // _LARGEST**2  # terms of a sum of 32 bits


def _infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, kernel, scales = inputs
    require(
        [each.dtype for each in inputs] == ["float32", "int8", "float32"],
        "dense_int8: takes float32, int8 and float32",
    )
    require(
        len(x.shape) >= 2 and len(kernel.shape) == 2 and x.shape[-1] == kernel.shape[0],
        f"dense_int8: cannot multiply {x.shape} by {kernel.shape}",
    )
    require(
        scales.shape == kernel.shape[1:],
        f"dense_int8: {kernel.shape} has a scale a column, not {scales.shape}",
    )
    require(
        kernel.shape[0] <= _MOST,
        f"dense_int8: sums of more than {_MOST} terms do not fit 32 bits",
    )
    return [Spec((*x.shape[:-1], kernel.shape[1]), "float32")]


def _dense_int8(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, kernel, scales = inputs
    rows = x.reshape(-1, x.shape[-1])
    most = np.abs(rows).max(1, keepdims=True)
    finite = np.isfinite(most)
    known = np.where(finite & (most > 0), most, np.float32(np.inf))
    with np.errstate(over="ignore"):
        factor = np.float32(_LARGEST) / known
    factor[np.isinf(factor)] = 0  # the row is as good as zeros
    clean = np.where(finite, rows, np.float32(0))
    rounded = np.rint(clean * factor).astype(np.int32)
    scale = np.where(factor > 0, most / np.float32(_LARGEST), np.float32(0))
    scale = np.where(finite, scale, np.float32(np.nan))
    sums = (rounded.astype(np.float64) @ kernel).astype(np.int32)  # exact in float64
    outputs[0][...] = (sums.astype(np.float32) * scale * scales).reshape(
        outputs[0].shape
    )


register(
    OpType(
        "dense_int8",
        3,
        _infer,
        _dense_int8,
        flops=lambda i, _o, _a: 2 * i[0].size * i[1].shape[1],
        contraction=True,
        float32_inputs=(0, 2),
    ),
)
