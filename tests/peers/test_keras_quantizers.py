"""Numbers in few bits beside Keras's: values, and gradients by PyTorch."""

from __future__ import annotations

import os

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")
torch = pytest.importorskip("torch", reason="needs PyTorch: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
BOTH = keras.quantizers, mc.nn.quantizers
ROWS = np.random.default_rng(3).normal(size=(10, 6)).astype(np.float32)


def arrays(made):
    several = made if isinstance(made, tuple) else (made,)
    return [
        x if isinstance(x, int | tuple) else keras.ops.convert_to_numpy(x)
        for x in several
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda q: q.abs_max_quantize(ROWS, 0),
        lambda q: q.abs_max_quantize(ROWS, (0, 1), (-7, 7)),
        lambda q: q.AbsMaxQuantizer(axis=-1)(ROWS),
        lambda q: q.abs_max_quantize_grouped_with_zero_point(ROWS, 4),
        lambda q: q.abs_max_quantize_grouped_with_zero_point(
            np.concatenate([ROWS, ROWS[:5] * 0 + 2]), 5, (-128, 127)
        ),
        lambda q: q.pack_int4(np.int8([[-3, 7], [2, -8], [1, 0]])),
        lambda q: q.pack_int4(np.uint8([[3, 15, 8]]), axis=1, dtype="uint8"),
        lambda q: q.unpack_int4(np.int8([[45, -121], [1, 0]]), 3),
        lambda q: q.unpack_int4(np.uint8([[243, 8]]), 3, axis=-1, dtype="uint8"),
    ],
)
def test_integers(call):
    one, other = (arrays(call(each)) for each in BOTH)
    for wanted, found in zip(one, other, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert getattr(found, "dtype", 0) == getattr(wanted, "dtype", 0)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(kind):
    given = (ROWS * 300, np.float32(0.7), kind, "float32")
    one, other = (arrays(each.quantize_and_dequantize(*given))[0] for each in BOTH)
    np.testing.assert_array_equal(other, one)
    history = np.float32([3, 1, 2])
    one, other = (
        arrays(each.compute_float8_amax_history(ROWS, keras.ops.array(history)))[0]
        if each is BOTH[0]
        else each.compute_float8_amax_history(ROWS, history)
        for each in BOTH
    )
    np.testing.assert_array_equal(other, one)
    for amax in (0.0, 3.0, np.inf):
        given = [np.float32(amax), np.float32(2)]
        tensors = map(keras.ops.convert_to_tensor, given)
        wanted = arrays(BOTH[0].compute_float8_scale(*tensors, 448.0, 1))[0]
        found = BOTH[1].compute_float8_scale(*given, 448.0, 1)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("axis", [None, 1])
def test_ranges_and_gradients(narrow, axis):
    low = np.float32(-0.9 if axis is None else [-1, -0.5, -0.1, -2, 0, -0.3])
    high = low + np.float32(1.3)
    options = {"num_bits": 4, "narrow_range": narrow, "axis": axis}
    weights = np.random.default_rng(4).normal(size=ROWS.shape).astype(np.float32)
    tensors = [torch.tensor(x, requires_grad=True) for x in (ROWS, low, high)]
    made = BOTH[0].fake_quant_with_min_max_vars(*tensors, **options)
    (made * torch.tensor(weights)).sum().backward()

    def loss(*given):
        made = BOTH[1].fake_quant_with_min_max_vars(*given, **options)
        return mc.nn.ops.sum(made * weights)

    found = BOTH[1].fake_quant_with_min_max_vars(ROWS, low, high, **options)
    np.testing.assert_allclose(found, made.detach().numpy(), atol=1e-6)
    slopes = mc.grad(loss, argnums=(0, 1, 2))(ROWS, low, high)
    for slope, tensor in zip(slopes, tensors, strict=True):
        np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-5, atol=1e-6)
