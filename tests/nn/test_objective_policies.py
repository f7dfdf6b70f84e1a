"""Losses and metrics are the same bits however memory is planned, and as planned."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
losses, metrics = nn.losses, nn.metrics


def real(random):
    return random.normal(size=(40, 3))


def bit(random):
    return random.integers(0, 2, (40, 3))


def label(random):
    return random.integers(0, 3, 40)


def hot(random):
    return np.eye(3)[label(random)]


# The end of the model, the loss, what it is measured by, and targets.
CASES = {
    "huber": (None, losses.Huber(0.3), ["mae", metrics.R2Score()], real),
    "cosine": (None, "cosine_similarity", ["cosine_similarity"], real),
    "hinge": (None, "squared_hinge", ["hinge"], bit),
    "binary": ("sigmoid", "binary_crossentropy", ["accuracy", "AUC", "Recall"], bit),
    "focal": ("sigmoid", losses.BinaryFocalCrossentropy(True), ["Precision"], bit),
    "dice": ("sigmoid", losses.Dice(axis=-1), [metrics.F1Score("macro", 0.5)], bit),
    "sparse": (
        "softmax",
        losses.SparseCategoricalCrossentropy(ignore_class=1),
        ["accuracy", metrics.SparseTopKCategoricalAccuracy(2)],
        label,
    ),
    "categorical": (
        "softmax",
        losses.CategoricalCrossentropy(label_smoothing=0.1),
        ["accuracy", metrics.F1Score("weighted"), "kl_divergence"],
        hot,
    ),
    "categorical hinge": (None, "categorical_hinge", ["categorical_accuracy"], hot),
}
OPTIONS = [
    {"memory": "keep_all"},
    {"memory": "share"},
    {"memory": "sqrt_checkpoint"},
    *(
        {"training_workspace_mode": mode, "inference_workspace_mode": mode}
        for mode in mc.WorkspaceMode
        if mode is not mc.WorkspaceMode.ENABLED
    ),
]


def trained(name, options):
    end, loss, measured, draw = CASES[name]
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 6)).astype(np.float32), draw(random)
    weight = random.uniform(0.1, 2, 40)
    nn.set_random_seed(3)
    layers = [nn.Dense(8, activation="tanh") for _ in range(4)]
    model = nn.Sequential([nn.Input((6,)), *layers, nn.Dense(3, activation=end)])
    model.compile("sgd", loss, metrics=measured, weighted_metrics=measured, **options)
    history = model.fit(x, y, 12, 2, verbose=0, sample_weight=weight, seed=1)
    numbers = (history.history, model.evaluate(x, y, verbose=0))
    if "memory" in options:
        peak = model.memory_plan.peak_bytes
        assert model.memory_report().measured_peak_bytes == peak
    weights = [each.tobytes() for each in model.get_weights()]
    model.close()
    return numbers, weights


@pytest.mark.strength(1)
@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_bits_are_the_same_and_peaks_as_planned(name, options):
    expected = trained(name, OPTIONS[0])
    assert all(np.isfinite(each).all() for each in expected[0][0].values())
    assert trained(name, options) == expected
