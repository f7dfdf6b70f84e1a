"""Layers that vary, mix and equalize images, and spectrograms, beside Keras's."""

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
BOTH = keras.layers, mc.nn.layers
SHAPES = [(3, 7, 9, 3), (1, 6, 5, 1), (6, 6, 3)]


def array(result):
    return np.asarray(keras.ops.convert_to_numpy(result))


def tensors(value):
    """Our parameters as Keras's."""
    if isinstance(value, dict):
        return {name: tensors(each) for name, each in value.items()}
    if isinstance(value, list):
        return [tensors(each) for each in value]
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def images(shape, seed=0):
    return np.random.default_rng(seed).uniform(0, 255, shape).astype(np.float32)


def same_transform(name, data, tolerance=0.05, **options):
    theirs, ours = (getattr(layers, name)(**options) for layers in BOTH)
    drawn = ours.get_random_transformation(data, training=True)
    shape = theirs.get_random_transformation(torch.tensor(data), training=True)
    if isinstance(drawn, dict):
        assert drawn.keys() == shape.keys()
        for key in drawn.keys() - {"seed", "input_shape"}:
            assert np.shape(drawn[key]) == tuple(np.shape(shape[key])), key
    for training in (False, True):
        one = array(
            theirs.transform_images(torch.tensor(data), tensors(drawn), training)
        )
        other = ours.transform_images(data, drawn, training)
        assert other.dtype == one.dtype
        one = one.reshape(other.shape)  # of a single image, Keras's may be a batch
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance)
    return drawn


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RandomErasing", {"factor": (0.4, 1.0), "fill_value": 7}),
        ("RandomErasing", {"factor": (1, 1), "scale": (0.1, 0.9)}),
        ("RandomGaussianBlur", {"factor": (0.5, 1.0), "sigma": (0.3, 0.9)}),
        ("RandomGaussianBlur", {"kernel_size": 5, "factor": (1, 1)}),
        ("RandomPerspective", {"factor": (0.5, 1), "scale": 0.4}),
        ("RandomPerspective", {"factor": (1, 1), "interpolation": "nearest"}),
        ("MixUp", {"alpha": 0.4}),
        ("CutMix", {"factor": 0.7}),
    ],
)
def test_a_transform_at_given_parameters(name, options):
    for shape in SHAPES:
        if name in ("CutMix", "MixUp") and len(shape) == 3:
            continue  # there is no other image
        same_transform(name, images(shape), seed=3, **options)


def test_shears():
    """Keras's uniform of a range has as bounds ours of the same arguments."""
    for fill in ("reflect", "constant", "nearest", "wrap"):
        options = {"x_factor": (0.1, 0.6), "y_factor": 0.4, "fill_mode": fill}
        for shape in SHAPES:
            same_transform("RandomShear", images(shape), seed=1, **options)
    data = np.zeros((4000, 2, 2, 1), np.float32)
    for index in (0, 1):
        one, other = (
            array(
                layers.RandomShear((0.1, 0.6), 0.4).get_random_transformation(data)[
                    "shear_factor"
                ]
            )[:, index]
            for layers in BOTH
        )
        assert abs((one > 0).mean() - (other > 0).mean()) < 0.04
        sizes = [np.quantile(np.abs(each), np.arange(6) / 5) for each in (one, other)]
        np.testing.assert_allclose(*sizes, atol=0.03)


def test_elastic_moves_of_the_same_noise(monkeypatch):
    """Keras draws its noise by torch.normal, which here gives ours."""
    for fill, how in (
        ("reflect", "bilinear"),
        ("mirror", "bilinear"),
        ("constant", "nearest"),
        ("wrap", "bilinear"),
        ("nearest", "nearest"),
    ):
        options = {"fill_mode": fill, "interpolation": how, "fill_value": 9.0}
        theirs, ours = (
            layers.RandomElasticTransform((1.0, 1.0), (0.4, 0.9), seed=2, **options)
            for layers in BOTH
        )
        data = images((2, 24, 30, 3))
        drawn = ours.get_random_transformation(data)
        noise = np.random.default_rng(drawn["seed"]).standard_normal(
            (2, *data.shape[:3]), np.float32
        )
        rows = iter(torch.tensor(noise))
        with monkeypatch.context() as patch:
            patch.setattr(torch, "normal", lambda *_, rows=rows, **__: next(rows))
            one = array(theirs.transform_images(torch.tensor(data), tensors(drawn)))
        other = ours.transform_images(data, drawn)
        assert np.abs(other - data).max() > 1
        differ = np.abs(one - other) > 0.1
        assert differ.mean() < (0.002 if how == "nearest" else 1e-9)


