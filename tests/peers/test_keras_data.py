"""Keras's utilities for data: the same datasets here and there."""

from __future__ import annotations

import os
from copy import deepcopy

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")
pytest.importorskip("tensorflow", reason="needs TensorFlow: tox run -e parity")

pytestmark = pytest.mark.parity
BOTH = keras.utils, mc.nn.utils


def same(one, other, tolerance=0.0):
    """Compare elements: structure, shapes, dtypes, values."""
    if isinstance(one, tuple):
        assert isinstance(other, tuple)
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair, tolerance)
        return
    one, other = np.asarray(one), np.asarray(other)
    assert one.shape == other.shape
    if one.dtype.kind == "O" or other.dtype.kind == "S":
        assert one.tolist() == other.tolist()
        return
    assert one.dtype == other.dtype
    np.testing.assert_allclose(other, one, rtol=0, atol=tolerance)


def same_datasets(theirs, ours, tolerance=0.0):
    for _ in range(2):
        one = list(theirs.as_numpy_iterator())
        other = list(ours.as_numpy_iterator())
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair, tolerance)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
        for number in range(4):
            size = generator.integers(3, 20, 2)
            pixels = generator.integers(0, 256, (*size, 3), np.uint8)
            mc.nn.utils.save_img(folder / name / f"{number}.png", pixels, scale=False)
            (folder / name / f"{number}.txt").write_bytes(generator.bytes(9))
    return folder


def both(function, *args, **options):
    return [getattr(utils, function)(*args, **options) for utils in BOTH]


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"seed": 3},
        {"seed": 3, "label_mode": "categorical", "class_names": ["c", "a"]},
        {"seed": 1, "label_mode": "binary", "class_names": ["c", "a"]},
        {"seed": 1, "labels": None, "batch_size": None},
        {"seed": 1, "label_mode": None, "batch_size": 5},
        {"seed": 4, "labels": [1, 7] * 6},
        {"seed": 2, "validation_split": 0.3, "subset": "training"},
        {"seed": 2, "validation_split": 0.3, "subset": "validation"},
        {"seed": 2, "validation_split": 0.3, "subset": "both", "batch_size": 2},
    ],
)
@pytest.mark.parametrize("kind", ["text", "image"])
def test_folders(images, kind, options, capsys):
    more = {"image_size": (6, 5)} if kind == "image" else {"max_length": 7}
    given = {"batch_size": 2, **options, **more}
    theirs, ours = [], []
    told = []
    for utils, found in zip(BOTH, (theirs, ours), strict=True):
        made = getattr(utils, f"{kind}_dataset_from_directory")(
            images,
            **deepcopy(given),  # Keras shuffles the caller's labels
        )
        found += made if isinstance(made, list) else [made]
        told.append(capsys.readouterr().out.splitlines()[0])
    assert told[0] == told[1]
    for one, other in zip(theirs, ours, strict=True):
        assert one.class_names == other.class_names
        if kind == "image":
            assert list(one.file_paths) == other.file_paths
        same_datasets(one, other, 1e-3)


@pytest.mark.parametrize(
    "interpolation",
    [
        "bilinear",
        "nearest",
        "bicubic",
        "area",
        "lanczos3",
        "lanczos5",
        "gaussian",
        "mitchellcubic",
    ],
)
@pytest.mark.parametrize("size", [(9, 9), (4, 30), (25, 3)])
@pytest.mark.parametrize("how", ["", "crop", "pad"])
def test_interpolations(images, interpolation, size, how):
    if how == "crop" and interpolation in ("area", "gaussian", "mitchellcubic"):
        pytest.skip("Keras's smart_resize has fewer interpolations")
    options = {f"{how}_to_aspect_ratio": True} if how else {}
    theirs, ours = both(
        "image_dataset_from_directory",
        images,
        image_size=size,
        interpolation=interpolation,
        batch_size=None,
        shuffle=False,
        verbose=False,
        **options,
    )
    for (one, _), (other, _) in zip(theirs.as_numpy_iterator(), ours, strict=True):
        # TensorFlow takes the weights of bicubic from a table.
        tolerance = 0.5 if interpolation == "bicubic" else 1e-2
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64))
        assert difference.max() <= tolerance


@pytest.mark.parametrize("color_mode", ["rgb", "rgba", "grayscale"])
def test_colors(images, color_mode):
    theirs, ours = both(
        "image_dataset_from_directory",
        images,
        color_mode=color_mode,
        image_size=(8, 8),
        shuffle=False,
        verbose=False,
    )
    # Pillow and libpng round gray values differently.
    same_datasets(theirs, ours, 1.5 if color_mode == "grayscale" else 1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequence_stride": 3, "sampling_rate": 2},
        {"batch_size": None},
        {"shuffle": True, "seed": 5, "batch_size": 3},
        {"shuffle": True, "seed": 5, "batch_size": None},
        {"start_index": 3, "end_index": 25, "batch_size": 4},
    ],
)
@pytest.mark.parametrize("targets", [False, True])
def test_series(options, targets):
    series = np.random.default_rng(0).random((30, 2)).astype(np.float32)
    values = np.arange(30) if targets else None
    theirs, ours = both(
        "timeseries_dataset_from_array", series, values, sequence_length=4, **options
    )
    same_datasets(theirs, ours)


@pytest.mark.parametrize(
    ("left", "right"), [(0.8, None), (None, 0.3), (3, None), (3, 4), (0.5, 0.2)]
)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_parts(left, right, shuffle, nested):
    x = np.random.default_rng(0).random((13, 2)).astype(np.float32)
    given = (x, np.arange(13)) if nested else x
    theirs = keras.utils.split_dataset(
        given, left, right, shuffle, seed=3, preferred_backend="tensorflow"
    )
    ours = mc.nn.utils.split_dataset(given, left, right, shuffle, seed=3)
    for one, other in zip(theirs, ours, strict=True):
        same_datasets(one, other)


def test_a_bar_averages_as_keras_does():
    options = {"verbose": 0, "stateful_metrics": ["rate"]}
    bars = [utils.Progbar(9, **options) for utils in BOTH]
    steps = [(1, 0.5), (2, 1.5), (5, 2.5), (6, 1.0)]
    for bar in bars:
        for done, value in steps:
            bar.update(done, [("loss", value), ("rate", value)])
    theirs, ours = bars
    found = {name: total / count for name, (total, count) in theirs._values.items()}
    assert found == pytest.approx(ours.values)


def test_batches_by_number():
    class Numbers:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.full((2, 1), index)

    found = [
        [int(x[0, 0]) for x in type("Data", (Numbers, utils.PyDataset), {})()]
        for utils in BOTH
    ]
    assert found[0] == found[1] == [0, 1, 2]


def test_images_and_arrays():
    pixels = np.random.default_rng(0).random((5, 6, 3)) * 7
    for scale in (False, True):
        one, other = (
            utils.img_to_array(utils.array_to_img(pixels, scale=scale))
            for utils in BOTH
        )
        assert np.array_equal(one, other)


@pytest.mark.parametrize("mode", ["rgb", "rgba", "grayscale"])
@pytest.mark.parametrize("ratio", [False, True])
def test_images_of_files(images, mode, ratio):
    path = str(images / "a" / "0.png")
    one, other = (
        utils.img_to_array(
            utils.load_img(path, mode, (7, 5), "bilinear", keep_aspect_ratio=ratio)
        )
        for utils in BOTH
    )
    assert np.array_equal(one, other)
