"""Layers that erase, blur, bend, mix and equalize, by plain loops; spectrograms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn, layers = mc.nn, mc.nn.layers


def images(*shape, seed=0):
    return np.random.default_rng(seed).uniform(20, 230, shape).astype(np.float32)


def test_erased_rectangles():
    data = images(300, 16, 20, 3)
    layer = layers.RandomErasing((1, 1), (0.1, 0.4), fill_value=(1, 2, 300), seed=0)
    found = layer(data)
    erased = (found == np.float32([1, 2, 255])).all(-1)
    np.testing.assert_array_equal(found[~erased], data[~erased])
    for mask in erased:
        rows, columns = mask.any(1), mask.any(0)
        assert mask.sum() == rows.sum() * columns.sum()  # one rectangle
    share = erased.mean(axis=(1, 2))
    assert 0.05 < share.min() < share.max() < 0.5
    noise = layers.RandomErasing((1, 1), seed=1)(data)
    assert noise.min() >= 0
    assert noise.max() <= 255
    half = layers.RandomErasing((0.5, 0.5), fill_value=0, seed=1)(data)
    assert 100 < (half != data).any(axis=(1, 2, 3)).sum() < 200


@given(st.sampled_from([1, 3, 5]), st.sampled_from([3, 5]), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_blurs_are_sums_of_neighbours(rows, columns, seed):
    data = images(2, 5, 6, 2, seed=seed)
    layer = layers.RandomGaussianBlur((1, 1), (rows, columns), (0.3, 1.0), seed=seed)
    change = layer.get_random_transformation(data)
    across, down = np.float64(change["blur_factor"])
    found = layer.transform_images(data, change)
    weights = [
        [math.exp(-0.5 * ((i - size // 2) / sigma) ** 2) for i in range(size)]
        for size, sigma in ((rows, down), (columns, across))
    ]
    weights = [np.array(each) / sum(each) for each in weights]
    wide = np.pad(data, ((0, 0), (rows // 2,) * 2, (columns // 2,) * 2, (0, 0)))
    for i, j in np.ndindex(5, 6):
        part = wide[:, i : i + rows, j : j + columns]
        wanted = np.einsum("bhwk,h,w->bk", part, *weights)
        np.testing.assert_allclose(found[:, i, j], wanted, rtol=1e-4)


def test_corners_go_where_they_are_drawn():
    """A pixel at a corner of the result is that of the source's corner."""
    data = images(40, 9, 12, 1)
    layer = layers.RandomPerspective((1, 1), 0.4, fill_value=-1, seed=2)
    change = layer.get_random_transformation(data)
    whole = np.round(change["end_points"])
    change["end_points"] = whole.astype(np.float32)
    found = layer.transform_images(data, change)
    seen = 0
    for image, source, starts, ends in zip(
        found, data, change["start_points"], whole, strict=True
    ):
        for (x, y), (i, j) in zip(starts.astype(int), ends.astype(int), strict=True):
            if 0 <= i < 12 and 0 <= j < 9:
                assert image[j, i, 0] == pytest.approx(source[y, x, 0], rel=2e-3)
                seen += 1
    assert seen > 60
    same = layers.RandomPerspective((1, 1), 0.0)(data)
    np.testing.assert_allclose(same, data, rtol=1e-4)


def test_shears_of_pixels():
    data = images(50, 6, 8, 1)
    layer = layers.RandomShear(
        (1.0, 1.0), 0.0, "nearest", "constant", fill_value=5, seed=1
    )
    ways = set()
    for source, image in zip(data, layer(data), strict=True):
        for way in (1, -1):
            wanted = np.full_like(source, 5)
            for y, x in np.ndindex(6, 8):
                if 0 <= x + way * y < 8:
                    wanted[y, x] = source[y, x + way * y]
            if np.array_equal(image, wanted):
                ways.add(way)
                break
        else:
            raise AssertionError("neither way")
    assert ways == {1, -1}


