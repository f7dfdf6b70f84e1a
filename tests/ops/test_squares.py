"""Sums of squares and factored moments: kernels against NumPy, on any threads."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel

from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def meant(name, inputs, shapes, attributes=()):
    """What the op means, in float64."""
    outputs = [np.empty(shape) for shape in shapes]
    wide = [np.asarray(x, np.float64) for x in inputs]
    ops.op_type(name).numpy(dict(attributes), wide, outputs)
    return outputs


def on_threads(count, *call, **options):
    with machine.threads(count):
        return [each.tobytes() for each in run_kernel(*call, **options)]


@given(
    shapes=st.lists(
        st.lists(st.integers(1, 40), max_size=3).map(tuple), min_size=1, max_size=4
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_norm(shapes, seed):
    inputs = [normal(shape, seed + i) for i, shape in enumerate(shapes)]
    ((found,), (wanted,)) = (
        run_kernel("norm", inputs, [()]),
        meant("norm", inputs, [()]),
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    flat = np.concatenate([x.ravel() for x in inputs]).astype(np.float64)
    np.testing.assert_allclose(wanted, np.linalg.norm(flat), rtol=1e-12)


@given(
    lead=st.lists(st.integers(1, 4), max_size=2),
    rows=st.sampled_from([1, 2, 17, 300]),
    columns=st.sampled_from([1, 3, 16, 255, 256, 257, 600]),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_factored_moments(lead, rows, columns, seed):
    shape, a = (*lead, rows, columns), {"epsilon": 1e-3}
    g = normal(shape, seed)
    shapes = [shape[:-1], (*lead, columns)]
    means = run_kernel("factored_means", [g], shapes, a)
    for found, wanted in zip(
        means, meant("factored_means", [g], shapes, a), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    inputs = [g, *means]
    (unit,) = run_kernel("over_factored_root", inputs, [shape])
    (wanted,) = meant("over_factored_root", inputs, [shape])
    np.testing.assert_allclose(unit, wanted, rtol=1e-5)
    full = (means[0] / means[0].mean(-1, keepdims=True))[..., None]
    full = full * means[1][..., None, :]
    np.testing.assert_allclose(unit, g / np.sqrt(full), rtol=1e-4)
    (again,) = run_kernel("over_factored_root", inputs, [shape], pairs={0: 0})
    assert again.tobytes() == unit.tobytes()


def test_rows_and_columns_without_a_gradient():
    """Keras multiplies their tiny moments to 0, and divides by it."""
    g = normal((4, 6))
    g[2], g[:, 3] = 0, 0
    means = run_kernel("factored_means", [g], [(4,), (6,)], {"epsilon": 1e-30})
    (unit,) = run_kernel("over_factored_root", [g, *means], [g.shape])
    assert np.isfinite(unit).all()
    assert not unit[2].any()
    assert not unit[:, 3].any()
    meaning = np.empty_like(g)
    ops.op_type("over_factored_root").numpy({}, [g, *means], [meaning])
    np.testing.assert_allclose(unit, meaning, rtol=1e-5)


def test_threads_and_infinities():
    large = [normal((300, 700)), normal(50001, 1), normal((), 2)]
    calls = (
        ("norm", large, [()]),
        ("factored_means", large[:1], [(300,), (700,)], {"epsilon": 0.0}),
        (
            "over_factored_root",
            [large[0], normal(300) ** 2, normal(700) ** 2],
            [(300, 700)],
        ),
    )
    for call in calls:
        assert on_threads(3, *call) == on_threads(1, *call)
    for value in (np.inf, np.nan):
        (found,) = run_kernel("norm", [np.float32([1, value])], [()])
        np.testing.assert_equal(found, np.float32(value))
    (found,) = run_kernel("norm", [np.float32([3e38, -3e19])], [()])
    assert found == np.float32(3e38)  # though no float32 holds the square
    for (found,) in (
        f("norm", [np.full(9, 3e38, "f4")], [()]) for f in (run_kernel, meant)
    ):
        assert found == np.finfo(np.float32).max  # finite for finite arrays


def test_operands_that_do_not_fit():
    builder = Builder("wrong")
    vector, matrix = builder.tensor("v", (3,)), builder.tensor("m", (4, 3))
    whole = builder.tensor("i", (3,), "int32")
    for name, inputs, words in (
        ("factored_means", (vector,), "two axes or more"),
        ("over_factored_root", (matrix, vector, vector), "not the moments of"),
        ("norm", (whole,), "floats, not int32"),
        ("norm", (), "at least one input"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(name, inputs, {"epsilon": 0.0})
    with pytest.raises(KernelError, match="one float32"):
        run_kernel("norm", [normal(3)], [(2,)])
    with pytest.raises(KernelError, match="two axes"):
        run_kernel("factored_means", [normal(3)], [(1,), (3,)], {"epsilon": 0.0})
