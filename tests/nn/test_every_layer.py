"""What holds of each layer: the mode of inference trains, configurations are whole."""

from __future__ import annotations

import random

import numpy as np
import pytest
from internals import describe_layer

import memcfg as mc
from memcfg.nn import layers

nn = mc.nn

VOLUME, IMAGE, STEPS, ROW = (4, 3, 5, 2), (6, 6, 4), (6, 4), (4,)
OPTIONS = {
    "activity_regularizer": "l1",
    "kernel_regularizer": nn.regularizers.L2(0.03),
}


class Added(nn.Layer):
    """A cell of one's own."""

    def __init__(self, units, name=None):
        self.units = self.state_size = units
        super().__init__(name=name)

    def build(self, input_shape):
        self.kernel = self.add_weight((input_shape[-1], self.units), name="kernel")

    def call(self, x, states):
        y = x @ self.kernel + states[0]
        return y, [y]


def squared(x, power=2):
    return x**power


MADE = {  # arguments with options, and the shape of a sample
    "Activation": (("tanh",), {}, ROW),
    "ActivityRegularization": ((0.1,), {"l2": 0.2}, ROW),
    "AlphaDropout": ((0.25,), {"noise_shape": (None, 1), "seed": 7}, ROW),
    "AdaptiveAveragePooling1D": ((4,), {}, STEPS),
    "AdaptiveAveragePooling2D": (((3, 4),), {}, IMAGE),
    "AdaptiveMaxPooling1D": ((2,), {}, STEPS),
    "AdaptiveMaxPooling2D": ((4,), {}, IMAGE),
    "AdaptiveAveragePooling3D": ((2,), {}, VOLUME),
    "AdaptiveMaxPooling3D": (((2, 1, 3),), {}, VOLUME),
    "AdditiveAttention": ((), {"use_scale": False, "dropout": 0.25, "seed": 3}, STEPS),
    "Attention": ((), {"use_scale": True, "score_mode": "concat"}, STEPS),
    "AveragePooling1D": ((3, 2), {"padding": "same"}, STEPS),
    "AveragePooling2D": ((3, 2), {"padding": "same"}, IMAGE),
    "AveragePooling3D": ((2,), {"padding": "same"}, VOLUME),
    "BatchNormalization": (
        (),
        {"axis": 2, "momentum": 0.5, "gamma_regularizer": "l2"},
        IMAGE,
    ),
    "Bidirectional": ((layers.GRU(2, seed=4),), {"merge_mode": "sum"}, STEPS),
    "Conv1D": ((3, 2), OPTIONS | {"dilation_rate": 2, "padding": (2, 1)}, STEPS),
    "Conv1DTranspose": ((3, 2), OPTIONS | {"strides": 2}, STEPS),
    "Conv2D": ((3, 2), OPTIONS | {"bias_regularizer": "l1", "trainable": False}, IMAGE),
    "Conv2DTranspose": ((3, 2), OPTIONS | {"padding": "same"}, IMAGE),
    "Conv3D": ((3, 2), OPTIONS | {"padding": 1, "groups": 1}, VOLUME),
    "Conv3DTranspose": ((3, 2), OPTIONS | {"strides": (1, 2, 1)}, VOLUME),
    "ConvLSTM3D": ((2, 2), {"unit_forget_bias": False}, (2, *VOLUME)),
    "ConvLSTM1D": ((2, 2), OPTIONS | {"padding": "same", "dropout": 0.5}, (2, 6, 4)),
    "ConvLSTM2D": ((2, 2), OPTIONS | {"return_sequences": True}, (2, 5, 4, 3)),
    "Cropping1D": ((1,), {}, STEPS),
    "Cropping2D": ((((1, 0), (2, 1)),), {}, IMAGE),
    "Cropping3D": (((1, 0, (2, 1)),), {}, VOLUME),
    "Dense": ((3, "relu"), OPTIONS | {"bias_initializer": "ones"}, ROW),
    "DepthwiseConv1D": ((2,), {"depthwise_regularizer": "l2"}, STEPS),
    "DepthwiseConv2D": ((2,), {"depth_multiplier": 2}, IMAGE),
    "Dropout": ((0.25,), {"noise_shape": (None, 4), "seed": 7}, ROW),
    "ELU": ((0.5,), {}, ROW),
    "EinsumDense": (
        ("abc,cd->adb", (3, None)),
        {"bias_axes": "d", "kernel_regularizer": "l1"},
        STEPS,
    ),
    "Embedding": ((9, 3), {"embeddings_regularizer": "l2", "mask_zero": True}, (5,)),
    "Flatten": ((), {}, IMAGE),
    "GRU": ((3,), OPTIONS | {"recurrent_regularizer": "l1", "dropout": 0.5}, STEPS),
    "GRUCell": ((4,), {"reset_after": False, "kernel_regularizer": "l2"}, ROW),
    "GaussianDropout": ((0.25,), {"seed": 7}, ROW),
    "GaussianNoise": ((0.25,), {}, ROW),
    "GlobalAveragePooling1D": ((), {"keepdims": True}, STEPS),
    "GlobalAveragePooling2D": ((), {"keepdims": True}, IMAGE),
    "GlobalAveragePooling3D": ((), {"keepdims": True}, VOLUME),
    "GlobalMaxPooling3D": ((), {"keepdims": True}, VOLUME),
    "GlobalMaxPooling1D": ((), {"keepdims": True}, STEPS),
    "GlobalMaxPooling2D": ((), {"keepdims": True}, IMAGE),
    "GroupNormalization": ((2,), {"axis": 1, "scale": False}, IMAGE),
    "GroupQueryAttention": ((3, 4, 2), OPTIONS | {"seed": 5}, STEPS),
    "Identity": ((), {}, ROW),
    "LSTM": ((3,), OPTIONS | {"return_sequences": True, "seed": 2}, STEPS),
    "LSTMCell": ((4,), {"dropout": 0.5, "bias_regularizer": "l2"}, ROW),
    "Lambda": ((squared,), {"arguments": {"power": 3}}, ROW),
    "LayerNormalization": (([1, 3],), {"gamma_regularizer": "l1"}, IMAGE),
    "LeakyReLU": ((0.2,), {}, ROW),
    "LocalResponseNormalization": ((2,), {"alpha": 0.5}, IMAGE),
    "Masking": ((0.5,), {}, STEPS),
    "MaxPooling1D": ((3, 2), {"padding": "same"}, STEPS),
    "MaxPooling2D": ((3, 2), {"padding": ((0, 1), (1, 0))}, IMAGE),
    "MaxPooling3D": (((2, 1, 2),), {"strides": 1}, VOLUME),
    "MaxUnpooling2D": ((3, 2), {"padding": 1, "output_size": (6, 6)}, IMAGE),
    "MultiHeadAttention": ((2, 3), OPTIONS | {"dropout": 0.25, "seed": 5}, STEPS),
    "Normalization": ((), {"mean": 1.0, "variance": 2.0}, ROW),
    "PReLU": ((), {"alpha_regularizer": "l2", "shared_axes": [1]}, STEPS),
    "Permute": (((2, 1),), {}, STEPS),
    "Pipeline": (([layers.Dense(3), layers.ELU()],), {}, ROW),
    "STFTSpectrogram": (("magnitude", 4, 2), {"window": "hamming"}, STEPS),
    "RMSNormalization": (((1, 3),), {"epsilon": 0.1}, IMAGE),
    "RNN": ((Added(4),), {"return_sequences": True}, STEPS),
    "ReLU": ((3.0,), {"threshold": 0.1}, ROW),
    "PositionEmbedding": ((9,), {"initializer": "ones"}, STEPS),
    "RandomBrightness": (((-0.2, 0.4),), {"value_range": (0, 1), "seed": 3}, IMAGE),
    "RandomContrast": ((0.5,), {"value_range": (0, 1), "seed": 3}, IMAGE),
    "RandomFlip": (("vertical",), {"seed": 3}, IMAGE),
    "RepeatVector": ((3,), {}, ROW),
    "Rescaling": ((0.5,), {"offset": 1.0}, ROW),
    "ReversibleEmbedding": ((9, 3), {"embeddings_regularizer": "l2"}, (5,)),
    "Reshape": (((2, -1),), {}, ROW),
    "SeparableConv1D": ((3, 2), {"pointwise_regularizer": "l2"}, STEPS),
    "SeparableConv2D": ((3, 2), {"depthwise_regularizer": "l1"}, IMAGE),
    "SimpleRNN": ((3,), OPTIONS | {"go_backwards": True, "unroll": True}, STEPS),
    "SimpleRNNCell": ((4,), {"use_bias": False}, ROW),
    "Softmax": ((), {"axis": (1, -1)}, STEPS),
    "SpatialDropout1D": ((0.25,), {}, STEPS),
    "SpatialDropout2D": ((0.25,), {"seed": 1}, IMAGE),
    "SpatialDropout3D": ((0.25,), {"seed": 1}, VOLUME),
    "SpectralNormalization": ((layers.Conv2D(2, 3),), {"power_iterations": 2}, IMAGE),
    "StackedRNNCells": (([layers.GRUCell(4), Added(4)],), {}, ROW),
    "TimeDistributed": ((layers.Dense(2),), {}, STEPS),
    "UnitNormalization": ((), {"axis": (1, 2)}, STEPS),
    "UpSampling1D": ((3,), {}, STEPS),
    "UpSampling2D": ((2,), {"interpolation": "bicubic"}, IMAGE),
    "Wrapper": ((layers.Dense(2),), {}, ROW),
    "UpSampling3D": (((1, 2, 3),), {}, VOLUME),
    "ZeroPadding3D": ((2,), {}, VOLUME),
    "ZeroPadding1D": ((2,), {}, STEPS),
    "ZeroPadding2D": ((2,), {}, IMAGE),
    "Add": ((), {}, ROW),
    "Average": ((), {}, ROW),
    "CenterCrop": ((4, 3), {}, IMAGE),
    "Concatenate": ((), {"axis": 1}, STEPS),
    "Dot": ((-1,), {"normalize": True}, STEPS),
    "Maximum": ((), {}, ROW),
    "Minimum": ((), {}, ROW),
    "Multiply": ((), {}, ROW),
    "Subtract": ((), {}, ROW),
}
# They compute on arrays alone: test_categories.py and test_augmentation.py.
ON_ARRAYS = {
    "AugMix",
    "ContrastLimitedAdaptiveHistogramEqualization",
    "CutMix",
    "Equalization",
    "InputLayer",
    "MaxNumBoundingBoxes",
    "MelSpectrogram",
    "MixUp",
    "RandAugment",
    "RandomColorJitter",
    "RandomElasticTransform",
    "RandomErasing",
    "RandomGaussianBlur",
    "RandomPerspective",
    "RandomShear",
    "AutoContrast",
    "RandomColorDegeneration",
    "RandomGrayscale",
    "RandomHue",
    "RandomInvert",
    "RandomPosterization",
    "RandomSaturation",
    "RandomSharpness",
    "Solarization",
    "CategoryEncoding",
    "Discretization",
    "HashedCrossing",
    "Hashing",
    "IntegerLookup",
    "RandomCrop",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
    "Resizing",
    "StringLookup",
    "TextVectorization",
}
OF_TWO = ("AdditiveAttention", "Attention", "Add", "Average", "Concatenate", "Dot")
OF_TWO += ("Maximum", "Minimum", "Multiply", "Subtract")


