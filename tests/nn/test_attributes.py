"""Attributes: those that mean something work, and no other can be set."""

from __future__ import annotations

import copy
import re
import threading

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn


def things():
    x = nn.Input((8, 8, 3))
    layers = [
        nn.Conv2D(4, 3),
        nn.MaxPooling2D(),
        nn.AveragePooling2D(),
        nn.BatchNormalization(),
        nn.Activation("relu"),
        nn.ReLU(),
        nn.Dropout(0.5, seed=3),
        nn.Flatten(),
        nn.GlobalAveragePooling2D(),
        nn.Dense(3),
        nn.Add(),
    ]
    return [
        nn.Model(x, nn.Flatten()(x)),
        nn.Sequential([nn.Dense(3)]),
        nn.SGD(0.1, momentum=0.9),
        nn.Adam(),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        nn.Zeros(),
        nn.Ones(),
        nn.RandomNormal(),
        nn.GlorotUniform(),
        nn.HeUniform(seed=1),
        nn.HeNormal(),
        x,
        *layers,
    ]


THINGS = [type(thing).__name__ for thing in things()]


@pytest.mark.parametrize("place", range(len(THINGS)), ids=THINGS)
def test_an_attribute_that_nobody_reads_is_refused(place):
    thing = things()[place]
    kind = type(thing).__name__
    with pytest.raises(
        AttributeError, match=f"^{kind} has no attribute 'lrate' and would"
    ):
        thing.lrate = 3
    assert not hasattr(thing, "lrate")
    assert not hasattr(thing, "__dict__")


def test_a_close_name_is_suggested():
    """As Python does for attributes that are read."""
    with pytest.raises(AttributeError) as caught:
        nn.SGD().learning_rat = 3
    assert caught.value.name == "learning_rat"
    assert isinstance(caught.value.obj, nn.SGD)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (lambda: nn.Dropout(0.5, seed=1), "seed", "cannot be set"),
        (lambda: nn.Dense(3), "weight_specs", "cannot be set"),
        (lambda: nn.HeNormal(seed=3), "seed", "is fixed when it is made"),
        (lambda: nn.Zeros(), "seed", "cannot be set"),
        (lambda: nn.SGD(), "momentum", "set learning_rate between steps"),
        (lambda: nn.SGD(), "lr", "set learning_rate between steps"),
        (lambda: nn.SGD(), "iterations", "cannot be set"),
        (lambda: nn.SGD(), "kind", "cannot be set"),
        (lambda: nn.Sequential(), "optimizer", "cannot be set: say it to .* compile"),
        (lambda: nn.Sequential(), "loss", "cannot be set: say it to .* compile"),
        (lambda: nn.Sequential(), "predict", "cannot be set"),
        (lambda: nn.Sequential(), "history", "cannot be set"),
    ],
)
def test_what_cannot_change_says_what_to_do(make, name, words):
    thing = make()
    before = getattr(thing, name, None) if name != "optimizer" else None
    with pytest.raises(AttributeError, match=words):
        setattr(thing, name, 0.5)
    assert (getattr(thing, name, None) if name != "optimizer" else None) == before


