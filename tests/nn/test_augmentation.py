"""Layers of images: on arrays, in pipelines of data, and in models."""

from __future__ import annotations

import colorsys
import copy
import pickle

import numpy as np
import pytest

import memcfg as mc

layers, Dataset = mc.nn.layers, mc.data.Dataset

RANDOM = {
    "RandomFlip": {},
    "RandomCrop": {"height": 4, "width": 5},
    "RandomRotation": {"factor": 0.3},
    "RandomZoom": {"height_factor": 0.3},
    "RandomTranslation": {"height_factor": 0.3, "width_factor": 0.3},
    "RandomContrast": {"factor": 0.5},
    "RandomBrightness": {"factor": 0.3},
    "RandomColorDegeneration": {"factor": 0.8},
    "RandomGrayscale": {"factor": 0.4},
    "RandomHue": {"factor": 0.5},
    "RandomInvert": {"factor": (0.4, 0.6)},
    "RandomPosterization": {"factor": (2, 6)},
    "RandomSaturation": {"factor": (0.1, 0.7)},
    "RandomSharpness": {"factor": (0.0, 1.0)},
    "Solarization": {"addition_factor": 0.5, "threshold_factor": (0.3, 0.8)},
    "RandomShear": {"x_factor": 0.3, "y_factor": (-0.2, 0.1)},
    "RandomErasing": {"factor": (0.5, 1.0)},
    "RandomGaussianBlur": {"factor": (0.5, 1.0), "sigma": (0.4, 1.0)},
    "RandomPerspective": {"scale": 0.4},
    "RandomElasticTransform": {"scale": (0.6, 0.9)},
    "RandomColorJitter": {"brightness_factor": 0.3, "saturation_factor": 0.4},
    "RandAugment": {"num_ops": 3},
    "AugMix": {"chain_depth": 2, "all_ops": False},
}
OF_PLACES = ("Flip", "Crop", "Rotation", "Zoom", "Translation", "Shear")
OF_PLACES += ("Perspective", "ElasticTransform", "RandAugment", "AugMix")
IN_MODELS = ("RandomFlip", "RandomContrast", "RandomBrightness")


def images(*shape, seed=0):
    return np.random.default_rng(seed).uniform(20, 230, shape).astype(np.float32)


def make(name, **options):
    return getattr(layers, name)(**RANDOM[name], **options)


@pytest.mark.parametrize("name", RANDOM)
def test_arrays_follow_from_the_seed_and_the_call(name):
    data = images(6, 7, 8, 3)
    first, second = make(name, seed=5), make(name, seed=5)
    calls = [first(data) for _ in range(4)]
    assert all(np.array_equal(call, second(data)) for call in calls)
    assert not all(np.array_equal(calls[0], call) for call in calls)
    other = make(name, seed=6)
    assert not all(np.array_equal(other(data), call) for call in calls)
    assert calls[0].dtype == np.float32
    if name != "RandomCrop":
        assert np.array_equal(first(data, training=False), data)
    single = first(data[0])
    assert single.shape == calls[0].shape[1:]


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("threads", [None, 3])
def test_a_step_of_a_pipeline(name, threads):
    data, layer = images(40, 7, 8, 3), make(name, seed=5)
    pipeline = Dataset.from_tensor_slices(data).map(layer, num_parallel_calls=threads)
    (batch,) = pipeline.batch(40)
    assert len(batch) == 40
    again = make(name, seed=5)
    expected = [again(image) for image in data]
    if threads is None:
        assert all(map(np.array_equal, batch, expected))
    assert len({image.tobytes() for image in batch}) > 20
    # Images are transformed in pairs with what belongs to them.
    masked = layer({"images": data, "labels": 1, "segmentation_masks": data})
    if name.endswith(OF_PLACES):
        assert masked["segmentation_masks"].shape == masked["images"].shape
    else:
        assert masked["segmentation_masks"] is data
    assert masked["labels"] == 1


@pytest.mark.parametrize("name", RANDOM)
def test_copies(name):
    layer = make(name, seed=5)
    data = images(2, 7, 8, 3)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        type(layer).from_config(layer.get_config()),
    ):
        assert np.array_equal(other(data), make(name, seed=5)(data))