@pytest.mark.filterwarnings("ignore:Exception encountered:UserWarning")
@pytest.mark.filterwarnings("ignore:Tensor.T is deprecated:UserWarning")
@pytest.mark.parametrize("shape", [(4, 64, 32, 3), (64, 64, 1)])
def test_equalizations(shape):
    """With PyTorch below, Keras cuts limits to integers, and pads in another way."""
    data = images(shape) ** 2 / 255
    cases = [
        ("Equalization", {}, data),
        ("Equalization", {"bins": 32}, data),
        ("Equalization", {"value_range": (-1, 1)}, data / 127.5 - 1),
        ("Equalization", {}, np.full(shape, 9, np.float32)),
        (
            "ContrastLimitedAdaptiveHistogramEqualization",
            {"clip_limit": 4.0, "tile_grid_size": (4, 4)},
            data,
        ),
        (
            "ContrastLimitedAdaptiveHistogramEqualization",
            {"tile_grid_size": (2, 4), "clip_limit": 0, "value_range": (0, 1)},
            data / 255,
        ),
        (
            "ContrastLimitedAdaptiveHistogramEqualization",
            {"clip_limit": 0},
            data.astype(np.uint8),
        ),
    ]
    for name, options, given in cases:
        one, other = (array(getattr(each, name)(**options)(given)) for each in BOTH)
        assert one.dtype == other.dtype
        differ = np.abs(one.astype(np.float32) - other) > 0.02
        assert differ.mean() < 0.01, (name, options)  # at the border of two bins
    dark = mc.nn.layers.Equalization()(data)
    shares = np.histogram(dark, 4, (0, 255))[0] / dark.size
    assert abs(shares - 0.25).max() < 0.05


def test_mixed_labels_and_masks():
    data, labels = images((5, 6, 7, 3)), np.eye(5, 4, dtype=np.float32)
    for name in ("MixUp", "CutMix"):
        theirs, ours = (getattr(layers, name)() for layers in BOTH)
        drawn = ours.get_random_transformation(data)
        found = ours.transform_labels(labels, drawn)
        wanted = array(theirs.transform_labels(torch.tensor(labels), tensors(drawn)))
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        means = data.mean((1, 2))  # for labels: of mixed images, they are mixed
        made = ours({"images": data, "labels": means, "segmentation_masks": data})
        np.testing.assert_array_equal(made["images"], made["segmentation_masks"])
        if name == "MixUp":
            mixed = made["images"].mean((1, 2))
            np.testing.assert_allclose(made["labels"], mixed, rtol=1e-5)


@pytest.mark.parametrize("name", ["RandAugment", "AugMix"])
def test_chains_of_layers(name):
    """Keras's layers apply what we drew.

    Its RandAugment changes images in place by brightness that was not drawn, if
    PyTorch is below it, so its layers are called one after the other.
    """
    data = images((2, 8, 9, 3))
    theirs, ours = (getattr(layers, name)(factor=0.6) for layers in BOTH)
    used = set()
    for seed in range(12):
        drawn = ours.get_random_transformation(data, seed=seed)
        found = ours.transform_images(data, drawn)
        if name == "AugMix":
            wanted = theirs.transform_images(torch.tensor(data), tensors(drawn))
            wanted = array(wanted)
            used |= {s["layer_name"] for c in drawn["chain_transforms"] for s in c}
        else:
            used |= {*drawn["layers"]}
            wanted = torch.tensor(data)
            for each in drawn["layers"]:
                change = tensors(drawn["transforms"][each])
                wanted = getattr(theirs, each).transform_images(wanted, change)
            wanted = array(wanted)
        differ = np.abs(found - wanted) > 0.1
        assert differ.mean() < 0.02, seed
    assert len(used) > 7