def made(name):
    args, options, _ = MADE[name]
    return getattr(layers, name)(*args, **options)


def called(layer, x):
    """The layer's result, of more tensors where it takes more."""
    if isinstance(layer, layers.StackedRNNCells):
        return layer(x, [[x], x])[0]
    if hasattr(layer, "state_size"):
        size = layer.state_size
        return layer(x, [x] * (len(size) if isinstance(size, list) else 1))[0]
    if isinstance(layer, layers.MultiHeadAttention | layers.GroupQueryAttention):
        return layer(x, x)
    if isinstance(layer, layers.PositionEmbedding):
        return layers.Add()([x, layer(x)])
    if isinstance(layer, layers.MaxUnpooling2D):
        same = layer.pool_size, layer.strides, layer.padding
        return layer(layers.MaxPooling2D(*same, return_indices=True)(x))
    return layer([x, x] if type(layer).__name__ in OF_TWO else x)


def test_the_table_has_each_layer():
    kinds = {getattr(layers, name) for name in layers.__all__}
    kinds = {each for each in kinds if isinstance(each, type)}
    assert {getattr(layers, name) for name in MADE.keys() | ON_ARRAYS} == {
        each for each in kinds if issubclass(each, nn.Layer) and each is not nn.Layer
    }


@pytest.mark.parametrize("name", MADE)
def test_each_layer_trains_in_the_mode_of_inference(name):
    shape = MADE[name][2]
    looks_up = name in ("Embedding", "ReversibleEmbedding")
    dtype = "int32" if looks_up else "float32"
    start = nn.Input(shape, dtype=dtype)
    layer = front = made(name)
    first = start
    if not looks_up:  # the gradient of its weight goes through the layer
        front = layers.Dense(shape[-1], bias_initializer="ones")
        first = front(start)
    base = nn.Model(start, called(layer, first))
    x = nn.Input(shape, dtype=dtype)
    y = layers.Dense(1)(layers.Flatten()(base(x, training=False)))
    model = nn.Model(x, y)
    model.compile(nn.SGD(0.01), "mse", memory="keep_all")
    before = base.get_weights()
    data = np.random.default_rng(0).uniform(1, 3, (4, *shape)).astype(dtype)
    model.fit(data, np.ones(4), verbose=0)
    assert all(np.isfinite(each).all() for each in base.get_weights())
    place = [each.path for each in base.weights].index(front.weights[0].path)
    still = name == "Subtract"  # of itself
    assert np.array_equal(before[place], front.get_weights()[0]) == still


