"""`jvp` and `vectorize`: against central differences and NumPy's loops."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
RANDOM = np.random.default_rng(0)
A, B, V, W = (RANDOM.uniform(0.5, 1.5, (3, 4)).astype(np.float32) for _ in range(4))


@pytest.mark.parametrize(
    ("fun", "oracle"),
    [
        (lambda a, b: a * b + ops.exp(a), lambda a, b: a * b + np.exp(a)),
        (lambda a, b: ops.matmul(a, ops.transpose(b)), lambda a, b: a @ b.T),
        (lambda a, b: ops.tanh(a) / b, lambda a, b: np.tanh(a) / b),
        (lambda a, b: ops.log(ops.sum(a * b)), lambda a, b: np.log((a * b).sum())),
        (lambda a, b: b * b, lambda a, b: b * b),
    ],
)
def test_derivatives_along_a_direction(fun, oracle):
    value, slope = ops.jvp(fun, (A, B), (V, W))
    a, b, v, w = (x.astype(np.float64) for x in (A, B, V, W))
    step = 1e-6
    wanted = (oracle(a + step * v, b + step * w) - oracle(a, b)) / step
    np.testing.assert_allclose(value, oracle(a, b), rtol=1e-5)
    np.testing.assert_allclose(slope, wanted, rtol=1e-4, atol=1e-4)


def test_nested_results_and_others():
    def fun(x):
        return {"one": x["a"] * 2, "both": [x["a"] * x["b"], ops.stop_gradient(x["a"])]}

    given = {"a": A, "b": B}
    made, slopes = ops.jvp(fun, (given,), ({"a": V, "b": W},))
    np.testing.assert_allclose(made["both"][0], A * B, rtol=1e-6)
    np.testing.assert_allclose(slopes["one"], 2 * V, rtol=1e-6)
    np.testing.assert_allclose(slopes["both"][0], V * B + A * W, rtol=1e-5)
    assert (slopes["both"][1] == 0).all()

    @mc.function
    def step(x, v):
        return ops.jvp(lambda x: (ops.sin(x), x + 1), (x,), (v,), has_aux=True)

    value, slope, other = step(A, V)
    np.testing.assert_allclose(slope, np.cos(A) * V, rtol=1e-5)
    np.testing.assert_allclose(other, A + 1, rtol=1e-6)
    value, slope = ops.jvp(ops.sin, (0.1,), (0.2,))
    np.testing.assert_allclose([value, slope], [np.sin(0.1), 0.2 * np.cos(0.1)], 1e-6)


def test_a_direction_of_another_shape():
    with pytest.raises(ValueError, match="tangents must have the shapes"):
        ops.jvp(ops.sin, (A,), (A[0],))
    with pytest.raises(ValueError, match="tangents must have the shapes"):
        ops.jvp(lambda a, b: a, (A, B), (A,))


@pytest.mark.parametrize(
    ("function", "oracle", "signature", "given"),
    [
        (lambda a, b: a + b, np.add, None, ([1, 2, 3, 4], 2)),
        (lambda a, b: a * b, np.multiply, None, (A[:, :1], B[:1])),
        (
            ops.matmul,
            np.matmul,
            "(m,n),(n)->(m)",
            (RANDOM.normal(size=(5, 2, 3)), [1.0, 2, 3]),
        ),
        (
            lambda a: (ops.sum(a), ops.max(a)),
            lambda a: (a.sum(), a.max()),
            "(n)->(),()",
            (A,),
        ),
    ],
)
def test_a_function_of_each_element(function, oracle, signature, given):
    wanted = np.vectorize(oracle, signature=signature)(*given)
    found = ops.vectorize(function, signature=signature)(*given)
    traced = mc.function(ops.vectorize(function, signature=signature))
    arrays = [np.asarray(x) for x in given]
    arrays = [x.astype("i4" if x.dtype.kind == "i" else "f4") for x in arrays]
    for each in (found, traced(*arrays)):
        several = each if isinstance(each, tuple) else (each,)
        others = wanted if isinstance(wanted, tuple) else (wanted,)
        for one, other in zip(several, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
            assert one.dtype.kind == np.asarray(other).dtype.kind


def test_arguments_that_stay_as_they_are():
    power = ops.vectorize(lambda x, n: x**n, excluded={1})
    np.testing.assert_allclose(power(A, 3), A**3, rtol=1e-5)
    slope = mc.grad(lambda x: ops.sum(ops.vectorize(ops.square)(x)))(A)
    np.testing.assert_allclose(slope, 2 * A, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (lambda: ops.vectorize(3), TypeError, "must be a function"),
        (
            lambda: ops.vectorize(ops.add, signature="(m,n"),
            ValueError,
            "a signature is",
        ),
        (
            lambda: ops.vectorize(ops.add, signature="(n)->(n)")(A, B),
            ValueError,
            "has 1",
        ),
        (
            lambda: ops.vectorize(ops.add, signature="(n),(n)->(n)")(A, 2.0),
            ValueError,
            "fewer axes",
        ),
        (lambda: ops.vectorize(ops.add)(A, B[:, :3]), ValueError, "broadcast"),
    ],
)
def test_what_is_refused(call, kind, told):
    with pytest.raises(kind, match=told):
        call()
