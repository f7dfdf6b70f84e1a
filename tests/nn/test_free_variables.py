"""`nn.Variable`, and `losses` of layers and models on arrays."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
layers = nn.layers


def test_a_variable_has_a_value_by_itself():
    scale = nn.Variable([[1.0, 2.0]], name="scale")
    scale.assign_add([[1.0, 1.0]])
    scale.assign_sub(scale * 0.5)
    assert_array_equal(scale.value, [[1.0, 1.5]])
    assert scale.shape == (1, 2)
    assert scale.trainable
    assert nn.Variable(3).value == 3
    assert nn.Variable([1, 2, 3, 4], shape=(2, 2)).shape == (2, 2)
    ones = nn.Variable("ones", shape=(3,), trainable=False)
    assert_array_equal(ones.numpy(), np.ones(3))
    assert not ones.trainable
    with pytest.raises(ValueError, match="needs a shape"):
        nn.Variable("zeros")
    with pytest.raises(ValueError, match="float32 or int32"):
        nn.Variable([1], dtype="int64")


def test_a_function_trains_a_variable():
    weight, optimizer = nn.Variable(np.ones(3)), nn.SGD(0.5)

    @mc.function
    def step(x):
        with mc.GradientTape() as tape:
            loss = ops.sum(weight * x)
        optimizer.apply(tape.gradient(loss, [weight]), [weight])
        return loss

    assert step(np.arange(3.0)) == 3
    assert_array_equal(weight.value, [1.0, 0.5, 0.0])


class Scaled(layers.Layer):
    def __init__(self):
        super().__init__()
        self.scale = nn.Variable(np.full(3, 2.0), name="scale")
        self.fixed = nn.Variable(np.ones(3), trainable=False, name="fixed")

    def call(self, x):
        return x * self.scale + self.fixed


class Whole(nn.Model):
    def __init__(self):
        super().__init__()
        self.factor = nn.Variable(2.0, name="factor")
        self.dense = layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x) * self.factor


def test_a_layer_trains_and_saves_its_variables(tmp_path):
    model = nn.Sequential([nn.Input((3,)), Scaled()])
    name = model.layers[0].name
    assert [each.path for each in model.weights] == [
        f"{name}/scale/value",
        f"{name}/fixed/value",
    ]
    assert len(model.trainable_weights) == 1
    x = np.arange(6.0).reshape(2, 3)
    assert_array_equal(model.predict(x, verbose=0), 2 * x + 1)
    model.compile(nn.SGD(0.1), "mse")
    model.fit(x, 2 * x + 3, epochs=1, verbose=0)
    assert (model.layers[0].scale.numpy()[1:] > 2).all()
    assert_array_equal(model.layers[0].fixed.numpy(), 1)
    model.save_weights(tmp_path / "w.safetensors")
    other = nn.Sequential([nn.Input((3,)), Scaled()])
    other.load_weights(tmp_path / "w.safetensors")
    assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_model_trains_its_variable():
    model = Whole()
    model.compile(nn.SGD(0.01), "mse")
    assert isinstance(model.loss, nn.losses.MeanSquaredError)
    x = np.ones((4, 2), np.float32)
    assert_array_equal(model.predict(x, verbose=0), np.full((4, 1), 4.0))
    model.fit(x, np.zeros((4, 1)), verbose=0)
    assert_allclose(model.factor.numpy(), 2 - 0.01 * 2 * 4 * 2, rtol=1e-5)
    assert len(model.trainable_weights) == 3
    assert model.layers == [model.dense]


def test_variables_of_one_weight_are_equal():
    layer = Scaled()
    dense = layers.Dense(1)
    dense.build((None, 2))
    assert dense.weights == [dense.kernel, dense.bias]
    assert dense.weights[1] in dense.weights
    assert dense.weights[0] != dense.weights[1]
    assert layer.scale in [layer.scale]
    assert len({*dense.weights, *dense.trainable_weights}) == 2


class Adding(layers.Layer):
    def call(self, x):
        self.add_loss(0.5 * ops.mean(x))
        return x


class Outer(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = Adding()
        self.dense = layers.Dense(
            2, kernel_initializer="ones", kernel_regularizer=nn.regularizers.L2(0.25)
        )

    def call(self, x):
        return self.dense(self.inner(x))


def test_losses_of_a_call_on_arrays():
    layer = Outer()
    assert layer.losses == []
    for value in (2.0, 4.0):  # of the last call alone
        layer(np.full((3, 2), value))
        assert_allclose(layer.losses, [value / 2, 0.25 * 4])
    model = nn.Sequential([nn.Input((2,)), Outer()])
    model(np.full((3, 2), 6.0), training=True)
    assert_allclose(model.losses, [3.0, 1.0])

    @mc.function
    def total(x):
        layer(x)
        return sum(layer.losses)

    assert_allclose(total(np.full((3, 2), 8.0)), 4 + 1)


def test_a_layer_is_removed_from_the_end():
    nn.set_random_seed(0)
    model = nn.Sequential([nn.Input((3,)), layers.Dense(4), layers.Dense(2)])
    model.compile("sgd", "mse")
    x = np.ones((8, 3))
    model.fit(x, np.zeros((8, 2)), verbose=0)
    kept = model.layers[0].get_weights()
    last = model.layers[1].get_weights()
    removed = model.pop()
    assert removed.units == 2
    for one, other in zip(removed.get_weights(), last, strict=True):
        assert_array_equal(one, other)
    assert model.output_shape == (None, 4)
    expected = x @ kept[0] + kept[1]
    assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5)
    assert_allclose(removed(expected), expected @ last[0] + last[1], rtol=1e-5)
    model.add(layers.Dense(1))
    model.build()
    model.compile("sgd", "mse")
    model.fit(x, np.zeros((8, 1)), verbose=0)
    assert model.output_shape == (None, 1)
    for _ in range(2):
        model.pop()
    with pytest.raises(ValueError, match="no layers"):
        model.pop()


@pytest.mark.parametrize("copies", [False, True])
def test_what_is_left_gives_what_its_last_layer_gives(copies):
    class Both(layers.Layer):
        def call(self, x):
            return {"double": 2 * x, "next": x + 1}

    class Doubled(layers.Layer):
        def call(self, parts):
            return parts["double"]

    model = nn.Sequential([nn.Input((3,)), Both(), Doubled()])
    x = np.ones((2, 3), np.float32)
    assert_allclose(model.predict(x, verbose=0), 2 * x)
    if copies:
        model = copy.deepcopy(model)
    model.pop()
    found = model.predict(x, verbose=0)
    assert found.keys() == {"double", "next"}
    assert_allclose(found["next"], 2 * x)
    model.add(Doubled())
    assert_allclose(model.predict(x, verbose=0), 2 * x)


def test_samples_may_be_single_numbers():
    x = nn.Input(())
    model = nn.Model(x, x * 2.0 + 1.0)
    assert_array_equal(model.predict(np.arange(3.0), verbose=0), [1.0, 3.0, 5.0])
    words = nn.Input((), dtype="int32")
    rows = layers.Dense(1)(layers.Embedding(5, 3)(words))
    model = nn.Model(words, rows)
    model.compile("adam", "mse")
    model.fit(np.arange(4), np.ones((4, 1)), verbose=0)
    assert model.predict(np.arange(4), verbose=0).shape == (4, 1)


def test_callbacks_see_the_structure_of_outputs():
    seen = []

    class Seeing(nn.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            seen.append(logs["outputs"])

    x = nn.Input((2,))
    first, second = layers.Dense(1)(x), layers.Dense(3)(x)
    data = np.ones((4, 2))
    nn.Model(x, first).predict(data, verbose=0, callbacks=[Seeing()])
    nn.Model(x, {"a": first, "b": second}).predict(
        data, verbose=0, callbacks=[Seeing()]
    )
    assert seen[0].shape == (4, 1)
    assert seen[1]["b"].shape == (4, 3)


def test_the_unknown_length_of_the_batch_is_told():
    class Batched(layers.Layer):
        def call(self, x):
            return x + ops.expand_dims(x.shape[0], 0)

    with pytest.raises(TypeError, match="the length of the batch"):
        Batched()(nn.Input((2,)))


def test_conditions_are_combined():
    @mc.function
    def both(a, b):
        first, second = a > 0, b > 0
        return first & second, first | second, first ^ second, ~first

    a, b = np.array([1.0, 1, -1, -1]), np.array([1.0, -1, 1, -1])
    p, q = a > 0, b > 0
    for made, wanted in zip(both(a, b), (p & q, p | q, p ^ q, ~p), strict=True):
        assert_array_equal(made, wanted)


def test_segments_are_counted():
    data, ids = np.array([1.0, 2, 3]), np.array([0, 0, 2])
    assert_array_equal(ops.segment_sum(data, ids), [3.0, 0.0, 3.0])
    assert_array_equal(ops.segment_max(data, ids, num_segments=3)[[0, 2]], [2.0, 3.0])