def test_color_jitter_at_pinned_factors():
    data = images((3, 6, 7, 3)) / 255
    pinned = {
        "value_range": (0, 1),
        "brightness_factor": (0.2, 0.2),
        "saturation_factor": (0.3, 0.3),
        "hue_factor": (0.0, 0.0),
    }
    one, other = (array(each.RandomColorJitter(**pinned)(data)) for each in BOTH)
    np.testing.assert_allclose(one, other, atol=1e-4)
    assert np.abs(other - data).max() > 0.1
    contrast = mc.nn.layers.RandomColorJitter(contrast_factor=0.9, seed=1)(data * 255)
    assert contrast.min() >= 0
    assert np.abs(contrast - data * 255).max() > 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": None, "power_to_db": False, "mag_exp": 1.0},
        {"sequence_length": 200, "num_mel_bins": 40, "min_freq": 100.0, "top_db": 30.0},
        {
            "window": "hamming",
            "ref_power": 3.0,
            "max_freq": 5000,
            "sampling_rate": 22050,
        },
    ],
)
def test_mel_spectrograms(options):
    sounds = np.random.default_rng(0).normal(size=(2, 3000)).astype(np.float32)
    given = {"fft_length": 256, "sequence_stride": 100} | options
    one, other = (array(layers.MelSpectrogram(**given)(sounds)) for layers in BOTH)
    assert one.dtype == other.dtype
    np.testing.assert_allclose(other, one, rtol=2e-4, atol=5e-3)
    single = mc.nn.layers.MelSpectrogram(**given)(sounds[0])
    assert single.shape == other.shape[1:]


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("log", {}),
        ("magnitude", {"frame_step": 5, "padding": "same"}),
        ("psd", {"fft_length": 32, "expand_dims": True}),
        ("real", {"scaling": "spectrum"}),
        ("imag", {"window": "blackman", "periodic": True}),
        ("angle", {"scaling": None}),
        ("stft", {"window": None, "expand_dims": True, "padding": "same"}),
        ("log", {"data_format": "channels_first"}),
    ],
)
def test_stft_spectrograms(mode, options):
    sounds = np.random.default_rng(0).normal(size=(2, 50, 3)).astype(np.float32)
    if "data_format" in options:
        sounds = sounds.transpose(0, 2, 1)
    one, other = (
        array(layers.STFTSpectrogram(mode, 16, **options)(sounds)) for layers in BOTH
    )
    assert one.shape == other.shape
    if mode == "angle":
        one, other = np.exp(1j * one), np.exp(1j * other)
        assert (np.abs(one - other) > 1e-2).mean() < 0.06  # the angle of nearly 0
        return
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if mode != "log" else {"atol": 2e-2}
    np.testing.assert_allclose(other, one, **tolerance)


@pytest.mark.parametrize(
    "window",
    [
        *["hann", "hamming", "blackman", "bartlett", "flattop"],
        *["boxcar", "cosine", "nuttall", "blackmanharris"],
        None,
    ],
)
def test_kernels_of_the_fourier_transform(window):
    for side, scaling, periodic in (
        ("real", "density", False),
        ("imag", "spectrum", True),
        ("imag", None, False),
    ):
        one, other = (
            array(each.initializers.STFT(side, window, scaling, periodic)((12, 1, 9)))
            for each in (keras, mc.nn)
        )
        np.testing.assert_allclose(other, one, atol=3e-6)


def test_pipelines():
    data = np.floor(images((2, 8, 9, 3)))
    one, other = (
        array(
            layers.Pipeline(
                [
                    layers.RandomBrightness((0.1, 0.1)),
                    layers.Equalization(),
                    layers.Rescaling(1 / 255),
                ]
            )(data)
        )
        for layers in BOTH
    )
    np.testing.assert_allclose(other, one, atol=5e-3)
    given = {"images": data, "labels": np.eye(2)}
    chain = mc.nn.layers.Pipeline([mc.nn.layers.CutMix(), mc.nn.layers.RandomFlip()])
    assert chain(given)["labels"].shape == (2, 2)
    assert chain(given, training=False)["images"].tolist() == data.tolist()