@pytest.mark.parametrize("threads", [None, 3])
def test_rescaling_and_normalization_of_integers(threads):
    data = images(20, 5, 6, 3).astype(np.uint8)
    source = Dataset.from_tensor_slices(data)
    rescaled = source.map(layers.Rescaling(1 / 255, -0.5), num_parallel_calls=threads)
    (found,) = rescaled.batch(20)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, data / 255 - 0.5, rtol=1e-6, atol=1e-6)
    normalization = layers.Normalization()
    normalization.adapt(data)
    (found,) = source.batch(20).map(normalization)
    np.testing.assert_allclose(found.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=(0, 1, 2)), 1, rtol=1e-5)


def test_flips_are_of_whole_images():
    data = images(200, 3, 4, 1)
    for mode, axes in (
        ("horizontal", 2),
        ("vertical", 1),
        ("horizontal_and_vertical", (1, 2)),
    ):
        found, flipped = layers.RandomFlip(mode, seed=1)(data), np.flip(data, axes)
        same = (found == data).all(axis=(1, 2, 3))
        turned = (found == flipped).all(axis=(1, 2, 3))
        assert (same | turned).all()
        assert 60 < same.sum() < 140


def outputs(layer, data, training):
    model = mc.nn.Sequential([mc.nn.Input(data.shape[1:]), layer])
    model.compile("sgd", "mse")
    return model.predict(data, verbose=0) if not training else model


@pytest.mark.parametrize("name", IN_MODELS)
def test_models_do_not_vary_images_where_they_predict(name):
    data = images(5, 6, 7, 3)
    assert np.array_equal(outputs(make(name, seed=1), data, False), data)


def trained(layer, data, batch_size):
    """What a model's layer gave in a step of training, through a trained bias.

    The loss is the mean squared output, so the gradient of an added constant is twice
    the mean output of the layer, of each place.
    """

    class Add(mc.nn.Layer):
        def build(self, shape):
            self.bias = self.add_weight(shape=shape[1:], initializer="zeros")

        def call(self, x):
            return x + self.bias

    add = Add()
    model = mc.nn.Sequential([mc.nn.Input(data.shape[1:]), layer, add])
    model.compile(mc.nn.SGD(1.0), "mse")
    model.train_on_batch(data, np.zeros_like(data))
    return -add.get_weights()[0] * data[0].size / 2


@pytest.mark.parametrize("name", IN_MODELS)
def test_models_vary_images_while_they_train(name):
    data = images(1, 4, 5, 3)
    found = [trained(make(name, seed=seed), data, 1) for seed in range(12)]
    choices = {
        "RandomFlip": [data[0], np.flip(data[0], (0, 1))],
    }.get(name)
    for each in found:
        if choices:
            assert any(np.allclose(each, choice, rtol=1e-3) for choice in choices)
            continue
        low, high = each.min() > 0, each.max() < 255  # nothing was clipped
        if not (low and high):
            continue
        if name == "RandomBrightness":
            assert np.ptp(each - data[0]) < 0.05
            assert abs((each - data[0]).mean()) <= 0.3 * 255
        else:
            mean = data[0].mean(axis=(0, 1))
            factors = (each - mean) / (data[0] - mean)
            assert np.ptp(factors) < 0.01
            assert 1 <= factors.mean() <= 1.5
    assert len({np.round(each, 1).tobytes() for each in found}) > 1


def test_center_crop_in_a_model_and_on_arrays():
    data = images(2, 9, 8, 3)
    for height, width in ((9, 8), (4, 5), (3, 2)):
        layer = layers.CenterCrop(height, width)
        top, left = (9 - height) // 2, (8 - width) // 2
        expected = data[:, top : top + height, left : left + width]
        assert np.array_equal(layer(data), expected)
        assert np.array_equal(outputs(layer, data, False), expected)
    assert layers.CenterCrop(12, 4)(data).shape == (2, 12, 4, 3)


def test_resizing_keeps_dtypes():
    data = images(2, 9, 8, 3)
    for dtype in ("uint8", "int16", "float32"):
        found = layers.Resizing(5, 4)(data.astype(dtype))
        assert found.dtype == dtype
        assert found.shape == (2, 5, 4, 3)
        assert abs(found.mean() - data.mean()) < 9
    padded = layers.Resizing(6, 12, pad_to_aspect_ratio=True, fill_value=3.0)(data)
    assert np.array_equal(padded[:, :, 0], np.full((2, 6, 3), 3.0, np.float32))


