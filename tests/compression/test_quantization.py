"""Weights of 8 and 4 bits: their values, errors by calibration, training, bytes."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.compression import quantize, strip

nn = mc.nn
LARGEST = {"int8": 127, "int4": 7}


def network():
    nn.set_random_seed(0)
    layers = [
        nn.Conv2D(6, 3, activation="relu", name="a"),
        nn.Flatten(),
        nn.Dense(3, name="b"),
    ]
    model = nn.Sequential([nn.Input((6, 6, 2)), *layers])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def data():
    rng = np.random.default_rng(0)
    return np.float32(rng.normal(size=(32, 6, 6, 2))), rng.integers(0, 3, 32)


def kernels(model):
    return model.get_weights()[::2]


@pytest.mark.parametrize("dtype", LARGEST)
def test_minmax_is_rounding_to_the_nearest_of_a_channel(dtype):
    model = network()
    for old, new in zip(
        kernels(model),
        kernels(quantize(model, dtype, calibration="minmax")),
        strict=True,
    ):
        for channel in range(old.shape[-1]):
            w = old[..., channel].astype(np.float64)
            scale = np.float32(np.abs(w).max() / LARGEST[dtype])
            wanted = np.rint(w / scale) * scale
            np.testing.assert_allclose(new[..., channel], wanted, rtol=1e-6)
            assert len(np.unique(new[..., channel])) <= 2 * LARGEST[dtype] + 1


@pytest.mark.parametrize("dtype", LARGEST)
def test_mse_has_the_smallest_error_of_all_calibrations(dtype):
    model = network()
    model.set_weights(
        [
            np.float32(np.random.default_rng(i).laplace(size=w.shape))
            for i, w in enumerate(model.get_weights())
        ]
    )
    errors = {}
    for calibration in ("minmax", "percentile", "mse"):
        made = quantize(model, dtype, calibration=calibration, percentile=90)
        errors[calibration] = [
            np.square(new - old).sum((*range(old.ndim - 1),))
            for old, new in zip(kernels(model), kernels(made), strict=True)
        ]
    for minmax, mse, percentile in zip(
        errors["minmax"], errors["mse"], errors["percentile"], strict=True
    ):
        assert (mse <= minmax * (1 + 1e-5)).all()
        assert mse.sum() < percentile.sum()
    if dtype == "int4":
        assert errors["mse"][1].sum() < 0.9 * errors["minmax"][1].sum()


def test_a_percentile_clips():
    model = network()
    model.layers[0].kernel.assign(np.float32(np.arange(108).reshape(3, 3, 2, 6)))
    made = quantize(model, calibration="percentile", percentile=50)
    for old, new in zip(
        np.moveaxis(kernels(model)[0], -1, 0),
        np.moveaxis(kernels(made)[0], -1, 0),
        strict=True,
    ):
        assert new.max() == pytest.approx(np.percentile(old, 50), rel=1e-6)


def test_training_changes_scales_alone_and_peaks_are_as_planned():
    x, y = data()
    model = network()
    made = quantize(model, "int4")
    plain = strip(made)
    np.testing.assert_array_equal(
        made.predict(x, verbose=0), plain.predict(x, verbose=0)
    )
    before = made.get_weights()
    losses = made.fit(x, y, epochs=20, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    report = made.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    after = made.get_weights()
    quotients = after[0] / np.where(before[0] == 0, np.nan, before[0])
    assert np.nanstd(quotients, axis=(0, 1, 2)) == pytest.approx(0, abs=1e-6)
    made.set_weights(before)
    assert all(map(np.array_equal, made.get_weights(), before))
    made.set_weights(after)
    assert all(map(np.array_equal, made.get_weights(), after))
    with pytest.raises(ValueError, match="integers times scales"):
        made.set_weights(model.get_weights())


def test_state_is_a_byte_a_weight_and_the_scales():
    def held(model):
        graph = model.graph(8)
        return {
            graph.tensors[i].name: graph.tensors[i].nbytes for i in graph.persistent
        }

    found = held(quantize(network()))
    assert found["a/kernel_integers"] == 3 * 3 * 2 * 6
    assert found["a/kernel_scales"] == found["adam/a/kernel_scales/m"] == 4 * 6
    assert sum(found.values()) < sum(held(network()).values()) / 3
    found = held(quantize(network(), "int4"))
    assert found["a/kernel_integers"] == 3 * 3 * 6  # two rows of 18 in a row of bytes
    assert found["b/kernel_integers"] == 4 * 4 * 6 * 3 // 2
    found = held(quantize(network(), "int4", group=7))
    assert found["a/kernel_scales"] == 4 * 3 * 6  # groups of 7, 7 and 4 rows
    assert found["a/kernel_integers"] == 3 * 3 * 6


def test_products_of_integers_are_near_those_of_float32():
    nn.set_random_seed(0)
    layers = [nn.Dense(200, activation="relu", name="a"), nn.Dense(5, name="b")]
    model = nn.Sequential([nn.Input((300,)), *layers])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(40, 300)).astype(np.float32)
    of_float32 = quantize(model)
    of_integers = quantize(model, products="int8")
    wanted = of_float32.predict(x, batch_size=40, verbose=0)
    found = of_integers.predict(x, batch_size=40, verbose=0)
    assert not np.array_equal(found, wanted)
    assert np.abs(found - wanted).max() < 0.05 * wanted.std()
    # No float32 kernel is there: a byte a weight, and what a layer computes, with two
    # sums of 32 bits where processors multiply unsigned numbers only.
    peak = of_integers.plan(40, program="predict").peak_bytes
    assert peak < model.plan(40, program="predict").peak_bytes * 0.6
    # Training computes in float32, as without, and changes the scales.
    y = np.zeros((40, 5), np.float32)
    for each in (of_float32, of_integers):
        each.fit(x, y, batch_size=20, epochs=2, shuffle=False, verbose=0)
        report = each.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
    for one, other in zip(kernels(of_float32), kernels(of_integers), strict=True):
        np.testing.assert_array_equal(one, other)


def test_products_are_those_of_rounded_rows_and_integers():
    rng = np.random.default_rng(0)
    integers = rng.integers(-127, 128, (30, 7)).astype(np.int8)
    integers[0] = 127  # so that the scales are exact
    scales = np.float32(2.0 ** rng.integers(-6, 2, 7))
    model = nn.Sequential([nn.Input((30,)), nn.Dense(7, use_bias=False)])
    model.set_weights([integers * scales])
    made = quantize(model, calibration="minmax", products="int8")
    np.testing.assert_array_equal(made.get_weights()[0], integers * scales)
    x = rng.normal(size=(16, 30)).astype(np.float32)
    wanted = np.empty((16, 7), np.float32)
    mc.ops.op_type("dense_int8").numpy({}, [x, integers, scales], [wanted])
    np.testing.assert_array_equal(made.predict_on_batch(x), wanted)


@pytest.mark.parametrize("dtype", LARGEST)
def test_groups_are_calibrated_one_by_one(dtype):
    model = network()
    kernel = model.layers[2].kernel
    kernel.assign(kernel.numpy() * np.float32(10.0 ** -np.arange(96))[:, None] ** 0.1)
    old = kernel.numpy()
    made = kernels(quantize(model, dtype, calibration="minmax", group=10))[1]
    for begin in range(0, 96, 10):
        part, own = old[begin : begin + 10], made[begin : begin + 10]
        step = np.abs(part).max(0) / LARGEST[dtype]
        assert (np.abs(own - part) <= step / 2 * (1 + 1e-5)).all()
    whole = kernels(quantize(model, dtype, calibration="minmax"))[1]
    assert np.square(made - old).sum() < np.square(whole - old).sum() / 1.5


@pytest.mark.parametrize("group", [None, 7, 1000])
@pytest.mark.parametrize("dtype", LARGEST)
def test_gradients_of_scales_are_those_of_the_weight(dtype, group):
    x, y = data()
    model = network()
    made = quantize(model, dtype, group=group)
    plain = strip(made)
    for each in (made, plain):
        each.compile(nn.SGD(1.0), nn.SparseCategoricalCrossentropy(from_logits=True))
    integers = made._built_session().read("b/kernel_integers")
    scales = made._built_session().read("b/kernel_scales")
    before = plain.get_weights()[2]
    for each in (made, plain):
        each.train_on_batch(x, y)
    of_weight = before - plain.get_weights()[2]
    if dtype == "int4":
        from memcfg.ops.integers import unpack_nibbles

        integers = unpack_nibbles(integers, 96)
    size = group or 96
    wanted = np.stack(
        [
            (of_weight[i : i + size] * integers[i : i + size]).sum(0)
            for i in range(0, 96, size)
        ]
    )
    moved = scales - made._built_session().read("b/kernel_scales")
    np.testing.assert_allclose(
        moved.reshape(wanted.shape), wanted, rtol=2e-3, atol=1e-4
    )


def convolutions():
    nn.set_random_seed(0)
    x = nn.Input((12, 12, 3))
    h = nn.Conv2D(16, 3, activation="relu", name="a")(x)
    h = nn.SeparableConv2D(24, 3, activation="relu", name="b")(h)
    h = nn.Conv2D(16, 3, groups=2, activation="relu", name="c")(h)
    h = nn.Reshape((36, 16))(h)
    h = nn.Conv1D(20, 3, padding="same", activation="relu", name="d")(h)
    model = nn.Model(x, nn.Dense(5, name="e")(nn.GlobalAveragePooling1D()(h)))
    model.compile("adam", "mse")
    return model


def test_convolutions_by_integers_are_near_those_of_float32():
    model = convolutions()
    x = np.random.default_rng(0).normal(size=(10, 12, 12, 3)).astype(np.float32)
    made = quantize(model, products="int8")
    wanted = quantize(model).predict(x, verbose=0)
    found = made.predict(x, verbose=0)
    assert not np.array_equal(found, wanted)
    assert np.abs(found - wanted).max() < 0.05 * wanted.std()
    report = made.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    # Only the depthwise kernel, whose channels share a scale, is made in float32.
    names = [entry.op for entry in report.timeline]
    assert [name for name in names if name.endswith("kernel")] == ["b/depthwise_kernel"]
    assert not [op for op in made.graph(10).ops if "int8" in op.type]


@pytest.mark.parametrize("group", [None, 32])
def test_products_of_4_bits_hold_half_a_byte_a_weight(group):
    nn.set_random_seed(0)
    model = nn.Sequential([nn.Input((512,)), nn.Dense(512), nn.Dense(5)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(2, 512)).astype(np.float32)
    made = quantize(model, "int4", group=group, products="int8")
    wanted = quantize(model, "int4", group=group).predict_on_batch(x)
    found = made.predict_on_batch(x)
    assert not np.array_equal(found, wanted)
    assert np.abs(found - wanted).max() < 0.05 * wanted.std()
    weights = 512 * 512 + 512 * 5
    scales = 4 * (512 + 5) * (1 if group is None else 16)
    peak = made.plan(2, program="predict").peak_bytes
    if mc.config.logical_device("CPU:0").kernels.has("dense_int4"):
        assert peak < weights / 2 + scales + 30_000


def test_a_channel_of_zeros_stays():
    model = network()
    model.layers[0].kernel.assign(np.zeros((3, 3, 2, 6), np.float32))
    assert not kernels(quantize(model))[0].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int2"}, "quantize: unknown dtype 'int2'"),
        ({"calibration": "max"}, "unknown calibration"),
        ({"percentile": 0}, "above 0 and at most 100"),
        ({"group": 0}, "group must be positive"),
        ({"products": "float16"}, "unknown products"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        quantize(network(), **options)