def test_elastic_moves_are_smooth_and_small():
    ramp = np.broadcast_to(np.arange(40, dtype=np.float32)[:, None, None], (40, 40, 1))
    layer = layers.RandomElasticTransform((1, 1), (0.8, 0.8), seed=3)
    found = layer(np.stack([ramp] * 4))
    moved = found - ramp
    assert 0.2 < np.abs(moved).max() < 20
    assert np.abs(np.diff(moved, axis=2)).max() < np.abs(moved).max()
    assert (
        layers.RandomElasticTransform(scale=0).get_random_transformation(ramp) is None
    )
    twice = layer({"images": found, "segmentation_masks": found})
    assert twice["segmentation_masks"].shape == found.shape


def test_equalized_values_are_shares_of_smaller_ones():
    data = np.floor(images(2, 9, 7, 2))
    found = layers.Equalization()(data)
    for channel in range(2):
        values = data[..., channel].ravel()
        least = (values <= values.min()).sum()
        for value, made in zip(values, found[..., channel].ravel(), strict=True):
            share = ((values <= value).sum() - least) / (len(values) - least)
            assert made == np.round(np.float32(share * 255))
    flat = np.full((3, 3, 1), 7, np.float32)
    np.testing.assert_array_equal(layers.Equalization()(flat), flat)
    np.testing.assert_array_equal(layers.Equalization()(data, training=False), data)


def test_one_tile_is_equalized_as_a_whole():
    data = np.floor(images(1, 16, 16, 1))
    kind = layers.ContrastLimitedAdaptiveHistogramEqualization
    found = kind(clip_limit=0, tile_grid_size=(1, 1))(data)
    values = data.ravel()
    least = (values == 0).sum()
    wanted = [((values <= v).sum() - least) / (256 - least) * 255 for v in values]
    np.testing.assert_allclose(found.ravel(), wanted, rtol=1e-5)
    limited = kind(clip_limit=0.05, tile_grid_size=(1, 1))(data)
    spread = np.abs(limited - data).mean()  # nearly all is shared by all bins
    assert spread < 1 < np.abs(found - data).mean()
    assert kind()(data.astype(np.uint8)).dtype == np.uint8
    assert kind(tile_grid_size=(3, 2))(images(10, 11, 3)).shape == (10, 11, 3)


def test_mixed_batches():
    """Image i has value i, so that the mean of a mixed image tells the shares."""
    data = np.broadcast_to(
        np.arange(8, dtype=np.float32)[:, None, None, None], (8, 9, 8, 1)
    )
    given = {"images": data, "labels": np.eye(8)}
    for layer in (layers.MixUp(0.5, seed=1), layers.CutMix((1, 1), seed=1)):
        made = layer(given)
        means = made["images"].mean((1, 2, 3))
        weight = made["labels"] @ np.arange(8)
        exact = isinstance(layer, layers.MixUp)
        np.testing.assert_allclose(means, weight, atol=1e-4 if exact else 1.5)
        np.testing.assert_allclose(made["labels"].sum(1), 1, rtol=1e-6)
        assert np.abs(means - np.arange(8)).max() > 0.2
        assert layer(given, training=False)["labels"] is given["labels"]
        np.testing.assert_array_equal(layer(data[3]), data[3])  # there is no other
        with pytest.raises(ValueError, match="one-hot labels"):
            layer({"images": data, "labels": np.arange(8)})


def test_a_pipeline_in_a_model_and_its_configuration():
    chain = layers.Pipeline([layers.Rescaling(2.0), nn.Dense(3), layers.ReLU()])
    model = nn.Sequential([nn.Input((4,)), chain, nn.Dense(1)])
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    kernel, bias = model.get_weights()[:2]
    (found,) = (nn.Model(model.inputs, chain.output).predict(x, verbose=0),)
    np.testing.assert_allclose(found, np.maximum(2 * x @ kernel + bias, 0), rtol=1e-5)
    again = layers.deserialize(layers.serialize(chain))
    assert [type(each) for each in again.layers] == [type(e) for e in chain.layers]
    pairs = mc.data.Dataset.from_tensor_slices((images(4, 5, 5, 3), np.zeros(4)))
    for layer in (layers.Pipeline([layers.RandomFlip()]), layers.RandomFlip()):
        with pytest.raises(TypeError, match=r"training must be .* lambda x, y"):
            list(pairs.batch(2).map(layer))
    with pytest.raises(TypeError, match="accepts layers"):
        layers.Pipeline([abs])
    with pytest.raises(TypeError, match=r"MixUp computes on arrays"):
        layers.Pipeline([layers.MixUp()])(nn.Input((4, 4, 1)))