def in_a_step(layer, data):
    """What a layer gave in a step of a model's own that trains nothing."""
    given = {}

    class Shown(mc.nn.Model):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def call(self, x, training=False):
            return self.layer(x, training=training)

    shown = Shown()
    step = mc.function(lambda x, number: shown(x, training=True) + 0.0 * number)
    for number in range(2):
        given[number] = step(data, np.float32(number))
    return list(given.values())


MOVES = {
    "RandomRotation": ({"factor": 0.1}, "angle"),
    "RandomZoom": ({"height_factor": 0.2, "width_factor": (-0.1, 0.3)}, "zoom"),
    "RandomTranslation": ({"height_factor": 0.2, "width_factor": 0.1}, "translations"),
    "RandomShear": ({"x_factor": 0.2, "y_factor": (-0.1, 0.3)}, "shear_factor"),
}


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("name", MOVES)
def test_models_move_images_while_they_train(name, interpolation):
    """Two channels hold x and y, from which follows what was drawn."""
    options, key = MOVES[name]
    make_one = getattr(layers, name)
    smooth = make_one(**options, seed=3)
    data = images(6, 21, 25, 3)
    data[..., 1], data[..., 0] = np.mgrid[:21, :25]
    assert np.array_equal(outputs(make_one(**options), data, False), data)
    first, second = in_a_step(smooth, data)
    assert not np.array_equal(first, second)  # each step draws
    layer = make_one(**options, seed=3, interpolation=interpolation)
    found = in_a_step(layer, data)[0]
    x, y = np.meshgrid(np.arange(8, 17), np.arange(7, 14))
    of = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3)
    held = []
    for image in first:  # pixels far from the border show where they were read
        seen = image[7:14, 8:17, :2].reshape(-1, 2)
        places = np.linalg.lstsq(of, seen, rcond=None)[0]
        np.testing.assert_allclose(of @ places, seen, atol=1e-3)
        (a0, b0), (a1, b1), (a2, b2) = places
        held.append(
            {
                "angle": np.rad2deg(np.arctan2(b0, a0)),
                "zoom": (b1, a0),
                "translations": (-a2, -b2),
                "shear_factor": (a1, b0),
            }[key]
        )
    assert len({np.round(each, 3).tobytes() for each in held}) == 6
    held = np.asarray(held, np.float32)
    change = {key: held}
    if key == "zoom":
        change = {"height_zoom": held[:, :1], "width_zoom": held[:, 1:]}
        assert ((held[:, 0] >= 0.8) & (held[:, 0] <= 1.2)).all()
        assert ((held[:, 1] >= 0.9) & (held[:, 1] <= 1.3)).all()
    elif key == "angle":
        assert (np.abs(held) <= 36).all()
    expected = layer.transform_images(data, change)
    # Places are those of rounded numbers, so a few are read on the other side.
    near = np.abs(found - expected) < (0.5 if interpolation == "bilinear" else 1e-3)
    assert near.mean() > 0.98


def test_moved_images_have_the_same_bits_by_any_plan():
    data, labels = images(8, 12, 12, 3), np.arange(8) % 3

    def weights(memory):
        mc.nn.set_random_seed(0)
        model = mc.nn.Sequential(
            [
                mc.nn.Input((12, 12, 3)),
                layers.RandomRotation(0.1, seed=1),
                layers.RandomTranslation(0.1, 0.1, fill_mode="constant", seed=2),
                layers.Rescaling(1 / 255),
                layers.Conv2D(4, 3, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3),
            ]
        )
        loss = mc.nn.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(mc.nn.SGD(0.1), loss, memory=memory)
        model.fit(data, labels, epochs=2, batch_size=4, shuffle=False, verbose=0)
        return [each.tobytes() for each in model.get_weights()]

    kept = weights("keep_all")
    assert weights("sqrt_checkpoint") == weights("replay_elementwise") == kept


def test_layers_that_ops_cannot_express():
    with pytest.raises(TypeError, match="computes on arrays, not in a model"):
        make("RandomElasticTransform")(mc.nn.Input((7, 8, 3)))


