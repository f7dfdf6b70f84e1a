"""Factorizations, inverses and determinants of the matrices in the last two axes.

Where a matrix has none, as that of a singular matrix, the result is NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from memcfg.nn._argument_checks import constant
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._operators import (
    Filled,
    Function,
    OutputsOfOne,
    Several,
    as_tensor,
)
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._contractions import matmul
from memcfg.nn.ops._declaring import aligned, documented, tensor_of
from memcfg.nn.ops._of_elements import cast, greater, less, stop_gradient, where
from memcfg.nn.ops._shapes import concatenate, expand_dims, squeeze, swapaxes

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "det",
    "eigh",
    "inv",
    "logdet",
    "lstsq",
    "lu_factor",
    "matrix_rank",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
]


def _matrices(x: Any, name: str) -> Any:
    """Return a tensor of matrices; ValueError for a tensor of fewer axes."""
    x = tensor_of(x, name)
    if len(x.shape) < 2 + (not x.whole):
        raise ValueError(
            f"{name}: {x!r} has no matrices in its last two axes"
            + ("" if x.whole else ", after the batch")
        )
    return x


def _turned(x: Any) -> Any:
    return swapaxes(x, -1, -2)


@documented
def cholesky(x: Any, upper: bool = False) -> Any:
    """Return the triangular factors of symmetric positive definite matrices.

    Only the triangle of the factor is read.
    """
    x = _matrices(x, "cholesky")
    if upper:
        return _turned(Function("cholesky", {})(_turned(x)))
    return Function("cholesky", {})(x)


@documented
def cholesky_inverse(x: Any, upper: bool = False) -> Any:
    """Return the inverses of the matrices of which x are the triangular factors."""
    x = _matrices(x, "cholesky_inverse")
    x = _turned(x) if upper else x
    ones = Filled(1.0)(x)
    for lower in (0, 1):  # the identity
        ones = Function("triangle", {"lower": lower, "offset": 0})(ones)
    given = {"lower": 1, "transposed": 0, "unit": 0}
    inverse = Several("solve_triangular", given)([x, ones])
    return matmul(_turned(inverse), inverse)


@documented
def inv(x: Any) -> Any:
    """Return the inverses of matrices."""
    return Function("matrix_inverse", {})(_matrices(x, "inv"))


@documented
def det(x: Any) -> Any:
    """Return the determinants of matrices."""
    return Function("determinant", {})(_matrices(x, "det"))


@documented
def slogdet(x: Any) -> Any:
    """Return the signs of determinants, and the logarithms of their absolute values."""
    return OutputsOfOne("slogdet", {})(_matrices(x, "slogdet"))


@documented
def logdet(x: Any) -> Any:
    """Return the logarithms of determinants; NaN for one below 0."""
    sign, logarithm = OutputsOfOne("slogdet", {})(_matrices(x, "logdet"))
    return where(less(sign, 0.0), math.nan, logarithm)


@documented
def lu_factor(x: Any) -> Any:
    """Return both triangular factors in one matrix, and the exchanges of rows in int32.

    Row i was exchanged with the row of number i, in order. There is no gradient.
    """
    return OutputsOfOne("lu_factor", {})(_matrices(x, "lu_factor"))


def _beside(name: str, a: Any, b: Any) -> tuple[SymbolicTensor, SymbolicTensor]:
    """Return matrices and what belongs to them, both with a batch or without."""
    if not isinstance(a, SymbolicTensor) and not isinstance(b, SymbolicTensor):
        raise TypeError(f"{name} needs a symbolic tensor, got {a!r} and {b!r}")
    a, b = as_tensor(a, name, floats=True), as_tensor(b, name, floats=True)
    return _matrices(aligned(a, b), name), aligned(b, a)


def _solved(name: str, op: str, attributes: Any, a: Any, b: Any) -> Any:
    """Solve for columns, or for one vector of each matrix."""
    a, b = _beside(name, a, b)
    is_vector = len(b.shape) == len(a.shape) - 1
    columns = expand_dims(b, -1) if is_vector else b
    made = Several(op, attributes)([a, columns])
    return squeeze(made, len(made.shape) - 1) if is_vector else made


@documented
def solve(a: Any, b: Any) -> Any:
    """Return x for which ``a x = b``."""
    return _solved("solve", "solve", {}, a, b)


@documented
def solve_triangular(a: Any, b: Any, lower: bool = False) -> Any:
    """Return x for which ``a x = b``, where one triangle of a is read."""
    given = {"lower": int(bool(lower)), "transposed": 0, "unit": 0}
    return _solved("solve_triangular", "solve_triangular", given, a, b)


@documented
def qr(x: Any, mode: str = "reduced") -> Any:
    """Return orthogonal and upper triangular factors of matrices."""
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode must be 'reduced' or 'complete', got {mode!r}")
    given = {"complete": int(mode == "complete")}
    return OutputsOfOne("qr", given)(_matrices(x, "qr"))


@documented
def eigh(x: Any) -> Any:
    """Return eigenvalues of symmetric matrices, ascending, and vectors in columns.

    Only the lower triangle is read. The first of the largest components of a vector is
    positive.
    """
    return OutputsOfOne("eigh", {})(_matrices(x, "eigh"))


def _others(columns: Any) -> Any:
    """Return orthogonal columns that complete those given to a square matrix."""
    given = columns.shape[-1]
    whole, _ = OutputsOfOne("qr", {"complete": 1})(stop_gradient(columns))
    return whole[..., given:]


@documented
def svd(x: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return left vectors in columns, singular values, and right vectors in rows.

    Values are in descending order. The first of the largest components of a left vector
    is positive.
    """
    x = _matrices(x, "svd")
    left, values, right = OutputsOfOne("svd", {})(x)
    if not compute_uv:
        return values
    rows, columns = x.shape[-2:]
    if full_matrices and rows > columns:
        left = concatenate([left, _others(left)], len(x.shape) - 1)
    if full_matrices and rows < columns:
        rest = _turned(_others(_turned(right)))
        right = concatenate([right, rest], len(x.shape) - 2)
    return left, values, right


def _precision(x: Any) -> float:
    """Return the share of the largest singular value that counts as 0."""
    return float(np.finfo(np.float32).eps * max(x.shape[-2:]))


@documented
def matrix_rank(x: Any, tol: float | None = None) -> Any:
    """Return how many singular values are above the tolerance, in int32."""
    x = _matrices(x, "matrix_rank")
    values = stop_gradient(OutputsOfOne("svd", {})(x)[1])
    least = values[..., :1] * _precision(x)
    if tol is not None:
        least = constant(tol, "matrix_rank: tol")
    return cast(sum_of(greater(values, least), -1), "int32")


@documented
def pinv(x: Any, rcond: float | None = None) -> Any:
    """Return the pseudo-inverses of matrices."""
    x = _matrices(x, "pinv")
    given = _precision(x) if rcond is None else constant(rcond, "pinv: rcond")
    return Function("pseudo_inverse", {"rcond": given})(x)


@documented
def lstsq(a: Any, b: Any, rcond: float | None = None) -> Any:
    """Return the shortest x for which the norm of ``a x - b`` is least."""
    a, b = _beside("lstsq", a, b)
    is_vector = len(b.shape) == len(a.shape) - 1
    made = matmul(pinv(a, rcond), expand_dims(b, -1) if is_vector else b)
    return squeeze(made, len(made.shape) - 1) if is_vector else made
