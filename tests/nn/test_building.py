"""Weights, shapes and masks of layers before there are data."""

from __future__ import annotations

import re

import numpy as np
import pytest

from memcfg import nn

LAYERS = {
    "dense": (lambda: nn.Dense(3), (None, 4)),
    "convolution": (lambda: nn.Conv2D(3, 2), (None, 6, 5, 2)),
    "channels first": (
        lambda: nn.Conv1D(3, 2, data_format="channels_first"),
        (2, 4, 6),
    ),
    "batch normalization": (nn.BatchNormalization, (None, 4)),
    "lstm": (lambda: nn.LSTM(3), (None, 5, 2)),
    "both ways": (lambda: nn.Bidirectional(nn.GRU(3)), (None, 5, 2)),
    "each step": (lambda: nn.TimeDistributed(nn.Dense(3)), (None, 5, 2)),
    "attention": (lambda: nn.Attention(use_scale=True), [(None, 3, 2), (None, 4, 2)]),
}


def inputs(shape):
    if isinstance(shape, list):
        return [nn.Input(batch_shape=each) for each in shape]
    return nn.Input(batch_shape=shape)


@pytest.mark.parametrize("name", LAYERS)
def test_build_makes_the_weights_of_a_call(name):
    make, shape = LAYERS[name]
    built, called = make(), make()
    assert not built.built
    assert built.weights == []
    built.build(shape)
    made = called(inputs(shape))
    assert built.built
    assert [w.shape for w in built.weights] == [w.shape for w in called.weights]
    assert make().compute_output_shape(shape) == made.shape
    built.set_weights([w + 1 for w in built.get_weights()])
    assert built(inputs(shape)).shape == made.shape  # with the weights that it has


def test_compute_output_shape_leaves_a_layer_as_it_was():
    layer = nn.Dense(3)
    assert layer.compute_output_shape((7, 4)) == (7, 3)
    assert not layer.built
    assert layer(nn.Input((9,))).shape == (None, 3)


def test_attention_is_built_for_several_shapes():
    layer, shapes = nn.MultiHeadAttention(2, 3), [(None, 4, 5), (None, 6, 7)]
    layer.build(*shapes)
    assert layer.query_kernel.shape == (5, 2, 3)
    assert layer.key_kernel.shape == (7, 2, 3)
    assert layer.compute_output_shape(*shapes) == (None, 4, 5)


def test_what_depends_on_no_input_is_built_without_one():
    layer = nn.Embedding(5, 2)
    layer.build()
    assert layer.embeddings.shape == (5, 2)
    with pytest.raises(ValueError, match="needs the shape of the input"):
        nn.Dense(3).build()
    with pytest.raises(ValueError, match="images"):
        nn.Conv2D(3, 2).build((None, 4))


def test_layers_without_weights_are_built():
    kinds = (nn.ReLU, nn.Flatten, nn.MaxPooling2D, nn.Add, nn.Dropout, nn.Softmax)
    for kind in kinds:
        assert (kind(0.5) if kind is nn.Dropout else kind()).built
    statistics = nn.Normalization(axis=-1)
    assert not statistics.built
    statistics.adapt(np.ones((4, 2)))
    assert statistics.built


def test_a_layer_of_ones_own_says_that_it_is_built():
    class Doubled(nn.Layer):
        def build(self, input_shape):
            self.built = True

        def call(self, x):
            return x * 2

    layer = Doubled()
    assert not layer.built
    np.testing.assert_array_equal(layer(np.ones((1, 2))), [[2, 2]])
    assert layer.built
    dense = nn.Dense(2)
    dense.build((None, 3))
    with pytest.raises(AttributeError, match="has its weights already"):
        dense.built = False


def test_weights_know_regularizer_and_constraint():
    layer = nn.Dense(2, kernel_regularizer="l2", bias_constraint="non_neg")
    layer.build((None, 3))
    assert isinstance(layer.kernel.regularizer, nn.regularizers.L2)
    assert isinstance(layer.bias.constraint, nn.constraints.NonNeg)
    assert layer.kernel.constraint is None
    plain = nn.Dense(2, use_bias=False)
    plain.build((None, 3))
    assert plain.bias is None


