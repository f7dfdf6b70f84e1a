"""The scan of each weight's densities, and what it chooses."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.compression import Sensitivity, prune, sensitivity, share_weights

nn = mc.nn


def trained():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = np.float32(np.eye(3)[y].repeat(4, 1) + rng.normal(0, 0.4, (300, 12)))
    nn.set_random_seed(0)
    layers = [
        nn.Dense(16, activation="relu", name="a"),
        nn.Dense(3, activation="softmax", name="b"),
    ]
    model = nn.Sequential([nn.Input((12,)), *layers])
    model.compile(
        nn.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(x, y, epochs=4, verbose=0)
    return model, (x, y)


def test_each_score_is_that_of_a_model_with_one_weight_pruned():
    model, data = trained()
    before = model.get_weights()
    found = sensitivity(model, data, (0.5, 0.1))
    assert found.base == model.evaluate(*data, verbose=0)[1]
    for name, scores in found.scores.items():
        for density, score in scores.items():
            pruned = prune(model, {name: density})
            assert pruned.evaluate(*data, verbose=0)[1] == score
    assert all(map(np.array_equal, model.get_weights(), before))
    chosen = found.densities(0.02)
    assert chosen.keys() == {"a/kernel", "b/kernel"}
    prune(model, chosen)
    assert "a/kernel" in str(found)
    assert all(len(line) <= 80 for line in str(found).splitlines())
    shared = share_weights(prune(model, 0.5), 4)
    assert sensitivity(shared, data, (0.3,)).scores.keys() == found.scores.keys()


def test_the_choice_stops_at_the_first_density_that_loses_more():
    scores = {"w": {0.5: 0.9, 0.3: 0.7, 0.1: 0.95}, "v": {0.5: 0.2}}
    found = Sensitivity("accuracy", 0.91, scores)
    assert found.densities(0.02) == {"w": 0.5, "v": 1.0}
    assert found.densities(0.3) == {"w": 0.1, "v": 1.0}
    with pytest.raises(ValueError, match="zero or more"):
        found.densities(-1)


def test_what_is_refused():
    model, data = trained()
    with pytest.raises(ValueError, match="metric 'auc' is none of accuracy"):
        sensitivity(model, data, metric="auc")
    with pytest.raises(ValueError, match="a density must be above 0"):
        sensitivity(model, data, (0.0,))
    with pytest.raises(ValueError, match="densities has none"):
        sensitivity(model, data, ())
    with pytest.raises(ValueError, match="unknown structure"):
        sensitivity(model, data, structure="columns")
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match=r"metrics=\['accuracy'\]"):
        sensitivity(model, data)
