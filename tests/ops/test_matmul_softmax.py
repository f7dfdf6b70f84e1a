"""Batched products and softmax against NumPy in float64."""

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


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def meaning(name, inputs, shape, attributes):
    output = np.empty(shape)
    wide = [np.asarray(each, np.float64) for each in inputs]
    ops.op_type(name).numpy(attributes, wide, [output])
    return output


@given(
    lead=st.lists(st.integers(1, 4), max_size=2),
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 8, 17, 40])] * 3),
    flags=st.tuples(st.booleans(), st.booleans()),
    shared=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_matmul(lead, sizes, flags, shared):
    m, k, n = sizes
    attributes = dict(zip(("transpose_a", "transpose_b"), flags, strict=True))
    a = normal(*lead, *((k, m) if flags[0] else (m, k)))
    b_lead = [] if shared and not flags[0] else lead
    b = normal(*b_lead, *((n, k) if flags[1] else (k, n)), seed=1)
    shape = (*lead, m, n)
    (found,) = run_kernel("matmul", [a, b], [shape], attributes)
    expected = np.einsum(
        f"...{'km' if flags[0] else 'mk'},...{'nk' if flags[1] else 'kn'}->...mn",
        a.astype(np.float64),
        b.astype(np.float64),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        meaning("matmul", [a, b], shape, attributes), expected, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("flag", [False, True])
def test_large_products_go_in_blocks(flag):
    a, b = normal(2, 300, 20), normal(2, 20, 270, seed=1)
    given_a = np.ascontiguousarray(a.swapaxes(1, 2)) if flag else a
    attributes = {"transpose_a": flag}
    (found,) = run_kernel("matmul", [given_a, b], [(2, 300, 270)], attributes)
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-4)


def test_products_that_do_not_fit():
    builder = Builder("products")
    a, b = builder.tensor("a", (2, 3, 4)), builder.tensor("b", (2, 4, 5))
    c = builder.tensor("c", (4, 5))
    assert builder.shape(builder.apply("matmul", (a, b))[0]) == (2, 3, 5)
    for inputs, attributes in (
        ((b, a), {}),
        ((a, c), {"transpose_a": True}),
        ((a, b), {"transpose_b": True}),
    ):
        with pytest.raises(GraphError, match="matmul: cannot multiply"):
            builder.apply("matmul", inputs, attributes)
    with pytest.raises(GraphError, match="no attribute transpose"):
        builder.apply("matmul", (a, b), {"transpose": True})
    with pytest.raises(KernelError, match="do not fit"):
        run_kernel("matmul", [normal(2, 3), normal(4, 2)], [(2, 2)])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 7, 16, 33, 130]), min_size=1, max_size=3),
    data=st.data(),
    scale=st.sampled_from([1.0, 50.0]),
)
@settings(max_examples=40, deadline=None)
def test_softmax_and_its_gradient(name, shape, data, scale):
    a = {"axis": data.draw(st.integers(-len(shape), len(shape) - 1))}
    shape = tuple(shape)
    x, dy = normal(*shape) * np.float32(scale), normal(*shape, seed=1)
    (y,) = run_kernel(name, [x], [shape], a)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(a["axis"], keepdims=True))
    expected = powers / powers.sum(a["axis"], keepdims=True)
    if name == "log_softmax":
        expected = np.log(np.maximum(expected, 1e-300))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6 * scale)
    np.testing.assert_allclose(
        meaning(name, [x], shape, a), expected, rtol=1e-9, atol=1e-12
    )
    (dx,) = run_kernel(f"{name}_gradient", [y, dy], [shape], a)
    np.testing.assert_allclose(
        dx, meaning(f"{name}_gradient", [y, dy], shape, a), rtol=1e-4, atol=2e-5
    )
    for kind, inputs, places, plain in (
        (name, [x], (0,), y),
        (f"{name}_gradient", [y, dy], (0, 1), dx),
    ):
        for place in places:
            (again,) = run_kernel(kind, inputs, [shape], a, {place: 0})
            assert again.tobytes() == plain.tobytes()


def test_bits_do_not_depend_on_the_number_of_threads():
    x, dy = normal(64, 8, 100), normal(64, 8, 100, seed=1)
    a, b = normal(24, 50, 33), normal(24, 33, 40, seed=1)
    found = []
    for threads in (1, 2, 3):
        with machine.threads(threads):
            found.append(
                [
                    run_kernel(kind, inputs, [shape], attributes)[0].tobytes()
                    for kind, inputs, shape, attributes in (
                        ("softmax", [x], x.shape, {"axis": -1}),
                        ("softmax", [x], x.shape, {"axis": 0}),
                        ("log_softmax", [x], x.shape, {"axis": 1}),
                        ("softmax_gradient", [x, dy], x.shape, {"axis": -1}),
                        ("log_softmax_gradient", [x, dy], x.shape, {"axis": 1}),
                        ("matmul", [a, b], (24, 50, 40), {}),
                    )
                ]
            )
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("shape", [(2, 3, 5, 5), (4, 7), (3, 20, 20), (2, 9, 4)])
def test_causal_softmax(shape):
    x = normal(*shape)
    (y,) = run_kernel("softmax", [x], [shape], {"causal": True})
    for rows, found in zip(
        x.reshape(-1, *shape[-2:]), y.reshape(-1, *shape[-2:]), strict=True
    ):
        for i, row in enumerate(rows):
            powers = np.exp(row[: i + 1].astype(np.float64))
            np.testing.assert_allclose(found[i, : i + 1], powers / powers.sum(), 1e-5)
            assert not found[i, i + 1 :].any()
    expected = meaning("softmax", [x], shape, {"causal": True})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-7)
    builder = Builder("causal")
    with pytest.raises(GraphError, match="causal along the last axis"):
        builder.apply(
            "softmax", (builder.tensor("x", (3, 3)),), {"causal": 1, "axis": 0}
        )
