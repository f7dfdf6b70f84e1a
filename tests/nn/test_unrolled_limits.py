"""Unrolled recurrent layers within limits: each step computes all that it needs."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
KINDS = {"simple": nn.SimpleRNN, "gru": nn.GRU, "lstm": nn.LSTM}
BATCH, UNITS, FEATURES = 8, 16, 4


@pytest.fixture(autouse=True)
def unlimited():
    """Restore the limit of the device."""
    before = mc.config.get_memory_limit("CPU:0")
    yield
    mc.config.set_memory_limit("CPU:0", before)


def one_layer(kind, **options):
    return lambda x: KINDS[kind](UNITS, unroll=True, **options)(x)


def two_layers(x):
    h = nn.LSTM(UNITS, unroll=True, return_sequences=True)(x)
    return nn.GRU(UNITS, unroll=True)(h)


def sequences(x):
    h = nn.LSTM(UNITS, unroll=True, return_sequences=True)(x)
    return nn.GlobalAveragePooling1D()(h)


def both_directions(x):
    return nn.Bidirectional(nn.LSTM(UNITS, unroll=True))(x)


def masked(x):
    return nn.LSTM(UNITS, unroll=True)(nn.Masking()(x))


def network(make, steps):
    nn.set_random_seed(0)
    x = nn.Input((steps, FEATURES), batch_size=BATCH)
    return nn.Model(x, nn.Dense(3)(make(x)), name="net")


def data(steps):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, steps, FEATURES)).astype("f4")
    x[::2, -3:] = 0
    return x, rng.normal(size=(BATCH, 3)).astype("f4")


def trained(make, steps, policy, limit=None):
    """Train two steps; return the peak and everything that training changes."""
    mc.config.set_memory_limit("CPU:0", limit)
    model = network(make, steps)
    model.compile(nn.SGD(0.1), "mse", memory=policy)
    losses = [model.train_on_batch(*data(steps)) for _ in range(2)]
    report = model.memory_report()
    assert report.measured_peak_bytes == model.memory_plan.peak_bytes
    bits = [np.float32(losses).tobytes(), *(w.tobytes() for w in model.get_weights())]
    model.close()
    return report.measured_peak_bytes, bits


T_64 = [
    ("simple", 64),
    ("gru", 24),
    ("lstm", 24),
    *(pytest.param(kind, 64, marks=pytest.mark.slow) for kind in ("gru", "lstm")),
]


@pytest.mark.parametrize(("kind", "steps"), T_64)
def test_training_through_time_fits_four_tenths_of_share(kind, steps):
    """Bits are those of the same network without a limit."""
    share, wanted = trained(one_layer(kind), steps, "share")
    limit = share * 4 // 10
    peak, found = trained(one_layer(kind), steps, mc.plan.bptt_mixed(), limit)
    assert peak <= limit
    assert found == wanted


@pytest.mark.parametrize(
    ("kind", "steps", "part"),
    [("simple", 24, 0.6), pytest.param("lstm", 64, 0.4, marks=pytest.mark.slow)],
)
def test_auto_recomputes_steps(kind, steps, part):
    share, wanted = trained(one_layer(kind), steps, "share")
    limit = int(share * part)
    peak, found = trained(one_layer(kind), steps, "auto", limit)
    assert peak <= limit
    assert found == wanted


NETWORKS = {
    # what makes it, the policy, and the part of the peak of `share` that it may need
    "two layers": (two_layers, "bptt_hidden", 0.55),
    "sequences": (sequences, "bptt_hidden", 0.62),
    "both directions": (both_directions, "sqrt_checkpoint", 0.5),
    "masked": (masked, "bptt_hidden", 0.62),
    "dropout": (one_layer("gru", dropout=0.3), "bptt_hidden", 0.62),
    "stateful": (one_layer("lstm", stateful=True), "bptt_hidden", 0.62),
    "no reset after": (one_layer("gru", reset_after=False), "bptt_hidden", 0.68),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_unrolled_layers_recompute_their_steps(name):
    """The least peak of a checkpoint method; before, all were above 0.9."""
    make, policy, part = NETWORKS[name]
    model = network(make, 12)
    model.compile(nn.SGD(0.1), "mse")
    graph = model.graph(BATCH)
    least = getattr(mc.plan, policy)()(graph).peak_bytes
    assert least <= part * mc.plan.share()(graph).peak_bytes


def test_nothing_of_a_whole_sequence_is_made():
    """Neither in two layers nor in their gradients; the input is given."""
    model = network(two_layers, 8)
    model.compile(nn.SGD(0.1), "mse")
    graph = model.graph(BATCH)
    made = {t for op in graph.ops for t in op.outputs}
    assert all(graph.tensors[t].shape[:2] != (BATCH, 8) for t in made)
