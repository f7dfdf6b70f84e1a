"""Published methods on real networks: the same bits, and the predicted peaks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from covering import covering

import memcfg as mc
from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.plan import Compute

nn = mc.nn
plan = mc.plan

THROUGH_TIME = ("bptt_hidden", "bptt_internal", "bptt_mixed")
SMALL = ("checkmate", "retention_intervals")  # they refuse graphs of many ops
METHODS = [
    name
    for name, make in mc.plan.POLICIES.items()
    if make().lossless
    and name not in (*THROUGH_TIME, *SMALL, "keep_all", "checkmate_lp")
]
# Graphs with more lower sets are refused by the exact program.
NARROW = [name for name in METHODS if not name.startswith("kusumoto_exact")]


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


def unet():
    x = nn.Input((8, 8, 3))
    fine = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
    middle = nn.Conv2D(8, 3, padding="same", activation="relu")(nn.MaxPool2D()(fine))
    coarse = nn.Conv2D(8, 3, padding="same", activation="relu")(nn.MaxPool2D()(middle))
    for skip in (middle, fine):
        coarse = nn.Concatenate()([nn.UpSampling2D()(coarse), skip])
        coarse = nn.Conv2D(4, 3, padding="same", activation="relu")(coarse)
    return nn.Model(x, nn.Dense(5)(nn.Flatten()(coarse)))


def densely_connected():
    h = x = nn.Input((8, 8, 3))
    for _ in range(4):
        new = nn.Conv2D(4, 3, padding="same")(nn.ReLU()(nn.BatchNormalization()(h)))
        h = nn.Concatenate()([h, new])
    return nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)))


def attention():
    h = x = nn.Input((10, 8))
    for _ in range(2):
        h = nn.Add()([h, nn.MultiHeadAttention(2, 4)(h, h)])
        inner = nn.Dense(16, activation="gelu")(nn.LayerNormalization()(h))
        h = nn.Add()([h, nn.Dense(8)(inner)])
    return nn.Model(x, nn.Dense(5)(nn.Flatten()(h)))


def small():
    layers = [nn.Input((32,))]
    layers += [nn.Dense(32, activation="tanh") for _ in range(4)]
    return nn.Sequential([*layers, nn.Dense(5)])


NETWORKS = {
    "convolutions": (convolutions, (8, 8, 3), METHODS),
    "residual": (residual, (8, 8, 3), METHODS),
    "unet": (unet, (8, 8, 3), METHODS),
    "densely connected": (densely_connected, (8, 8, 3), METHODS),
    "unrolled": (unrolled, (10, 6), (*NARROW, *THROUGH_TIME)),
    "attention": (attention, (10, 8), NARROW),
    "small": (small, (32,), (*METHODS, *SMALL, "checkmate_lp")),
}


def trained(network, method):
    make, shape, _ = NETWORKS[network]
    nn.set_random_seed(5)
    model = make()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, memory=method, on_oom="raise")
    chance = np.random.default_rng(7)
    x = chance.standard_normal((16, *shape), np.float32)
    y = chance.integers(0, 5, 16)
    losses = [model.train_on_batch(x, y) for _ in range(10)]
    return model, losses


def measured(model) -> int:
    return model.memory_report(verify=True).measured_peak_bytes


@cache
def undisturbed(network):
    """Losses, weights and the peak where everything is kept."""
    model, losses = trained(network, "keep_all")
    found = losses, model.get_weights(), model.memory_plan.peak_bytes
    model.close()
    return found


CELLS = [(network, method) for network in NETWORKS for method in NETWORKS[network][2]]
# Each network and each method once; tests/plan validates plans of graphs of all kinds.
ORDINARY = covering(CELLS, 1)


@pytest.mark.parametrize(
    ("network", "method"),
    [
        pytest.param(*cell, marks=[] if place in ORDINARY else [pytest.mark.slow])
        for place, cell in enumerate(CELLS)
    ],
)
def test_weights_are_bit_identical_and_peaks_as_predicted(network, method, cpu):
    """After ten steps, without a limit, and within one or the smallest there is."""
    losses, expected, most = undisturbed(network)
    for limit in (None, most * 2 // 5):
        mc.config.set_memory_limit(cpu, limit)
        try:
            model, found = trained(network, method)
        except InfeasiblePlanError as refusal:
            limit = refusal.smallest_limit_bytes
            mc.config.set_memory_limit(cpu, limit)
            model, found = trained(network, method)
        weights = zip(expected, model.get_weights(), strict=True)
        plan = model.memory_plan
        if any(isinstance(a, Compute) and a.algorithm for a in plan.actions):
            assert np.allclose(found, losses, rtol=1e-3)
            assert all(np.allclose(a, b, rtol=0, atol=2e-3) for a, b in weights)
        else:
            assert found == losses
            assert all(np.array_equal(a, b) for a, b in weights)
        assert model.memory_plan.method == method or method.startswith("auto")
        assert measured(model) == model.memory_plan.peak_bytes < most
        assert limit is None or model.memory_plan.peak_bytes <= limit
        model.close()


CHAINS = [
    plan.chain(plan.in_place()),
    plan.chain(plan.order(), plan.recompute("rotor"), plan.place()),
    plan.chain(plan.order(), plan.in_place(), plan.recompute("chen_sqrt")),
    plan.chain(
        plan.order(), plan.in_place(), plan.recompute("look_ahead"), plan.place()
    ),
]


@pytest.mark.parametrize("network", ["residual", "densely connected", "attention"])
def test_chains_train_with_the_same_bits_and_the_predicted_peak(network):
    losses, expected, most = undisturbed(network)
    for policy in CHAINS:
        model, found = trained(network, policy)
        assert found == losses
        weights = zip(expected, model.get_weights(), strict=True)
        assert all(np.array_equal(a, b) for a, b in weights)
        assert model.memory_plan.method == policy.name
        assert measured(model) == model.memory_plan.peak_bytes < most
        model.close()


def test_states_of_an_unrolled_net_are_computed_again():
    peaks = {}
    for method in ("share", *THROUGH_TIME):
        model = unrolled()
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, memory=method, on_oom="raise")
        peaks[method] = model.plan(64).peak_bytes
    assert max(peaks[method] for method in THROUGH_TIME) < 0.6 * peaks["share"]


@pytest.mark.parametrize("method", THROUGH_TIME)
def test_a_net_without_cells_is_refused(method):
    model = residual()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, memory=method, on_oom="raise")
    with pytest.raises(GraphError, match="no repeated cells"):
        model.plan(4)
