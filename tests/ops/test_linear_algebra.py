"""Factorizations, inverses and determinants: kernels and gradients beside NumPy."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel
from slopes import check_gradient

import memcfg as mc
from memcfg import ops
from memcfg.errors import GraphError
from memcfg.graph import Builder
from memcfg.nn import ops as k

SHAPES = [(4, 3), (3, 4), (3, 3), (1, 1), (2, 3, 5, 2), (2, 2, 2)]


@st.composite
def matrices(draw, square=False):
    lead = draw(st.lists(st.integers(1, 3), max_size=2))
    rows = draw(st.integers(1, 7))
    columns = rows if square else draw(st.integers(1, 7))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    x = random.normal(size=(*lead, rows, columns))
    if draw(st.booleans()):  # of a low rank, with equal singular values
        x = np.round(x)
        x[..., -1, :] = x[..., 0, :]
    return x.astype(np.float32)


def of_size(x):
    return max(1.0, float(np.abs(x).max()))


@given(x=matrices())
@settings(max_examples=60, deadline=None)
def test_orthogonal_factors(x):
    rows, columns = x.shape[-2:]
    least, lead = min(rows, columns), x.shape[:-2]
    eye = np.eye(max(rows, columns))
    for inner in {rows, least}:
        shapes = [(*lead, rows, inner), (*lead, inner, columns)]
        q, r = run_kernel("qr", [x], shapes, {"complete": int(inner > least)})
        np.testing.assert_allclose(q @ r, x, atol=2e-6 * of_size(x))
        turned = np.swapaxes(q, -1, -2) @ q
        np.testing.assert_allclose(turned - eye[:inner, :inner], 0 * turned, atol=2e-6)
        np.testing.assert_array_equal(r, np.triu(r))
    u, s, v = run_kernel(
        "svd", [x], [(*lead, rows, least), (*lead, least), (*lead, least, columns)]
    )
    np.testing.assert_allclose((u * s[..., None, :]) @ v, x, atol=3e-6 * of_size(x))
    np.testing.assert_allclose(
        s, np.linalg.svd(x.astype("f8"), compute_uv=False), 1e-5, 1e-6 * of_size(x)
    )
    for each in (np.swapaxes(u, -1, -2) @ u, v @ np.swapaxes(v, -1, -2)):
        np.testing.assert_allclose(each - eye[:least, :least], 0 * each, atol=2e-6)
    assert (s[..., :-1] >= s[..., 1:]).all()
    (y,) = run_kernel("pseudo_inverse", [x], [(*lead, columns, rows)], {"rcond": 1e-5})
    wanted = np.linalg.pinv(x.astype("f8"), 1e-5)
    np.testing.assert_allclose(y, wanted, 1e-4, 1e-5 * of_size(wanted))


@given(x=matrices(square=True))
@settings(max_examples=60, deadline=None)
def test_eigenvectors(x):
    x = (x + np.swapaxes(x, -1, -2)) / 2
    upper = x + np.triu(np.ones(x.shape, np.float32), 1)  # which is not read
    for each in (x, upper):
        w, v = run_kernel("eigh", [each], [x.shape[:-1], x.shape])
        made = (v * w[..., None, :]) @ np.swapaxes(v, -1, -2)
        np.testing.assert_allclose(made, x, atol=3e-6 * of_size(x))
        turned = np.swapaxes(v, -1, -2) @ v
        np.testing.assert_allclose(turned - np.eye(x.shape[-1]), 0 * turned, atol=2e-6)
        assert (w[..., :-1] <= w[..., 1:]).all()
        size = np.abs(v)
        first = (size >= size.max(-2, keepdims=True) * (1 - 1e-5)).argmax(-2)
        assert (np.take_along_axis(v, first[..., None, :], -2) > 0).all()


@given(x=matrices(square=True), columns=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_triangles_and_what_they_solve(x, columns):
    n = x.shape[-1]
    b = np.random.default_rng(0).normal(size=(*x.shape[:-1], columns)).astype("f4")
    positive = x @ np.swapaxes(x, -1, -2) + np.eye(n, dtype="f4")
    (factor,) = run_kernel("cholesky", [positive], [x.shape])
    np.testing.assert_array_equal(factor, np.tril(factor))
    np.testing.assert_allclose(
        factor @ np.swapaxes(factor, -1, -2), positive, atol=1e-5 * of_size(positive)
    )
    for turned in (0, 1):
        for lower in (0, 1):
            a = factor if lower else np.swapaxes(factor, -1, -2)
            a = a + (np.triu if lower else np.tril)(np.full((n, n), 3), 0).astype("f4")
            given = {"lower": lower, "transposed": turned, "unit": 0}
            (y,) = run_kernel("solve_triangular", [a, b], [b.shape], given)
            read = np.tril(a) if lower else np.triu(a)
            read = np.swapaxes(read, -1, -2) if turned else read
            np.testing.assert_allclose(read @ y, b, atol=1e-4 * of_size(y))
        (y,) = run_kernel("solve", [positive, b], [b.shape], {"transposed": turned})
        np.testing.assert_allclose(positive @ y, b, atol=1e-4 * of_size(positive))
    lu, pivots = run_kernel(
        "lu_factor", [x], [x.shape, x.shape[:-1]], {}, (), ["float32", "int32"]
    )
    made = (np.tril(lu, -1) + np.eye(n)) @ np.triu(lu)
    for place in np.ndindex(*x.shape[:-2]):
        for i in reversed(range(n)):  # back to the order of the rows
            j = pivots[(*place, i)]
            made[place][[i, j]] = made[place][[j, i]]
    np.testing.assert_allclose(made, x, atol=2e-6 * of_size(x))
    (d,) = run_kernel("determinant", [x], [x.shape[:-2]])
    wanted = np.linalg.det(x.astype("f8"))
    np.testing.assert_allclose(d, wanted, 1e-5, 1e-5 * of_size(wanted))
    sign, logarithm = run_kernel("slogdet", [positive], [x.shape[:-2]] * 2)
    exact = np.linalg.slogdet(positive.astype("f8"))
    np.testing.assert_allclose(sign, exact[0])
    np.testing.assert_allclose(logarithm, exact[1], 1e-5, 1e-5)


def adjugate(x):
    """The cofactors by determinants of the rest."""
    n = len(x)
    made = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            rest = np.delete(np.delete(x, i, 0), j, 1)
            made[i, j] = (-1) ** (i + j) * np.linalg.det(rest)
    return made


@pytest.mark.parametrize("rank", [4, 3, 2, 1, 0])
def test_cofactors_of_any_rank(rank):
    random = np.random.default_rng(rank)
    x = random.integers(-3, 4, (4, rank)) @ random.integers(-3, 4, (rank, 4))
    x, by = x.astype(np.float32), np.float32(0.5)
    wanted = 0.5 * adjugate(x.astype("f8"))
    (found,) = run_kernel("cofactors", [x, np.array(by)], [(4, 4)])
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5 * of_size(wanted))
    meant = np.empty((4, 4))
    ops.op_type("cofactors").numpy({}, [x.astype("f8"), np.array(0.5)], [meant])
    np.testing.assert_allclose(meant, wanted, atol=1e-8 * of_size(wanted))


def test_what_does_not_exist_is_not_a_number():
    singular = np.float32([[1, 2], [2, 4]])
    odd = np.float32([[1, np.nan], [0, 1]])
    b = np.ones((2, 1), np.float32)
    for x in (singular, odd):
        assert np.isnan(run_kernel("matrix_inverse", [x], [(2, 2)])[0]).all()
        assert np.isnan(run_kernel("solve", [x, b], [(2, 1)])[0]).all()
    for x in (-np.eye(2, dtype="f4"), odd):
        assert np.isnan(run_kernel("cholesky", [x], [(2, 2)])[0]).all()
    assert run_kernel("determinant", [singular], [()])[0] == 0
    sign, logarithm = run_kernel("slogdet", [singular], [(), ()])
    assert (sign, logarithm) == (0, -np.inf)
    for kind, shapes in (
        ("qr", [(2, 2)] * 2),
        ("svd", [(2, 2), (2,), (2, 2)]),
        ("eigh", [(2,), (2, 2)]),
        ("determinant", [()]),
        ("slogdet", [(), ()]),
    ):
        x = odd.T.copy() if kind == "eigh" else odd
        a = {"complete": 0} if kind == "qr" else {}
        assert all(np.isnan(y).all() for y in run_kernel(kind, [x], shapes, a)), kind


def test_the_bits_are_those_of_one_thread():
    x = np.random.default_rng(0).normal(size=(90, 12, 12)).astype("f4")
    bits = set()
    for threads in (1, 2, 3):
        with machine.threads(threads):
            made = run_kernel("svd", [x], [x.shape, x.shape[:-1], x.shape])
            made += run_kernel("matrix_inverse", [x], [x.shape])
            bits.add(b"".join(each.tobytes() for each in made))
    assert len(bits) == 1


def regular(*shape):
    return np.random.default_rng(3).normal(size=shape)


@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("unit", [0, 1])
def test_gradients_of_solving(lower, transposed, unit):
    a, b = regular(2, 3, 3) + 3 * np.eye(3), regular(2, 3, 2)
    given = {"lower": lower, "transposed": transposed, "unit": unit}
    check_gradient("solve_triangular", [a, b], given, (0, 1))
    check_gradient("triangle", [a], {"lower": lower, "offset": unit})
    if not unit and lower:
        check_gradient("solve", [a, b], {"transposed": transposed}, (0, 1))


def test_gradients():
    check_gradient("matrix_inverse", [regular(2, 3, 3)])
    check_gradient("determinant", [regular(2, 4, 4)])
    singular = regular(3, 3)
    singular[2] = singular[0] - 2 * singular[1]
    check_gradient("determinant", [singular])
    for shape in ((5, 3), (3, 5), (2, 4, 4)):
        check_gradient("pseudo_inverse", [regular(*shape)], {"rcond": 1e-6})
        check_gradient("qr", [regular(*shape)], {"complete": 0})
        check_gradient("svd", [regular(*shape)])


WHOLE = {  # numbers of all results of an op, beside central differences
    "cholesky": lambda x: k.cholesky(k.matmul(x, k.transpose(x)) + np.eye(3)),
    "cholesky upper": lambda x: k.cholesky(
        k.matmul(x, k.transpose(x)) + np.eye(3), upper=True
    ),
    "cholesky_inverse": lambda x: k.cholesky_inverse(x + 3 * np.eye(3)),
    "cholesky_inverse upper": lambda x: k.cholesky_inverse(x + 3 * np.eye(3), True),
    "eigenvalues": lambda x: k.eigh(x + k.transpose(x))[0],
    "eigenvectors": lambda x: k.eigh(x + k.transpose(x))[1],
    "all of eigh": lambda x: k.matmul(*k.eigh(x + k.transpose(x))[::-1]),
    "q": lambda x: k.qr(x)[0],
    "r": lambda x: k.qr(x)[1],
    "q and r": lambda x: k.matmul(k.qr(x)[1], k.qr(x)[0]),
    "wide q and r": lambda x: k.matmul(*k.qr(k.concatenate([x, k.sin(x)], 1))),
    "wide r": lambda x: k.qr(k.concatenate([x, k.sin(x)], 1))[1],
    "left": lambda x: k.svd(k.concatenate([x, k.sin(x)], 0), False)[0],
    "values": lambda x: k.svd(x, compute_uv=False),
    "right": lambda x: k.svd(k.concatenate([x, k.sin(x)], 1), False)[2],
    "all of svd": lambda x: k.matmul(
        k.svd(x)[0], k.expand_dims(k.svd(x)[1], 1) * k.svd(x)[2]
    ),
    "logdet": lambda x: k.logdet(k.matmul(x, k.transpose(x)) + np.eye(3)),
    "slogdet": lambda x: k.multiply(*k.slogdet(x)),
    "norm": lambda x: k.norm(x, 2) + 2 * k.norm(x, "nuc") + 3 * k.norm(x, -2),
    "lstsq": lambda x: k.lstsq(k.concatenate([x, k.sin(x)], 0), np.arange(6.0)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_gradients_of_functions(name):
    x = np.random.default_rng(6).normal(size=(3, 3)).astype("f4")

    def loss(x):
        y = WHOLE[name](x)
        numbers = np.cos(np.arange(int(np.prod(y.shape)))).reshape(y.shape)
        return k.sum(y * numbers.astype("f4"))

    both = mc.function(lambda x: mc.value_and_grad(loss)(x))
    _, slope = both(x)
    plain = mc.function(loss)
    direction = np.random.default_rng(7).normal(size=(3, 3)).astype("f4")
    ends = [float(plain(x + step * direction)) for step in (-4e-3, 4e-3)]
    both.close()
    plain.close()
    wanted = (ends[1] - ends[0]) / 8e-3
    np.testing.assert_allclose((slope * direction).sum(), wanted, 2e-2, 2e-3)


def test_what_does_not_fit():
    builder = Builder("solved")
    x, a = builder.tensor("x", (2, 3)), builder.tensor("a", (3, 3))
    i, flat = builder.tensor("i", (3, 3), "int32"), builder.tensor("flat", (3,))
    for kind, inputs, attributes, words in (
        ("matrix_inverse", (x,), {}, "of square matrices, not of 2 x 3"),
        ("matrix_inverse", (i,), {}, "of floats, not int32"),
        ("eigh", (flat,), {}, "has no matrices"),
        ("solve", (a, x), {}, "are no columns"),
        ("triangle", (a,), {"lower": 1}, "needs lower and offset"),
        ("pseudo_inverse", (a,), {"rcond": -1.0}, "rcond is 0 or more"),
        ("cofactors", (a, flat), {}, "one number for each matrix"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, inputs, attributes)


def test_the_complete_factors_of_tall_matrices_have_no_gradient():
    def loss(x):
        return k.sum(k.qr(x, mode="complete")[0])

    with pytest.raises(GraphError, match="have no gradient: use the reduced"):
        mc.value_and_grad(loss)(np.ones((3, 2), np.float32))
