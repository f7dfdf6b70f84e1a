"""Layers around layers, states between batches, and calls in a mode of their own."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
STEPS, BATCH = 4, 4
KINDS = {"simple": nn.SimpleRNN, "lstm": nn.LSTM, "gru": nn.GRU}


def frames():
    """A net of images, for each frame of a film."""
    layers = [nn.Conv2D(3, 3, activation="relu"), nn.MaxPool2D(), nn.Flatten()]
    return nn.Sequential([nn.Input((6, 6, 1)), *layers, nn.Dense(4)])


class Scaled(nn.Layer):
    """A layer of a user's own, of a weight and a layer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(3)

    def build(self, input_shape):
        self.scale = self.add_weight((input_shape[-1],), "ones", name="scale")

    def call(self, x):
        return self.inner(x * self.scale)


def bidirectional(kind="lstm", **options):
    layer = KINDS[kind](3, return_sequences=True, **options)
    return [nn.Bidirectional(layer), nn.Bidirectional(nn.GRU(2), "sum")]


FAMILIES = {
    "both directions": lambda: ((5,), [*bidirectional()]),
    "both directions, relu": lambda: ((5,), bidirectional("simple", activation="relu")),
    "both directions, stateful": lambda: ((5,), bidirectional(stateful=True)),
    "stateful lstm": lambda: ((5,), [nn.LSTM(3, stateful=True, dropout=0.2)]),
    "stateful gru": lambda: ((5,), [nn.GRU(3, stateful=True, unroll=True)]),
    "dense of steps": lambda: ((5,), [nn.TimeDistributed(nn.Dense(3, "tanh"))]),
    "own layer of steps": lambda: ((5,), [nn.TimeDistributed(Scaled())]),
    "net of frames": lambda: (
        (6, 6, 1),
        [nn.TimeDistributed(frames()), nn.Bidirectional(nn.LSTM(2, stateful=True))],
    ),
}
POLICIES = ("keep_all", "share", "sqrt_checkpoint", "auto")


def made(family, *, frozen=False, policy=None, steps=None):
    nn.set_random_seed(5)
    shape, layers = FAMILIES[family]()
    if frozen:
        for each in inner(layers[0]):
            each.trainable = False
    first = nn.Input((STEPS, *shape), batch_size=BATCH)
    model = nn.Sequential([first, *layers, nn.Flatten(), nn.Dense(1)])
    optimizer = nn.Adam(0.02, gradient_accumulation_steps=steps)
    model.compile(optimizer, "mse", memory=policy)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * BATCH, STEPS, *shape)).astype("f4")
    return model, x, x.mean(tuple(range(1, x.ndim)))[:, None]


def inner(layer):
    if isinstance(layer, nn.Bidirectional):
        return [layer.forward_layer, layer.backward_layer]
    return [getattr(layer, "layer", layer)]


