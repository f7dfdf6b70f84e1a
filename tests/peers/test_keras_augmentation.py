"""Layers of images: Keras's transform at the same parameters, and its distributions."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")
torch = pytest.importorskip("torch", reason="needs PyTorch: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
BOTH = keras.layers, mc.nn.layers


def array(result):
    return np.asarray(keras.ops.convert_to_numpy(result))


def tensors(transformation):
    """Our parameters as Keras's."""
    if not isinstance(transformation, dict):
        return transformation
    return {
        name: torch.tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in transformation.items()
    }


def images(shape, seed=0):
    return np.random.default_rng(seed).uniform(0, 255, shape).astype(np.float32)


def same_transform(name, data, tolerance, **options):
    theirs, ours = (getattr(layers, name)(**options) for layers in BOTH)
    drawn = ours.get_random_transformation(data, training=True)
    found = ours.transform_images(data, drawn)
    for training in (False, True):
        one = array(
            theirs.transform_images(torch.tensor(data), tensors(drawn), training)
        )
        other = ours.transform_images(data, drawn, training)
        assert one.shape == other.shape
        assert other.dtype == one.dtype
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance)
    return found


SHAPES = [(3, 7, 9, 3), (1, 6, 5, 1), (6, 6, 3)]
RANDOM = {
    "RandomFlip": [
        {"mode": "horizontal"},
        {"mode": "vertical"},
        {"mode": "horizontal_and_vertical"},
    ],
    "RandomContrast": [{"factor": 0.7}, {"factor": (0.5, 0.9), "value_range": (0, 99)}],
    "RandomBrightness": [{"factor": 0.4}, {"factor": (-0.9, 0.1)}],
    "RandomZoom": [
        {"height_factor": 0.5},
        {"height_factor": (-0.5, -0.2), "width_factor": 0.3},
    ],
    "RandomTranslation": [
        {"height_factor": 0.4, "width_factor": 0.9},
        {"height_factor": (0.2, 0.3), "width_factor": (-1.0, -0.9)},
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, each) for name, rows in RANDOM.items() for each in rows],
)
def test_a_transform_at_given_parameters(name, options, shape):
    modes = [{}]
    if name in ("RandomZoom", "RandomTranslation"):
        modes = [
            {"fill_mode": fill, "interpolation": how, "fill_value": 7.0}
            for fill in ("reflect", "constant", "nearest", "wrap")
            for how in ("bilinear", "nearest")
        ]
    if name == "RandomZoom" and len(shape) == 3:
        pytest.skip("Keras takes no single image in transform_images")
    for mode in modes:
        same_transform(name, images(shape), 0.05, seed=1, **options, **mode)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fill", ["reflect", "constant", "nearest", "wrap"])
def test_rotations(shape, fill):
    same_transform("RandomRotation", images(shape), 0.05, factor=0.7, fill_mode=fill)


def test_a_quarter_turn():
    data = images((2, 5, 5, 3))
    found = [
        array(layers.RandomRotation((0.25, 0.25))(data, training=True))
        for layers in BOTH
    ]
    np.testing.assert_allclose(found[1], np.rot90(data, axes=(1, 2)), atol=0.01)
    np.testing.assert_allclose(found[1], found[0], atol=0.01)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [(4, 3), (5, 5), (9, 4), (20, 30), (2, 8)])
def test_center_crop(shape, size):
    data = images(shape)
    one, other = (array(layers.CenterCrop(*size)(data)) for layers in BOTH)
    np.testing.assert_allclose(other, one, rtol=0, atol=0.01)


@pytest.mark.parametrize("size", [(4, 3), (5, 5), (9, 4), (20, 30)])
def test_random_crop(size):
    same_transform(
        "RandomCrop", images((3, 7, 9, 3)), 0.01, height=size[0], width=size[1]
    )


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.sampled_from(["bilinear", "nearest"]),
    st.sampled_from(["", "crop", "pad"]),
    st.booleans(),
)
@settings(deadline=None)
def test_resizing(given_size, size, interpolation, how, integers):
    data = images((2, *given_size, 3))
    data = data.astype(np.uint8) if integers else data
    options = {"interpolation": interpolation}
    if how:
        options[f"{how}_to_aspect_ratio"] = True
    one, other = (array(layers.Resizing(*size, **options)(data)) for layers in BOTH)
    assert one.shape == other.shape
    difference = np.abs(one.astype(np.float32) - other.astype(np.float32))
    assert difference.max() <= (1 if integers else 0.01)


