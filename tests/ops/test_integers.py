"""Products with integers of 8 and 4 bits: kernels have the bits of the meaning."""

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
from memcfg.ops.integers import pack_nibbles, unpack_nibbles


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


def run(table, given, kind="dense_int8", attributes=None):
    """Run the op between guards, with garbage in scratch and in its output."""
    attributes = attributes or {}
    specs = [OperandSpec(each.shape, each.dtype.name) for each in given]
    (made,) = ops.op_type(kind).infer(
        [ops.Spec(each.shape, each.dtype) for each in specs], attributes
    )
    shape = made.shape
    made = table.make(kind, attributes, specs, [OperandSpec(shape, "float32")])
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


def signs(shape, share, seed):
    return np.where(np.random.default_rng(seed).random(shape) < share, 1, -1)


@pytest.mark.parametrize("share", [1, 0.9, 0.5])
@pytest.mark.parametrize("rows", [3, 40])
def test_pairs_of_the_largest_products_do_not_saturate(table, rows, share):
    # 255 x 127 x 2, and 127 x 127 x 2 in other units, exceed 16 bits of a pair.
    x = signs((rows, 66), share, 0).astype(np.float32)
    kernel = (127 * signs((66, 33), 0.9, 1)).astype(np.int8)
    ones = np.ones(33, np.float32)
    sums = (127 * x).astype(np.int64) @ kernel.astype(np.int64)
    wanted = sums.astype(np.float32) * np.float32(1 / np.float32(127))
    np.testing.assert_array_equal(run(table, (x, kernel, ones)), wanted)
    np.testing.assert_array_equal(meaning(x, kernel, ones), wanted)


def window(strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    return {
        "strides": strides,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }


def sums_of_windows(x, kernel, a):
    """Convolve integers in int64, window by window."""
    (top, bottom), (left, right) = a["padding"]
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    inputs, units = kernel.shape[2:]
    spread = [
        (n - 1) * d + 1 for n, d in zip(kernel.shape[:2], a["dilation"], strict=True)
    ]
    rows, columns = (
        (n - s) // step + 1
        for n, s, step in zip(padded.shape[1:3], spread, a["strides"], strict=True)
    )
    y = np.zeros((len(x), rows, columns, units), np.int64)
    for i in range(rows):
        for j in range(columns):
            at = i * a["strides"][0], j * a["strides"][1]
            part = padded[
                :,
                at[0] : at[0] + spread[0] : a["dilation"][0],
                at[1] : at[1] + spread[1] : a["dilation"][1],
            ]
            for g in range(a["groups"]):
                ins = slice(g * inputs, (g + 1) * inputs)
                outs = slice(g * units // a["groups"], (g + 1) * units // a["groups"])
                y[:, i, j, outs] = np.einsum(
                    "nhwc,hwco->no", part[..., ins], kernel[..., outs]
                )
    return y


SAME = ((1, 1), (1, 1))
WINDOWS = [
    ((2, 7, 8, 3), (3, 3, 3, 9), window(padding=SAME)),
    ((2, 9, 9, 8), (3, 3, 4, 16), window((2, 2), SAME, groups=2)),
    ((1, 9, 10, 5), (2, 3, 5, 2), window((1, 2), ((2, 0), (0, 1)), (2, 3))),
    ((3, 8, 8, 6), (3, 3, 1, 6), window(padding=SAME, groups=6)),
    ((3, 9, 9, 32), (3, 3, 32, 24), window(padding=SAME)),
    ((2, 6, 6, 16), (1, 1, 16, 40), window()),
    ((2, 8, 8, 16), (3, 3, 1, 16), window(padding=SAME, groups=16)),
    ((3, 6, 5, 1), (5, 5, 1, 20), window()),
]


@pytest.mark.parametrize("kind", ["random", "largest", "positive"])
@pytest.mark.parametrize(("x", "kernel", "a"), WINDOWS)
def test_convolutions_are_those_of_integers(table, x, kernel, a, kind):
    rng = np.random.default_rng(0)
    x, units = rng.normal(size=x).astype(np.float32), kernel[-1]
    kernel = rng.integers(-127, 128, kernel).astype(np.int8)
    if kind == "largest":
        x = signs(x.shape, 0.9, 1).astype(np.float32)
        kernel = (127 * signs(kernel.shape, 0.9, 2)).astype(np.int8)
    elif kind == "positive":
        x = np.maximum(x, 0)
    scales = rng.uniform(0.001, 0.1, units).astype(np.float32)
    most = np.abs(x).max((1, 2, 3), keepdims=True)
    rounded = np.rint(x * (np.float32(127) / most)).astype(np.int64)
    sums = sums_of_windows(rounded, kernel.astype(np.int64), a)
    wanted = sums.astype(np.float32) * (most / np.float32(127)) * scales
    found = run(table, (x, kernel, scales), "conv2d_int8", a)
    np.testing.assert_array_equal(found, wanted)
    y = np.empty_like(wanted)
    ops.op_type("conv2d_int8").numpy(a, [x, kernel, scales], [y])
    np.testing.assert_array_equal(y, wanted)


def test_images_that_are_not_finite_or_zero(table):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 5, 5, 3)).astype(np.float32)
    kernel = rng.integers(-127, 128, (3, 3, 3, 8)).astype(np.int8)
    scales = np.ones(8, np.float32)
    x[0], x[1, 2, 3, 1], x[2, 4, 4, 2] = 0, np.nan, -np.inf
    found = run(table, (x, kernel, scales), "conv2d_int8", window())
    assert not found[0].any()
    assert np.isnan(found[1:3]).all()
    assert np.isfinite(found[3]).all()