def test_a_model_crops_a_batch_at_one_place_in_training():
    rows, columns = np.mgrid[:9, :12]
    data = np.broadcast_to((100 * rows + columns)[..., None], (5, 9, 12, 1))
    start = mc.nn.Input((9, 12, 1))
    layer = layers.RandomCrop(4, 6, seed=3)
    model = mc.nn.Model(start, layer(start))
    assert model.output_shape == (None, 4, 6, 1)
    places = set()
    for _ in range(12):
        made = np.asarray(model(data.astype("f4"), training=True))
        top, left = divmod(int(made[0, 0, 0, 0]), 100)
        assert top <= 5
        assert left <= 6
        part = data[:, top : top + 4, left : left + 6]
        np.testing.assert_array_equal(made, part)
        places.add((top, left))
    assert len(places) > 4
    still = model.predict(data, verbose=0)
    ratio = layers.CenterCrop(8, 12)(data)  # the largest part of its aspect ratio
    resized = layers.Resizing(4, 6)(ratio)
    np.testing.assert_allclose(still, resized, 1e-5)


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: layers.RandomFlip("diagonal"), ValueError, "unknown mode"),
        (lambda: layers.RandomFlip(seed=-1), ValueError, "zero or more"),
        (lambda: layers.RandomRotation(1.5), ValueError, r"factor must be in \[-1, 1"),
        (lambda: layers.RandomRotation("a"), TypeError, "must be a number"),
        (lambda: layers.RandomRotation((1, 2, 3)), ValueError, "one number or two"),
        (lambda: layers.RandomZoom(0.1, fill_mode="odd"), ValueError, "fill_mode"),
        (
            lambda: layers.RandomZoom(0.1, interpolation="cubic"),
            ValueError,
            "interpolation",
        ),
        (lambda: layers.RandomContrast(-0.5, value_range=3), ValueError, "pair"),
        (lambda: layers.RandomContrast((-0.5, 0.5)), ValueError, r"in \[0, 1\]"),
        (lambda: layers.RandomCrop(0, 1), ValueError, "height must be positive"),
        (lambda: layers.CenterCrop(1.5, 1), TypeError, "height must be an integer"),
        (lambda: layers.Resizing(3, 3, "odd"), ValueError, "unknown interpolation"),
        (lambda: layers.Resizing(3, 3, fill_mode="reflect"), ValueError, "'constant'"),
        (
            lambda: layers.Resizing(
                3, 3, crop_to_aspect_ratio=True, pad_to_aspect_ratio=True
            ),
            ValueError,
            "not both",
        ),
        (
            lambda: layers.Resizing(3, 3, data_format="channels_first"),
            ValueError,
            "channels_last",
        ),
        (lambda: layers.RandomFlip()(np.zeros((3, 3))), ValueError, "takes images"),
        (
            lambda: layers.RandomFlip()({"images": np.zeros((3, 3, 1)), "boxes": 1}),
            ValueError,
            "a dict of images, labels and segmentation_masks",
        ),
    ],
)
def test_wrong_arguments(call, error, told):
    with pytest.raises(error, match=told):
        call()


def test_hues_turn_as_those_of_python():
    """Of the standard library, pixel by pixel."""
    data = np.concatenate(
        [images(2, 3, 4, 3), np.full((2, 1, 4, 3), 90, np.float32)], 1
    )
    layer = layers.RandomHue(0.5, seed=1)
    turns = np.float32([0.2, -0.3])
    found = layer.transform_images(data, {"factor": turns})
    more = layers.RandomSaturation(0.5).transform_images(data, {"factor": [0.5, 3.0]})
    for image, turn, rows, factor, vivid in zip(
        data, turns, found, (0.5, 3.0), more, strict=True
    ):
        for pixel, other, strong in zip(
            image.reshape(-1, 3), rows.reshape(-1, 3), vivid.reshape(-1, 3), strict=True
        ):
            h, s, v = colorsys.rgb_to_hsv(*np.float64(pixel) / 255)
            wanted = np.multiply(colorsys.hsv_to_rgb((h + turn) % 1, s, v), 255)
            np.testing.assert_allclose(other, wanted, atol=2e-3)
            wanted = np.multiply(colorsys.hsv_to_rgb(h, min(s * factor, 1), v), 255)
            np.testing.assert_allclose(strong, wanted, atol=2e-3)


