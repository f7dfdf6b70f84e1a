"""Reductions: native kernels against NumPy, gradients against finite differences."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel
from slopes import check_gradient

from memcfg import ops
from memcfg.errors import GraphError
from memcfg.graph import Builder

NUMPYS = {"reduce_sum": np.sum, "reduce_mean": np.mean, "reduce_max": np.max}


def shape_of(kind, x, attributes):
    builder = Builder("reduced")
    (y,) = builder.apply(kind, (builder.tensor("x", x.shape),), attributes)
    return builder.shape(y)


@st.composite
def reductions(draw, most=6):
    shape = tuple(draw(st.lists(st.integers(1, most), max_size=5)))
    axes = draw(st.sets(st.sampled_from(range(len(shape))))) if shape else ()
    signed = tuple(axis - len(shape) * draw(st.booleans()) for axis in axes)
    return shape, {"axes": signed, "keepdims": draw(st.booleans())}


def check(kind, x, a):
    wanted = (
        NUMPYS[kind](x, axis=a["axes"], keepdims=a["keepdims"], dtype=np.float64)
        if kind != "reduce_max"
        else np.max(x, axis=a["axes"], keepdims=a["keepdims"])
    )
    assert shape_of(kind, x, a) == wanted.shape
    (found,) = run_kernel(kind, [x], [wanted.shape], a)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    meant = np.empty(wanted.shape)
    ops.op_type(kind).numpy(a, [x.astype(np.float64)], [meant])
    np.testing.assert_allclose(meant, wanted, rtol=1e-6, atol=1e-7)


@given(drawn=reductions(), kind=st.sampled_from(sorted(NUMPYS)), seed=st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_reductions_are_numpys(drawn, kind, seed):
    shape, attributes = drawn
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    check(kind, x, attributes)


@pytest.mark.parametrize("kind", NUMPYS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((300_001,), (0,)),
        ((70_001, 3), (0,)),
        ((7000, 70), (0,)),
        ((70, 7000), (0,)),
        ((70, 7000), (1,)),
        ((3, 41, 5, 700), (1, 3)),
        ((40, 41, 5, 70), (1, 3)),
        ((3, 5000, 2, 9), (1, 3)),
        ((2, 3, 90, 1100), (0, 2)),
        ((50_000, 2), (1,)),
    ],
)
def test_large_ones_have_the_same_bits_on_any_number_of_threads(kind, shape, axes):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    a = {"axes": axes, "keepdims": False}
    check(kind, x, a)
    shapes = [shape_of(kind, x, a)]
    bits = set()
    for threads in (1, 2, 3):
        with machine.threads(threads):
            bits.add(run_kernel(kind, [x], shapes, a)[0].tobytes())
    assert len(bits) == 1


@given(drawn=reductions(most=4), seed=st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_the_gradient_of_a_maximum_is_shared_by_equals(drawn, seed):
    shape, a = drawn
    x = np.random.default_rng(seed).integers(-2, 2, shape).astype(np.float32)
    y = x.max(axis=a["axes"], keepdims=True)
    dy = np.arange(1, y.size + 1, dtype=np.float32).reshape(y.shape)
    hits = x == y
    wanted = hits * dy / hits.sum(axis=a["axes"], keepdims=True)
    final = shape_of("reduce_max", x, a)
    inputs = [x, y.reshape(final), dy.reshape(final)]
    (found,) = run_kernel("reduce_max_gradient", inputs, [shape], a)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_nan_is_the_maximum():
    x = np.zeros((3, 200), np.float32)
    x[1, 150] = np.nan
    (found,) = run_kernel("reduce_max", [x], [(3,)], {"axes": (1,)})
    np.testing.assert_array_equal(found, [0, np.nan, 0])
    (found,) = run_kernel("reduce_max", [x], [(200,)], {"axes": (0,)})
    assert np.flatnonzero(np.isnan(found)) == [150]


@given(drawn=reductions(most=4), kind=st.sampled_from(sorted(NUMPYS)))
@settings(max_examples=30, deadline=None)
def test_gradients(drawn, kind):
    shape, attributes = drawn
    x = np.random.default_rng(3).permutation(np.prod(shape, dtype=int)) / 8
    check_gradient(kind, [x.reshape(shape)], attributes)


def test_what_cannot_be_reduced():
    builder = Builder("reduced")
    x, labels = builder.tensor("x", (2, 3)), builder.tensor("labels", (2,), "int32")
    for tensor, axes, words in (
        (x, (2,), "no axis 2"),
        (x, (0, -2), "named twice"),
        (labels, (0,), "floats, not int32"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply("reduce_sum", (tensor,), {"axes": axes})
