"""Every policy trains to the same bits; the limit is what it says."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import InfeasiblePlanError

nn = mc.nn


def chain():
    layers = []
    for _ in range(6):
        layers += [nn.Conv2D(4, 3, padding="same"), nn.ReLU()]
    return nn.Sequential([*layers, nn.Flatten(), nn.Dense(5)])


def residual():
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
    for _ in range(3):
        inner = nn.Conv2D(4, 3, padding="same", activation="relu")(h)
        inner = nn.Conv2D(4, 3, padding="same")(inner)
        h = nn.ReLU()(nn.Add()([h, inner]))
    h = nn.AveragePooling2D(3, 2, padding="same")(h)
    return nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)))


def noisy():
    shared = nn.Conv2D(4, 3, padding="same")
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", use_bias=False)(x)
    h = nn.Dropout(0.2)(nn.ReLU()(nn.BatchNormalization()(h)))
    h = nn.ReLU()(nn.BatchNormalization()(shared(h)))
    h = nn.Add()([nn.Dropout(0.1)(h), shared(h)])
    h = nn.MaxPool2D()(h)
    return nn.Model(x, nn.Dense(5)(nn.Dropout(0.5)(nn.Flatten()(h))))


NETWORKS = {"chain": chain, "residual": residual, "noisy": noisy}
OPTIMIZERS = {
    "momentum": lambda: nn.SGD(0.05, momentum=0.9),
    "adam": lambda: nn.Adam(0.01),
}


def trained(network, optimizer, policy, images, loss):
    """Twenty steps, in two batch sizes."""
    nn.set_random_seed(3)
    model = NETWORKS[network]()
    model.compile(OPTIMIZERS[optimizer](), loss, metrics=["accuracy"], memory=policy)
    history = model.fit(
        *images, batch_size=12, epochs=5, verbose=0, seed=1, validation_split=0.05
    )
    assert model.optimizer.iterations == 20
    return model, history.history


POLICIES = ("share", "replay_elementwise", "sqrt_checkpoint", "look_ahead", "auto")


@pytest.mark.strength(1)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_are_bit_identical_after_twenty_steps(network, optimizer, images, loss):
    expected, numbers = trained(network, optimizer, "keep_all", images, loss)
    peaks = [expected.memory_plan.peak_bytes]
    for policy in POLICIES:
        model, found = trained(network, optimizer, policy, images, loss)
        assert found == numbers
        for first, second in zip(
            expected.get_weights(), model.get_weights(), strict=True
        ):
            assert np.isfinite(first).all()
            assert np.array_equal(first, second)
        peaks.append(model.memory_plan.peak_bytes)
    assert max(peaks[1:]) < peaks[0]
    assert max(peaks[2:5]) <= peaks[1]


@pytest.mark.strength(1)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("policy", POLICIES)
def test_reports_agree_with_the_plan_and_change_no_weight(
    network, policy, images, loss
):
    model = NETWORKS[network]()
    model.compile("adam", loss, memory=policy)
    model.train_on_batch(*images)
    weights = model.get_weights()
    predicted = model.memory_plan.peak_bytes
    assert model.memory_report().measured_peak_bytes == predicted
    assert model.memory_report(verify=True).measured_peak_bytes == predicted
    for first, second in zip(weights, model.get_weights(), strict=True):
        assert np.array_equal(first, second)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_limit_is_real(cpu, policy, images, loss):
    """At the peak it trains; one byte under it is refused before anything is taken."""
    model = chain()
    model.build((None, 8, 8, 3))
    model.compile("sgd", loss, memory=policy, on_oom="raise")
    mc.config.set_memory_limit(cpu, 1024)
    with pytest.raises(InfeasiblePlanError) as caught:
        model.plan(40)
    peak = caught.value.smallest_limit_bytes
    mc.config.set_memory_limit(cpu, peak - 1)
    with pytest.raises(InfeasiblePlanError):
        model.train_on_batch(*images)
    assert mc.config.get_memory_info("CPU:0") == {"current": 0, "peak": 0}
    mc.config.set_memory_limit(cpu, peak)
    model.train_on_batch(*images)
    assert model.memory_plan.peak_bytes == peak
    assert mc.config.get_memory_info("CPU:0") == {"current": peak, "peak": peak}


def test_a_models_programs_share_one_arena(images, loss):
    model = noisy()
    model.compile("adam", loss)
    model.fit(*images, batch_size=16, verbose=0, validation_split=0.1)
    model.predict(images[0], batch_size=40, verbose=0)
    plans = model._session.executor.plans.values()
    assert len(plans) == 4
    peak = max(plan.peak_bytes for plan in plans)
    assert mc.config.get_memory_info("CPU:0")["current"] == peak


def test_programs_that_no_longer_fit_make_room(cpu, images, loss):
    """The optimizer's state comes with the first step; a large prediction goes."""
    x, y = images
    model = chain()
    model.compile("adam", loss, memory="share", on_oom="raise")
    expected = model.predict(x, batch_size=40, verbose=0)
    peak = model.memory_plan.peak_bytes
    mc.config.set_memory_limit(cpu, peak)
    model.train_on_batch(x[:2], y[:2])  # would not fit beside that prediction
    assert mc.config.get_memory_info("CPU:0")["current"] <= peak
    with pytest.raises(InfeasiblePlanError):
        model.predict(x, batch_size=40, verbose=0)
    small = model.predict(x, batch_size=20, verbose=0)
    assert small.shape == expected.shape
    assert model.optimizer.iterations == 1


def test_sharing_takes_a_third_of_twenty_convolutions():
    def plan(policy):
        layers = [nn.Input((16, 16, 3))]
        for _ in range(20):
            layers += [nn.Conv2D(16, 3, padding="same"), nn.ReLU()]
        model = nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(10)])
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, memory=policy)
        return model.plan(batch_size=64)

    everything = plan(mc.plan.keep_all()).peak_bytes
    assert plan(mc.plan.share()).peak_bytes <= 0.35 * everything
    assert plan(mc.plan.sqrt_checkpoint()).peak_bytes <= 0.15 * everything