def description(layer):
    """All that files say of a layer, without what each one draws."""
    found = describe_layer(layer)
    options = MADE[type(layer).__name__][1]
    for each in found[0 if "seed" not in options else 1 :]:
        each.pop("seed", None)
    for each in found:
        each.pop("named")  # a configuration has a name
    return found


@pytest.mark.parametrize("name", MADE)
def test_a_layer_of_a_configuration_is_the_same(name):
    layer = made(name)
    config = layer.get_config()
    with nn.utils.CustomObjectScope({"Added": Added, "squared": squared}):
        again = type(layer).from_config(config)
    assert description(again) == description(layer)
    assert set(MADE[name][1]) <= set(config)


def test_a_configuration_fixes_no_seed_that_was_drawn():
    drawn = layers.Dropout(0.5)
    assert drawn.get_config()["seed"] is None
    assert layers.Dropout.from_config(drawn.get_config()).seed != drawn.seed

    class Mine(layers.Dense):
        pass

    mine = Mine(2, kernel_regularizer="l2", activity_regularizer="l1")
    again = Mine.from_config(mine.get_config())
    assert again.get_config() == mine.get_config()
    assert "kernel_regularizer" in mine.get_config()


def test_a_seed_is_that_of_the_global_generators_too():
    drawn = []
    for _ in range(2):
        nn.utils.set_random_seed(2**32 + 5)
        drawn.append((np.random.rand(), random.random(), layers.Dense(2).seed))  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    random.seed(2**32 + 5)
    assert drawn[0] == drawn[1]
    assert drawn[0][:2] == (np.random.rand(), random.random())  # noqa: NPY002