class TestSettingsOfLayers:
    """They may be set later, and are what a constructor takes."""

    X = np.random.default_rng(2).standard_normal((6, 4)).astype("f4")

    def model(self):
        model = nn.Sequential(
            [nn.Input((4,)), nn.Dense(5, "relu"), nn.Dense(3, "softmax")]
        )
        model.compile(nn.Adam(), "categorical_crossentropy")
        model.fit(self.X, np.eye(3)[np.arange(6) % 3], verbose=0)
        return model

    def test_a_model_computes_with_an_activation_that_is_set_later(self):
        model = self.model()
        before, weights = model.predict(self.X, verbose=0), model.get_weights()
        model.layers[-1].activation = None
        logits = np.exp(model.predict(self.X, verbose=0))
        np.testing.assert_allclose(logits / logits.sum(1, keepdims=True), before, 1e-4)
        np.testing.assert_array_equal(model(self.X), model.predict(self.X, verbose=0))
        model.layers[-1].activation = nn.activations.softmax
        np.testing.assert_array_equal(model.predict(self.X, verbose=0), before)
        for old, new in zip(weights, model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
        model.fit(self.X, np.eye(3)[np.arange(6) % 3], verbose=0)
        assert int(model.optimizer.iterations) == 2

    def test_what_holds_the_layer_computes_anew(self):
        class Outer(nn.Layer):
            def __init__(self):
                super().__init__()
                self.inner = nn.Dense(2, "relu")

            def call(self, x):
                return self.inner(x)

        outer, start = Outer(), nn.Input((4,))
        inner = nn.Model(start, outer(start))
        model = nn.Model(start, inner(start))
        made = [model.predict(self.X, verbose=0), outer(self.X), inner(self.X)]
        assert all((each == 0).any() for each in made)
        outer.inner.activation = "linear"
        made = [model.predict(self.X, verbose=0), outer(self.X), inner(self.X)]
        assert not any((each == 0).any() for each in made)

    def test_one_that_would_change_shapes_is_refused(self):
        model = self.model()
        dense = model.layers[0]
        with pytest.raises(ValueError, match=r"'units' of layer .* cannot be 7: "):
            dense.units = 7
        start = nn.Input((8, 8, 1))
        pool = nn.MaxPooling2D()
        nn.Model(start, pool(start))
        with pytest.raises(ValueError, match="its result would have another shape"):
            pool.strides = 1
        assert (dense.units, pool.strides) == (5, (2, 2))
        with pytest.raises(ValueError, match="unknown activation 'relux'"):
            dense.activation = "relux"
        assert model.predict(self.X, verbose=0).shape == (6, 3)

    def test_a_fit_ends_that_changes_them(self):
        model = self.model()

        class Change(nn.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.layers[0].activation = "tanh"

        y = np.eye(3)[:1].repeat(6, 0)
        with pytest.raises(RuntimeError, match="by another thread or a callback"):
            model.fit(self.X, y, 3, verbose=0, callbacks=[Change()])
        assert model.layers[0].activation is nn.activations.tanh
        model.fit(self.X, y, 3, verbose=0)
        assert int(model.optimizer.iterations) == 4

    def test_those_of_a_layer_that_is_not_built(self):
        nn.set_random_seed(1)
        layer = nn.Dropout(0.5)
        seed = layer.seed
        layer.rate = 0.25
        assert (layer.rate, layer.seed, layer.get_config()["rate"]) == (
            0.25,
            seed,
            0.25,
        )
        with pytest.raises(ValueError, match="rate must be in"):
            layer.rate = 2
        first = nn.Conv2D(4, 3, data_format="channels_first")
        first.padding, first.strides = "same", 2
        assert first(np.ones((1, 3, 8, 8), "f4")).shape == (1, 4, 4, 4)
        assert first.data_format == "channels_first"

    def test_penalties_are_attributes(self):
        layer = nn.Dense(2, kernel_constraint=nn.constraints.MaxNorm(1.0))
        assert layer.kernel_regularizer is None
        layer.kernel_regularizer = "l2"
        assert layer.get_config()["kernel_regularizer"]["class_name"] == "L2"
        assert isinstance(layer.kernel_constraint, nn.constraints.MaxNorm)
        assert not hasattr(layer, "depthwise_regularizer")


def test_models_freeze_their_layers(dense):
    model = dense()
    first, second = model.layers
    assert all(thing.trainable for thing in (model, first, second))
    model.trainable = False
    assert not any(thing.trainable for thing in (model, first, second))
    second.trainable = model.trainable = True
    assert first.trainable is True


class Scaled(nn.Dense):
    """A layer of a user's."""

    early = 1

    def __init__(self, units, scale):
        self.early = scale
        super().__init__(units)
        self.scale = scale


class Clipped(nn.SGD):
    """An optimizer of a user's."""

    def __init__(self):
        super().__init__(0.5)
        self.most = 3


class Named(nn.Sequential):
    """A model of a user's."""

    def __init__(self):
        super().__init__([nn.Dense(4)])
        self.comment = "mine"


def test_users_classes_have_attributes_of_their_own():
    for thing, name in (
        (Scaled(3, 2), "scale"),
        (Clipped(), "most"),
        (Named(), "comment"),
    ):
        setattr(thing, name, "another")
        thing.later = 3
        assert (getattr(thing, name), thing.later) == ("another", 3)
    scaled = Scaled(3, 2)
    scaled.units, scaled.activation = 4, "relu"
    assert (scaled.units, scaled.scale) == (4, 2)
    assert scaled.activation is nn.activations.relu
    assert "most=3" in repr(Clipped())


class TestStopTraining:
    def batches(self, model, rows, stop):
        """Yield batches of 6 rows; make `model` stop when so many were asked for."""
        for number in range(5):
            if number == stop:
                model.stop_training = True
            yield rows[0][:6], rows[1][:6]

    @pytest.mark.parametrize("stop", [1, 3])
    def test_the_epoch_ends_behind_the_step_of_that_moment(self, dense, rows, stop):
        model = dense()
        model.predict(rows[0], verbose=0)
        data = Slow(lambda: self.batches(model, rows, stop))
        history = model.fit(data, epochs=3, verbose=0, validation_data=rows)
        assert model.stop_training
        assert model.optimizer.iterations == stop + 1
        assert history.epoch == [0]
        assert list(history.history) == ["loss", "val_loss"]

    def test_the_next_fit_begins_anew(self, dense, rows):
        model = dense()
        model.stop_training = True
        assert model.fit(*rows, epochs=2, verbose=0).epoch == [0, 1]
        assert model.stop_training is False

    def test_another_thread_can_end_it(self, dense, rows):
        model = dense()
        started = threading.Event()

        def forever():
            while True:
                started.set()
                yield rows

        def stop():
            started.wait(60)
            model.stop_training = True

        thread = threading.Thread(target=stop)
        thread.start()
        history = model.fit(forever(), steps_per_epoch=10**9, verbose=0)
        thread.join()
        assert history.epoch == [0]
        assert np.isfinite(history.history["loss"][0])


class Slow:
    """Batches that are made when they are asked for, in the thread that trains."""

    async_supported = False

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


class TestNames:
    """Layers and models may be renamed, as in Keras, also while a model holds them."""

    X, Y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)

    def trained(self):
        start = nn.Input((4,))
        end = nn.Dense(2, name="last")(nn.Dense(3, name="first")(start))
        model = nn.Model(start, end, name="given")
        model.compile(nn.Adam(0.1), "mse")
        model.fit(self.X, self.Y, epochs=2, verbose=0)
        return model

    def test_values_and_the_state_of_the_optimizer_stay(self):
        model = self.trained()
        copied = copy.deepcopy(model)
        model.layers[1].name = "renamed"
        model.name = "fresh"
        assert model.get_layer("renamed").units == 3
        assert [each.path for each in model.weights][:2] == [
            "renamed/kernel",
            "renamed/bias",
        ]
        assert model.summary(print_fn=lambda _: None) is None
        for each in (model, copied):
            each.fit(self.X, self.Y, epochs=2, verbose=0)
        for one, other in zip(model.get_weights(), copied.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        outer = nn.Sequential([nn.Input((4,)), model])
        model.name = "inner"
        assert outer.layers[0].name == "inner"
        assert outer.weights[0].path == "inner/renamed/kernel"

    def test_a_name_that_is_taken_is_refused(self):
        model = self.trained()
        before = model.predict(self.X, verbose=0)
        for name, words in (("last", "must be unique"), ("a/b", "'/'"), ("", "empty")):
            with pytest.raises(ValueError, match=words):
                model.layers[1].name = name
        with pytest.raises(TypeError, match="must be a string"):
            model.name = 3
        assert [each.name for each in model.layers[1:]] == ["first", "last"]
        np.testing.assert_array_equal(model.predict(self.X, verbose=0), before)

    def test_a_layer_that_was_called_on_arrays_keeps_its_weights(self):
        layer = nn.Dense(2, name="before")
        layer(self.X)
        layer.set_weights([np.full((4, 2), 7, np.float32), np.ones(2, np.float32)])
        layer.name = "after"
        np.testing.assert_array_equal(layer(self.X), np.full((8, 2), 29))
        np.testing.assert_array_equal(layer(self.X[:3]), np.full((3, 2), 29))

    @pytest.mark.parametrize("closes", [False, True])
    @pytest.mark.parametrize("of_a_model", [False, True])
    def test_functions_keep_values_and_the_state_of_optimizers(
        self, closes, of_a_model
    ):
        """Also if two layers change their names with each other."""

        def trained(*, renames):
            nn.set_random_seed(0)
            first, second = nn.Dense(3, name="a"), nn.Dense(2, name="b")
            chain = [nn.Input((4,)), first, second]
            call = (
                nn.Sequential(chain, name="chain")
                if of_a_model
                else (lambda x: second(first(x)))
            )
            optimizer = nn.Adam(0.1)

            @mc.function
            def step(x):
                with mc.GradientTape() as tape:
                    loss = nn.ops.mean((call(x) - 1) ** 2)
                weights = [first.kernel, second.kernel]
                optimizer.apply(tape.gradient(loss, weights), weights)
                return loss

            for _ in range(3):
                step(self.X)
            if renames:
                first.name, second.name = "c", "a"
                first.name = "b"
            if closes:
                step.close()
            for rows in (8, 5, 8):
                step(self.X[:rows])
            tensors = {each.name for each in step.graph(self.X).tensors}
            return tensors, [*first.get_weights(), *second.get_weights()]

        _, wanted = trained(renames=False)
        names, found = trained(renames=True)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        owner = "chain/" * of_a_model
        assert {f"adam/{owner}{each}/kernel/m" for each in "ab"} < names

    def test_a_function_refuses_names_that_are_taken(self):
        first, second = nn.Dense(4, name="a"), nn.Dense(2, name="b")
        both = mc.function(lambda x: second(first(x)))
        wanted = both(self.X)
        first.name = "b"
        with pytest.raises(ValueError, match="calls two layers named 'b'"):
            both(self.X[:3])
        first.name = "c"
        np.testing.assert_array_equal(both(self.X[:3]), wanted[:3])

    def test_a_chain_grows_after_a_layer_was_renamed(self):
        model = nn.Sequential([nn.Input((4,)), nn.Dense(3, name="a")])
        model.layers[0].name = "b"
        model.add(nn.Dense(2, name="a"))
        assert [each.name for each in model.layers] == ["b", "a"]
        assert model.predict(self.X, verbose=0).shape == (8, 2)

    def test_inner_layers_may_get_one_name(self):
        class Pair(nn.Layer):
            def __init__(self):
                super().__init__(name="pair")
                self.parts = [nn.Dense(2, name="p"), nn.Dense(2, name="q")]

            def call(self, x):
                return self.parts[1](self.parts[0](x))

        pair = Pair()
        model = nn.Sequential([nn.Input((4,)), pair])
        model.compile("adam", "mse")
        y = np.zeros((8, 2))
        model.fit(self.X, y, verbose=0)
        same = copy.deepcopy(model)
        pair.parts[0].name = "q"
        assert [each.path for each in model.weights[::2]] == [
            "pair/q/kernel",
            "pair/q_1/kernel",
        ]
        for each in (model, same):
            each.fit(self.X, y, epochs=3, shuffle=False, verbose=0)
        for one, other in zip(model.weights, same.weights, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())

    def test_after_own_steps_it_is_late(self):
        class Own(nn.Model):
            def __init__(self):
                super().__init__(name="own")
                self.dense = nn.Dense(2, name="d")

            def call(self, x):
                return self.dense(x)

            def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
                return nn.ops.mean((y - y_pred) ** 2)

        model = Own()
        model.dense.name = "e"
        model.compile("adam")
        model.fit(self.X, self.Y, verbose=0)
        for thing in (model, model.dense):
            with pytest.raises(RuntimeError, match="steps of its own"):
                thing.name = "f"
        assert (model.name, model.dense.name) == ("own", "e")


def activated():
    """A layer of each class that has an activation."""
    layers = nn.layers
    return [
        *(
            layers.Dense(2),
            layers.EinsumDense("ab,bc->ac", 3),
            layers.Activation("elu"),
        ),
        *(kind(2, 3) for kind in (layers.Conv1D, layers.Conv2D, layers.Conv3D)),
        *(layers.Conv2DTranspose(2, 3), layers.SeparableConv2D(2, 3)),
        *(layers.DepthwiseConv1D(3), layers.DepthwiseConv2D(3)),
        *(layers.SimpleRNN(2), layers.LSTM(2), layers.GRU(2), layers.ConvLSTM2D(2, 3)),
        *(layers.SimpleRNNCell(2), layers.LSTMCell(2), layers.GRUCell(2)),
    ]


@pytest.mark.parametrize("layer", activated(), ids=lambda each: type(each).__name__)
def test_activations_are_functions_as_in_keras(layer):
    assert not [
        each for each in dir(layer) if re.match("(recurrent_)?activation_", each)
    ]
    for name in ("activation", "recurrent_activation"):
        if name not in layer.get_config():
            assert not hasattr(layer, name)
            continue
        own = layer.get_config()[name]
        assert getattr(layer, name) is nn.activations.get(own)
        setattr(layer, name, nn.activations.softplus)
        assert getattr(layer, name) is nn.activations.softplus
        assert layer.get_config()[name] == "softplus"
        again = type(layer).from_config(layer.get_config())
        assert getattr(again, name) is nn.activations.softplus
    assert copy.deepcopy(layer).activation is layer.activation


def test_an_activation_computes_on_arrays():
    x = np.array([-1.0, 2.0], np.float32)
    np.testing.assert_array_equal(nn.Dense(1, "relu").activation(x), [0, 2])
    np.testing.assert_array_equal(nn.Dense(1).activation(x), x)
    mc.ops.elementwise("times_nine", lambda x: 9 * x)
    layer = nn.Dense(1, "times_nine")
    np.testing.assert_array_equal(layer.activation(x), 9 * x)
    assert layer.activation.__name__ == layer.get_config()["activation"] == "times_nine"
    assert nn.Dense(1, layer.activation).get_config()["activation"] == "times_nine"