# compute_mask of layers that make their masks with their results

X = np.array([[[1.0, 2.0], [0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0]] * 3], "f4")
LEFT = np.array([[1, 0, 1], [1, 1, 0]], bool)
RIGHT = np.array([[1, 1, 0], [0, 0, 0]], bool)


def test_masks_of_values():
    np.testing.assert_array_equal(nn.Masking().compute_mask(X), X.any(-1))
    ids = np.array([[1, 0], [2, 3]])
    found = nn.Embedding(5, 2, mask_zero=True).compute_mask(ids)
    np.testing.assert_array_equal(found, ids != 0)
    assert nn.Embedding(5, 2).compute_mask(ids) is None
    assert nn.Masking().compute_mask(nn.Input((3, 2))).shape == (None, 3)


@pytest.mark.parametrize("kind", [nn.Add, nn.Subtract, nn.Multiply, nn.Average])
def test_masks_of_merged_tensors(kind):
    layer = kind()
    assert layer.compute_mask([X, X]) is None
    assert layer.compute_mask([X, X], [LEFT, None]) is None
    found = layer.compute_mask([X, X], [LEFT, RIGHT])
    np.testing.assert_array_equal(found, LEFT | RIGHT)


def test_masks_are_passed_on_or_dropped():
    np.testing.assert_array_equal(nn.Dense(3).compute_mask(X, LEFT), LEFT)
    assert nn.LSTM(3).compute_mask(X, LEFT) is None
    found = nn.LSTM(3, return_sequences=True).compute_mask(X, LEFT)
    np.testing.assert_array_equal(found, LEFT)
    joined = nn.Concatenate(axis=1).compute_mask([X, X], [LEFT, RIGHT])
    np.testing.assert_array_equal(joined, np.concatenate([LEFT, RIGHT], 1))


def test_a_mask_adds_no_penalty():
    class Twice(nn.Layer):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(2, activity_regularizer="l2")

        def call(self, x):
            self.dense.compute_mask(x)
            return self.dense(x)

    losses = []
    for middle in (Twice(), nn.Dense(2, activity_regularizer="l2")):
        model = nn.Sequential([nn.Input((3, 2)), middle])
        model.compile("sgd", "mse")
        model.set_weights([np.ones(w.shape) for w in model.get_weights()])
        losses.append(model.evaluate(X, np.zeros((2, 3, 2)), verbose=0))
    assert losses[0] == losses[1]


def test_layers_that_take_masks_say_so():
    kinds = (nn.Add, nn.Concatenate, nn.LSTM, nn.GlobalAveragePooling1D)
    for kind in kinds:
        assert kind.supports_masking
    assert not nn.Flatten().supports_masking


def test_a_layer_that_was_built_is_called():
    """As layers of Keras's, whose `build` users call to see the weights."""

    class Scaled(nn.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight((input_shape[-1], 2), "ones", name="kernel")

        def call(self, x):
            return nn.ops.matmul(x, self.kernel)

    layer = Scaled()
    spec = layer.compute_output_spec(nn.Input((3,)))
    assert (spec.shape, layer.weights) == ((None, 2), [])
    layer.build((None, 3))
    assert [each.shape for each in layer.weights] == [(3, 2)]
    np.testing.assert_array_equal(layer(np.ones((4, 3), "f4")), np.full((4, 2), 3))
    model = nn.Sequential([nn.Input((3,)), layer])
    assert model.count_params() == 6
    table = nn.layers.ReversibleEmbedding(4, 2)
    table.build()
    assert table(np.array([1, 3])).shape == (2, 2)


@pytest.mark.parametrize("shape", [(5, 4), (6,)])
def test_a_built_layer_says_what_samples_it_cannot_read(shape):
    inner = nn.Sequential([nn.Dense(3)])
    inner(nn.Input((4,)))
    wanted = re.escape(f"expects inputs of shape (None, 4), got {(None, *shape)}")
    with pytest.raises(ValueError, match=wanted):
        inner(nn.Input(shape))
    assert inner(nn.Input((4,))).shape == (None, 3)