@pytest.mark.strength(1)
@pytest.mark.parametrize("accumulated", [None, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_policies_have_the_same_bits_and_the_peak_that_they_say(family, accumulated):
    found = []
    for policy in POLICIES:
        model, x, y = made(family, policy=policy, steps=accumulated)
        history = model.fit(x, y, BATCH, 2, 0, shuffle=False).history["loss"]
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == model.memory_plan.peak_bytes
        weights = [each.tobytes() for each in model.get_weights()]
        found.append((history, weights, model.predict(x, BATCH, 0).tobytes()))
        model.close()
    assert all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_frozen_inside_has_no_gradient_state_or_bytes(family):
    plain, x, y = made(family)
    model, *_ = made(family, frozen=True)
    first = model.layers[0]
    assert first.trainable_weights == []
    assert len(model.trainable_weights) == len(plain.trainable_weights) - len(
        first.weights
    )
    before = [each.numpy() for each in first.weights]
    for each in (plain, model):
        each.train_on_batch(x[:BATCH], y[:BATCH])
    assert all(map(np.array_equal, before, [each.numpy() for each in first.weights]))
    states = [
        sum(tensor.role == "optimizer_state" for tensor in each.graph(BATCH).tensors)
        for each in (plain, model)
    ]
    assert states[0] - states[1] == 4 * len(first.weights)  # two, old and new
    assert model.memory_plan.peak_bytes < plain.memory_plan.peak_bytes
    for each in inner(first):  # and trained again, once it is compiled again
        each.trainable = True
    model.compile("sgd", "mse")
    model.train_on_batch(x[:BATCH], y[:BATCH])
    assert not all(
        map(np.array_equal, before, [each.numpy() for each in first.weights])
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_stays_frozen_inside(family, tmp_path):
    if family.startswith("own"):
        return  # whose class a file has not
    model, x, y = made(family, frozen=True)
    model.fit(x, y, BATCH, 1, 0, shuffle=False)
    model.save(tmp_path / "m.memcfg")
    again = nn.models.load_model(tmp_path / "m.memcfg")
    assert [each.shape for each in again.trainable_weights] == [
        each.shape for each in model.trainable_weights
    ]
    numbers = [each.fit(x, y, BATCH, 1, 0, shuffle=False) for each in (model, again)]
    assert numbers[0].history == numbers[1].history


@pytest.mark.parametrize("functional", [False, True])
def test_a_model_at_every_step_is_the_model_of_each(functional):
    single = frames()
    if functional:
        start = nn.Input((6, 6, 1))
        single = nn.Model(start, nn.Dense(2)(frames()(start)))
    x = np.random.default_rng(1).normal(size=(3, STEPS, 6, 6, 1)).astype("f4")
    wanted = np.stack([single.predict(x[:, t], verbose=0) for t in range(STEPS)], 1)
    film = nn.Input((STEPS, 6, 6, 1))
    model = nn.Model(film, nn.TimeDistributed(single)(film))
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, 1e-5, 1e-6)
    assert len(model.weights) == len(single.weights)
    assert model.count_params() == single.count_params()


def test_a_layer_of_ones_own_at_every_step():
    layer = Scaled()
    start = nn.Input((STEPS, 5))
    model = nn.Model(start, nn.TimeDistributed(layer)(start))
    scale, kernel, bias = model.get_weights()
    assert np.array_equal(scale, np.ones(5))
    values = [np.arange(5, dtype="f4"), kernel, bias + 1]
    model.set_weights(values)
    x = np.random.default_rng(1).normal(size=(3, STEPS, 5)).astype("f4")
    wanted = (x * values[0]) @ kernel + values[2]
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, 1e-5, 1e-6)


def test_both_layers_may_have_one_name_and_one_layer_two_places():
    start = nn.Input((STEPS, 2))
    ends = [nn.GRU(3, go_backwards=back, name="same") for back in (False, True)]
    h = nn.Bidirectional(ends[0], backward_layer=ends[1])(start)
    model = nn.Model(start, [h, ends[0](start)])
    assert len({each.path for each in model.weights}) == len(model.weights) == 6
    x = np.random.default_rng(1).normal(size=(3, STEPS, 2)).astype("f4")
    both, alone = model.predict(x, verbose=0)
    assert np.array_equal(both[:, :3], alone)


class Drops(nn.Layer):
    """A layer of a user's own that hands its mode on."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def call(self, x, training=None):
        return self.drop(x, training=training)


def drops():
    return nn.Sequential([nn.Input((200,)), nn.Dropout(0.5)])


def again(model, way, tmp_path):
    """The same model, or what a copy or a file makes of it."""
    if way == "saved":
        model.save(tmp_path / "m.memcfg")
        return nn.models.load_model(tmp_path / "m.memcfg", {"Drops": Drops})
    return copy.deepcopy(model) if way == "copied" else model


@pytest.mark.parametrize("way", ["made", "copied", "saved"])
@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.5), Drops, drops])
@pytest.mark.parametrize("mode", [None, True, False])
def test_a_call_may_say_whether_it_trains(make, mode, way, tmp_path):
    start = nn.Input((200,))
    model = again(nn.Model(start, make()(start, training=mode)), way, tmp_path)
    model.compile("sgd", "mse")
    x = np.ones((8, 200), "f4")
    one, two = (model.predict(x, verbose=0) for _ in range(2))
    dropped = (one == 0).mean()
    assert 0.4 < dropped < 0.6 if mode else dropped == 0
    assert np.array_equal(one, two) != bool(mode)  # each batch draws anew
    assert (model.evaluate(x, x, verbose=0) > 0) == bool(mode)
    ops = [op.type for op in model.graph(8).ops]
    assert ("dropout" in ops) == (mode is not False)
    assert model.memory_report().measured_peak_bytes == model.memory_plan.peak_bytes


def test_a_model_that_is_called_as_in_prediction_keeps_its_averages():
    base = nn.Sequential([nn.Input((3,)), nn.BatchNormalization()])
    start = nn.Input((3,))
    x = np.random.default_rng(0).normal(4, 2, (16, 3)).astype("f4")
    for mode in (False, None):
        model = nn.Model(start, nn.Dense(1)(base(start, training=mode)))
        model.compile(nn.SGD(0.0), "mse")
        before = base.get_weights()
        model.fit(x, x[:, :1], verbose=0)
        changed = [
            not np.array_equal(*p) for p in zip(before, base.get_weights(), strict=True)
        ]
        assert changed == [False, False, mode is None, mode is None]
        model.close()


def test_both_directions_keep_states_where_their_layer_does():
    for stateful in (False, True):
        assert nn.Bidirectional(nn.LSTM(2, stateful=stateful)).stateful is stateful
