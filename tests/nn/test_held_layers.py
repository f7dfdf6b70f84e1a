"""Layers that a model holds, and that only its own steps call."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
X = np.random.default_rng(0).standard_normal((16, 4)).astype("f4")
PATHS = ["enc/kernel", "enc/bias", "dec/kernel", "dec/bias"]


class Autoencoder(nn.Model):
    """Calls its encoder alone; a training step calls both."""

    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Dense(3, name="enc"), nn.Dense(4, name="dec")

    def call(self, x):
        return self.enc(x)

    def train_step(self, data):
        with mc.GradientTape() as tape:
            loss = ops.mean((self.dec(self.enc(data)) - data) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Head(nn.Model):
    """Has a head that only `compute_loss` calls."""

    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Dense(3, name="enc"), nn.Dense(4, name="dec")

    def call(self, x):
        return self.enc(x)

    def compute_loss(self, x=None, y=None, y_pred=None, **options):
        return ops.mean((self.dec(y_pred) - y) ** 2)


def trained(kind, first):
    """A model whose `call` was traced before, after or without a training step."""
    model = kind()
    model.compile(nn.Adam(0.01))
    if first == "predict":
        model.predict(X, verbose=0)
    y = () if kind is Autoencoder else (X,)
    model.fit(X, *y, verbose=0)
    if first == "fit, predict":
        model.predict(X, verbose=0)
    return model, lambda: model.fit(X, *y, verbose=0)


@pytest.mark.parametrize("first", ["predict", "fit, predict", "fit"])
@pytest.mark.parametrize("kind", [Autoencoder, Head])
def test_their_weights_are_the_models(kind, first, tmp_path):
    model, again = trained(kind, first)
    assert [each.path for each in model.weights] == PATHS
    assert [each.path for each in model.trainable_variables] == PATHS
    assert [each.name for each in model.layers] == ["enc", "dec"]
    assert model.count_params() == 5 * 3 + 4 * 4
    values = model.get_weights()
    assert [each.shape for each in values] == [(4, 3), (3,), (3, 4), (4,)]
    model.save_weights(tmp_path / "all.safetensors")
    found = load_file(tmp_path / "all.safetensors")
    assert sorted(found) == sorted(PATHS)
    for path, value in zip(PATHS, values, strict=True):
        np.testing.assert_array_equal(found[path], value)
    again()
    changed = model.get_weights()
    assert all((a != b).any() for a, b in zip(values, changed, strict=True))
    model.set_weights(values)
    np.testing.assert_array_equal(model.dec.kernel, values[2])
    model.set_weights(changed)
    model.load_weights(tmp_path / "all.safetensors")
    for a, b in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(a, b)
    tree = model.get_state_tree()["trainable_variables"]
    assert tree.keys() == {"enc", "dec"}


@pytest.mark.parametrize("first", ["predict", "fit"])
def test_training_goes_on_as_if_nothing_was_asked(first):
    """The optimizer's state stays, too."""
    results = []
    for asks in (False, True):
        nn.utils.set_random_seed(3)
        model, again = trained(Autoencoder, first)
        if asks:
            model.set_weights(model.get_weights())
            model.count_params()
        again()
        results.append(model.get_weights())
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_summary_lists_them(capsys):
    model, _ = trained(Autoencoder, "predict")
    model.summary()
    lines = capsys.readouterr().out.splitlines()
    (line,) = [each for each in lines if each.startswith(" dec")]
    assert line.split() == ["dec", "(Dense)", "?", "16", "?"]
    assert "Total parameters: 31 (124 B)" in lines


def test_a_file_of_the_model_says_what_it_cannot_hold(tmp_path):
    model, _ = trained(Autoencoder, "fit, predict")
    with pytest.raises(NotImplementedError, match=r"shapes of 'dec'.*save_weights"):
        model.save(tmp_path / "whole.memcfg")


@pytest.mark.parametrize("first", ["predict", "fit"])
def test_a_callback_saves_them_amid_training(first, tmp_path):
    model, _ = trained(Autoencoder, first)
    seen = []

    class Seen(nn.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.get_weights())

    path = tmp_path / "best.weights.safetensors"
    best = nn.callbacks.ModelCheckpoint(
        path, monitor="loss", save_best_only=True, save_weights_only=True
    )
    model.fit(X, epochs=3, callbacks=[Seen(), best], verbose=0)
    model.load_weights(path)
    for a, b in zip(model.get_weights(), seen[-1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_keras_files_hold_them(tmp_path):
    pytest.importorskip("h5py")
    model, again = trained(Autoencoder, "predict")
    values, path = model.get_weights(), tmp_path / "all.weights.h5"
    model.save_weights(path)
    again()
    model.load_weights(path)
    for a, b in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(NotImplementedError, match="use save_weights"):
        model.save(tmp_path / "whole.keras")


def test_a_shared_layer_has_one_value(tmp_path):
    """A tied embedding, in a decoder that only a step of its own calls."""

    class Decoder(nn.Layer):
        def __init__(self, table):
            super().__init__(name="decoder")
            self.table, self.out = table, nn.Dense(2, name="out")

        def call(self, x):
            return self.out(self.table(x))

    class Tied(nn.Model):
        def __init__(self):
            super().__init__()
            table = nn.Dense(4, name="table")
            self.decoder, self.table = Decoder(table), table

        def call(self, x):
            return self.table(x)

        def train_step(self, data):
            with mc.GradientTape() as tape:
                loss = ops.mean(self.decoder(self(data)) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    model = Tied()
    model.compile("sgd")
    model.predict(X, verbose=0)
    model.fit(X, verbose=0)
    values = model.get_weights()
    assert len(values) == 4
    model.save_weights(tmp_path / "tied.safetensors")
    model.set_weights([0 * each for each in values])
    assert not model.table.kernel.numpy().any()
    model.load_weights(tmp_path / "tied.safetensors")
    for a, b in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_that_is_not_built_has_no_part_of_its_weights():
    model = Autoencoder()
    model.enc(X)
    with pytest.raises(RuntimeError, match="not known yet"):
        model.get_weights()


def test_lengths_that_are_met_later_use_their_weights():
    """An axis of any length: its networks are traced anew with the new layers."""

    model = Autoencoder()
    model.compile("sgd")
    model.build((None, None, 4))
    model.predict(X[:, None], verbose=0)
    model.fit(X[:, None], verbose=0)
    for length in (1, 2, 3):
        x = np.repeat(X[:, None], length, axis=1)
        expected = x @ model.enc.kernel.numpy() + model.enc.bias.numpy()
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-5)


def test_a_layer_that_a_model_does_not_hold_and_training_does_not_use():
    other = nn.Dense(3)

    class Predicts(nn.Model):
        def __init__(self):
            super().__init__()
            self.first = nn.Dense(3)

        def call(self, x, training=False):
            return self.first(x) if training else self.first(x) + other(x)

    with pytest.raises(ValueError, match="uses in prediction only"):
        Predicts().build((None, 4))
