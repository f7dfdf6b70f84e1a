"""Ops that read images at places between pixels, beside Keras's."""

from __future__ import annotations

import os

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
FILL_MODES = ["constant", "nearest", "wrap", "mirror", "reflect"]
X = np.random.default_rng(0).random((2, 7, 9, 3)).astype(np.float32)


def same(name, *args, tolerance=2e-5, **options):
    theirs = getattr(keras.ops.image, name)(*args, **options)
    theirs = np.asarray(keras.ops.convert_to_numpy(theirs))
    ours = getattr(mc.nn.ops.image, name)(*args, **options)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("fill_mode", FILL_MODES)
def test_affine_transform(fill_mode, interpolation):
    """Keras ignores the last two numbers, whose meaning it documents."""
    rows = [[0.9, 0.1, 1.3, -0.2, 1.1, -1.5, 0, 0], [1, 0.3, -4, 0, 1.2, 3, 0, 0]]
    options = {"interpolation": interpolation, "fill_mode": fill_mode}
    rows = np.array(rows, np.float32)
    same("affine_transform", X, rows, fill_value=0.5, **options)
    same("affine_transform", X[0], rows[0], **options)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("fill_mode", FILL_MODES)
def test_map_coordinates(fill_mode, order):
    rng = np.random.default_rng(1)
    for x in (X[0, ..., 0], X[0], X[0, 0, :, 0]):
        places = rng.uniform(-12, 12, (x.ndim, 4, 5)).astype(np.float32)
        same("map_coordinates", x, places, order, fill_mode=fill_mode, fill_value=0.25)


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_perspective_transform(interpolation):
    start = np.array([[0, 0], [8, 0], [0, 6], [8, 6]], np.float32)
    moves = np.random.default_rng(2).normal(size=(2, 4, 2)).astype(np.float32)
    options = {"interpolation": interpolation, "fill_value": 0.5}
    same("perspective_transform", X, np.stack([start] * 2), start + moves, **options)
    same("perspective_transform", X[0], start, start + moves[0], **options)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("method", ["linear", "cubic", "lanczos3", "lanczos5"])
def test_scale_and_translate(method, antialias):
    scale, move = np.array([0.6, 1.7]), np.array([0.3, -1.2])
    given = scale.astype(np.float32), move.astype(np.float32), (1, 2)
    same("scale_and_translate", X, (2, 5, 14, 3), *given, method, antialias)


def test_elastic_transform():
    """Its noise is each framework's own: no noise moves nothing, much moves alike."""
    same("elastic_transform", X, 0.0, 1.0, seed=1)
    spread = []
    ramp = np.mgrid[:24, :24].transpose(1, 2, 0)[None].astype(np.float32)
    for layers in (keras.ops, mc.nn.ops):
        made = layers.image.elastic_transform(ramp, 3.0, 2.0, seed=5)
        made = np.asarray(keras.ops.convert_to_numpy(made))
        spread.append((made - ramp)[0, 8:16, 8:16].std())
    assert 0.4 < spread[0] / spread[1] < 2.5