@given(st.integers(1, 9), st.integers(1, 5))
def test_integers_of_4_bits_come_back(rows, columns):
    rng = np.random.default_rng(rows)
    integers = rng.integers(-8, 8, (rows, columns)).astype(np.int8)
    codes = pack_nibbles(integers)
    assert codes.shape == (-(-rows // 2), columns)
    np.testing.assert_array_equal(unpack_nibbles(codes, rows), integers)
    assert int(codes[0, 0]) & 15 == integers[0, 0] % 16


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 90), st.integers(1, 70), st.integers(1, 100))
def test_products_of_4_bits_are_sums_of_groups(table, m, k, n, group):
    rng = np.random.default_rng(m + k + n + group)
    x = rng.normal(size=(m, k)).astype(np.float32)
    integers = rng.integers(-8, 8, (k, n)).astype(np.int8)
    scales = rng.uniform(0.01, 1, (-(-k // group), n)).astype(np.float32)
    most = np.abs(x).max(1, keepdims=True)
    rounded = np.rint(x * (np.float32(127) / most)).astype(np.int64)
    wanted = np.zeros((m, n), np.float32)
    for number, scale in enumerate(scales):
        part = slice(number * group, (number + 1) * group)
        sums = rounded[:, part] @ integers[part].astype(np.int64)
        wanted += sums.astype(np.float32) * scale
    wanted *= most / np.float32(127)
    given_ = x, pack_nibbles(integers), scales
    attributes = {"inputs": k, "group": group}
    np.testing.assert_array_equal(run(table, given_, "dense_int4", attributes), wanted)
    y = np.empty_like(wanted)
    ops.op_type("dense_int4").numpy(attributes, given_, [y])
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("sides", [(300, 70, 600, 32), (5, 9000, 70, 9000)])
def test_large_products_of_4_bits_are_unpacked_in_parts(table, sides):
    m, k, n, group = sides
    rng = np.random.default_rng(0)
    x = signs((m, k), 0.9, 0).astype(np.float32)
    codes = pack_nibbles((-8 * signs((k, n), 0.9, 1) // 1).clip(-8, 7).astype(np.int8))
    scales = rng.uniform(0.01, 1, (-(-k // group), n)).astype(np.float32)
    attributes = {"inputs": k, "group": group}
    y = np.empty((m, n), np.float32)
    ops.op_type("dense_int4").numpy(attributes, (x, codes, scales), [y])
    found = run(table, (x, codes, scales), "dense_int4", attributes)
    np.testing.assert_array_equal(found, y)


@pytest.mark.parametrize(
    ("kind", "attributes", "shapes", "message"),
    [
        ("dequantize", {"shape": (4, 3), "group": 4}, ((3, 3), (3,)), "no 4 rows"),
        ("dequantize", {"shape": (4, 3), "group": 2}, ((2, 3), (3,)), "no scale for"),
        ("dequantize", {"shape": (4, 3), "group": 0}, ((2, 3), (3,)), "no scale for"),
        ("dense_int4", {"inputs": 5, "group": 5}, ((2, 4), (2, 3), (3,)), "by 5 rows"),
    ],
)
def test_what_groups_refuse(kind, attributes, shapes, message):
    dtypes = ("uint8", "float32")[-len(shapes) :]
    dtypes = dtypes if len(shapes) == 2 else ("float32", *dtypes)
    specs = [ops.Spec(*each) for each in zip(shapes, dtypes, strict=True)]
    with pytest.raises(GraphError, match=message):
        ops.op_type(kind).infer(specs, attributes)


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
