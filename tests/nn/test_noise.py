"""Layers that draw: what they draw, and that they draw it again in a replay."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import run_kernel

import memcfg as mc
from memcfg import ops

nn = mc.nn


def uniform(count, step=3, key=12345):
    attributes = {"shape": (count,), "key": key}
    step = np.array(step, np.int64)
    (found,) = run_kernel("random_uniform", [step], [(count,)], attributes)
    return found


@pytest.mark.parametrize("count", [1, 5, 8192, 100_001])
def test_uniform_numbers_are_those_of_numpys_meaning(count):
    meaning = np.empty(count, np.float32)
    attributes = {"shape": (count,), "key": 12345}
    step = np.array(3, np.int64)
    ops.op_type("random_uniform").numpy(attributes, [step], [meaning])
    assert uniform(count).tobytes() == meaning.tobytes()


def test_uniform_numbers_lie_evenly_between_0_and_1():
    x = np.sort(uniform(200_000))
    assert x[0] > 0
    assert x[-1] < 1
    distance = np.abs(x - np.linspace(0, 1, len(x))).max()
    assert distance < 1.95 / np.sqrt(len(x))  # Kolmogorov and Smirnov, 0.1 %
    assert not np.array_equal(uniform(64, step=3), uniform(64, step=4))


def test_gaussian_noise_is_normal():
    u = uniform(200_000)
    (z,) = run_kernel(
        "gaussian_noise", [np.zeros_like(u), u], [u.shape], {"stddev": 2.0}
    )
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 2) < 0.02
    for sigmas, part in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs(np.mean(np.abs(z) < 2 * sigmas) - part) < 0.004
    assert np.isfinite(z).all()


def test_the_quantile_of_the_normal_distribution():
    u = np.array([2.0**-24, 0.001, 0.025, 0.5, 0.8413447, 0.975, 1 - 2.0**-24], "f4")
    zero = np.zeros_like(u)
    (z,) = run_kernel("gaussian_noise", [zero, u], [u.shape], {"stddev": 1.0})
    known = [-5.29480, -3.090232, -1.959964, 0, 1.0, 1.959964, 5.29480]
    np.testing.assert_allclose(z, known, rtol=2e-4, atol=1e-6)


LAYERS = {
    "gaussian noise": lambda: nn.GaussianNoise(0.5, seed=1),
    "gaussian dropout": lambda: nn.GaussianDropout(0.25, seed=1),
    "spatial dropout 2D": lambda: nn.SpatialDropout2D(0.5, seed=1),
    "dropout": lambda: nn.Dropout(0.5, seed=1),
}


def trained(make, **options):
    nn.set_random_seed(5)
    model = nn.Sequential(
        [
            nn.Input((4, 4, 6)),
            make(),
            nn.Conv2D(4, 3, activation="tanh"),
            make(),
            nn.Flatten(),
            nn.Dense(3),
        ]
    )
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1), loss, **options)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 4, 4, 6)).astype(np.float32)
    losses = [model.train_on_batch(x, np.arange(24) % 3) for _ in range(4)]
    return model, x, losses


@pytest.mark.parametrize("name", LAYERS)
def test_bits_are_the_same_under_every_policy_and_mode(name):
    model, _, expected = trained(LAYERS[name], memory="keep_all")
    weights = model.get_weights()
    others = [{"memory": policy} for policy in ("share", "sqrt_checkpoint")]
    modes = ("none", "single", "separate")
    others += [{"training_workspace_mode": mode} for mode in modes]
    for options in others:
        other, _, losses = trained(LAYERS[name], **options)
        assert losses == expected
        for one, two in zip(weights, other.get_weights(), strict=True):
            assert one.tobytes() == two.tobytes()
        other.close()


@pytest.mark.parametrize("name", LAYERS)
def test_each_step_draws_anew_and_prediction_draws_nothing(name):
    model, x, losses = trained(LAYERS[name])
    first, second = (model.predict(x, verbose=0) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert len(set(losses)) == len(losses)


def test_spatial_dropout_drops_whole_channels():
    model = nn.Sequential(
        [nn.Input((3, 3, 64)), nn.SpatialDropout2D(0.5), nn.Flatten(), nn.Dense(2)]
    )
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(1.0), loss)
    before = model.get_weights()[0].reshape(9, 64, 2)
    model.train_on_batch(np.ones((1, 3, 3, 64), np.float32), np.array([0]))
    moved = (model.get_weights()[0].reshape(9, 64, 2) != before).any(axis=2)
    assert (moved.all(axis=0) | ~moved.any(axis=0)).all()  # a channel as one
    assert 10 < moved.any(axis=0).sum() < 54


def test_the_limits_of_arguments():
    with pytest.raises(ValueError, match="zero or more"):
        nn.GaussianNoise(-1)
    with pytest.raises(ValueError, match="rate must be in"):
        nn.SpatialDropout2D(1.0)
    with pytest.raises(ValueError, match="sequences"):
        nn.SpatialDropout1D(0.5)(nn.Input((4,)))
