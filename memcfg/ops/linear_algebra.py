"""Factorizations, inverses and determinants of the matrices in the last two axes.

``triangle`` {lower, offset} keeps the elements up to a diagonal, or from it on.
``cholesky`` reads the lower triangle of symmetric matrices. ``solve_triangular``
{lower, transposed, unit} and ``solve`` {transposed} take columns as the second operand;
``matrix_inverse``, ``pseudo_inverse`` {rcond}, ``determinant``, ``slogdet`` (sign,
logarithm) and ``lu_factor`` (both factors, rows exchanged in order) take matrices
alone. ``qr`` {complete}, ``eigh`` (ascending) and ``svd`` (descending) have orthogonal
factors. The first of the largest components of each column of `eigh`'s vectors, and of
the left ones of `svd`, is positive.

A kernel cannot raise during a step: where a matrix is not positive definite, singular
or not finite, a result that does not exist is NaN. Kernels compute in double.

Gradients: Giles, "An extended collection of matrix derivative results", 2008; Walter,
Lehmann and Lamour, "On evaluating higher-order derivatives of the QR decomposition",
2012; Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least
squares problems", 1973. That of a determinant is right for singular matrices, too.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from memcfg.errors import GraphError
from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    Flops,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.ops._op_type import Infer, Meaning, Rule

__all__: list[str] = []


class _Backward:
    """Appends the ops of a gradient, of matrices in the last two axes."""

    def __init__(self, adjoint: Adjoint) -> None:
        self.adjoint = adjoint

    def dy(self, place: int = 0) -> int | None:
        """Return the gradient of an output as a tensor, or None."""
        found = self.adjoint.dys[place]
        return None if found is None else self.adjoint.tensor(found)

    def shape(self, x: int) -> tuple[int, ...]:
        return self.adjoint.emitter.shape(x)

    def __call__(self, kind: str, *inputs: int, **attributes: object) -> int:
        return self.adjoint.emit(kind, inputs, attributes)[0]

    def product(self, a: int, b: int, ta: bool = False, tb: bool = False) -> int:
        return self("matmul", a, b, transpose_a=ta, transpose_b=tb)

    def turned(self, x: int) -> int:
        rank = len(self.shape(x))
        return self("transpose", x, axes=(*range(rank - 2), rank - 1, rank - 2))

    def times(self, x: int, factor: float) -> int:
        return self("affine", x, factor=factor, term=0.0)

    def minus(self, a: int, b: int) -> int:
        return self("subtract", a, b)

    def sum(self, parts: Sequence[int | None]) -> int | None:
        total: int | None = None
        for part in parts:
            if part is not None:
                total = part if total is None else self("add", total, part)
        return total

    def lower(self, x: int, offset: int = 0) -> int:
        return self("triangle", x, lower=1, offset=offset)

    def symmetric(self, x: int) -> int:
        return self.times(self("add", x, self.turned(x)), 0.5)

    def along(self, x: int, vector: int, axis: int) -> int:
        """Return numbers of each matrix repeated along an axis, -1 or -2, as x is."""
        shape = list(self.shape(x))
        wide = tuple(shape)
        shape[axis] = 1
        narrow = self("reshape", vector, shape=tuple(shape))
        return self("broadcast_to", narrow, shape=wide)

    def columns(self, x: int, by: int) -> int:
        """Return the columns of x times a number each."""
        return self("multiply", x, self.along(x, by, -2))


def _matrices(kind: str, x: Spec, square: bool = True) -> tuple[int, ...]:
    """Return the leading axes of matrices of floats; GraphError for anything else."""
    require("float" in x.dtype, f"{kind}: of floats, not {x.dtype}")
    require(len(x.shape) >= 2, f"{kind}: {x.shape} has no matrices in its last axes")
    require(
        not square or x.shape[-1] == x.shape[-2],
        f"{kind}: of square matrices, not of {x.shape[-2]} x {x.shape[-1]}",
    )
    return x.shape[:-2]


def _of_square(kind: str) -> Infer:
    """Return the `infer` of an op from square matrices to such."""

    def infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
        _matrices(kind, inputs[0])
        return [Spec(inputs[0].shape, inputs[0].dtype)]

    return infer


def _cubes(count: float) -> Flops:
    """Return the `flops` of so many operations for each n**3 of a matrix."""

    def flops(inputs: Sequence[Spec], _: Sequence[Spec], __: Attributes) -> int:
        shape = inputs[0].shape
        return int(count * prod(shape) * min(shape[-2:]))

    return flops


def _each(
    function: Callable[..., object], inputs: Arrays, outputs: Arrays, cores: int = 2
) -> None:
    """Compute each matrix apart; NaN where NumPy says that there is no result.

    `cores` is the number of axes of the first output that belong to a matrix.
    """
    shape = outputs[0].shape
    for place in np.ndindex(*shape[: len(shape) - cores]):
        own = [x[place] for x in inputs]
        made: object = None
        if all(np.isfinite(x).all() for x in own):
            try:
                made = function(*own)
            except np.linalg.LinAlgError:
                made = None
        several = made if isinstance(made, tuple) else (made,) * len(outputs)
        for output, value in zip(outputs, several, strict=True):
            output[place] = np.nan if value is None else value


# Triangles


def _infer_triangle(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    _matrices("triangle", x, square=False)
    require(
        attributes.keys() == {"lower", "offset"}, "triangle: needs lower and offset"
    )
    return [Spec(x.shape, x.dtype)]


def _triangle(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    keep = np.tril if a["lower"] else np.triu
    outputs[0][...] = keep(inputs[0], a["offset"])


def _triangle_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("triangle", (adjoint.dy,), adjoint.attributes)


def _cholesky(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    _each(np.linalg.cholesky, inputs, outputs)


def _cholesky_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at = _Backward(adjoint)
    (factor,) = adjoint.outputs
    lower = at.lower(at.product(factor, adjoint.dy, ta=True))
    half = at.times(at("add", lower, at.lower(lower, -1)), 0.5)
    given = {"lower": 1, "transposed": 1, "unit": 0}
    left = at("solve_triangular", factor, half, **given)
    return [at.symmetric(at("solve_triangular", factor, at.turned(left), **given))]


def _infer_solve(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    a, b = inputs
    lead = _matrices("solve", a)
    require(
        b.dtype == a.dtype and len(b.shape) >= 2 and b.shape[:-1] == a.shape[:-1],
        f"solve: {b.shape} are no columns for matrices of shape {a.shape}, after "
        f"leading axes {lead}",
    )
    return [Spec(b.shape, b.dtype)]


def _solve_flops(inputs: Sequence[Spec], _: Sequence[Spec], __: Attributes) -> int:
    return prod(inputs[0].shape) * inputs[1].shape[-1]


def _solve_all_flops(i: Sequence[Spec], o: Sequence[Spec], a: Attributes) -> int:
    return _cubes(2 / 3)(i, o, a) + 2 * _solve_flops(i, o, a)


def _solve_triangular(at: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Substitute row after row."""
    a, (x,) = inputs[0], outputs
    lower = bool(at["lower"])
    if at["transposed"]:
        a, lower = np.swapaxes(a, -1, -2), not lower
    x[...] = inputs[1]
    rows = range(a.shape[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in rows if lower else reversed(rows):
            known = slice(None, i) if lower else slice(i + 1, None)
            x[..., i, :] -= (a[..., i, None, known] @ x[..., known, :])[..., 0, :]
            if not at["unit"]:
                x[..., i, :] /= a[..., i, i, None]


def _outer_gradient(at: _Backward, dx: int, transposed: bool) -> int:
    """Return the gradient of a matrix of which b's gradient and the result are."""
    left, right = dx, at.adjoint.outputs[0]
    if transposed:
        left, right = right, left
    return at.times(at.product(left, right, tb=True), -1.0)


def _solve_triangular_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at, given = _Backward(adjoint), adjoint.attributes
    turned = bool(given["transposed"])
    other = {**given, "transposed": int(not turned)}
    db = at("solve_triangular", adjoint.inputs[0], adjoint.dy, **other)
    if not adjoint.needs[0]:
        return None, db
    offset = int(bool(given["unit"])) * (-1 if given["lower"] else 1)
    da = _outer_gradient(at, db, turned)
    return at("triangle", da, lower=given["lower"], offset=offset), db


# Of any square matrices


def _solve(at: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    a = np.swapaxes(inputs[0], -1, -2) if at.get("transposed") else inputs[0]
    _each(np.linalg.solve, [a, inputs[1]], outputs)


def _solve_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at = _Backward(adjoint)
    turned = bool(adjoint.attributes.get("transposed"))
    db = at("solve", adjoint.inputs[0], adjoint.dy, transposed=int(not turned))
    return _outer_gradient(at, db, turned) if adjoint.needs[0] else None, db


def _inverse(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    _each(np.linalg.inv, inputs, outputs)


def _inverse_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at, (x,) = _Backward(adjoint), adjoint.outputs
    left = at.product(x, adjoint.dy, ta=True)
    return [at.times(at.product(left, x, tb=True), -1.0)]


def _infer_number(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    return [Spec(_matrices("determinant", x), x.dtype)]


def _infer_slogdet(inputs: Sequence[Spec], a: Attributes) -> Sequence[Spec]:
    (sign,) = _infer_number(inputs, a)
    return [sign, sign._replace(suffix="logarithm")]


def _determinant(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    _each(np.linalg.det, inputs, outputs, 0)


def _determinant_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    return adjoint.emit("cofactors", (adjoint.inputs[0], adjoint.dy))


def _infer_cofactors(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    x, by = inputs
    require(
        by.shape == _matrices("cofactors", x) and by.dtype == x.dtype,
        f"cofactors: of {x.shape} times {by.shape}: one number for each matrix",
    )
    return [Spec(x.shape, x.dtype)]


def _cofactors(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Of ``U S V``: the cofactors of S are products, those of U and V themselves."""

    def cofactors(x: Array, by: Array) -> Array:
        u, s, v = np.linalg.svd(x)
        sign = np.linalg.det(u) * np.linalg.det(v)
        others = [np.prod(np.delete(s, i)) for i in range(len(s))]
        result: Array = by * sign * (u * np.array(others)) @ v
        return result

    _each(cofactors, inputs, outputs)


def _slogdet(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    _each(lambda x: tuple(np.linalg.slogdet(x)), inputs, outputs, 0)


def _slogdet_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at = _Backward(adjoint)
    dy = at.dy(1)
    if dy is None:
        return [None]
    turned = at.turned(at("matrix_inverse", adjoint.inputs[0]))
    wide = at("reshape", dy, shape=(*at.shape(dy), 1, 1))
    return [at("multiply", turned, at("broadcast_to", wide, shape=at.shape(turned)))]


def _infer_lu(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    _matrices("lu_factor", x)
    return [Spec(x.shape, x.dtype), Spec(x.shape[:-1], "int32", "pivots")]


def _lu_factor(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Eliminate column after column, with the largest element of each as the pivot."""
    lu, pivots = outputs
    lu[...] = inputs[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        for place in np.ndindex(*pivots.shape[:-1]):
            a = lu[place]
            for k in range(len(a)):
                pivot = k + int(np.argmax(np.abs(a[k:, k])))
                pivots[(*place, k)] = pivot
                a[[k, pivot]] = a[[pivot, k]]
                if a[k, k] != 0:
                    a[k + 1 :, k] /= a[k, k]
                a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])


# Orthogonal factors


def _infer_qr(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    lead = _matrices("qr", x, square=False)
    rows, columns = x.shape[-2:]
    inner = rows if attributes.get("complete") else min(rows, columns)
    return [
        Spec((*lead, rows, inner), x.dtype),
        Spec((*lead, inner, columns), x.dtype, "r"),
    ]


def _qr(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    def factors(x: Array) -> tuple[Array, Array]:
        made = np.linalg.qr(x, "complete") if a.get("complete") else np.linalg.qr(x)
        return made.Q, made.R

    _each(factors, inputs, outputs)


def _tall_qr_gradient(at: _Backward, q: int, r: int, dq: int | None, dr: int) -> int:
    m = at.product(r, dr, tb=True)
    if dq is not None:
        m = at.minus(m, at.product(dq, q, ta=True))
    copied = at("add", at.lower(m), at.turned(at.lower(m, -1)))
    total = at.product(q, copied)
    if dq is not None:
        total = at("add", dq, total)
    given = {"lower": 0, "transposed": 0, "unit": 0}
    return at.turned(at("solve_triangular", r, at.turned(total), **given))


def _qr_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at, (q, r) = _Backward(adjoint), adjoint.outputs
    rows, columns = adjoint.shape_of(0)[-2:]
    if adjoint.attributes.get("complete") and rows > columns:
        raise GraphError(
            f"op {adjoint.name!r}: the complete factors of more rows than columns, "
            f"{rows} x {columns}, have no gradient: use the reduced ones"
        )
    dq, dr = at.dy(0), at.dy(1)
    if dr is None:
        zeros = {
            "shape": at.shape(r),
            "value": 0.0,
            "dtype": at.adjoint.emitter.dtype(r),
        }
        (dr,) = adjoint.emit("fill", (), zeros)
    if rows >= columns:
        return [_tall_qr_gradient(at, q, r, dq, dr)]
    # r is the triangle of the first columns, and the others in the basis q
    axis = len(at.shape(r)) - 1
    halves = {"axis": axis, "lengths": (rows, columns - rows)}
    (triangle, _), (dr, rest), (_, others) = (
        adjoint.emit("split", (x,), halves) for x in (r, dr, adjoint.inputs[0])
    )
    dq = at.sum([dq, at.product(others, rest, tb=True)])
    first = _tall_qr_gradient(at, q, triangle, dq, dr)
    return [at("concatenate", first, at.product(q, rest), axis=axis)]


def _signed(columns: Array) -> Array:
    """Return the sign of the first of the largest components of each column."""
    size = np.abs(columns)
    first = (size >= size.max(0, initial=0) * (1 - 1e-6)).argmax(0)
    chosen: Array = np.where(columns[first, np.arange(columns.shape[1])] < 0, -1.0, 1.0)
    return chosen


def _infer_eigh(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    _matrices("eigh", x)
    return [Spec(x.shape[:-1], x.dtype), Spec(x.shape, x.dtype, "vectors")]


def _eigh(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    def decompose(x: Array) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(x)
        return values, vectors * _signed(vectors)

    _each(decompose, inputs, outputs, 1)


def _eigh_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at, (values, vectors) = _Backward(adjoint), adjoint.outputs
    dvalues, dvectors = at.dy(0), at.dy(1)
    parts = []
    if dvalues is not None:
        parts.append(at.columns(vectors, dvalues))
    if dvectors is not None:
        inner = at.product(vectors, dvectors, ta=True)
        gaps = at.minus(at.along(inner, values, -2), at.along(inner, values, -1))
        parts.append(at.product(vectors, at("divide_or_zero", inner, gaps)))
    total = at.sum(parts)
    assert total is not None  # one output at least has a gradient
    return [at.symmetric(at.product(total, vectors, tb=True))]


def _infer_svd(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    lead = _matrices("svd", x, square=False)
    rows, columns = x.shape[-2:]
    count = min(rows, columns)
    return [
        Spec((*lead, rows, count), x.dtype),
        Spec((*lead, count), x.dtype, "values"),
        Spec((*lead, count, columns), x.dtype, "right"),
    ]


def _svd(_: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    def decompose(x: Array) -> tuple[Array, Array, Array]:
        u, s, v = np.linalg.svd(x, full_matrices=False)
        signs = _signed(u)
        return u * signs, s, signs[:, None] * v

    _each(decompose, inputs, outputs)


def _svd_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at, (u, s, v) = _Backward(adjoint), adjoint.outputs  # v has rows
    du, ds, dv = (at.dy(place) for place in range(3))
    rows, columns = adjoint.shape_of(0)[-2:]
    count = min(rows, columns)
    parts = [None if ds is None else at.product(at.columns(u, ds), v)]

    def over_gaps(inner: int) -> int:
        squares = at("multiply", s, s)
        gaps = at.minus(at.along(inner, squares, -2), at.along(inner, squares, -1))
        return at("divide_or_zero", at.minus(inner, at.turned(inner)), gaps)

    if du is not None:
        inner = at.product(u, du, ta=True)
        left = at.product(u, at.columns(over_gaps(inner), s))
        if rows > count:
            beside = at.minus(du, at.product(u, inner))
            left = at("add", left, at("divide", beside, at.along(beside, s, -2)))
        parts.append(at.product(left, v))
    if dv is not None:
        inner = at.product(v, dv, tb=True)
        right = at.product(over_gaps(inner), v)
        right = at("multiply", right, at.along(right, s, -1))
        if columns > count:
            beside = at.minus(dv, at.product(inner, v, ta=True))
            right = at("add", right, at("divide", beside, at.along(beside, s, -1)))
        parts.append(at.product(u, right))
    return [at.sum(parts)]


def _infer_pinv(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    (x,) = inputs
    lead = _matrices("pseudo_inverse", x, square=False)
    require(attributes["rcond"] >= 0, "pseudo_inverse: rcond is 0 or more")
    return [Spec((*lead, *x.shape[:-3:-1]), x.dtype)]


def _pinv(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    _each(lambda x: np.linalg.pinv(x, a["rcond"]), inputs, outputs)


def _pinv_gradient(adjoint: Adjoint) -> Sequence[int | None]:
    at, (a,), (x,) = _Backward(adjoint), adjoint.inputs, adjoint.outputs
    dy = adjoint.dy
    turned = at.product(at.product(x, dy, ta=True), x, tb=True)
    parts: list[int | None] = [at.times(turned, -1.0)]
    # What lies outside of the image of a, and of that of its transpose.
    outside = at.product(at.product(dy, x, ta=True), x, tb=True)
    parts.append(at.minus(outside, at.product(a, at.product(x, outside))))
    inside = at.product(at.product(x, x, ta=True), dy, tb=True)
    parts.append(at.minus(inside, at.product(at.product(inside, x), a)))
    return [at.sum(parts)]


def _type(
    name: str,
    infer: Infer,
    meaning: Meaning,
    gradient: Rule | None,
    flops: Flops,
    arity: int = 1,
) -> OpType:
    return OpType(
        name,
        arity,
        infer,
        meaning,
        gradient=gradient,
        flops=flops,
        float32_inputs=None,
        contraction=True,
    )


register(
    OpType(
        "triangle",
        1,
        _infer_triangle,
        _triangle,
        ((0, 0),),
        gradient=_triangle_gradient,
    ),
    _type(
        "cholesky",
        _of_square("cholesky"),
        _cholesky,
        _cholesky_gradient,
        _cubes(1 / 3),
    ),
    _type(
        "solve_triangular",
        _infer_solve,
        _solve_triangular,
        _solve_triangular_gradient,
        _solve_flops,
        2,
    ),
    _type("solve", _infer_solve, _solve, _solve_gradient, _solve_all_flops, 2),
    _type(
        "matrix_inverse",
        _of_square("matrix_inverse"),
        _inverse,
        _inverse_gradient,
        _cubes(2),
    ),
    _type(
        "determinant",
        _infer_number,
        _determinant,
        _determinant_gradient,
        _cubes(2 / 3),
    ),
    _type("cofactors", _infer_cofactors, _cofactors, None, _cubes(2), 2),
    _type("slogdet", _infer_slogdet, _slogdet, _slogdet_gradient, _cubes(2 / 3)),
    _type("lu_factor", _infer_lu, _lu_factor, None, _cubes(2 / 3)),
    _type("qr", _infer_qr, _qr, _qr_gradient, _cubes(4)),
    _type("eigh", _infer_eigh, _eigh, _eigh_gradient, _cubes(40)),
    _type("svd", _infer_svd, _svd, _svd_gradient, _cubes(40)),
    _type("pseudo_inverse", _infer_pinv, _pinv, _pinv_gradient, _cubes(40)),
)
