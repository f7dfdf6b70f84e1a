"""Models that prepare their data beside Keras 3."""

from __future__ import annotations

import numpy as np
import pytest
from beside_keras import MARKS, OURS, keras

pytestmark = MARKS
RNG = np.random.default_rng(0)
IMAGES = RNG.random((3, 6, 9, 2), np.float32)

CASES = {
    "resizing": (lambda k: k.layers.Resizing(4, 11), IMAGES),
    "nearest": (lambda k: k.layers.Resizing(3, 3, "nearest"), IMAGES),
    "cropped": (lambda k: k.layers.Resizing(5, 5, crop_to_aspect_ratio=True), IMAGES),
    "middle": (lambda k: k.layers.CenterCrop(4, 5), IMAGES),
    "multi hot": (lambda k: k.layers.CategoryEncoding(5), RNG.integers(0, 5, (4, 3))),
    "one hot": (
        lambda k: k.layers.CategoryEncoding(5, "one_hot"),
        RNG.integers(0, 5, (4, 1)),
    ),
    "count": (
        lambda k: k.layers.CategoryEncoding(5, "count"),
        RNG.integers(0, 5, (4, 3)),
    ),
    "bins": (
        lambda k: k.layers.Discretization([-0.5, 0.0, 1.0]),
        RNG.normal(size=(6, 2)).astype("float32"),
    ),
    "rows of bins": (
        lambda k: k.layers.Discretization([-0.5, 1.0], output_mode="one_hot"),
        RNG.normal(size=(6, 1)).astype("float32"),
    ),
    "flip, off": (lambda k: k.layers.RandomFlip(), IMAGES),
    "contrast, off": (lambda k: k.layers.RandomContrast(0.3), IMAGES),
}


@pytest.mark.parametrize("name", CASES)
def test_in_a_model(name):
    make, data = CASES[name]
    results = []
    for k in (OURS, keras):
        dtype = "int32" if data.dtype.kind == "i" else "float32"
        x = k.Input(data.shape[1:], dtype=dtype)
        model = k.Model(x, make(k)(x))
        results.append((model.predict(data, verbose=0), model.output_shape))
    (ours, shape), (theirs, wanted) = results
    assert shape == wanted
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
