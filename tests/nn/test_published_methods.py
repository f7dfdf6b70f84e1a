"""The published methods on real networks: same bits, and the predicted peaks."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import GraphError

nn = mc.nn

THROUGH_TIME = ("bptt_hidden", "bptt_internal", "bptt_mixed")
METHODS = (
    "mxnet",
    "chen_sqrt",
    "chen_mirror",
    "chen_budget",
    "chen_recursive",
    "revolve",
    "rotor",
    "superneurons_speed",
    "superneurons_memory",
    "superneurons_cost",
)


def convolutions():
    layers = [nn.Input((8, 8, 3))]
    for _ in range(5):
        layers += [nn.Conv2D(4, 3, padding="same"), nn.BatchNormalization(), nn.ReLU()]
    return nn.Sequential([*layers, nn.Dropout(0.3), nn.Flatten(), nn.Dense(5)])


def residual():
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
    for _ in range(3):
        inner = nn.Conv2D(4, 3, padding="same", activation="relu")(h)
        inner = nn.Conv2D(4, 3, padding="same")(inner)
        h = nn.ReLU()(nn.Add()([h, inner]))
    return nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)))


def unrolled(steps: int = 10):
    """An LSTM that is called once for each step, with shared weights."""
    x = nn.Input((steps, 6))
    cell = nn.LSTM(16, return_state=True)
    state = None
    for step in range(steps):
        now = nn.Cropping1D((step, steps - 1 - step))(x)
        _, *state = cell(now) if state is None else cell(now, initial_state=state)
    return nn.Model(x, nn.Dense(5)(state[0]))


NETWORKS = {
    "convolutions": (convolutions, (8, 8, 3), METHODS),
    "residual": (residual, (8, 8, 3), METHODS),
    "unrolled": (unrolled, (10, 6), (*METHODS, *THROUGH_TIME)),
}


def trained(network, method):
    make, shape, _ = NETWORKS[network]
    nn.set_random_seed(5)
    model = make()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, memory=method)
    chance = np.random.default_rng(7)
    x = chance.standard_normal((16, *shape), np.float32)
    y = chance.integers(0, 5, 16)
    losses = [model.train_on_batch(x, y) for _ in range(4)]
    return model, losses


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_are_bit_identical_and_peaks_as_predicted(network):
    expected, losses = trained(network, "keep_all")
    for method in NETWORKS[network][2]:
        model, found = trained(network, method)
        assert found == losses
        weights = zip(expected.get_weights(), model.get_weights(), strict=True)
        assert all(np.array_equal(a, b) for a, b in weights)
        assert model.memory_plan.method == method
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == model.memory_plan.peak_bytes
        assert report.measured_peak_bytes < expected.memory_plan.peak_bytes


def test_states_of_an_unrolled_net_are_computed_again():
    peaks = {}
    for method in ("share", *THROUGH_TIME):
        model = unrolled()
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, memory=method)
        peaks[method] = model.plan(64).peak_bytes
    assert max(peaks[method] for method in THROUGH_TIME) < 0.6 * peaks["share"]


@pytest.mark.parametrize("method", THROUGH_TIME)
def test_a_net_without_cells_is_refused(method):
    model = residual()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, memory=method)
    with pytest.raises(GraphError, match="no repeated cells"):
        model.plan(4)
