"""Gather and its gradient, one_hot and cast: kernels and meanings against NumPy."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel
from slopes import check_gradient

from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder

CASTS = ("float32", "float64", "int32", "int64", "uint8", "bool")


def meaning(kind, inputs, shape, attributes=(), dtype="float32"):
    output = np.empty(shape, dtype)
    ops.op_type(kind).numpy(dict(attributes), inputs, [output])
    return output


@given(
    lead=st.lists(st.integers(1, 6), max_size=3),
    rest=st.lists(st.integers(1, 5), max_size=2),
    rows=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_gather_and_scatter_add(lead, rest, rows, seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(rows, *rest)).astype(np.float32)
    indices = rng.integers(0, rows, lead).astype(np.int32)
    (found,) = run_kernel("gather", [table, indices], [(*lead, *rest)])
    np.testing.assert_array_equal(found, table[indices])
    meant = meaning("gather", [table, indices], found.shape)
    np.testing.assert_array_equal(meant, table[indices])
    dy = rng.normal(size=found.shape).astype(np.float32)
    wanted = np.zeros(table.shape)
    for place in np.ndindex(*lead):
        wanted[indices[place]] += dy[place]
    attributes = {"rows": rows}
    (found,) = run_kernel("scatter_add", [indices, dy], [table.shape], attributes)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    meant = meaning("scatter_add", [indices, dy], table.shape, attributes)
    np.testing.assert_allclose(meant, wanted, rtol=1e-5, atol=1e-6)


def test_indices_out_of_range_read_and_add_nothing():
    table = np.ones((3, 2), np.float32)
    indices = np.array([0, -1, 3, 2, 2**31 - 1], np.int32)
    (found,) = run_kernel("gather", [table, indices], [(5, 2)])
    wanted = np.array([1, np.nan, np.nan, 1, np.nan])[:, None] * [1, 1]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(meaning("gather", [table, indices], (5, 2)), wanted)
    inputs = [indices, np.ones((5, 2), np.float32)]
    (found,) = run_kernel("scatter_add", inputs, [(3, 2)], {"rows": 3})
    np.testing.assert_array_equal(found, np.array([1, 0, 1])[:, None] * [1, 1])
    np.testing.assert_array_equal(meaning("scatter_add", inputs, (3, 2)), found)


def test_scatter_add_has_the_same_bits_on_any_number_of_threads():
    rng = np.random.default_rng(0)
    indices = (rng.pareto(1, size=4096) * 3).astype(np.int32)
    dy = rng.normal(size=(4096, 33)).astype(np.float32)
    bits = set()
    for threads in (1, 2, 3):
        with machine.threads(threads):
            found = run_kernel("scatter_add", [indices, dy], [(501, 33)], {"rows": 501})
            bits.add(found[0].tobytes())
    assert len(bits) == 1


def test_gradients():
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 5, (4, 3)).astype(np.int32)
    check_gradient("gather", [rng.normal(size=(5, 2)), indices])
    rows = rng.normal(size=(4, 3, 2))
    check_gradient("scatter_add", [indices, rows], {"rows": 5}, wrt=(1,))
    check_gradient("cast", [rng.normal(size=(4, 3))], {"dtype": "float32"})


@given(shape=st.lists(st.integers(1, 6), max_size=3), depth=st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_one_hot(shape, depth):
    indices = np.random.default_rng(0).integers(-1, depth + 1, shape).astype(np.int32)
    wanted = indices[..., None] == np.arange(depth)
    attributes = {"depth": depth, "dtype": "float32"}
    (found,) = run_kernel("one_hot", [indices], [wanted.shape], attributes)
    np.testing.assert_array_equal(found, wanted)
    meant = meaning("one_hot", [indices], wanted.shape, attributes)
    np.testing.assert_array_equal(meant, wanted)


@pytest.mark.parametrize("to", CASTS)
@pytest.mark.parametrize("from_", CASTS)
def test_cast(from_, to):
    x = np.arange(-20, 300).repeat(60) / (8 if "float" in from_ else 1)
    x = x.astype(from_)
    if from_.startswith("float"):
        low = 0.0 if to == "uint8" else -20.0
        x = x.clip(low, 255)
    wanted = x.astype(to)
    (found,) = run_kernel("cast", [x], [x.shape], {"dtype": to}, (), [to])
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(
        meaning("cast", [x], x.shape, {"dtype": to}, to), wanted
    )


@pytest.mark.parametrize("from_", ["float32", "float64"])
@pytest.mark.parametrize("to", ["int32", "int64", "uint8"])
def test_cast_of_what_is_out_of_range(from_, to):
    range_ = np.iinfo(to)
    ends = np.array([2.0**31, 2.0**63, -(2.0**31), -(2.0**63), 256, -1, -0.5, 255.5])
    x = np.concatenate([ends, [np.nan, np.inf, -np.inf, 1e30, 3.9]]).astype(from_)
    wanted = [
        int(v) if np.isfinite(v) and range_.min <= int(v) <= range_.max else range_.min
        for v in x.tolist()
    ]
    (found,) = run_kernel("cast", [x], [x.shape], {"dtype": to}, (), [to])
    np.testing.assert_array_equal(found, np.array(wanted, to))
    meant = meaning("cast", [x], x.shape, {"dtype": to}, to)
    np.testing.assert_array_equal(meant, found)


def test_what_does_not_fit():
    builder = Builder("gathered")
    x, i = builder.tensor("x", (2, 3)), builder.tensor("i", (2,), "int32")
    for kind, inputs, attributes, words in (
        ("gather", (x, x), {}, "indices are int32, not float32"),
        ("gather", (i, i), {}, "floats, not int32"),
        ("scatter_add", (builder.tensor("j", (3,), "int32"), x), {"rows": 3}, "a row"),
        ("one_hot", (x,), {"depth": 3}, "indices are int32"),
        ("one_hot", (i,), {"depth": 3, "dtype": "int32"}, "makes float32"),
        ("cast", (x,), {"dtype": "complex64"}, "complex64 is not one of"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply(kind, inputs, attributes)
    array = np.zeros((2, 3), np.complex64)
    with pytest.raises(KernelError, match="complex64"):
        run_kernel("cast", [array], [(2, 3)], {}, (), ["float32"])
