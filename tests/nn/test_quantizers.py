"""Numbers in few bits: against ml_dtypes, NumPy and by hand; arrays and tensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
q = nn.quantizers
ROWS = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)


def traced(function, array):
    start = nn.Input(array.shape[1:])
    return nn.Model(start, function(start)).predict(array, verbose=0)


@pytest.mark.parametrize("axis", [0, -1, (0, 1)])
def test_integers_in_proportion(axis):
    whole, scale = q.abs_max_quantize(ROWS, axis)
    largest = np.abs(ROWS).max(axis=axis, keepdims=True)
    np.testing.assert_allclose(scale, 127 / (largest + 1e-7), rtol=1e-6)
    assert whole.dtype == np.int8
    assert np.abs(whole / scale - ROWS).max() <= (largest / 254).max() * 1.001
    assert np.abs(whole).max() == 127


def test_integers_of_tensors():
    whole, scale = traced(lambda x: list(q.abs_max_quantize(x, -1)), ROWS)
    wanted, factor = q.abs_max_quantize(ROWS, -1)
    np.testing.assert_array_equal(whole, wanted)
    np.testing.assert_allclose(scale, factor, rtol=1e-6)
    assert whole.dtype == np.int32


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float16"])
def test_formats_of_few_bits(name):
    """All numbers of the format, those halfway between two, and some others."""
    kind = np.dtype(getattr(ml_dtypes, name, name))
    bits = np.arange(2 ** (8 * kind.itemsize), dtype=f"uint{8 * kind.itemsize}")
    numbers = np.unique(bits.view(kind).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    between = (numbers[1:] + numbers[:-1]) / 2
    others = np.random.default_rng(1).normal(size=999).astype(np.float32)
    given = np.concatenate([numbers, between, others, others * 1e-6, others * 1e9])
    largest = float(ml_dtypes.finfo(kind).max)
    wanted = np.clip(given, -largest, largest).astype(kind).astype(np.float32)
    found = q.quantize_and_dequantize(given, 1.0, name, "float32")
    np.testing.assert_array_equal(found, wanted)
    of_tensors = traced(
        lambda x: q.quantize_and_dequantize(x, 1.0, name, "float32"), given[:, None]
    )
    np.testing.assert_array_equal(of_tensors[:, 0], wanted)
    scaled = q.quantize_and_dequantize(given * 4, np.float32(4), name, "float32")
    np.testing.assert_array_equal(scaled, wanted * 4)


def test_scales_of_float8():
    assert q.compute_float8_scale(3.0, 2.0, 448.0) == pytest.approx(3 / 448)
    assert q.compute_float8_scale(3.0, 2.0, 448.0, margin=2) == pytest.approx(12 / 448)
    for amax in (0.0, np.inf):
        assert q.compute_float8_scale(amax, 2.0, 448.0) == 2
    history = np.float32([1, 2, 3])
    for _ in range(2):
        history = q.compute_float8_amax_history(ROWS, history)
    largest = np.abs(ROWS).max()
    assert history.tolist() == [largest, 1, largest]

    @mc.function
    def step(x, history, scale):
        newer = q.compute_float8_amax_history(x, history)
        return newer, q.compute_float8_scale(nn.ops.max(newer), scale, 448.0)

    newer, scale = step(ROWS, np.float32([1, 9, 3]), np.float32(2))
    assert newer.tolist() == [largest, 3, 1]
    wanted = q.compute_float8_scale(newer.max(), 2.0, 448.0)
    np.testing.assert_allclose(scale, wanted, rtol=1e-6)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("axis", [None, 1, 0])
def test_rounded_to_a_range(narrow, axis):
    low = np.float32(-0.6) if axis is None else np.linspace(-1, -0.1, ROWS.shape[axis])
    low = np.float32(low)
    high = low + np.float32(1.7)
    options = {"num_bits": 4, "narrow_range": narrow, "axis": axis}
    found = q.fake_quant_with_min_max_vars(ROWS, low, high, **options)
    first = 1 if narrow else 0
    rows = np.moveaxis(ROWS, axis or 0, 0)
    for i, row in enumerate(rows if axis is not None else [ROWS]):
        least, most = (low, high) if axis is None else (low[i], high[i])
        scale = (most - least) / (15 - first)
        zero = np.round(first - least / scale)
        steps = scale * (np.arange(first, 16) - zero)
        wanted = steps[np.abs(row[..., None] - steps).argmin(-1)]
        made = found if axis is None else np.moveaxis(found, axis, 0)[i]
        np.testing.assert_allclose(made, wanted, atol=1e-5)

    def loss(x, low, high):
        return nn.ops.sum(
            q.fake_quant_with_min_max_vars(x, low, high, **options) * ROWS
        )

    slopes = mc.grad(loss, argnums=(0, 1, 2))(ROWS, low, high)
    assert [each.shape for each in slopes] == [ROWS.shape, low.shape, high.shape]
    total = sum(each.sum() for each in slopes)
    np.testing.assert_allclose(total, ROWS.sum(), rtol=1e-4)


def test_aware_training_in_a_model():
    class Rounded(nn.Layer):
        def call(self, x):
            return q.fake_quant_with_min_max_vars(x, -1.0, 1.0, num_bits=3)

    model = nn.Sequential([nn.Input((8,)), nn.Dense(4), Rounded(), nn.Dense(1)])
    model.compile("adam", "mse")
    losses = model.fit(ROWS, ROWS[:, :1], epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_two_integers_a_byte(dtype, axis):
    low = -8 if dtype == "int8" else 0
    given = np.random.default_rng(2).integers(low, low + 16, (5, 3, 7)).astype(dtype)
    packed, shape, count = q.pack_int4(given, axis, dtype)
    assert packed.dtype == dtype
    assert shape == packed.shape
    assert (shape[axis], count) == (-(-given.shape[axis] // 2), given.shape[axis])
    found = q.unpack_int4(packed, count, axis, dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, given)


def test_the_lower_half_is_the_first():
    packed, _, _ = q.pack_int4(np.int8([[-3, 7], [2, -8], [1, 0]]))
    assert packed.tolist() == [[45, -121], [1, 0]]


@pytest.mark.parametrize("block", [2, 4, 5])
def test_integers_of_blocks(block):
    flat = np.concatenate([ROWS, np.full((4, 8), 3, np.float32)])
    whole, scale, zero = q.abs_max_quantize_grouped_with_zero_point(flat, block)
    count = -(-10 // block)
    assert scale.shape == zero.shape == (count, 8)
    assert (whole.dtype, zero.dtype) == (np.int8, np.int8)
    blocks = np.repeat(np.arange(count), block)[:10]
    again = (whole - zero[blocks].astype(np.float32)) * scale[blocks]
    # Numbers of blocks that 0 is among are off by one step at most.
    wide = np.concatenate([flat, np.zeros((count * block - 10, 8), np.float32)])
    parts = wide.reshape(count, block, 8)
    around = ((parts.min(1) <= 0) & (parts.max(1) >= 0))[blocks]
    assert around.sum() > 20
    assert (np.abs(again - flat) <= scale[blocks] * 1.001)[around].all()
    assert whole.min() >= -8
    assert whole.max() <= 7


def test_quantizers_are_described():
    made = q.AbsMaxQuantizer(axis=0, value_range=(-7, 7))
    whole, _ = made(ROWS)
    np.testing.assert_array_equal(whole, q.abs_max_quantize(ROWS, 0, (-7, 7))[0])
    assert made(ROWS, axis=-1)[1].shape == (6, 1)
    assert q.AbsMaxQuantizer()(ROWS)[1].shape == (6, 1)
    for again in (
        q.deserialize(q.serialize(made)),
        q.get(q.serialize(made)),
        q.get(made),
    ):
        assert (again.axis, again.value_range) == ((0,), (-7, 7))
    assert isinstance(q.get("abs_max_quantizer"), q.AbsMaxQuantizer)
    assert q.get(None) is None

    class Halves(nn.Quantizer):
        def __call__(self, x):
            return nn.ops.round(x * 2)

    kept = {"Halves": Halves}
    assert isinstance(q.deserialize(q.serialize(Halves()), kept), Halves)
    assert nn.Quantizer()(3) == 3


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (lambda: q.AbsMaxQuantizer(value_range=(-200, 7)), ValueError, "within"),
        (lambda: q.get("abs_max"), ValueError, "abs_max_quantizer"),
        (lambda: q.get(3), TypeError, "is a name"),
        (
            lambda: q.quantize_and_dequantize(ROWS, 1, "int4", "float32"),
            ValueError,
            "float8_e4m3fn",
        ),
        (lambda: q.pack_int4(ROWS), TypeError, "float32"),
        (lambda: q.pack_int4(nn.Input((2,))), TypeError, "no tensors"),
        (lambda: q.pack_int4(np.int8([1]), dtype="int4"), ValueError, "int4"),
        (lambda: q.unpack_int4(ROWS, 2), TypeError, "takes bytes"),
        (
            lambda: q.fake_quant_with_min_max_vars(ROWS, -1.0, 1.0, axis=2),
            ValueError,
            "axis 2",
        ),
        (
            lambda: q.abs_max_quantize_grouped_with_zero_point(ROWS[0], 2),
            ValueError,
            "a matrix",
        ),
    ],
)
def test_what_is_refused(call, kind, told):
    with pytest.raises(kind, match=told):
        call()


def test_configurations_say_where_to_look():
    with pytest.raises(AttributeError, match=r"memcfg\.compression"):
        _ = q.Int8QuantizationConfig


@pytest.mark.parametrize(("dtype", "value"), [("int8", 8), ("int8", -9), ("uint8", 16)])
def test_integers_of_more_than_four_bits_are_refused(dtype, value):
    with pytest.raises(ValueError, match=r"pack_int4 takes integers of -?\d+ to \d+"):
        nn.quantizers.pack_int4(np.array([[value], [1]], dtype), dtype=dtype)