def test_smoothed_resizing():
    data = images((1, 20, 24, 3))
    one, other = (array(layers.Resizing(7, 5, antialias=True)(data)) for layers in BOTH)
    np.testing.assert_allclose(other, one, rtol=0, atol=0.5)


def test_dicts_of_images_and_masks():
    data = images((2, 6, 8, 3))
    masks = (data[..., :1] > 100).astype(np.float32)
    given_data = {"images": data, "labels": np.arange(2), "segmentation_masks": masks}
    for name, options in (
        ("CenterCrop", {"height": 3, "width": 4}),
        ("Resizing", {"height": 3, "width": 4}),
    ):
        one, other = (
            getattr(layers, name)(**options)(dict(given_data)) for layers in BOTH
        )
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_allclose(array(other[key]), array(one[key]), atol=0.01)


MOVES = {"height_factor": 0, "width_factor": 0.3}


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("RandomContrast", {"factor": 0.5}, "contrast_factor"),
        ("RandomContrast", {"factor": (0.2, 0.6)}, "contrast_factor"),
        ("RandomBrightness", {"factor": 0.5}, "rgb_delta"),
        ("RandomBrightness", {"factor": (-0.4, 0.1)}, "rgb_delta"),
        ("RandomZoom", {"height_factor": (-0.4, 0.1)}, "height_zoom"),
        (
            "RandomTranslation",
            {"height_factor": 0, "width_factor": 0.3},
            "translations",
        ),
        ("RandomRotation", {"factor": (-0.1, 0.4)}, "angle"),
        ("RandomFlip", {}, "flips"),
    ],
)
def test_distributions(name, options, key):
    data = np.zeros((4000, 4, 4, 1), np.float32)
    theirs, ours = (
        array(
            getattr(layers, name)(**options, seed=3).get_random_transformation(data)[
                key
            ]
        )
        for layers in BOTH
    )
    assert theirs.shape == ours.shape
    one, other = (
        each.reshape(len(each), -1)[:, 0].astype(float) for each in (theirs, ours)
    )
    spread = max(np.ptp(one), 1e-6)
    assert abs(one.min() - other.min()) < 0.01 * spread
    assert abs(one.max() - other.max()) < 0.01 * spread
    for part in (0.25, 0.5, 0.75):
        if name != "RandomFlip":
            assert (
                abs(np.quantile(one, part) - np.quantile(other, part)) < 0.05 * spread
            )
    assert abs(one.mean() - other.mean()) < 0.05 * spread


COLORS = {
    "RandomColorDegeneration": {"factor": 0.8},
    "RandomHue": {"factor": 0.5},
    "RandomInvert": {"factor": (0.4, 0.6)},
    "RandomPosterization": {"factor": (2, 6)},
    "RandomSharpness": {"factor": (0.0, 1.0)},
    "Solarization": {"addition_factor": 0.5, "threshold_factor": (0.3, 0.8)},
}


@pytest.mark.parametrize("name", COLORS)
@pytest.mark.parametrize("seed", range(3))
def test_colors(name, seed):
    same_transform(name, images((4, 7, 9, 3), seed), 5e-3, **COLORS[name])


def test_colors_of_keras_other_forms():
    """Keras clips a saturation to the range of values, which is right for this one."""
    data = images((4, 7, 9, 3)) / 255
    options = {"factor": (0.1, 0.7), "value_range": (0, 1)}
    same_transform("RandomSaturation", data, 1e-5, **options)
    theirs, ours = (layers.AutoContrast() for layers in BOTH)
    wanted = array(theirs.transform_images(torch.tensor(data * 200), None))
    np.testing.assert_allclose(ours(data * 200), wanted, atol=1e-3)
    theirs, ours = (layers.RandomGrayscale(0.5) for layers in BOTH)
    drawn = ours.get_random_transformation(data)
    wanted = array(theirs.transform_images(torch.tensor(data), torch.tensor(drawn)))
    np.testing.assert_allclose(ours.transform_images(data, drawn), wanted, atol=1e-5)


@pytest.mark.parametrize("name", sorted(COLORS))
def test_configurations_of_colors_go_both_ways(name):
    theirs = getattr(keras.layers, name)(**COLORS[name])
    ours = getattr(mc.nn.layers, name).from_config(theirs.get_config())
    mine = getattr(mc.nn.layers, name)(**COLORS[name])
    for layer in (ours, mine, type(theirs).from_config(mine.get_config())):
        found, wanted = layer.get_config(), theirs.get_config()
        for key in ("factor", "value_range", "seed"):
            if key in wanted:
                assert np.allclose(
                    np.array(found[key], float),
                    np.array(wanted[key], float),
                    equal_nan=True,
                )
