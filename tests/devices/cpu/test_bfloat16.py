"""bfloat16 on the CPU: rounding, ops of several shapes, and their scratch."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from bfloat16 import round_to_bfloat16, widen
from family_cases import all_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import Case, convolutions, depthwise, normal
from narrow_cases import BIT, Mixed, kept, run

from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import MissingDependencyError
from memcfg.ops.tiled_update import update_attributes

EVERY = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def nearest(values):
    """The nearest bfloat16 by a search among all finite ones, of two the even one."""
    finite = np.arange(0x7F80, dtype=np.uint16)  # from 0 up, as their bits are
    known = widen(finite).astype(np.float64)
    known = np.append(known, 2.0**128)  # where infinity begins
    magnitude = np.abs(values.astype(np.float64))
    above = np.searchsorted(known, magnitude).clip(1, len(known) - 1)
    low, high = magnitude - known[above - 1], known[above] - magnitude
    up = (high < low) | ((high == low) & (above % 2 == 0))
    bits = np.where(up, above, above - 1).astype(np.uint16)
    bits = np.where(np.isinf(values), 0x7F80, bits).astype(np.uint16)
    return bits | np.where(np.signbit(values), 0x8000, 0).astype(np.uint16)


def test_every_bfloat16_is_a_float_and_back():
    values = widen(EVERY)
    back = round_to_bfloat16(values)
    nan = np.isnan(values)
    np.testing.assert_array_equal(back[~nan], EVERY[~nan])
    assert np.isnan(widen(back[nan])).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_rounding_is_to_the_nearest(bits):
    values = np.array(bits, np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    np.testing.assert_array_equal(round_to_bfloat16(values), nearest(values))


def test_rounding_of_ties_and_ends():
    halves = ((EVERY.astype(np.uint32) << 16) | 0x8000).view(np.float32)
    halves = halves[~np.isnan(halves)]
    bits = halves.view(np.uint32)
    values = np.concatenate([bits, bits - 1, bits + 1]).view(np.float32)
    np.testing.assert_array_equal(round_to_bfloat16(values), nearest(values))


@pytest.mark.parametrize("count", [1, 7, 8192, 70001])
def test_casts_round_as_the_meaning_does(table, count):
    bits = np.random.default_rng(0).integers(0, 2**32, count, dtype=np.uint32)
    x = bits.view(np.float32)
    spec = OperandSpec((count,), "bfloat16")
    (y,) = run(table, "cast", {"dtype": "bfloat16"}, [x], ["float32"], [spec])
    np.testing.assert_array_equal(y, round_to_bfloat16(x))
    wide = OperandSpec((count,), "float32")
    (z,) = run(table, "cast", {"dtype": "float32"}, [y], ["bfloat16"], [wide])
    np.testing.assert_array_equal(z, widen(y))


@given(drawn=convolutions())
@settings(max_examples=40, deadline=None)
def test_convolutions(table, drawn):
    check_convolution(table, drawn)


@given(drawn=depthwise())
@settings(max_examples=10, deadline=None)
def test_depthwise_convolutions(table, drawn):
    check_convolution(table, drawn)


@given(
    n=st.integers(1, 3),
    size=st.integers(1, 5),
    channels=st.sampled_from([1, 8, 16, 20, 31, 32, 40]),
    stride=st.integers(2, 3),
)
@settings(max_examples=20, deadline=None)
def test_windows_of_one_pixel_that_leave_pixels_out(table, n, size, channels, stride):
    a = {
        "strides": (stride, stride),
        "padding": ((0, 0), (0, 0)),
        "dilation": (1, 1),
        "groups": 1,
    }
    x = (n, size * stride, size * stride, channels)
    check_convolution(table, (a, x, (1, 1, channels, 24), (n, size, size, 24)))


def check_convolution(table, drawn):
    a, x, kernel, y = drawn
    arrays = normal(*x), normal(*kernel, seed=1), normal(*y, seed=2)
    Mixed.of(Case("conv2d", [arrays[0], arrays[1]], [], a)).check(table)
    more = {**a, "kernel_shape": kernel, "input_shape": x}
    pair = [arrays[0], arrays[2]]
    Mixed.of(Case("conv2d_gradient_kernel", pair, [], more)).check(table)
    pair = [arrays[1], arrays[2]]
    Mixed.of(Case("conv2d_gradient_input", pair, [], more)).check(table)


@given(
    m=st.sampled_from([1, 5, 64, 300]),
    k=st.sampled_from([1, 3, 31, 270]),
    n=st.sampled_from([1, 10, 33, 520]),
)
@settings(max_examples=30, deadline=None)
def test_products(table, m, k, n):
    x, kernel, dy = normal(m, k), normal(k, n, seed=1), normal(m, n, seed=2)
    Mixed.of(Case("dense", [x, kernel], [])).check(table)
    Mixed.of(Case("dense_gradient_kernel", [x, dy], [])).check(table)
    Mixed.of(Case("dense_gradient_input", [kernel, dy], [])).check(table)


LOSS = "dense_cross_entropy"


@given(
    rows=st.integers(1, 300),
    depth=st.integers(1, 70),
    classes=st.integers(1, 90),
    transposed=st.booleans(),
    biased=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_logits_in_blocks(table, rows, depth, classes, transposed, biased):
    check_logits(table, rows, depth, classes, transposed, biased)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "classes"), [(513, 20, 700), (300, 4, 50_000)]
)
def test_logits_in_several_blocks(table, rows, depth, classes, transposed):
    check_logits(table, rows, depth, classes, transposed, biased=True)


def check_logits(table, rows, depth, classes, transposed, biased):
    """Loss and gradients of the bias are float32; what is multiplied is rounded."""
    labels = np.random.default_rng(0).integers(0, classes, rows).astype(np.int32)
    shape = (classes, depth) if transposed else (depth, classes)
    inputs = [normal(rows, depth), labels, normal(*shape, seed=1) / depth]
    inputs += [normal(classes, seed=2)] if biased else []
    for kind in (LOSS, f"{LOSS}_inference"):
        mixed = Mixed.of(Case(kind, inputs, [], {"transposed": transposed}), (3,))
        kinds = ["float32", "bfloat16", "float32", "float32"][: len(mixed.outputs)]
        assert [spec.dtype for spec in mixed.outputs] == kinds
        found = run(
            table, kind, mixed.attributes, mixed.inputs, mixed.dtypes, mixed.outputs
        )
        wanted = mixed.meaning()
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        for array, spec, exact in zip(found, mixed.outputs, wanted, strict=True):
            given = widen(array) if spec.dtype == "bfloat16" else array
            size = np.abs(exact).max()
            np.testing.assert_allclose(given, exact, rtol=4 * BIT, atol=BIT * size)


@given(
    m=st.sampled_from([1, 5, 64, 300]),
    k=st.sampled_from([1, 31, 270]),
    n=st.sampled_from([1, 33, 520]),
)
@settings(max_examples=20, deadline=None)
def test_updates_in_blocks(table, m, k, n):
    """The gradient of bfloat16 products is float32, and so is what it updates."""
    expression = update_attributes("sgd_momentum", {"momentum": 0.9}, 1)
    inputs = [normal(m, k), normal(m, n, seed=1), normal(k, n, seed=2)]
    inputs += [normal(k, n, seed=3), np.array(0.01, np.float32)]
    mixed = Mixed.of(Case("dense_update", inputs, [], expression), (2, 3, 4))
    assert [spec.dtype for spec in mixed.outputs] == ["float32"] * 2
    mixed.check(table)


@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_a_mask_that_is_made_again_is_that_of_the_rounded_result(table, activation):
    """Normalised values lie between the bfloat16 around 6, and around 0."""
    random = np.random.default_rng(0)
    shape, bf, a = (64, 33), "bfloat16", {"epsilon": 1e-3}
    near = 6 + random.integers(-8, 9, shape) / 32
    x = round_to_bfloat16(near.astype(np.float32))
    x[::4] = round_to_bfloat16(normal(*x[::4].shape) * 1e-38)
    dy = round_to_bfloat16(normal(*shape, seed=1))
    gamma = random.uniform(0.99, 1.01, 33).astype(np.float32)
    beta, mean = np.zeros((2, 33), np.float32)
    variance = np.full(33, 1 - 1e-3, np.float32)
    wide, each = OperandSpec(shape, bf), OperandSpec((33,), "float32")

    def make(kind, attributes, inputs, outputs):
        dtypes = [bf if array.ndim == 2 else "float32" for array in inputs]
        return run(table, kind, attributes, inputs, dtypes, outputs)

    kind = f"batch_normalization_inference_{activation}"
    (y,) = make(kind, a, [x, gamma, beta, mean, variance], [wide])
    (dz,) = make(f"{activation}_gradient", {}, [y, dy], [wide])
    rest = [gamma, mean, variance]
    kind = "batch_normalization_gradient"
    expected = make(kind, a, [x, dz, *rest], [wide, each, each])
    if activation == "relu6":
        exact = gamma.astype(np.float64) * widen(x)
        assert ((widen(y) == 6) & (exact < 5.999)).sum() > 20
        a["rounds"] = True
    kind = f"batch_normalization_{activation}_gradient"
    found = make(kind, a, [x, dy, gamma, beta, *rest[1:]], [wide, each, each])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bits_do_not_depend_on_the_number_of_threads(table):
    x = round_to_bfloat16(normal(300, 700))
    spec = OperandSpec(x.shape, "bfloat16")
    found = []
    for threads in (1, 2, 3):
        with machine.threads(threads):
            found.append(run(table, "gelu", {}, [x], ["bfloat16"], [spec])[0])
    assert all((each == found[0]).all() for each in found)


def test_listed_scratch_is_what_kernels_take(table):
    cases = [
        Mixed.of(case, kept(case))
        for op_type in ("conv2d", "dense", "max_pool2d", "bias", "matmul")
        for case in all_cases()[op_type]
    ]
    for each in cases:
        specs = [
            OperandSpec(x.shape, dtype)
            for x, dtype in zip(each.inputs, each.dtypes, strict=True)
        ]
        op = each.op_type, each.attributes, specs, each.outputs
        for name, scratch, _ in table.algorithms(*op):
            assert table.make(*op, name).scratch_bytes == scratch


def test_the_reference_rounds_once():
    x = round_to_bfloat16(normal(50))
    spec = OperandSpec(x.shape, "bfloat16")
    (y,) = run(kernel_table("reference"), "tanh", {}, [x], ["bfloat16"], [spec])
    np.testing.assert_array_equal(y, round_to_bfloat16(np.tanh(widen(x))))


def image_case(kind, x, kernel, strides, padding):
    """A convolution, or one of its gradients."""
    n, height, width, channels = x
    rows, columns = (
        (size + 2 * pad - window) // step + 1
        for size, pad, window, step in zip(
            (height, width), padding, kernel[:2], strides, strict=True
        )
    )
    y = n, rows, columns, kernel[3]
    attributes = {
        "strides": strides,
        "padding": tuple((pad, pad) for pad in padding),
        "dilation": (1, 1),
        "groups": channels // kernel[2],
    }
    if kind == "conv2d_gradient_kernel":
        attributes["kernel_shape"] = kernel
        return Case(kind, [normal(*x), normal(*y, seed=1)], [], attributes)
    if kind == "conv2d_gradient_input":
        attributes["input_shape"] = x
        return Case(kind, [normal(*kernel), normal(*y, seed=1)], [], attributes)
    return Case(kind, [normal(*x), normal(*kernel, seed=1)], [], attributes)


@pytest.mark.parametrize("channels", [1, 2, 17])
@pytest.mark.parametrize(
    ("width", "window", "stride"),
    [(1, 3, 2), (2, 3, 3), (1, 1, 2), (1, 5, 3), (2, 1, 3)],
)
def test_images_may_be_narrower_than_a_stride(table, channels, width, window, stride):
    """oneDNN 3.x reads scratch there that it has not written."""
    for height in (1, 4):
        x, kernel = (2, height, width, channels), (window, window, channels, 8)
        rows = 1 if height == 1 else 2
        for kind in ("conv2d", "conv2d_gradient_input", "conv2d_gradient_kernel"):
            case = image_case(kind, x, kernel, (rows, stride), (window // 2,) * 2)
            Mixed.of(case).check(table)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(("channels", "filters"), [(1, 1), (1, 8), (2, 3), (5, 1)])
def test_what_is_not_finite_stays_in_its_window(
    table, value, window, channels, filters
):
    """Nor does it reach the sample before it."""
    x, kernel = (2, 4, 4, channels), (window, window, channels, filters)
    for kind in ("conv2d", "conv2d_gradient_input"):
        case = image_case(kind, x, kernel, (1, 1), (window // 2,) * 2)
        case.inputs[0 if kind == "conv2d" else 1][1, 0, 0, 0] = value
        mixed = Mixed.of(case)
        (found,) = run(
            table, kind, mixed.attributes, mixed.inputs, mixed.dtypes, mixed.outputs
        )
        (expected,) = mixed.meaning()
        np.testing.assert_array_equal(np.isfinite(widen(found)), np.isfinite(expected))
