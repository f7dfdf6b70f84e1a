"""Cells, and layers that call one at each step, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
BATCH, STEPS = 3, 4


def samples(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Leaky(nn.Layer):
    """h' = h / 2 + x @ kernel; a count of steps is a state beside it."""

    def __init__(self, units, name=None):
        super().__init__(name=name)
        self.units = units
        self.state_size = [units, 1]

    def build(self, input_shape):
        self.kernel = self.add_weight((input_shape[-1], self.units), name="kernel")

    def call(self, x, states):
        h, count = states
        h = 0.5 * h + x @ self.kernel
        return h * h, [h, count + 1]


def leaky(x, kernel):
    """Outputs of all steps, and the last state."""
    h, outputs = np.zeros((len(x), kernel.shape[1]), np.float32), []
    for t in range(x.shape[1]):
        h = 0.5 * h + x[:, t] @ kernel
        outputs.append(h * h)
    return np.stack(outputs, 1), h


def test_a_cell_of_ones_own_is_carried_through_the_steps(tmp_path):
    x = samples(BATCH, STEPS, 2)
    start = nn.Input((STEPS, 2))
    layer = nn.RNN(Leaky(3), return_sequences=True, return_state=True)
    model = nn.Model(start, list(layer(start)))
    (kernel,) = model.get_weights()
    assert model.weights[0].path.endswith("/leaky/kernel")
    y, h, count = model.predict(x, verbose=0)
    wanted, last = leaky(x, kernel)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h, last, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(count, STEPS)
    path = tmp_path / "model.memcfg"
    model.save(path)
    loaded = nn.models.load_model(path, custom_objects={"Leaky": Leaky})
    np.testing.assert_array_equal(loaded.predict(x, verbose=0)[0], y)


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_a_cell_computes_a_step_of_its_layer(kind):
    x = samples(BATCH, STEPS, 2)
    start = nn.Input((STEPS, 2))
    whole = nn.Model(start, getattr(nn, kind)(3)(start))
    stepped = nn.Model(start, nn.RNN(getattr(nn, f"{kind}Cell")(3))(start))
    stepped.set_weights(whole.get_weights())
    np.testing.assert_allclose(
        stepped.predict(x, verbose=0), whole.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


def trained(make, policy, steps=3):
    nn.set_random_seed(3)
    start = nn.Input((8, 2), batch_size=BATCH)
    model = nn.Model(start, nn.Dense(1)(make()(start)))
    model.compile("adam", "mse", memory=policy)
    for _ in range(steps):
        model.train_on_batch(samples(BATCH, 8, 2), samples(BATCH, 1, seed=1))
    weights = model.get_weights()
    report = model.memory_report()
    model.close()
    return weights, report


CASES = {
    "own": lambda: nn.RNN(Leaky(5)),
    "stack with dropout": lambda: nn.RNN(
        [
            nn.LSTMCell(4, dropout=0.3, seed=1),
            nn.GRUCell(3, recurrent_dropout=0.2, seed=2),
        ]
    ),
    "both directions": lambda: nn.Bidirectional(nn.RNN(nn.LSTMCell(4))),
    "stateful": lambda: nn.RNN(nn.GRUCell(4), stateful=True),
}


@pytest.mark.parametrize("case", CASES)
def test_policies_have_the_same_bits_and_the_peak_that_they_say(case):
    wanted, _ = trained(CASES[case], "keep_all")
    for policy in ("share", "sqrt_checkpoint"):
        found, report = trained(CASES[case], policy)
        assert all(map(np.array_equal, found, wanted))
        assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_dropout_is_the_same_at_all_steps():
    """Of inputs of ones through a kernel of ones: what is kept says which are."""
    nn.set_random_seed(0)
    start = nn.Input((STEPS, 64))
    cell = nn.SimpleRNNCell(
        1,
        activation=None,
        use_bias=False,
        kernel_initializer="ones",
        recurrent_initializer="zeros",
        dropout=0.5,
    )
    layer = nn.RNN(cell, return_sequences=True)
    model = nn.Model(start, [layer(start, training=True) for _ in range(2)])
    drawn = model.predict(np.ones((BATCH, STEPS, 64), np.float32), verbose=0)
    for found in drawn:
        assert (found == found[:, :1]).all()
        assert len(np.unique(found[:, 0])) > 1
    assert not np.array_equal(*drawn)  # each call draws its own


@pytest.mark.parametrize(
    ("cell", "error", "message"),
    [
        (lambda: nn.Dense(3), TypeError, "expects a cell, a layer with the attribute"),
        (lambda: 3, TypeError, "expects a cell"),
        (list, ValueError, "needs a cell"),
        (lambda: [nn.LSTMCell(2), nn.Dense(2)], TypeError, "StackedRNNCells expects"),
    ],
)
def test_what_is_no_cell_is_refused(cell, error, message):
    with pytest.raises(error, match=message):
        nn.RNN(cell())


def test_what_a_cell_returns_is_checked():
    class Alone(Leaky):
        def call(self, x, states):
            return states[0]

    class Fewer(Leaky):
        def call(self, x, states):
            return states[0], [states[0]]

    class Starting(Leaky):
        def get_initial_state(self, batch_size=None):
            return [np.ones((batch_size, 3))]

    for kind, message in ((Alone, "no pair of an output"), (Fewer, "returns 1 states")):
        with pytest.raises(ValueError, match=message):
            nn.RNN(kind(3))(nn.Input((STEPS, 2)))
    with pytest.raises(TypeError, match="get_initial_state, which is not called"):
        nn.RNN(Starting(3))
    x = nn.Input((STEPS, 2))
    with pytest.raises(ValueError, match="expects sequences and 2 initial states"):
        nn.RNN(nn.LSTMCell(3))(x, initial_state=[nn.Input((3,))])
    with pytest.raises(ValueError, match=r"must have shape \(None, 3\)"):
        nn.RNN(nn.GRUCell(3))(x, initial_state=[nn.Input((4,))])
    with pytest.raises(ValueError, match="stateful=True needs a fixed batch size"):
        nn.RNN(nn.GRUCell(3), stateful=True)(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def convolved(x, kernel):
    """By "same", of sequences [batch, length, channels]."""
    before = (len(kernel) - 1) // 2
    padded = np.pad(x, ((0, 0), (before, len(kernel) - 1 - before), (0, 0)))
    return sum(padded[:, i : i + x.shape[1]] @ kernel[i] for i in range(len(kernel)))


def test_a_convolutional_layer_is_an_lstm_of_convolutions():
    x = samples(BATCH, STEPS, 6, 2)
    start = nn.Input((STEPS, 6, 2))
    layer = nn.ConvLSTM1D(3, 3, padding="same", return_sequences=True)
    model = nn.Model(start, layer(start))
    kernel, own, bias = (
        samples(*w.shape, seed=i) / 3 for i, w in enumerate(model.get_weights())
    )
    np.testing.assert_array_equal(model.get_weights()[2], [0] * 3 + [1] * 3 + [0] * 6)
    model.set_weights([kernel, own, bias])
    h = c = np.zeros((BATCH, 6, 3), np.float32)
    outputs = []
    for t in range(STEPS):
        z = convolved(x[:, t], kernel) + bias + convolved(h, own)
        i, f, g, o = np.split(z, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), np.stack(outputs, 1), rtol=1e-4, atol=1e-5
    )


def test_a_convolutional_layer_trains_alike_under_every_policy():
    def make(policy):
        nn.set_random_seed(3)
        start = nn.Input((STEPS, 6, 5, 2))
        rates = {"dropout": 0.2, "recurrent_dropout": 0.1}
        y = nn.ConvLSTM2D(3, 3, padding="same", **rates)(start)
        model = nn.Model(start, nn.Dense(1)(nn.Flatten()(y)))
        model.compile("sgd", "mse", memory=policy)
        x, y = samples(BATCH, STEPS, 6, 5, 2), samples(BATCH, 1, seed=1)
        for _ in range(3):
            model.train_on_batch(x, y)
        report = model.memory_report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        return model.get_weights(), report.measured_peak_bytes

    wanted, most = make("share")
    found, least = make("sqrt_checkpoint")
    assert all(map(np.array_equal, found, wanted))
    assert least < most
