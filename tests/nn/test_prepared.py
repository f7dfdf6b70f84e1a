"""Layers that prepare data in models give the results of the same layers on arrays."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
RNG = np.random.default_rng(0)
IMAGES = RNG.random((3, 5, 8, 2), np.float32)
KINDS = ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5", "area")
RESIZING = [
    *({"interpolation": kind} for kind in KINDS),
    {"antialias": True},
    {"interpolation": "bicubic", "antialias": True, "crop_to_aspect_ratio": True},
    {"pad_to_aspect_ratio": True, "fill_value": 0.5},
    {"crop_to_aspect_ratio": True, "interpolation": "nearest"},
]


def in_a_model(layer, x, dtype="float32"):
    inputs = nn.Input(x.shape[1:], dtype=dtype)
    return nn.Model(inputs, layer(inputs)).predict(x, verbose=0)


@pytest.mark.parametrize("options", RESIZING, ids=lambda each: "-".join(map(str, each)))
def test_resizing(options):
    for size in ((3, 4), (5, 11), (10, 8)):
        layer = nn.layers.Resizing(*size, **options)
        wanted = layer(IMAGES)
        np.testing.assert_allclose(in_a_model(layer, IMAGES), wanted, atol=2e-6)
    numbers = RNG.integers(0, 255, IMAGES.shape)
    found = in_a_model(layer, numbers, "int32")
    np.testing.assert_allclose(found, layer(np.float32(numbers)), rtol=1e-5)


@pytest.mark.parametrize("size", [(3, 4), (7, 9), (4, 12), (8, 3)])
def test_the_middle_of_images(size):
    layer = nn.layers.CenterCrop(*size)
    np.testing.assert_allclose(in_a_model(layer, IMAGES), layer(IMAGES), atol=2e-6)


@pytest.mark.parametrize("mode", ["multi_hot", "one_hot", "count"])
def test_categories(mode):
    layer = nn.layers.CategoryEncoding(6, mode)
    for shape in ((4, 1), (4, 3), (2, 3, 2)):
        numbers = RNG.integers(0, 6, shape)
        for dtype in ("int32", "float32"):
            found = in_a_model(layer, numbers, dtype)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, layer(numbers))
    beyond = in_a_model(nn.layers.CategoryEncoding(3), np.array([[1, 5, -1]]), "int32")
    np.testing.assert_array_equal(beyond, [[0, 1, 0]])


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count"])
def test_bins(mode):
    x = RNG.normal(size=(40, 3)).astype(np.float32)
    x[0] = [-1, 0, 0.5]  # boundaries belong to the bin above
    fixed = nn.layers.Discretization([-1.0, 0.0, 0.5], output_mode=mode)
    adapted = nn.layers.Discretization(num_bins=5, output_mode=mode)
    adapted.adapt(x)
    for layer in (fixed, adapted):
        np.testing.assert_array_equal(in_a_model(layer, x), layer(x))
    with pytest.raises(ValueError, match="call adapt first"):
        nn.layers.Discretization(num_bins=3)(nn.Input((2,)))


def test_a_model_that_prepares_its_data_trains_and_is_saved(tmp_path):
    """Raw pixels, ages and colours go in; what is random is off outside of training."""
    size = 120
    pixels = RNG.integers(0, 256, (size, 10, 12, 3)).astype(np.float32)
    ages = RNG.uniform(18, 80, (size, 1)).astype(np.float32)
    colours = RNG.integers(0, 4, (size, 2))
    y = ((ages[:, 0] > 40) & (colours == 2).any(1)).astype(np.float32)

    image, age, colour = (
        nn.Input((10, 12, 3)),
        nn.Input((1,)),
        nn.Input((2,), dtype="int32"),
    )
    h = nn.layers.Resizing(6, 6)(nn.layers.CenterCrop(10, 10)(image))
    h = nn.layers.RandomFlip("horizontal")(nn.layers.Rescaling(1 / 255)(h))
    h = nn.layers.RandomContrast(0.2)(nn.layers.GaussianNoise(0.05)(h))
    normalized = nn.layers.Normalization()
    normalized.adapt(ages)
    bins = nn.layers.Discretization(num_bins=6, output_mode="one_hot")
    bins.adapt(ages)
    known = nn.layers.CategoryEncoding(4)(colour)
    features = [nn.GlobalAveragePooling2D()(h), normalized(age), bins(age), known]
    h = nn.Dense(16, activation="relu")(nn.Concatenate()(features))
    model = nn.Model([image, age, colour], nn.Dense(1, activation="sigmoid")(h))
    model.compile(nn.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
    x = [pixels, ages, colours]
    history = model.fit(x, y, epochs=30, verbose=0).history
    assert history["accuracy"][-1] > 0.9
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == model.plan(32).peak_bytes
    first = model.predict(x, verbose=0)
    assert (model.predict(x, verbose=0) == first).all()
    model.save(tmp_path / "raw.memcfg")
    loaded = nn.models.load_model(tmp_path / "raw.memcfg")
    assert (loaded.predict(x, verbose=0) == first).all()


def test_what_cannot_be_in_a_model_says_where_to_put_it():
    layer = nn.layers.RandomGaussianBlur()
    with pytest.raises(TypeError, match=r"not in a model: call it in Dataset\.map"):
        layer(nn.Input((4, 4, 1)))


def test_statistics_of_normalization_are_broadcast_to_inputs():
    """As models of diffusion undo it: ``layer.mean + x * layer.variance**0.5``."""
    x = np.random.default_rng(0).normal(3, 2, (9, 4, 5)).astype(np.float32)
    layer = nn.Normalization()
    assert layer.mean is None
    layer.adapt(x)
    assert layer.mean.shape == layer.variance.shape == (1, 1, 5)
    np.testing.assert_allclose(layer.mean[0, 0], x.mean(axis=(0, 1)), rtol=1e-5)

    def undone(y):
        return layer.mean + y * layer.variance**0.5

    y = layer(x)
    np.testing.assert_allclose(undone(y), x, rtol=1e-4, atol=1e-4)
    function = mc.function(undone)
    np.testing.assert_allclose(function(y), x, rtol=1e-4, atol=1e-4)
    layer.set_weights([np.zeros(5), np.full(5, 4), 0])
    np.testing.assert_allclose(function(y), 2 * y, rtol=1e-6)
    assert layer.get_config()["mean"] is None
    given = nn.Normalization(axis=1, mean=3.0, variance=[1.0, 2, 3, 4])
    given.build((None, 4, 5))
    np.testing.assert_array_equal(given.mean, np.full((1, 4, 1), 3))
    np.testing.assert_array_equal(given.variance[0, :, 0], [1, 2, 3, 4])
    again = nn.Normalization.from_config(given.get_config())
    np.testing.assert_array_equal(again(x), given(x))
