"""Arguments, shapes and weights of the layers, without data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
IMAGE = (9, 7, 4)


def output(layer, shape=IMAGE):
    return layer(nn.Input(shape)).shape


def padding(sizes, window, stride, dilation=1):
    """Of a convolution with padding="same"."""
    x = nn.Input((*sizes, 1))
    options = {"strides": stride, "dilation_rate": dilation, "padding": "same"}
    model = nn.Model(x, nn.Flatten()(nn.Conv2D(2, window, **options)(x)))
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    return model.graph(1).ops[0].attributes["padding"]


def weights(layer):
    return {spec.name: spec.shape for spec in layer.weight_specs}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nn.Conv2D(5, 3), (None, 7, 5, 5)),
        (lambda: nn.Conv2D(5, 3, padding="same"), (None, 9, 7, 5)),
        (lambda: nn.Conv2D(5, 3, strides=2, padding="same"), (None, 5, 4, 5)),
        (lambda: nn.Conv2D(5, (2, 3), (2, 1), "VALID"), (None, 4, 5, 5)),
        (lambda: nn.Conv2D(6, 3, dilation_rate=2), (None, 5, 3, 6)),
        (lambda: nn.Conv2D(6, 3, dilation_rate=2, padding="same"), (None, 9, 7, 6)),
        (lambda: nn.Conv2D(6, 1, groups=2), (None, 9, 7, 6)),
        (lambda: nn.MaxPool2D(), (None, 4, 3, 4)),
        (lambda: nn.MaxPooling2D(3, 2, "same"), (None, 5, 4, 4)),
        (lambda: nn.AvgPool2D((3, 2), padding="same"), (None, 3, 4, 4)),
        (lambda: nn.AveragePooling2D(2, strides=1), (None, 8, 6, 4)),
        (lambda: nn.GlobalAvgPool2D(), (None, 4)),
        (lambda: nn.Flatten(), (None, 252)),
        (lambda: nn.Dense(11), (None, 9, 7, 11)),
        (lambda: nn.ReLU(), (None, 9, 7, 4)),
        (lambda: nn.Activation("relu"), (None, 9, 7, 4)),
        (lambda: nn.Activation("sigmoid"), (None, 9, 7, 4)),
        (lambda: nn.LayerNormalization(), (None, 9, 7, 4)),
        (lambda: nn.Dense(5, activation="softmax"), (None, 9, 7, 5)),
        (lambda: nn.Activation("log_softmax"), (None, 9, 7, 4)),
        (lambda: nn.Softmax(axis=1), (None, 9, 7, 4)),
        (lambda: nn.Activation(None), (None, 9, 7, 4)),
        (lambda: nn.Dropout(0.5), (None, 9, 7, 4)),
        (lambda: nn.BatchNormalization(), (None, 9, 7, 4)),
        (lambda: nn.BatchNormalization(axis=3), (None, 9, 7, 4)),
    ],
)
def test_output_shapes(make, expected):
    assert output(make()) == expected


def test_weights_have_keras_shapes_and_order():
    conv = nn.Conv2D(6, (2, 3), groups=2)
    output(conv)
    assert weights(conv) == {"kernel": (2, 3, 2, 6), "bias": (6,)}
    dense = nn.Dense(3, use_bias=False)
    output(dense, (8,))
    assert weights(dense) == {"kernel": (8, 3)}
    norm = nn.BatchNormalization()
    output(norm)
    assert list(weights(norm)) == ["gamma", "beta", "moving_mean", "moving_variance"]
    assert set(weights(norm).values()) == {(4,)}


@settings(deadline=None, max_examples=50)
@given(
    size=st.integers(1, 40),
    window=st.integers(1, 7),
    stride=st.integers(1, 5),
    dilation=st.integers(1, 3),
)
def test_same_padding_is_tensorflows(size, window, stride, dilation):
    """Its definition: ceil(size / stride) places, no more padding than they need."""
    rows, columns = padding((size, size), window, stride, dilation)
    assert rows == columns
    before, after = rows
    reach = (window - 1) * dilation + 1
    padded = size + before + after
    assert (padded - reach) // stride + 1 == math.ceil(size / stride)
    assert after - before in (0, 1)
    if before + after:  # one element less would lose the last place
        assert (padded - 1 - reach) // stride + 1 < math.ceil(size / stride)


def test_same_padding_of_a_known_case():
    # TensorFlow: 4 rows, a window of 3, a stride of 2: nothing before, one after.
    assert padding((4, 5), 3, 2) == ((0, 1), (1, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Conv2D(0, 3), "filters must be positive, got 0"),
        (lambda: nn.Conv2D(4, (3, 3, 3)), "kernel_size must be one integer or two"),
        (lambda: nn.Conv2D(4, 3, strides=0), "strides must be positive"),
        (lambda: nn.Conv2D(4, 3, padding="full"), "'valid' or 'same', got 'full'"),
        (lambda: nn.Conv2D(4, 3, data_format="first"), "channels_last"),
        (lambda: nn.ConvLSTM1D(4, 3, data_format="channels_first"), "channels_last"),
        (lambda: nn.Conv2D(5, 3, groups=2), "must be a multiple of groups"),
        (lambda: nn.Conv2D(4, 3, activation="square"), "unknown activation 'square'"),
        (lambda: nn.Dense(4, kernel_initializer="magic"), "unknown initializer"),
        (lambda: nn.MaxPool2D(0), "pool_size must be positive"),
        (lambda: nn.ReLU(max_value=-6), "max_value must be zero or more"),
        (lambda: nn.ReLU(negative_slope=-0.1), "negative_slope"),
        (lambda: nn.Activation("cube"), "unknown activation 'cube'"),
        (lambda: nn.Dropout(1.0), "rate must be in"),
        (lambda: nn.Dropout(-0.1), "rate must be in"),
        (lambda: nn.Dropout(0.5, seed=-1), "zero or more"),
        (lambda: nn.BatchNormalization(momentum=1.5), "momentum must be in"),
        (lambda: nn.BatchNormalization(epsilon=0), "epsilon must be positive"),
        (lambda: nn.BatchNormalization(epsilon=1e-60), "epsilon must be positive"),
        (lambda: nn.BatchNormalization(epsilon=1e39), "epsilon must be finite"),
        (lambda: nn.RandomNormal(mean=1e39), "mean must be finite in float32"),
        (lambda: nn.Dense(4, name="a/b"), "contain '/'"),
        (lambda: nn.Dense(4, name=""), "not be empty"),
        (lambda: nn.Input((4, 0)), "must be positive"),
        (lambda: nn.Input((4,), dtype="float64"), "float32"),
        (lambda: nn.RandomNormal(stddev=-1), "stddev must be zero or more"),
        (lambda: nn.LocalResponseNormalization(128), "must be at most 127, got 128"),
        (lambda: nn.LocalResponseNormalization(2, bias=0), "bias must be positive"),
        (lambda: nn.LSTM(4, use_cudnn="yes"), "LSTM: use_cudnn must be 'auto', True"),
    ],
)
def test_what_cannot_be_honoured_raises(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: nn.Conv2D(4),
        lambda: nn.Conv2D(4, 3, kernel_regularizer=3),
        lambda: nn.Conv2D(4.0, 3),
        lambda: nn.Conv2D(4, "3"),
        lambda: nn.Dense(4, units=5),
        lambda: nn.Dense(True),
        lambda: nn.Dense(4, name=3),
        lambda: nn.Dense(4, kernel_initializer=3),
        lambda: nn.Dense(4, kernel_initializer=nn.Dense),
        lambda: nn.Dropout("0.5"),
        lambda: nn.Dropout(0.5, seed=1.5),
        lambda: nn.BatchNormalization(axis="last"),
        lambda: nn.Reshape(4),
        lambda: nn.Input(4),
        lambda: nn.Input(("4",)),
        lambda: nn.set_random_seed("x"),
        lambda: nn.Dense(4)("numbers"),
        lambda: np.asarray(nn.Input((3,))),
    ],
)
def test_wrong_types_are_type_errors(call):
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: nn.Conv2D(4, 3, name="c"), (6,), r"'c' \(Conv2D\).*\(None, 6\)"),
        (lambda: nn.Conv2D(4, 5, name="c"), (3, 9, 2), r"'c'.*\(None, 3, 9, 2\)"),
        (lambda: nn.Conv2D(4, 1, groups=2, name="c"), (3, 3, 3), "3 channels"),
        (lambda: nn.MaxPool2D(4, name="p"), (3, 3, 1), r"'p'.*\(None, 3, 3, 1\)"),
        (lambda: nn.MaxPool2D(name="p"), (3, 3), r"'p'.*\(None, 3, 3\)"),
        (lambda: nn.GlobalAvgPool2D(name="g"), (3,), r"'g'.*\(None, 3\)"),
        (lambda: nn.BatchNormalization(axis=3, name="b"), (3, 4), r"'b'.*axis=3"),
        (lambda: nn.GroupNormalization(3, name="g"), (3, 3, 8), "8 channels .* 3 gr"),
        (lambda: nn.PReLU(shared_axes=[3], name="p"), (3, 4), r"'p'.*\(None, 3, 4\)"),
        (lambda: nn.Softmax(0, name="s"), (3, 4), r"'s'.*axis=0 .*\(None, 3, 4\)"),
        (
            lambda: nn.Sequential([nn.Input((4,)), nn.Dense(2)], name="m"),
            (5,),
            r"'m' expects inputs of shape \(None, 4\), got \(None, 5\)",
        ),
    ],
)
def test_wrong_inputs_name_the_layer_and_the_shape(make, shape, message):
    with pytest.raises(ValueError, match=message):
        output(make(), shape)


def test_add_refuses_other_shapes_and_single_tensors():
    x = nn.Input((4,))
    with pytest.raises(ValueError, match=r"\(None, 4\), \(None, 3\)"):
        nn.Add()([x, nn.Dense(3)(x)])
    with pytest.raises(ValueError, match="two or more tensors"):
        nn.Add()([x])
    with pytest.raises(ValueError, match="two or more tensors"):
        nn.Add()(x)
    with pytest.raises(ValueError, match="expects 1 input, got 2"):
        nn.Dense(3)([x, x])


def test_concatenate_joins_along_an_axis_of_the_sample():
    x = nn.Input((4, 3))
    assert nn.Concatenate()([x, nn.Dense(2)(x)]).shape == (None, 4, 5)
    assert nn.Concatenate(axis=1)([x, x, x]).shape == (None, 12, 3)
    for axis in (0, 3, -3):
        with pytest.raises(ValueError, match=f"got axis={axis}"):
            nn.Concatenate(axis)([x, x])
    with pytest.raises(ValueError, match="agree in all axes but one"):
        nn.Concatenate(1)([x, nn.Dense(2)(x)])
    with pytest.raises(ValueError, match="agree in all axes but one"):
        nn.Concatenate()([x, nn.Flatten()(x)])
    with pytest.raises(TypeError, match="axis must be an integer"):
        nn.Concatenate(1.5)
    with pytest.raises(ValueError, match="two or more tensors"):
        nn.Concatenate()([x])


def test_layer_normalization_says_what_it_cannot():
    layer = nn.LayerNormalization(axis=3)
    assert output(layer) == (None, *IMAGE)
    assert weights(layer) == {"gamma": (4,), "beta": (4,)}
    for make in (
        lambda: nn.LayerNormalization(epsilon=0),
        *(
            lambda axis=axis: output(nn.LayerNormalization(axis=axis))
            for axis in (0, 4, [], [-1, 3], [0, 1, 2, 3])
        ),
    ):
        with pytest.raises(ValueError, match="LayerNormalization"):
            make()
    with pytest.raises(TypeError, match="axis must be an integer"):
        nn.LayerNormalization(axis=True)
    with pytest.raises(TypeError, match="axis must be an integer"):
        nn.LayerNormalization(axis=[-1, "channels"])


def test_an_unknown_activation_names_those_that_are_there():
    words = r"unknown activation 'magic'; known: linear, .* relu, .* softmax"
    with pytest.raises(ValueError, match=words):
        nn.Dense(3, "magic")


def test_a_shared_layer_keeps_its_weights():
    layer = nn.Dense(3, name="d")
    layer(nn.Input((4,)))
    specs = layer.weight_specs
    layer(nn.Input((4,)))
    assert layer.weight_specs is specs
    with pytest.raises(ValueError, match="'d' already has weights"):
        layer(nn.Input((5,)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (nn.Conv2D, "conv2d"),
        (nn.MaxPooling2D, "max_pooling2d"),
        (nn.AvgPool2D, "average_pooling2d"),
        (nn.GlobalAvgPool2D, "global_average_pooling2d"),
        (nn.ReLU, "re_lu"),
        (nn.BatchNormalization, "batch_normalization"),
        (nn.Dense, "dense"),
    ],
)
def test_automatic_names_are_keras_names(kind, name):
    arguments = {"conv2d": (1, 1), "dense": (1,)}.get(name, ())
    first, second = kind(*arguments).name, kind(*arguments).name
    stem, _, number = first.rpartition("_")
    start = 0 if first == name else int(number)
    assert first == name or stem == name
    assert second == f"{name}_{start + 1}"


def test_aliases():
    assert nn.MaxPool2D is nn.MaxPooling2D
    assert nn.AvgPool2D is nn.AveragePooling2D
    assert nn.GlobalAvgPool2D is nn.GlobalAveragePooling2D


def test_regularizers_are_of_weights_that_there_are():
    with pytest.raises(TypeError, match="Dense takes no argument 'foo_regularizer'"):
        nn.Dense(2, foo_regularizer="l2")
    regularizer = nn.regularizers.L2(0.5)
    for layer in (
        nn.PReLU("zeros", regularizer, None, [1]),
        nn.SeparableConv2D(2, 3, depthwise_regularizer=regularizer),
        nn.BatchNormalization(gamma_regularizer=regularizer),
        nn.LSTM(3, recurrent_regularizer=regularizer),
    ):
        layer(nn.Input((5, 5, 3) if "2D" in type(layer).__name__ else (5, 3)))
        found = [spec.regularizer for spec in layer.weight_specs]
        assert sum(each is regularizer for each in found) == 1


def test_a_users_layer_is_given_its_regularizer():
    class Scaled(nn.Layer):
        def __init__(self, scale_regularizer=None, **options):
            super().__init__(**options)
            self.regularizer = scale_regularizer

        def build(self, input_shape):
            self.scale = self.add_weight(
                input_shape[-1:], "ones", regularizer=self.regularizer
            )

        def call(self, x):
            return x * self.scale

    model = nn.Sequential([nn.Input((3,)), Scaled(scale_regularizer="l2")])
    model.compile("sgd", "mse")
    x = np.zeros((4, 3), np.float32)
    assert model.evaluate(x, x, verbose=0) == pytest.approx(0.03)


def test_a_table_looks_up_and_compares_with_all_of_its_rows():
    start = nn.Input((4,), dtype="int32")
    words = nn.ReversibleEmbedding(6, 3)
    vectors = words(start)
    model = nn.Model(start, [vectors, words(vectors, reverse=True)])
    assert model.count_params() == 18
    (table,) = model.get_weights()
    x = np.array([[0, 5, 2, 2], [1, 3, 4, 0]], np.int32)
    found, scores = model.predict(x, verbose=0)
    np.testing.assert_array_equal(found, table[x])
    np.testing.assert_allclose(scores, table[x] @ table.T, rtol=1e-5, atol=1e-7)
    model.close()


def test_a_reversed_table_has_the_gradients_of_both_uses(tmp_path):
    """One step of SGD on the sum of scores, by hand; and a file of the model."""
    start = nn.Input((2,), dtype="int32")
    words = nn.ReversibleEmbedding(3, 2)
    model = nn.Model(start, words(words(start), reverse=True))
    model.compile(nn.SGD(0.1), "mse")
    (table,) = model.get_weights()
    x, y = np.array([[0, 2]], np.int32), np.zeros((1, 2, 3), np.float32)
    rows = table[x[0]]
    dy = 2 * (rows @ table.T) / 6
    gradient = dy.T @ rows
    np.add.at(gradient, x[0], dy @ table)
    model.train_on_batch(x, y)
    (after,) = model.get_weights()
    np.testing.assert_allclose(after, table - 0.1 * gradient, rtol=1e-5, atol=1e-7)
    model.save(tmp_path / "m.memcfg")
    again = nn.models.load_model(tmp_path / "m.memcfg")
    np.testing.assert_array_equal(
        again.predict(x, verbose=0), model.predict(x, verbose=0)
    )
    again.close()
    model.close()


def test_positions_are_rows_of_a_table():
    start = nn.Input((3, 2))
    model = nn.Model(start, nn.PositionEmbedding(5, "uniform")(start))
    (table,) = model.get_weights()
    found = model.predict(np.full((2, 3, 2), np.nan, np.float32), verbose=0)
    np.testing.assert_array_equal(found, np.stack([table[:3]] * 2))
    model.close()
    with pytest.raises(ValueError, match="vectors for 2 steps, but its input has 3"):
        nn.PositionEmbedding(2)(start)
