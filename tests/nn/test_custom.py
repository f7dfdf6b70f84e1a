"""Layers and models of users', models in models, and layers that are frozen."""

from __future__ import annotations

import copy
import pickle
from copy import deepcopy

import numpy as np
import pytest

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops


class Linear(nn.Layer):
    """As Keras's guide has it."""

    def __init__(self, units=4, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        shape = (input_shape[-1], self.units)
        self.w = self.add_weight(shape=shape, initializer="he_normal", name="w")
        self.b = self.add_weight(shape=(self.units,), name="b")

    def call(self, inputs):
        return inputs @ self.w + self.b


class Block(nn.Layer):
    """Layers inside, and what differs in training."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.linear = Linear(units, name="linear")
        self.norm = nn.BatchNormalization(name="norm")
        self.drop = nn.Dropout(0.5, seed=3)

    def call(self, x, training=None):
        h = self.norm(self.linear(x), training=training)
        if training:
            h = self.drop(h, training=training)
        return h + x


class Net(nn.Model):
    """A model that says in `call` what it computes."""

    def __init__(self, units=5, **kwargs):
        super().__init__(**kwargs)
        self.second = nn.Dense(2)  # before the first: so are its weights
        self.first = nn.Dense(units, activation="relu")
        self.drop = nn.Dropout(0.2)

    def call(self, x, training=False):
        return self.second(self.drop(self.first(x), training=training))


@pytest.fixture
def data():
    rng = np.random.default_rng(4)
    return rng.standard_normal((24, 6)).astype("f4"), rng.standard_normal((24, 2))


def with_block():
    x = nn.Input((6,))
    made = nn.Model(x, nn.Dense(2, name="head")(Block(6, name="block")(x)))
    made.compile(nn.SGD(0.1), "mse")
    return made


class TestLayers:
    def test_weights_are_named_and_ordered_as_in_keras(self):
        made = with_block()
        assert [weight.path for weight in made.weights] == [
            "block/linear/w",
            "block/linear/b",
            *(
                f"block/norm/{name}"
                for name in ("gamma", "beta", "moving_mean", "moving_variance")
            ),
            "head/kernel",
            "head/bias",
        ]
        assert made.count_params() == sum(np.size(w) for w in made.get_weights())
        block = made.get_layer("block")
        assert len(block.trainable_weights) == 4
        assert len(block.non_trainable_weights) == 2
        assert block.weights[0].shape == (6, 6)

    def test_it_computes_what_numpy_does(self, data):
        made, x = with_block(), data[0]
        w, b, *_, kernel, bias = made.get_weights()
        h = (x @ w + b) / np.sqrt(1 + 1e-3) + x
        found = made.predict(x, verbose=0)
        np.testing.assert_allclose(found, h @ kernel + bias, 1e-4, 1e-5)

    def test_it_drops_and_moves_averages_in_training(self, data):
        made = with_block()
        before = made.get_weights()
        kinds = [op.type for op in made.graph(8).ops]
        assert kinds.count("dropout") == 2  # forward and backward
        assert kinds.count("moving_average") == 2
        made.fit(*data, verbose=0)
        assert not any(map(np.array_equal, before, made.get_weights()))

    def test_copies_have_the_same_values(self, data):
        made = with_block()
        made.fit(*data, verbose=0)
        for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
            ours = made.predict(data[0], verbose=0)
            np.testing.assert_array_equal(other.predict(data[0], verbose=0), ours)
            step = other.train_on_batch(*data)
            assert step == copy.deepcopy(made).train_on_batch(*data)

    @pytest.mark.parametrize("memory", ["share", "keep_all", "sqrt_checkpoint"])
    def test_every_policy_gives_the_same_bits(self, memory, data):
        histories = []
        for options in ({"memory": memory}, {"training_workspace_mode": "none"}):
            nn.set_random_seed(1)
            made = with_block()
            made.compile("adam", "mse", **options)
            histories.append(made.fit(*data, 8, 2, 0, seed=2).history)
        assert histories[0] == histories[1]

    def test_layer_values_before_and_in_models(self, data):
        layer = nn.Dense(2)
        assert layer.weights == []
        x = nn.Input((6,))
        y = layer(x)
        layer.set_weights([np.ones((6, 2)), np.arange(2)])
        made = nn.Model(x, y)
        expected = data[0].sum(1, keepdims=True) + np.arange(2)
        found = made.predict(data[0], verbose=0)
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
        layer.weights[1].assign([5, 5])
        assert made.get_weights()[1].tolist() == [5, 5]
        with pytest.raises(ValueError, match="has weights of shapes"):
            layer.set_weights([np.ones(3)])
        with pytest.raises(ValueError, match="got \\(3,\\)"):
            layer.weights[1].assign([1, 2, 3])

    def test_what_is_wrong_is_told(self):
        class Hidden(nn.Layer):
            def call(self, x):
                return nn.Dense(3)(x)

        class Nothing(nn.Layer):
            pass

        x = nn.Input((4,))
        with pytest.raises(ValueError, match="is not an attribute"):
            Hidden()(x)
        with pytest.raises(NotImplementedError, match="override `call`"):
            Nothing()(x)


class TestModels:
    def test_a_subclass(self, data):
        made = Net()
        made.compile("adam", "mse")
        assert not made.built
        assert made.fit(*data, epochs=2, verbose=0).history["loss"][0] > 0
        assert [w.shape for w in made.weights][:2] == [(5, 2), (2,)]
        assert made(data[0]).shape == (24, 2)
        other = Net(7)
        other.build((None, 6))
        assert other.first.get_weights()[0].shape == (6, 7)

    @pytest.mark.parametrize("copy", [False, True])
    def test_a_call_may_branch_on_training(self, data, copy):
        class Branches(nn.Model):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(2)
                self.norm = nn.BatchNormalization(momentum=0.5)

            def call(self, x, training=False):
                h = self.norm(self.dense(x))
                if training:
                    return h * 3.0
                return nn.ops.softmax(h)

        x, y = data[0], np.zeros((len(data[0]), 2), "f4")
        model = Branches()
        model.compile(nn.SGD(0.0), "mse")
        if copy:
            model.build((None, x.shape[1]))
            model = deepcopy(model)
        loss = float(model.train_on_batch(x, y))
        kernel, bias, gamma, beta, mean, variance = model.get_weights()
        h = x @ kernel + bias
        np.testing.assert_allclose(mean, h.mean(0) / 2, 1e-4, 1e-6)  # once a step
        normal = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-3)
        assert loss == pytest.approx(((3 * normal) ** 2).mean(), rel=1e-4)
        exponents = np.exp((h - mean) / np.sqrt(variance + 1e-3) * gamma + beta)
        wanted = exponents / exponents.sum(1, keepdims=True)
        np.testing.assert_allclose(model.predict(x, verbose=0), wanted, 1e-4, 1e-6)
        start = nn.Input((x.shape[1],))
        outer = nn.Model(start, model(start))
        np.testing.assert_allclose(outer.predict(x, verbose=0), wanted, 1e-4, 1e-6)

    def test_branches_have_the_same_outputs_and_weights(self):
        class Weights(Net):
            def call(self, x, training=False):
                return self.first(x) if training else self.first(x) + self.other(x)

        class Shapes(Net):
            def call(self, x, training=False):
                h = self.second(self.first(x))
                return [h, h] if training else h

        model = Weights()
        model.other = nn.Dense(model.first.units)
        model.build((None, 6))
        x = np.ones((2, 6), np.float32)
        expected = model.first(x) + model.other(x)
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-6)
        with pytest.raises(ValueError, match="the same shapes"):
            Shapes().build((None, 6))

    def test_models_in_models_share_their_weights(self, data):
        x = data[0]
        encoder = nn.Sequential([nn.Input((6,)), nn.Dense(3)], name="encoder")
        decoder = nn.Sequential([nn.Dense(6)], name="decoder")
        before = encoder.get_weights()
        start = nn.Input((6,))
        auto = nn.Model(start, decoder(encoder(start)))
        assert auto.get_layer("encoder") is encoder
        assert [w.path.split("/")[0] for w in auto.weights] == ["encoder"] * 2 + [
            "decoder"
        ] * 2
        assert all(map(np.array_equal, before, auto.get_weights()))
        auto.compile(nn.SGD(0.1), "mse")
        auto.fit(x, x, verbose=0)
        assert not any(map(np.array_equal, before, encoder.get_weights()))
        found = decoder(encoder(x))
        np.testing.assert_allclose(found, auto.predict(x, verbose=0), 1e-4, 1e-5)
        encoder.set_weights(before)
        assert all(map(np.array_equal, before, auto.get_weights()))
        twin = pickle.loads(pickle.dumps(auto))
        assert all(map(np.array_equal, auto.get_weights(), twin.get_weights()))
        del auto
        assert all(map(np.array_equal, before, encoder.get_weights()))

    def test_a_model_called_twice_has_one_set_of_weights(self, data):
        a, b = nn.Input((6,)), nn.Input((6,))
        tower = nn.Sequential([nn.Input((6,)), nn.Dense(4), nn.Dense(3)])
        made = nn.Model([a, b], nn.Subtract()([tower(a), tower(b)]))
        assert len(made.weights) == 4
        made.compile(nn.SGD(0.1), "mse")
        x = data[0]
        assert not made.predict([x, x], verbose=0).any()
        assert made.fit([x, x[::-1].copy()], x[:, :3], verbose=0).history["loss"][0]

    def test_a_chain_of_chains_and_shapes(self, data):
        made = nn.Sequential(
            [
                nn.Dense(4, input_shape=(6,), kernel_regularizer="l2"),
                nn.Sequential([nn.Dense(3), nn.Dense(2)]),
            ]
        )
        assert made.built
        made.compile("sgd", "mse")
        kernel = made.get_weights()[0]
        plain = ((made.predict(data[0], verbose=0) - data[1]) ** 2).mean()
        expected = plain + 0.01 * (kernel**2).sum()
        np.testing.assert_allclose(made.evaluate(*data, verbose=0), expected, 1e-5)


class TestFrozen:
    def made(self, frozen=True, **options):
        layers = [nn.Dense(4, name="a"), nn.BatchNormalization(name="bn")]
        made = nn.Sequential([nn.Input((6,)), *layers, nn.Dense(2, name="c")])
        for layer in layers:
            layer.trainable = not frozen
        made.compile("adam", "mse", **options)
        return made

    def test_nothing_is_kept_or_computed_for_frozen_weights(self, data):
        made = self.made()
        graph = made.graph(8)
        roles = {t.role: [] for t in graph.tensors}
        for tensor in graph.tensors:
            roles[tensor.role].append(tensor.name)
        assert all("c/" in name for name in roles["optimizer_state"])
        assert all(name.startswith("c/") for name in roles["gradient"])
        kinds = [op.type for op in graph.ops]
        assert "batch_normalization_inference" in kinds
        assert "moving_average" not in kinds
        assert len(graph.persistent) == 8 + 4
        assert made.plan(8).peak_bytes < self.made(False).plan(8).peak_bytes

    def test_only_others_change(self, data):
        made = self.made()
        before = made.get_weights()
        made.fit(*data, 8, verbose=0)
        kept = list(map(np.array_equal, before, made.get_weights()))
        assert kept == [True] * 6 + [False] * 2
        report = made.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        made.trainable = True
        with pytest.warns(UserWarning, match="compile it again"):
            made.fit(*data, 8, verbose=0)
        made.compile("adam", "mse")
        made.fit(*data, 8, verbose=0)
        assert not any(map(np.array_equal, before, made.get_weights()))

    def test_gradients_pass_through_them(self, data):
        x = nn.Input((6,))
        first = nn.Dense(5, name="first")
        frozen = nn.Sequential([nn.BatchNormalization(), nn.Dense(2)], name="frozen")
        made = nn.Model(x, frozen(first(x)))
        frozen.trainable = False
        made.compile(nn.SGD(1.0), "mse")
        kernel, bias, gamma, beta, mean, variance, last, end = made.get_weights()
        inputs, y = data
        scale = gamma / np.sqrt(variance + 1e-3)
        error = ((inputs @ kernel + bias - mean) * scale + beta) @ last + end - y
        slope = inputs.T @ ((2 * error / error.size) @ last.T * scale)
        made.train_on_batch(inputs, y)
        np.testing.assert_allclose(made.get_weights()[0], kernel - slope, 1e-4, 1e-5)


def test_masked_steps_do_not_count():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 3)).astype("f4")
    x[1, 2:] = x[3, 4:] = 0
    y = rng.standard_normal((4, 5, 1)).astype("f4")
    made = nn.Sequential([nn.Input((5, 3)), nn.Masking(), nn.Dense(1)])
    made.compile("sgd", "mse")
    mask = np.any(x != 0, -1)
    error = ((made.predict(x, verbose=0) - y) ** 2)[..., 0]
    expected = (error * mask).sum() / mask.sum()
    np.testing.assert_allclose(made.evaluate(x, y, verbose=0), expected, 1e-5)
    weights = np.array([1, 2, 0, 3.0])
    found = made.evaluate(x, y, verbose=0, sample_weight=weights)
    expected = (error * mask * weights[:, None]).sum() / mask.sum()
    np.testing.assert_allclose(found, expected, 1e-5)


class TestWhatKerasUsersAskLayersFor:
    def test_input_and_output_of_a_layer_called_once(self):
        x = nn.Input((6,), name="x")
        layer = nn.Dense(4, name="code")
        y = layer(x)
        made = nn.Model(x, nn.Dense(2)(y))
        assert layer.input is x
        assert layer.output is y
        code = nn.Model(made.input, made.get_layer("code").output)
        assert code.output_shape == (None, 4)
        assert made.input_shape == (None, 6)
        copied = copy.deepcopy(made).get_layer("code")
        assert copied.output.shape == (None, 4)
        assert copied.output is not y
        layer(nn.Input((6,)))
        assert layer.output is y
        with pytest.raises(AttributeError, match="not called on a symbolic"):
            _ = nn.Dense(4).output

    def test_weights_by_name(self):
        layer = nn.Dense(4)
        assert not layer.built
        with pytest.raises(AttributeError, match="no attribute 'kernel'"):
            _ = layer.kernel
        layer(nn.Input((6,)))
        assert layer.built
        assert layer.kernel.shape == (6, 4)
        layer.bias.assign(np.arange(4))
        assert layer.get_weights()[1].tolist() == [0, 1, 2, 3]
        with pytest.raises(AttributeError, match="'Dense' object has no attribute"):
            _ = layer.gamma
        assert len(layer.trainable_variables) == 2

    def test_a_sequential_starts_with_a_model(self):
        base = nn.Sequential([nn.Input((6,)), nn.Dense(3)])
        base.trainable = False
        made = nn.Sequential([base, nn.Dense(2)])
        assert made.built
        assert made.input_shape == (None, 6)
        made.compile("sgd", "mse")
        assert len(made.trainable_variables) == 2
        assert len(made.non_trainable_weights) == 2
        later = nn.Sequential([nn.Sequential([nn.Dense(3)]), nn.Dense(2)])
        assert not later.built

    def test_what_is_not_there_says_what_to_do_instead(self):
        made = nn.Sequential([nn.Input((6,)), nn.Dense(3)])
        for owner, name, words in (
            (made, "predict_classes", "argmax"),
            (made, "compiled_loss", r"use compute_loss\(x, y, y_pred\)"),
            (made.layers[0], "output_shape", "use layer.output.shape"),
            (nn.metrics.AUC(), "reset_states", "use reset_state"),
            (nn.Adam(), "minimize", "use apply in a function"),
        ):
            with pytest.raises(AttributeError, match=f"unlike Keras's: .*{words}"):
                getattr(owner, name)
        with pytest.raises(AttributeError, match=r"unlike PyTorch's: use get_weights"):
            _ = made.state_dict
        with pytest.raises(AttributeError, match=r"no attribute 'x'$"):
            _ = nn.Adam().x


class TestLossesOfUsers:
    def test_functions_and_calls(self, data):
        x, y = data

        def cubed(y_true, y_pred):
            return abs(y_true - y_pred) ** 3

        class Cubed(nn.losses.Loss):
            def call(self, y_true, y_pred):
                return cubed(y_true, y_pred)

        weight = np.linspace(0, 1, len(x))
        for loss in (cubed, Cubed()):
            nn.set_random_seed(1)
            made = nn.Sequential([nn.Input((6,)), nn.Dense(2)])
            made.compile(nn.SGD(0.01), loss, metrics=[cubed], weighted_metrics=[loss])
            each = np.abs(y - made.predict(x, verbose=0)) ** 3
            whole = made.evaluate(x, y, verbose=0)
            np.testing.assert_allclose(whole, [each.mean()] * 3, 1e-5)
            found = made.evaluate(x, y, sample_weight=weight, verbose=0)
            weighted = each.mean(1) @ weight
            wanted = [weighted / len(x), each.mean(), weighted / weight.sum()]
            np.testing.assert_allclose(found, wanted, 1e-5)
            kernel, bias = made.get_weights()
            error = x @ kernel + bias - y
            slope = x.T @ (3 * error * np.abs(error)) / error.size
            made.train_on_batch(x, y)
            moved = (kernel - made.get_weights()[0]) / 0.01
            np.testing.assert_allclose(moved, slope, 1e-2, 1e-4)

    def test_what_is_wrong_is_told(self, data, tmp_path):
        made = nn.Sequential([nn.Input((6,)), nn.Dense(2)])
        with pytest.raises(TypeError, match="or a function of y_true and y_pred"):
            made.compile("sgd", 3)
        made.compile("sgd", lambda y_true, y_pred: 3)
        with pytest.raises(TypeError, match="must return a symbolic tensor"):
            made.fit(*data, verbose=0)
        made.compile("sgd", nn.losses.Loss())
        with pytest.raises(NotImplementedError, match="override `call`"):
            made.fit(*data, verbose=0)
        made.compile("sgd", lambda y_true, y_pred: y_true - y_pred)
        with pytest.raises(TypeError, match="cannot be saved"):
            made.save(tmp_path / "a.memcfg")


class Counted(nn.Layer):
    """Adds the steps that count; there is no result without a mask."""

    def call(self, x, mask=None):
        return ops.sum(x * ops.expand_dims(mask, -1), axis=1)


class Around(nn.Layer):
    """Has such a layer inside, after another one."""

    def __init__(self):
        super().__init__()
        self.drop, self.counted = nn.Dropout(0.5), Counted()
        self.double = nn.Rescaling(2.0)  # an operator would drop the mask

    def call(self, x):
        return self.counted(self.double(self.drop(x)))


def nested_embedding():
    start = nn.Input((4,), dtype="int32")
    return nn.Model(start, nn.Embedding(9, 3, mask_zero=True)(start))


@pytest.mark.parametrize("start", [nested_embedding, nn.Embedding])
@pytest.mark.parametrize("layer", [Counted, Around])
def test_a_call_has_the_mask_when_the_layer_is_joined(start, layer):
    made = start() if start is nested_embedding else start(9, 3, mask_zero=True)
    x = nn.Input((4,), dtype="int32")
    y = layer()(made(x))
    assert y.shape == (None, 3)
    model = nn.Model(x, y)
    tokens = np.array([[1, 2, 0, 0], [3, 0, 4, 0]], "int32")
    (table,) = made.get_weights()
    expected = (table[tokens] * (tokens != 0)[..., None]).sum(1)
    expected *= 1 if layer is Counted else 2
    np.testing.assert_allclose(model.predict(tokens), expected, rtol=1e-6)
    model.compile("sgd", "mse")
    model.fit(tokens, np.ones((2, 3)), verbose=0)
    assert not np.array_equal(made.get_weights()[0], table)


def test_masks_of_several_inputs_are_there_at_the_join():
    told = []

    class Two(nn.Layer):
        def call(self, pair, mask=None):
            told.append([each is not None for each in mask])
            return pair[0] + pair[1]

    x = nn.Input((5, 2), batch_size=2)
    masked = nn.Masking()(x)
    lstm = nn.LSTM(2, return_sequences=True, stateful=True)(masked)
    model = nn.Sequential([nn.Input((5, 2)), nn.Masking(), Counted(), nn.Dense(1)])
    assert model.predict(np.ones((2, 5, 2), "f4")).shape == (2, 1)
    Two()([lstm, x])
    assert told == [[True, False]]


class Scaled(nn.Layer):
    """A layer in a layer, and a weight that is looked at and set before training."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(3)

    def build(self, input_shape):
        self.scale = self.add_weight((3,), "ones", name="scale")
        super().build(input_shape)

    def call(self, x):
        return self.inner(x) * self.scale


def test_a_weight_of_a_layer_is_read_and_set():
    layer = Scaled()
    model = nn.Sequential([nn.Input((4,)), layer])
    assert layer.scale.name == "scale"
    layer.scale.assign([1, 2, 3])
    np.testing.assert_array_equal(layer.scale.numpy(), [1, 2, 3])
    (found,) = [each for each in model.weights if each.name == "scale"]
    np.testing.assert_array_equal(np.asarray(found, np.float64), [1, 2, 3])
    assert repr(found).endswith("scale, shape=(3,), dtype=float32>")


def test_masks_of_a_layer_with_call_are_those_that_it_is_given():
    layer, x = Scaled(), nn.Input((4,))
    assert layer.compute_mask(x) is None
    assert layer.compute_mask(x, "mask") == "mask"


class OfADict(nn.Layer):
    def build(self, input_shape):
        self.shapes = input_shape

    def call(self, inputs):
        return inputs["a"] + inputs["b"]


def test_a_layer_that_is_called_on_a_dict_is_built_with_its_shapes():
    layer = OfADict()
    made = layer({"a": nn.Input((4,)), "b": nn.Input((1,))})
    assert made.shape == (None, 4)
    assert layer.shapes == {"a": (None, 4), "b": (None, 1)}


class InADict(nn.Layer):
    """Layers in a dict are its own."""

    def __init__(self):
        super().__init__()
        self.parts = {"a": nn.Dense(2), "b": nn.Dense(3)}

    def call(self, x):
        return self.parts["b"](self.parts["a"](x))


def test_layers_in_a_dict_are_a_layers_own():
    model = nn.Sequential([nn.Input((4,)), InADict()])
    assert [w.shape for w in model.get_weights()] == [(4, 2), (2,), (2, 3), (3,)]


class Tied(nn.Layer):
    """Multiply by the transposed kernel of another layer."""

    def __init__(self, dense, seed=None, kind="tied", **options):
        super().__init__(**options)
        self.dense, self.seed, self.kind = dense, seed, kind

    def call(self, x):
        return nn.ops.matmul(x, nn.ops.transpose(self.dense.kernel))


def test_a_weight_of_an_inner_layer_is_trained_by_both_of_its_uses():
    """The oracle is the slope of the loss by central differences."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    inputs = nn.Input((3,))
    dense = nn.Dense(2, use_bias=False)
    code = dense(inputs)
    model = nn.Model(inputs, Tied(dense)(code))
    model.compile(nn.SGD(0.1), "mse")
    assert model.count_params() == 6
    (before,) = model.get_weights()
    np.testing.assert_allclose(
        model.predict(x, verbose=0), x @ before @ before.T, rtol=1e-5, atol=1e-6
    )

    def loss(w):
        return ((x.astype(float) @ w @ w.T - x) ** 2).mean()

    slope = np.empty(before.shape)
    for place in np.ndindex(*before.shape):
        step = np.zeros(before.shape)
        step[place] = 1e-5
        slope[place] = (loss(before + step) - loss(before - step)) / 2e-5
    model.train_on_batch(x, x)
    (after,) = model.get_weights()
    np.testing.assert_allclose((before - after) / 0.1, slope, rtol=1e-3, atol=1e-4)
    again = copy.deepcopy(model)
    assert (again.predict(x, verbose=0) == model.predict(x, verbose=0)).all()


def test_a_models_call_reads_weights_of_its_layers():
    class Words(nn.Model):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(7, 5), nn.Dense(5, use_bias=False)

        def call(self, x):
            h = nn.ops.mean(self.table(x), axis=1)
            return self.head(h) @ nn.ops.transpose(self.table.embeddings)

    x = np.random.default_rng(0).integers(0, 7, (32, 3))
    model = Words()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.05), loss)
    losses = model.fit(x, x[:, 0], epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    table, kernel = model.get_weights()
    wanted = table[x].mean(1) @ kernel @ table.T
    inputs = nn.Input((3,), dtype="int32")
    nested = nn.Model(inputs, model(inputs))
    for each in (model, nested, copy.deepcopy(model)):
        np.testing.assert_allclose(each.predict(x, verbose=0), wanted, 1e-4, 1e-5)


def test_a_weight_is_no_constant_of_a_model():
    dense, inputs = nn.Dense(3), nn.Input((3,))
    y = dense(inputs)
    with pytest.raises(TypeError, match="would be a constant of the model here"):
        y * dense.bias

    class Stranger(nn.Layer):
        def call(self, x):
            return x + dense.bias

    with pytest.raises(ValueError, match="which is not an attribute"):
        Stranger()(inputs)


@pytest.mark.parametrize("seed", [None, 7])
def test_attributes_of_users_layers_have_their_names(seed):
    layer = Tied(nn.Dense(2), seed=seed, kind=3)
    assert (layer.seed, layer.kind) == (seed, 3)
    layer.named = "free"
    assert layer.named == "free"
    with pytest.raises(AttributeError, match="'seed' of Dropout cannot be set"):
        nn.Dropout(0.5).seed = 3


def test_integers_compare_with_numbers_exactly():
    x = np.array([[0, 1, -1, 2**30 + 1, 5]])
    inputs = nn.Input((5,), dtype="int32")
    for compare in (np.not_equal, np.greater, np.less_equal):
        for number in (5, 2**30):
            y = getattr(nn.ops, compare.__name__)(inputs, number)
            made = nn.Model(inputs, y).predict(x, verbose=0)
            np.testing.assert_array_equal(made, compare(x, number))


def mish(x):
    return x * ops.tanh(ops.softplus(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda a: nn.layers.Dense(5, activation=a),
        lambda a: nn.layers.LSTM(5, activation=a, recurrent_activation=a),
        lambda a: nn.layers.GRU(5, activation=a),
        lambda a: nn.layers.RNN(nn.layers.SimpleRNNCell(5, activation=a)),
        lambda a: nn.layers.Conv1D(5, 3, activation=a),
        lambda a: nn.layers.EinsumDense("aij,jk->aik", (None, 5), activation=a),
        lambda a: nn.layers.Activation(a),
    ],
)
def test_a_function_is_an_activation(make):
    """It trains as the activation of that formula does."""
    x = np.random.default_rng(0).standard_normal((8, 6, 3)).astype(np.float32)
    results = []
    for activation in (mish, "mish"):
        nn.set_random_seed(0)
        model = nn.Sequential([nn.Input((6, 3)), make(activation), nn.Dense(2)])
        model.compile("sgd", "mse")
        model.fit(x, np.ones((8, *model.output_shape[1:])), verbose=0, epochs=2)
        results.append(model.predict(x, verbose=0))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_a_model_with_a_function_as_activation_is_saved_by_its_name(tmp_path):
    dense = nn.Dense(4, activation=mish, dtype="mixed_bfloat16")
    model = nn.Sequential([nn.Input((3,)), dense, nn.Dense(2, nn.LeakyReLU(0.1))])
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    model.save(tmp_path / "m.memcfg")
    with pytest.raises(mc.errors.FormatError, match="function 'mish' is unknown"):
        nn.models.load_model(tmp_path / "m.memcfg")
    named = {"mish": mish}
    loaded = nn.models.load_model(tmp_path / "m.memcfg", custom_objects=named)
    for each in (loaded, copy.deepcopy(model), nn.models.clone_model(model)):
        assert each.layers[0].activation is mish
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    nameless = nn.Sequential([nn.Input((3,)), nn.Dense(4, lambda x: x * 2)])
    clone = nn.models.clone_model(nameless)
    assert clone.layers[0].activation is nameless.layers[0].activation
    with pytest.raises(TypeError, match="a lambda has no name"):
        nameless.save(tmp_path / "n.memcfg")


@pytest.mark.parametrize(
    ("activation", "kind", "words"),
    [
        (lambda _: 3, TypeError, r"must return a symbolic tensor of shape \(None, 4\)"),
        (
            lambda x: x[:, :1],
            TypeError,
            r"of shape \(None, 4\), made from its argument",
        ),
        (lambda x: x - ops.mean(x), ValueError, "reads other samples"),
        (nn.PReLU(), ValueError, "has weights: call it as a layer of its own"),
    ],
)
def test_functions_that_are_no_activations_are_refused(activation, kind, words):
    with pytest.raises(kind, match=words):
        nn.Sequential([nn.Input((3,)), nn.Dense(4, activation=activation)])


class Placed(nn.Layer):
    """Adds a row of a table to each step, by the numbers of the steps."""

    def __init__(self, steps, width, **kwargs):
        super().__init__(**kwargs)
        self.steps = steps
        self.table = nn.Embedding(steps, width, name="table")

    def call(self, x):
        return x + self.table(ops.arange(0, self.steps))


def test_a_layer_within_a_call_trains_on_numbers_of_it():
    x = np.random.default_rng(0).standard_normal((6, 5, 3)).astype(np.float32)
    model = nn.Sequential([nn.Input((5, 3)), Placed(5, 3)])
    (table,) = model.get_weights()
    np.testing.assert_array_equal(model.predict(x, verbose=0), x + table)
    model.compile(nn.SGD(1.0), "mse")
    model.fit(x, 0 * x, batch_size=6, verbose=0)
    slope = 2 * (x + table).sum(0) / x.size
    np.testing.assert_allclose(model.get_weights()[0], table - slope, rtol=1e-5)


def test_numbers_are_made_for_each_sample_of_a_call():
    class Marked(nn.Layer):
        def call(self, x):
            count = ops.shape(x)[0]
            of = ops.ones((count, 2)), ops.zeros((count, 1), "int32"), x
            return ops.concatenate([*of, ops.full((count, 1), 3.0)], axis=-1)

    model = nn.Sequential([nn.Input((1,)), Marked()])
    found = model.predict(np.array([[7.0], [8.0]]), verbose=0)
    assert found.tolist() == [[1, 1, 0, 7, 3], [1, 1, 0, 8, 3]]
    for shape in ((None, 2), (2, None)):
        with pytest.raises(ValueError, match="a length of None is that of the batch"):
            ops.ones(shape)


def test_an_array_is_the_attention_mask_of_all_samples():
    class Causal(nn.Layer):
        def __init__(self, mask):
            super().__init__()
            self.mask = mask
            self.attention = nn.MultiHeadAttention(2, 4, seed=1)

        def call(self, x):
            if self.mask is None:
                return self.attention(x, x, use_causal_mask=True)
            return self.attention(x, x, attention_mask=self.mask)

    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    models = []
    for mask in (None, np.tril(np.ones((1, 5, 5), bool))):
        nn.set_random_seed(0)
        models.append(nn.Sequential([nn.Input((5, 4)), Causal(mask)]))
    found = [each.predict(x, verbose=0) for each in models]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"has shape \(1, queries, keys\)"):
        nn.Sequential([nn.Input((5, 4)), Causal(np.ones((3, 5, 5)))])


class Scale(nn.Layer):
    def build(self, input_shape):
        self.by = self.add_weight(shape=(), initializer="ones", name="by")

    def call(self, x):
        return x * self.by


def test_a_weight_is_a_number_of_python():
    layer = Scale()
    layer.build((None, 3))
    assert float(layer.weights[0]) == int(layer.weights[0]) == 1


def test_names_of_numpy_are_names():
    """Such as a search draws."""
    kind = np.array(["relu", "tanh"])[0]
    model = nn.Sequential([nn.Input((2,)), nn.Dense(2, kind)])
    assert (model.predict(np.ones((1, 2)), verbose=0) >= 0).all()


def test_variables_are_weights():
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2), nn.BatchNormalization()])
    for each in (model, model.layers[-1]):
        for kind in ("", "trainable_", "non_trainable_"):
            weights = getattr(each, f"{kind}weights")
            found = getattr(each, f"{kind}variables")
            assert [w.path for w in found] == [w.path for w in weights]


def test_weights_that_a_call_does_not_read_are_left_as_they_are():
    """With a warning, as in Keras; what only training reads is trained."""

    class Spare(nn.Layer):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Dense(4), nn.Dense(4)
            self.unused.build((None, 4))
            self.spare = self.add_weight((3,), "ones", name="spare")
            self.scale = self.add_weight((4,), "ones", name="scale")

        def call(self, x, training=None):
            y = self.used(x)
            return y * self.scale if training else y

    layer = Spare()
    model = nn.Sequential([nn.Input((4,)), layer, nn.Dense(1)])
    model.compile(nn.optimizers.AdamW(0.1, weight_decay=0.5), "mse")
    before = {each.path: each.numpy() for each in layer.weights}
    with pytest.warns(UserWarning, match="no loss depends on the weights") as told:
        model.fit(np.ones((8, 4)), np.zeros((8, 1)), verbose=0)
    (warning,) = told
    changed = {
        each.path
        for each in layer.weights
        if not np.array_equal(each.numpy(), before[each.path])
    }
    for path in before:
        is_unused = "spare/spare" in path or layer.unused.name in path
        assert (path in changed) != is_unused
        assert (repr(path) in str(warning.message)) == is_unused


@pytest.mark.parametrize("ending", [".memcfg", ".weights.h5", ".weights.safetensors"])
def test_inner_layers_of_one_name_have_weights_of_their_own(tmp_path, ending):
    class Twice(nn.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.first = nn.Dense(4, name="dense")
            self.others = [nn.Dense(4, name="dense"), nn.Dense(4, name="dense_1")]

        def call(self, x):
            for layer in (self.first, *self.others):
                x = layer(x)
            return x

    def made():
        return nn.Sequential([nn.Input((4,)), Twice(name="twice"), nn.Dense(1)])

    model = made()
    model.compile(nn.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("f")
    before = model.get_weights()
    model.fit(x, x[:, :1], verbose=0)
    kernels = model.get_weights()
    assert not any(map(np.array_equal, before, kernels))
    h = x
    for kernel, bias in zip(kernels[::2], kernels[1::2], strict=True):
        h = h @ kernel + bias
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(expected, h, rtol=1e-4, atol=1e-5)
    paths = [each.path for each in model.weights]
    assert len({*paths}) == len(paths)
    if ending == ".memcfg":
        model.save(tmp_path / "twice.memcfg")
        custom = {"Twice": Twice}
        other = nn.models.load_model(tmp_path / "twice.memcfg", custom_objects=custom)
    else:
        model.save_weights(tmp_path / f"twice{ending}")
        other = made()
        other.load_weights(tmp_path / f"twice{ending}")
    np.testing.assert_array_equal(other.predict(x, verbose=0), expected)


def test_a_constructor_gets_trainable_and_what_it_freezes_stays_frozen():
    """As in Keras's guide to adapters of low rank."""

    class Adapter(nn.Layer):
        def __init__(self, original, rank=2, trainable=False, **options):
            super().__init__(trainable=trainable, **options)
            self.seen = trainable
            self.original = original
            self.original.trainable = False
            self.down = nn.Dense(rank, use_bias=False, trainable=trainable)
            self.up = nn.Dense(original.units, use_bias=False, trainable=trainable)

        def call(self, x):
            return self.original(x) + self.up(self.down(x))

    class Kept(nn.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.dense = nn.Dense(3)
            self.dense.trainable = False

        def call(self, x):
            return self.dense(x)

    class Wide(nn.Dense):
        def __init__(self, units, trainable=True, **options):
            super().__init__(2 * units, trainable=trainable, **options)

    adapter = Adapter(nn.Dense(5), trainable=True, name="adapter")
    model = nn.Sequential([nn.Input((4,)), adapter])
    assert adapter.seen
    assert [each.shape for each in model.trainable_weights] == [(4, 2), (2, 5)]
    kept = Kept(trainable=True, dtype="float32")
    kept(nn.Input((2,)))
    assert (kept.trainable, kept.trainable_weights) == (True, [])
    wide = Wide(3, trainable=False, dtype="mixed_bfloat16")
    assert (wide.units, wide.trainable) == (6, False)
    assert wide.compute_dtype == "bfloat16"
    assert nn.Variable(np.arange(3), dtype="int", trainable=False).dtype == "int32"
