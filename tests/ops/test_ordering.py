"""Order, and elements by places along the last axis: kernels against NumPy."""

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

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, np.nan, np.inf, -np.inf])


def meaning(kind, inputs, shape, attributes=(), dtype="float32"):
    output = np.empty(shape, dtype)
    ops.op_type(kind).numpy(dict(attributes), inputs, [output])
    return output


@given(rows=st.lists(st.lists(NUMBERS, min_size=5, max_size=5), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_order_is_stable_and_has_nan_last(rows):
    x = np.float32(rows)
    ascending = np.array(
        [sorted(range(5), key=lambda i: (np.isnan(r[i]), r[i], i)) for r in rows]
    )
    descending = np.array(
        [sorted(range(5), key=lambda i: (not np.isnan(r[i]), -r[i], i)) for r in rows]
    )
    for flag, exact in ((0, ascending), (1, descending)):
        exact = np.where(np.isnan(x).any(1, keepdims=True), _nan_order(x, flag), exact)
        given = {"descending": flag}
        (found,) = run_kernel("order", [x], [x.shape], given, (), ["int32"])
        np.testing.assert_array_equal(found, exact)
        meant = meaning("order", [x], x.shape, given, "int32")
        np.testing.assert_array_equal(meant, exact)


def _nan_order(x, descending):
    """Insertion by comparison of numbers, in which NaN is the largest."""
    result = []
    for row in x:
        order = []
        for i, value in enumerate(row):
            place = 0
            while place < len(order) and not _before(
                value, row[order[place]], descending
            ):
                place += 1
            order.insert(place, i)
        result.append(order)
    return np.array(result)


def _before(a, b, descending):
    if descending:
        a, b = b, a
    return a < b or (np.isnan(b) and not np.isnan(a))


@given(
    lead=st.lists(st.integers(1, 4), max_size=2),
    length=st.integers(1, 9),
    taken=st.integers(1, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_taking_and_putting(lead, length, taken, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*lead, length)).astype(np.float32)
    indices = rng.integers(-length, length, (*lead, taken)).astype(np.int32)
    exact = np.take_along_axis(x, indices % length, -1)
    (found,) = run_kernel("take_along", [x, indices], [exact.shape])
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(
        meaning("take_along", [x, indices], exact.shape), exact
    )
    wanted = np.zeros(x.shape)
    for place in np.ndindex(*indices.shape):
        wanted[(*place[:-1], indices[place])] += exact[place]
    given = {"length": length}
    for made in (
        run_kernel("put_along", [indices, exact], [x.shape], given)[0],
        meaning("put_along", [indices, exact], x.shape, given),
    ):
        np.testing.assert_allclose(made, wanted, 1e-5, 1e-6)


def test_places_out_of_range_read_nan_and_add_nothing():
    x = np.ones((1, 3), np.float32)
    indices = np.array([[0, 3, -3, -4, 2**31 - 1, -(2**31)]], np.int32)
    (found,) = run_kernel("take_along", [x, indices], [(1, 6)])
    exact = [[1, np.nan, 1, np.nan, np.nan, np.nan]]
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(meaning("take_along", [x, indices], (1, 6)), exact)
    inputs, given = [indices, np.ones((1, 6), np.float32)], {"length": 3}
    (found,) = run_kernel("put_along", inputs, [(1, 3)], given)
    np.testing.assert_array_equal(found, [[2, 0, 0]])
    np.testing.assert_array_equal(meaning("put_along", inputs, (1, 3), given), found)


def test_the_bits_are_those_of_one_thread():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(37, 501)).astype(np.float32)
    indices = rng.integers(0, 501, (37, 900)).astype(np.int32)
    bits = set()
    for threads in (1, 2, 3):
        with machine.threads(threads):
            (order,) = run_kernel(
                "order", [x], [x.shape], {"descending": 0}, (), ["int32"]
            )
            values = np.tile(x, 2)[:, :900].copy()
            (sums,) = run_kernel(
                "put_along", [indices, values], [x.shape], {"length": 501}
            )
            bits.add(order.tobytes() + sums.tobytes())
    assert len(bits) == 1


def test_gradients():
    rng = np.random.default_rng(0)
    indices = rng.integers(-5, 5, (4, 3)).astype(np.int32)
    check_gradient("take_along", [rng.normal(size=(4, 5)), indices])
    rows = rng.normal(size=(4, 3))
    check_gradient("put_along", [indices, rows], {"length": 5}, wrt=(1,))


def test_what_does_not_fit():
    builder = Builder("ordered")
    x, i = builder.tensor("x", (2, 3)), builder.tensor("i", (2, 4), "int32")
    j = builder.tensor("j", (3, 4), "int32")
    for kind, inputs, attributes, words in (
        ("order", (i,), {"descending": 0}, "sorts floats, not int32"),
        ("order", (builder.tensor("n", ()),), {"descending": 0}, "no axis to sort"),
        ("take_along", (x, x), {}, "indices are int32, not float32"),
        ("take_along", (x, j), {}, "differ before the last axis"),
        ("take_along", (i, i), {}, "of floats, not int32"),
        ("put_along", (i, x), {"length": 5}, r"shapes \(2, 4\) and \(2, 3\) differ"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, inputs, attributes)
