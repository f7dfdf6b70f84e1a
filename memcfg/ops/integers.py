"""Products and convolutions with kernels of 8-bit integers.

``dense_int8`` takes rows, a kernel, and a scale of each column; ``conv2d_int8`` with
the attributes of ``conv2d`` takes images, a kernel, and a scale of each channel of the
result. Each row, or image, is rounded to integers from -127 to 127 with a scale of its
own, so that sums are integers of 32 bits: exact, and the same in any order.

``dequantize`` {shape, group} makes an array of float32 of integers, seen as rows of the
last axis, and of a scale for each column in each group of so many rows. The integers
are int8, or two rows of 4 bits in a row of uint8, the first in the low bits.
``dense_int4`` {inputs, group} multiplies rounded rows by such a matrix: sums over a
group are exact, and added in the order of the groups.
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
    op_type,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pack_nibbles", "unpack_nibbles"]

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


def _infer_images(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    x, kernel, scales = inputs
    require(
        [each.dtype for each in inputs] == ["float32", "int8", "float32"],
        "conv2d_int8: takes float32, int8 and float32",
    )
    made = op_type("conv2d").infer([x, kernel._replace(dtype="float32")], attributes)
    require(
        scales.shape == kernel.shape[3:],
        f"conv2d_int8: {kernel.shape} has a scale a channel, not {scales.shape}",
    )
    require(
        prod(kernel.shape[:3]) <= _MOST,
        f"conv2d_int8: sums of more than {_MOST} terms do not fit 32 bits",
    )
    return made


def _rounded(x: Array) -> tuple[Array, Array]:
    """Return integers as float64, and the scale of each first index."""
    rows = x.reshape(len(x), -1)
    most = np.abs(rows).max(1, keepdims=True)
    finite = np.isfinite(most)
    known = np.where(finite & (most > 0), most, np.float32(np.inf))
    with np.errstate(over="ignore"):
        factor = np.float32(_LARGEST) / known
    factor[np.isinf(factor)] = 0  # the row is as good as zeros
    clean = np.where(finite, rows, np.float32(0))
    rounded = np.rint(clean * factor).astype(np.float64)
    scale = np.where(factor > 0, most / np.float32(_LARGEST), np.float32(0))
    scale = np.where(finite, scale, np.float32(np.nan))
    return rounded.reshape(x.shape), scale.reshape(-1, *(1,) * (x.ndim - 1))


def pack_nibbles(integers: Array) -> Array:
    """Return integers of 4 bits, two rows in a row of uint8.

    Parameters
    ----------
    integers : ndarray of int8, shape (rows, columns)
        Numbers from -8 to 7.

    Returns
    -------
    ndarray of uint8, shape (ceil(rows / 2), columns)
        The first of two rows in the low bits. A row that is missing is 0.
    """
    low = integers[::2].view(np.uint8) & 15
    low[: len(integers) // 2] |= integers[1::2].view(np.uint8) << 4
    return low


def unpack_nibbles(codes: Array, rows: int) -> Array:
    """Return what `pack_nibbles` packed.

    Parameters
    ----------
    codes : ndarray of uint8, shape (ceil(rows / 2), columns)
        The codes.
    rows : int
        The number of rows.

    Returns
    -------
    ndarray of int8, shape (rows, columns)
        Numbers from -8 to 7.
    """
    both = np.stack([codes << 4, codes & 0xF0], axis=1).view(np.int8) >> 4
    return both.reshape(-1, codes.shape[1])[:rows]


def _check_groups(name: str, codes: Spec, scales: Spec, rows: int, group: int) -> None:
    """Raise GraphError unless there are the codes and scales of so many rows."""
    columns = codes.shape[-1] if codes.shape else 0
    held = {"int8": rows, "uint8": -(-rows // 2)}.get(codes.dtype, -1)
    require(
        codes.size == held * columns and held > 0,
        f"{name}: {codes.shape} of {codes.dtype} has no {rows} rows of integers",
    )
    require(
        group >= 1
        and scales.dtype == "float32"
        and scales.size == -(-rows // group) * columns
        and scales.shape[-1:] == (columns,),
        f"{name}: {scales.shape} has no scale for each of {columns} columns in each "
        f"group of {group} rows",
    )


def _infer_dequantized(
    inputs: Sequence[Spec], attributes: Attributes
) -> Sequence[Spec]:
    codes, scales = inputs
    shape = tuple(attributes["shape"])
    _check_groups("dequantize", codes, scales, prod(shape[:-1]), attributes["group"])
    require(
        shape[-1:] == codes.shape[-1:],
        f"dequantize: {codes.shape} has no {shape[-1:]} columns",
    )
    return [Spec(shape, "float32")]


def _matrix(codes: Array, scales: Array, rows: int, group: int) -> tuple[Array, Array]:
    """Return the integers, and the scale of each."""
    columns = codes.shape[-1]
    flat = codes.reshape(-1, columns)
    integers = flat if codes.dtype == np.int8 else unpack_nibbles(flat, rows)
    return integers, np.repeat(scales.reshape(-1, columns), group, axis=0)[:rows]


def _dequantize(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    codes, scales = inputs
    rows = prod(attributes["shape"][:-1])
    integers, scales = _matrix(codes, scales, rows, attributes["group"])
    outputs[0][...] = (integers.astype(np.float32) * scales).reshape(outputs[0].shape)


def _gradient_of_scales(adjoint: Adjoint) -> Sequence[int | None]:
    """Append the sums of integers times gradients, by group and column."""
    if not adjoint.needs[1]:
        return None, None
    codes, _ = adjoint.inputs
    shape, group = adjoint.attributes["shape"], adjoint.attributes["group"]
    scales = adjoint.shape_of(1)
    rows, columns = prod(shape[:-1]), shape[-1]
    groups = -(-rows // group)
    whole = {"shape": scales, "value": 1.0, "dtype": "float32"}
    ones = adjoint.emit("fill", (), whole, "ones")
    integers = adjoint.emit("dequantize", (codes, *ones), adjoint.attributes, "of_ones")
    made = adjoint.emit("multiply", (adjoint.dy, *integers), suffix="products")
    made = adjoint.emit("reshape", made, {"shape": (rows, columns)}, "rows")
    if groups * group > rows:
        after = groups * group - rows, 0
        missing = {"before": (0, 0), "after": after, "value": 0.0, "strides": (1, 1)}
        made = adjoint.emit("pad", made, missing, "padded")
    split = {"shape": (groups, group, columns)}
    made = adjoint.emit("reshape", made, split, "groups")
    axes = {"axes": (1,), "keepdims": False}
    made = adjoint.emit("reduce_sum", made, axes, "sums")
    return None, *adjoint.emit("reshape", made, {"shape": scales}, "scales")


def _infer_int4(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    x, codes, scales = inputs
    group, rows = attributes["group"], attributes["inputs"]
    require(
        x.dtype == "float32" and len(x.shape) >= 2 and x.shape[-1] == rows,
        f"dense_int4: cannot multiply {x.shape} of {x.dtype} by {rows} rows",
    )
    require(codes.dtype == "uint8", f"dense_int4: codes are not {codes.dtype}")
    _check_groups("dense_int4", codes, scales, rows, group)
    return [Spec((*x.shape[:-1], codes.shape[-1]), "float32")]


def _dense_int4(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, codes, scales = inputs
    rows, group = attributes["inputs"], attributes["group"]
    integers = unpack_nibbles(codes, rows)
    rounded, scale = _rounded(x.reshape(-1, rows))
    total = np.zeros((len(rounded), codes.shape[-1]), np.float32)
    for begin, each in zip(
        range(0, rows, group), scales.reshape(-1, codes.shape[-1]), strict=True
    ):
        part = slice(begin, begin + group)
        sums = rounded[:, part] @ integers[part]  # exact in float64
        total += sums.astype(np.float32) * each
    outputs[0][...] = (total * scale).reshape(outputs[0].shape)


def _dense_int8(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, kernel, scales = inputs
    rounded, scale = _rounded(x.reshape(-1, x.shape[-1]))
    sums = rounded @ kernel  # exact in float64
    made = sums.astype(np.float32) * scale * scales
    outputs[0][...] = made.reshape(outputs[0].shape)


def _conv2d_int8(attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    x, kernel, scales = inputs
    rounded, scale = _rounded(x)
    sums = np.empty(outputs[0].shape, np.float64)
    of_float64 = [rounded, kernel.astype(np.float64)]
    op_type("conv2d").numpy(attributes, of_float64, [sums])
    outputs[0][...] = sums.astype(np.float32) * scale * scales


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
    OpType(
        "conv2d_int8",
        3,
        _infer_images,
        _conv2d_int8,
        flops=lambda i, o, _: 2 * o[0].size * prod(i[1].shape[:3]),
        contraction=True,
        float32_inputs=(0, 2),
    ),
    OpType(
        "dequantize", 2, _infer_dequantized, _dequantize, gradient=_gradient_of_scales
    ),
    OpType(
        "dense_int4",
        3,
        _infer_int4,
        _dense_int4,
        flops=lambda i, o, _: 2 * i[0].size * o[0].shape[-1],
        contraction=True,
        float32_inputs=(0, 2),
    ),
)