def test_tones():
    data = np.float32([[[[0], [100]], [[200], [255]]]])
    inverted = layers.RandomInvert(1.0)(data)
    np.testing.assert_array_equal(inverted, 255 - data)
    change = {"additions": np.float32(60), "thresholds": np.float32(170)}
    solar = layers.Solarization(0.5, 0.5).transform_images(data, change)
    np.testing.assert_array_equal(solar.ravel(), [60, 160, 0, 0])
    bits = layers.RandomPosterization((2, 2))(data)
    np.testing.assert_array_equal(bits.ravel(), [0, 64, 192, 192])
    stretched = layers.AutoContrast()(data / 2 + 20)
    np.testing.assert_allclose(stretched, data, atol=1e-3)
    flat = np.full((1, 2, 2, 1), 7, np.float32)
    np.testing.assert_array_equal(layers.AutoContrast()(flat), flat)
    smooth = layers.RandomSharpness((0, 0))(data)
    np.testing.assert_allclose(smooth[0, 0, 0, 0], (100 + 200 + 255) / 13, rtol=1e-5)
    same = layers.RandomSharpness((0.5, 0.5))(data)
    np.testing.assert_allclose(same, data, atol=1e-4)
    grey = layers.RandomGrayscale(1.0)(images(2, 3, 4, 3))
    assert np.ptp(grey, axis=-1).max() == 0
    part = layers.RandomColorDegeneration((1, 1))(images(2, 3, 4, 3))
    np.testing.assert_allclose(part, grey, atol=1e-3)


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda: layers.RandomHue(2), r"factor must be in \[0, 1\]"),
        (lambda: layers.RandomGrayscale(1.5), r"must be in \[0, 1\]"),
        (lambda: layers.RandomPosterization(9), r"must be in \[1, 8\]"),
        (lambda: layers.Solarization((0, 1, 2)), "one number or two"),
        (lambda: layers.AutoContrast(3), "a pair of numbers"),
        (lambda: layers.RandomHue(0.1)(images(2, 3, 4, 1)), "red, green and blue"),
        (lambda: layers.RandomGrayscale(1)(images(3, 4, 1)), "red, green and blue"),
    ],
)
def test_colors_that_are_refused(make_it, words):
    with pytest.raises(ValueError, match=words):
        make_it()


@pytest.mark.parametrize("name", ["Solarization", "AutoContrast"])
def test_configurations_with_a_data_format_are_read(name):
    layer = getattr(layers, name)
    made = layer.from_config(layer().get_config() | {"data_format": "channels_last"})
    assert made.get_config()["data_format"] == "channels_last"
    with pytest.raises((ValueError, NotImplementedError), match="channels_last"):
        layer(data_format="channels_first")


TINTS = ["RandomSaturation", "RandomColorDegeneration", "RandomHue"]


@pytest.mark.parametrize("name", TINTS)
def test_models_change_colors_as_on_arrays(name):
    data = images(4, 5, 6, 3)
    low, high = 0.2, 0.4
    fixed, varied = (
        getattr(layers, name)(factor, seed=1) for factor in ((low, low), (low, high))
    )
    numbers = fixed._from_uniform(np.full((4, 1, 1, 1), low, np.float32))
    ways = (1, -1) if name == "RandomHue" else (1,)
    halves = 0.5 if name == "RandomHue" else 1.0
    choices = [
        fixed.transform_images(data, {"factor": numbers * way * halves}) for way in ways
    ]
    for found in in_a_step(fixed, data):
        for i, image in enumerate(found):
            assert any(np.allclose(image, each[i], atol=0.02) for each in choices)
    first, second = in_a_step(varied, data)
    assert not np.allclose(first, second)
    assert np.array_equal(outputs(varied, data, False), data)


@pytest.mark.parametrize(
    ("name", "all_images", "none"),
    [("RandomGrayscale", 1.0, 0.0), ("RandomInvert", (1.0, 1.0), (0.0, 0.0))],
)
def test_models_change_some_images_as_on_arrays(name, all_images, none):
    data = images(16, 5, 6, 3)
    changed = getattr(layers, name)(all_images, seed=1)
    expected = changed(data)
    assert np.allclose(in_a_step(changed, data)[0], expected, atol=1e-3)
    assert np.array_equal(in_a_step(getattr(layers, name)(none), data)[0], data)
    half = in_a_step(getattr(layers, name)(0.5, seed=2), data)[0]
    chosen = [np.allclose(half[i], expected[i], atol=1e-3) for i in range(16)]
    kept = [np.array_equal(half[i], data[i]) for i in range(16)]
    assert all(a != b for a, b in zip(chosen, kept, strict=True))
    assert any(chosen)
    assert any(kept)


@pytest.mark.parametrize("name", ["RandomSharpness", "RandomPosterization"])
def test_layers_of_tones_are_of_arrays(name):
    with pytest.raises(TypeError, match=rf"{name} computes on arrays, not in a model"):
        make(name)(mc.nn.Input((7, 8, 3)))