def dft(frames, size):
    """Sums of waves: real and imaginary parts for half of the frequencies."""
    angle = -2 * np.pi * np.outer(np.arange(frames.shape[-1]), np.arange(size // 2 + 1))
    return frames @ np.cos(angle / size), frames @ np.sin(angle / size)


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_a_learned_spectrogram_begins_as_a_fourier_transform(padding):
    x = np.random.default_rng(0).normal(size=(2, 21, 2)).astype(np.float32)
    layer = layers.STFTSpectrogram(
        "magnitude",
        8,
        3,
        16,
        window=None,
        scaling=None,
        padding=padding,
        expand_dims=True,
    )
    model = nn.Sequential([nn.Input((21, 2)), layer])
    found = model.predict(x, verbose=0)
    if padding == "same":
        x = np.pad(x, ((0, 0), (2, 3), (0, 0)))
    frames = np.stack([x[:, i : i + 8] for i in range(0, x.shape[1] - 7, 3)], 1)
    real, imaginary = dft(
        np.moveaxis(frames, 2, -1), 16
    )  # (n, windows, channels, bins)
    wanted = np.moveaxis(np.hypot(real, imaginary), 2, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-3)
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.fit(x[:, :21], np.zeros_like(found), verbose=0)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    model.close()


def test_tones_lie_in_their_bins_of_pitch():
    rate, hertz = 8000, [300.0, 1500.0]
    time = np.arange(4096) / rate
    sounds = np.sin(2 * np.pi * np.outer(hertz, time)).astype(np.float32)
    layer = layers.MelSpectrogram(512, 256, sampling_rate=rate, num_mel_bins=40)
    found = layer(sounds)
    assert found.shape == (2, 40, 17)
    edges = np.linspace(*(1127 * np.log1p(np.array([20, rate / 2]) / 700)), 42)
    for sound, pitch in zip(found, hertz, strict=True):
        loudest = sound[:, 8].argmax()
        mel = 1127 * math.log1p(pitch / 700)
        assert edges[loudest] <= mel <= edges[loudest + 2]
        assert np.ptp(sound) <= 80.0 + 1e-4
    frames = np.pad(sounds[0], 256, mode="reflect")[256 * 3 :][:512]
    frames = frames * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(512) / 512))
    power = np.sum(np.square(dft(frames, 512)), axis=0)
    plain = layers.MelSpectrogram(
        512, 256, sampling_rate=rate, num_mel_bins=40, power_to_db=False
    )(sounds[0])
    mels = 1127 * np.log1p(np.linspace(0, rate / 2, 257) / 700)
    for bin_ in (5, 20, 39):
        low, middle, high = edges[bin_ : bin_ + 3]
        rise, fall = (mels - low) / (middle - low), (high - mels) / (high - middle)
        weight = np.maximum(0, np.minimum(rise, fall))
        assert plain[bin_, 3] == pytest.approx(weight @ power, rel=1e-4, abs=1e-6)


