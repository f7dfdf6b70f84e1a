"""Layers that draw: what they draw, and that they draw it again in a replay."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn


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
