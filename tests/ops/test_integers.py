"""Products with 8-bit integers: the kernel has the bits of the meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import Room

from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, MissingDependencyError


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def operands(m, k, n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, k)).astype(np.float32)
    kernel = rng.integers(-127, 128, (k, n)).astype(np.int8)
    scales = rng.uniform(0.001, 0.1, n).astype(np.float32)
    return x, kernel, scales


def meaning(x, kernel, scales):
    y = np.empty((*x.shape[:-1], kernel.shape[1]), np.float32)
    ops.op_type("dense_int8").numpy({}, [x, kernel, scales], [y])
    return y


def run(table, given):
    """Run the op between guards, with garbage in scratch and in its output."""
    x, kernel, _ = given
    shape = (*x.shape[:-1], kernel.shape[1])
    specs = [OperandSpec(each.shape, each.dtype.name) for each in given]
    made = table.make("dense_int8", {}, specs, [OperandSpec(shape, "float32")])
    found = []
    for garbage in (0xFF, 0x5A):
        rooms = [Room(each.nbytes, garbage, 64) for each in given]
        for room, each in zip(rooms, given, strict=True):
            room.bytes[:] = np.ascontiguousarray(each).reshape(-1).view(np.uint8)
        out = Room(4 * int(np.prod(shape)), garbage, 128)
        scratch = Room(made.scratch_bytes, garbage, 192)
        made.run([room.address for room in (*rooms, out)], scratch.address)
        for room in (*rooms, out, scratch):
            room.check_guards()
        for room, each in zip(rooms, given, strict=True):
            assert room.bytes.tobytes() == each.tobytes()
        found.append(out.bytes.view(np.float32).reshape(shape).copy())
    np.testing.assert_array_equal(*found)
    return found[0]


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 90), st.integers(1, 70))
def test_the_kernel_has_the_bits_of_the_meaning(table, m, k, n):
    given = operands(m, k, n)
    np.testing.assert_array_equal(run(table, given), meaning(*given))


@pytest.mark.parametrize("sides", [(300, 65, 300), (600, 33, 257), (2, 5000, 40)])
def test_large_products_are_in_blocks(table, sides):
    given = operands(*sides)
    np.testing.assert_array_equal(run(table, given), meaning(*given))


def test_the_largest_sums_are_exact(table):
    x = np.full((2, 100_000), 3.0, np.float32)
    kernel = np.full((100_000, 3), -127, np.int8)
    scales = np.ones(3, np.float32)
    wanted = np.float32(-127 * 127 * 100_000) * np.float32(3 / np.float32(127))
    found = run(table, (x, kernel, scales))
    assert (found == wanted).all()


def test_what_is_not_finite_and_rows_of_zeros(table):
    x, kernel, scales = operands(6, 20, 5)
    x[0] = 0
    x[1, 3], x[2, 4], x[3, 5] = np.nan, np.inf, -np.inf
    x[4] = 1e-44  # 127 divided by it is no number
    found = run(table, (x, kernel, scales))
    np.testing.assert_array_equal(found, meaning(x, kernel, scales))
    assert not found[0].any()
    assert not found[4].any()
    assert np.isnan(found[1:4]).all()
    assert np.isfinite(found[5]).all()


@pytest.mark.parametrize("k", [8, 300])
def test_errors_are_those_of_rounding(k):
    x, kernel, scales = operands(50, k, 30)
    exact = x.astype(np.float64) @ kernel * scales
    found = meaning(x, kernel, scales)
    # Each number is off by at most half a step, which is the largest by 127.
    step = np.abs(x).max(1, keepdims=True) / 127
    most = step / 2 * np.abs(kernel.astype(float)).sum(0) * scales
    assert (np.abs(found - exact) <= most * (1 + 1e-4)).all()
    assert np.abs(found - exact).max() > 0


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        (((2, 3), (3, 4), (4,)), ("float32", "float32", "float32"), "int8"),
        (((2, 3), (4, 4), (4,)), ("float32", "int8", "float32"), "cannot multiply"),
        (((2, 3), (3, 4), (3,)), ("float32", "int8", "float32"), "a scale a column"),
        (
            ((2, 133_145), (133_145, 1), (1,)),
            ("float32", "int8", "float32"),
            "do not fit 32 bits",
        ),
    ],
)
def test_what_is_refused(shapes, dtypes, message):
    specs = [ops.Spec(*each) for each in zip(shapes, dtypes, strict=True)]
    with pytest.raises(GraphError, match=message):
        ops.op_type("dense_int8").infer(specs, {})
