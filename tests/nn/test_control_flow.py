"""Branches and loops by tensors and by Python: values, gradients, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)


def collatz(x):
    """Halve and grow until the sum is below 1, at most 9 times: the oracle."""
    steps = 0
    while x.sum() > 1 and steps < 9:
        x, steps = (x / 2 if x.sum() > 4 else x - 1), steps + 1
    return x, steps


def collatz_of_tensors(x):
    return ops.while_loop(
        lambda x, _: ops.sum(x) > 1,
        lambda x, n: (
            ops.cond(ops.sum(x) > 4, lambda: x / 2, lambda: x - 1),
            n + 1,
        ),
        (x, 0.0),
        maximum_iterations=9,
    )


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 9.0])
def test_a_loop_by_a_tensor_stops_where_pythons_does(scale):
    wanted, steps = collatz(X * np.float32(scale))
    found, count = mc.function(collatz_of_tensors)(X * np.float32(scale))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert count == steps


@pytest.mark.parametrize("flag", [0.0, 1.0, -2.0])
def test_cond_selects_nested_results_and_large_integers(flag):
    big = np.array([2**30 + 1, -7, 5], np.int32)

    @mc.function
    def chosen(flag, x, n):
        return ops.cond(
            flag > 0,
            lambda: {"x": (x * 2, 3.0), "n": n},
            lambda: {"x": (ops.exp(x), 3.0), "n": ops.bitwise_invert(n)},
        )

    found = chosen(np.float32(flag), X, big)
    wanted = {"x": X * 2, "n": big} if flag > 0 else {"x": np.exp(X), "n": ~big}
    np.testing.assert_allclose(found["x"][0], wanted["x"], rtol=1e-6)
    assert found["x"][1] == 3.0
    assert (found["n"] == wanted["n"]).all()


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_switch_clips_an_index(index):
    branches = [lambda x: x + 1, lambda x: x * x, lambda x: -x]

    @mc.function
    def by_tensor(i, x):
        return ops.switch(i, branches, x)

    wanted = branches[min(max(index, 0), 2)](X)
    np.testing.assert_array_equal(by_tensor(np.int32(index), X), wanted)
    by_python = mc.function(lambda x: ops.switch(index, branches, x))
    np.testing.assert_array_equal(by_python(X), wanted)


def test_loops_over_parts_are_those_of_numpy():
    @mc.function
    def loops(x):
        doubled = ops.fori_loop(1, 4, lambda i, v: v * 2 + i, x)
        rows = ops.map(lambda row: ops.sum(row * row), x)
        pairs = ops.vectorized_map(lambda xy: xy[0] - xy[1], (x, doubled))
        carry, seen = ops.scan(
            lambda c, row: (c * 0.5 + row, ops.max(c)), x[0] * 0, x, reverse=True
        )
        return (
            doubled,
            rows,
            pairs,
            carry,
            seen,
            ops.associative_scan(ops.add, x, axis=1),
        )

    doubled, rows, pairs, carry, seen, sums = loops(X)
    np.testing.assert_allclose(doubled, X * 8 + 11)
    np.testing.assert_allclose(rows, (X * X).sum(1))
    np.testing.assert_allclose(pairs, X - doubled)
    np.testing.assert_allclose(carry, X[1] * 0.5 + X[0])
    np.testing.assert_allclose(seen, [X[1].max(), 0])
    np.testing.assert_allclose(sums, X.cumsum(1))


def test_gradients_go_through_what_is_selected():
    """Central differences are the oracle; the other branch adds nothing."""

    def loss(x):
        halved, _ = ops.while_loop(
            lambda v, _: ops.sum(v * v) > 2,
            lambda v, n: (v * 0.7, n + 1),
            (x, 0.0),
            maximum_iterations=6,
        )
        chosen = ops.cond(x[0, 0] > 0, lambda: ops.sin(halved), lambda: halved**3)
        _, seen = ops.scan(lambda c, row: (c + row, c * row), x[0] * 0, chosen)
        return ops.sum(seen) + ops.sum(ops.associative_scan(ops.multiply, chosen))

    value, slope = mc.function(loss), mc.grad(loss)
    for x in (X, -X, X * 0.3):
        found, wanted = slope(x), np.empty_like(x)
        for place in np.ndindex(*x.shape):
            step = np.zeros_like(x)
            step[place] = 1e-2
            wanted[place] = (value(x + step) - value(x - step)) / 2e-2
        np.testing.assert_allclose(found, wanted, rtol=0.02, atol=5e-3)


def test_a_model_trains_through_a_loop_within_its_limit():
    """Newton's iteration for a square root in a layer: the loop is in the plan."""

    class Root(nn.Layer):
        def call(self, x):
            return ops.fori_loop(0, 6, lambda _, y: (y + x / y) / 2, x * 0 + 1)

    rng = np.random.default_rng(0)
    x = rng.random((64, 4), np.float32) + 0.5
    model = nn.Sequential([nn.Input((4,)), Root(), nn.Dense(1)])
    model.compile(nn.Adam(0.1), "mse")
    y = np.sqrt(x).sum(1, keepdims=True)
    loss = model.fit(x, y, epochs=30, verbose=0).history["loss"]
    assert loss[-1] < 0.05 * loss[0]
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == model.plan(32).peak_bytes


def updating(flag):
    weight = nn.Dense(1)
    weight.build((None, 1))

    def update():
        weight.bias.assign(weight.bias + 1)
        return 0.0

    return ops.cond(flag > 0, update, lambda: 1.0)


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (updating, ValueError, "a branch updates weights or metrics"),
        (
            lambda x: ops.cond(x > 0, lambda: x, lambda: (x, x)),
            TypeError,
            "results of one structure",
        ),
        (
            lambda x: ops.cond(x > 0, lambda: ops.zeros(3), lambda: ops.zeros(2)),
            TypeError,
            "tensors of one shape and dtype",
        ),
        (
            lambda x: ops.while_loop(lambda v: v < 9, lambda v: v + 1, (x,)),
            TypeError,
            "pass maximum_iterations",
        ),
        (lambda x: ops.fori_loop(0, x, lambda i, v: v, x), TypeError, "fori_loop"),
    ],
)
def test_what_cannot_be_traced_is_refused(function, kind, message):
    with pytest.raises(kind, match=message):
        mc.function(function)(np.float32(1))


def test_samples_have_no_branch_of_their_own():
    x = nn.Input((3,))
    with pytest.raises(TypeError, match="each sample would have its own branch"):
        ops.cond(x[:, :1] > 0, lambda: x, lambda: -x)


def test_loops_and_switches_refuse_what_is_no_integer():
    branches = [lambda: 1.0, lambda: 2.0]
    with pytest.raises(TypeError, match=r"not of integers: pass ops\.cast"):
        mc.function(lambda i: ops.switch(i, branches))(np.float32(0.7))
    with pytest.raises(ValueError, match="branches is empty"):
        ops.switch(0, [])
    for steps, error in ((2.5, TypeError), (-1, ValueError)):
        with pytest.raises(error, match="maximum_iterations must be"):
            ops.while_loop(lambda n: n < 3, lambda n: n + 1, 0, steps)