def test_windows_of_kernels():
    numpys = {"hann": np.hanning, "hamming": np.hamming, "blackman": np.blackman}
    numpys |= {"bartlett": np.bartlett, "boxcar": np.ones}
    for name, of in numpys.items():
        for periodic in (False, True):
            kernel = nn.initializers.STFT("real", name, None, periodic)((8, 1, 5))
            wanted = of(9)[:8] if periodic else of(8)
            np.testing.assert_allclose(kernel[:, 0, 0], wanted, atol=1e-6)
    numbers = np.arange(1.0, 9)
    for scaling, size in (("density", np.sqrt((numbers**2).sum())), ("spectrum", 36)):
        kernel = nn.initializers.STFT("real", numbers, scaling)((8, 1, 5))
        np.testing.assert_allclose(kernel[:, 0, 0], numbers / size, rtol=1e-6)
    assert nn.initializers.STFT("imag", "hann")((1, 1, 1)).item() == 0.0


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: layers.RandomErasing(2.0), ValueError, r"factor must be in \[0, 1\]"),
        (lambda: layers.RandomErasing(scale=(0, 2)), ValueError, "scale must be in"),
        (lambda: layers.RandomErasing(fill_value="x"), TypeError, "fill_value"),
        (
            lambda: layers.RandomErasing(fill_value=(1, 2))(images(3, 3, 3)),
            ValueError,
            "2 numbers for 3 channels",
        ),
        (
            lambda: layers.RandomGaussianBlur(kernel_size=4),
            ValueError,
            "one odd number",
        ),
        (lambda: layers.RandomPerspective(scale=2), ValueError, r"scale must be in"),
        (lambda: layers.RandomPerspective(interpolation="x"), ValueError, "interpol"),
        (
            lambda: layers.RandomElasticTransform(fill_mode="x"),
            ValueError,
            "'mirror'|mi",
        ),
        (lambda: layers.MixUp(0), ValueError, "alpha must be greater than 0"),
        (lambda: layers.AugMix(alpha=-1), ValueError, "alpha must be greater than 0"),
        (lambda: layers.RandAugment(num_ops=0), ValueError, "num_ops must be positive"),
        (lambda: layers.RandAugment(interpolation="x"), ValueError, "interpolation"),
        (lambda: layers.Equalization(bins=0), ValueError, "bins must be positive"),
        (
            lambda: layers.ContrastLimitedAdaptiveHistogramEqualization(
                tile_grid_size=3
            ),
            ValueError,
            "a pair of integers",
        ),
        (lambda: layers.MelSpectrogram(8, sequence_length=9), ValueError, "more than"),
        (lambda: layers.MelSpectrogram(window="kaiser"), ValueError, "'hann', 'hamm"),
        (lambda: layers.MelSpectrogram(window=[1, 2]), ValueError, "must have shape"),
        (lambda: layers.MelSpectrogram()(np.zeros(9)), ValueError, "9 samples are too"),
        (
            lambda: layers.MelSpectrogram()(np.zeros((1, 2, 3))),
            ValueError,
            "takes sounds",
        ),
        (lambda: layers.MelSpectrogram()(nn.Input((9,))), TypeError, "Dataset.map"),
        (lambda: layers.STFTSpectrogram("power"), ValueError, "unknown mode"),
        (lambda: layers.STFTSpectrogram(padding="full"), ValueError, "unknown padding"),
        (lambda: layers.STFTSpectrogram(scaling="x"), ValueError, "unknown scaling"),
        (lambda: layers.STFTSpectrogram(window="x"), ValueError, "unknown window"),
        (lambda: layers.STFTSpectrogram("log", 8, 9), ValueError, "more than frame_le"),
        (lambda: layers.STFTSpectrogram("log", 8, 4, 4), ValueError, "less than frame"),
        (
            lambda: layers.STFTSpectrogram("log", 8)(nn.Input((5, 1))),
            ValueError,
            "5 steps are less than a window",
        ),
        (lambda: nn.initializers.STFT("both"), ValueError, "unknown side"),
        (lambda: nn.initializers.STFT(scaling="x"), ValueError, "unknown scaling"),
        (lambda: nn.initializers.STFT()((3, 3)), ValueError, "STFT needs weights"),
    ],
)
def test_arguments_that_are_refused(call, error, told):
    with pytest.raises(error, match=told):
        call()


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 1, 1, 3), (2, 1, 5, 3), (5, 1, 3)])
def test_images_of_one_row_or_column_keep_their_perspective(shape):
    data = np.random.default_rng(0).random(shape).astype(np.float32)
    found = layers.RandomPerspective(factor=(1, 1), seed=1)(data)
    np.testing.assert_array_equal(found, data)
