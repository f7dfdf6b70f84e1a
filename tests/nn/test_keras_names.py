"""Every name of Keras's is here, or says why it is not and what to do instead."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import ABSENT, argument, instead, taken
from scripts import script

import memcfg as mc

keras_table = script("keras_table")
NAMES = json.loads(
    (Path(__file__).parents[1] / "support" / "keras_names.json").read_text()
)
ROOMS = [room for room in NAMES if room not in keras_table.METHODS]


def module_of(room):
    return importlib.import_module(f"memcfg.nn.{room}".rstrip("."))


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_is_here_or_says_why_not(room):
    module = module_of(room)
    for name in NAMES[room]:
        if hasattr(module, name):
            assert name not in ABSENT.get(room, {}), f"{name} is here by now"
            continue
        with pytest.raises(AttributeError) as error:
            getattr(module, name)
        assert str(error.value).endswith(f" {name!r}: {instead(ABSENT[room], name)}")


@pytest.mark.parametrize("room", ABSENT)
def test_reasons_are_of_names_that_keras_has(room):
    names = NAMES[room].keys() | {"stft", "STFT", "legacy"}
    assert all(fnmatch.filter(names, pattern) for pattern in ABSENT[room])


def callables():
    """What users give arguments: by name, with the arguments of Keras's."""
    for room in ROOMS:
        for name, theirs in NAMES[room].items():
            found = getattr(module_of(room), name, None)
            if found is not None and name not in ("CallbackList", "custom_gradient"):
                yield found, theirs
    for name, theirs in NAMES["Model"].items():
        owner = mc.nn.Model if hasattr(mc.nn.Model, name) else mc.nn.Layer
        yield getattr(owner, name), theirs
    yield mc.nn.Sequential, NAMES["Sequential"]


def test_an_argument_is_taken_or_refused_in_words():
    refused = set()
    for function, theirs in callables():
        for name in keras_table.missing(function, theirs):
            with pytest.raises(
                TypeError, match="does not support the Keras argument"
            ) as error:
                function(**{name: object()})
            assert argument(name).words in str(error.value)
            refused.add(name)
    assert refused >= {"run_eagerly", "renorm", "sparse", "zipped"}


DIFFERENT = [
    (getattr(module_of(room), name), argument, value)
    for room in ROOMS
    for name in NAMES[room]
    if hasattr(module_of(room), name)
    for argument, _, value, _ in keras_table.different(
        room, name, getattr(module_of(room), name)
    )
]


@pytest.mark.parametrize(("kind", "argument", "value"), DIFFERENT)
def test_a_value_that_the_page_excepts_is_refused(kind, argument, value):
    given = {
        "filters": 2,
        "groups": 2,
        "kernel_size": 2,
        "learning_rate": 0.1,
        "rate": 0.5,
        "units": 2,
        "num_heads": 1,
        "head_dim": 2,
        "num_query_heads": 2,
        "num_key_value_heads": 1,
        "key_dim": 2,
        "input_dim": 3,
        "output_dim": 2,
        "layer": mc.nn.LSTM(2),
        "x": mc.nn.Input((4, 4, 4)),
        "inputs": mc.nn.Input((4, 4, 4)),
        **dict.fromkeys(("images", "image1", "image2"), mc.nn.Input((4, 4, 3))),
        "volumes": mc.nn.Input((4, 4, 4, 1)),
        "transform": np.ones(8, np.float32),
        **dict.fromkeys(("start_points", "end_points"), np.ones((4, 2), np.float32)),
        "size": 2,
        "block_size": 2,
        "factor": 0.5,
        "height": 2,
        "width": 2,
        "height_factor": 0.5,
        "width_factor": 0.5,
        "directory": ".",
        "img": np.ones((2, 2, 1)),
        "path": "image.png",
        "optimizer_map": mc.nn.optimizers.OptimizerMap(mc.nn.SGD()),
        "output_size": 2,
        "pool_size": 2,
        "kernel": np.ones((2, 2, 4, 4)),
        "depthwise_kernel": np.ones((2, 2, 4, 1)),
        "pointwise_kernel": np.ones((1, 1, 4, 4)),
    }
    ours = inspect.signature(kind).parameters
    given = {each: given[each] for each in given if each in ours} | {argument: value}
    with pytest.raises((ValueError, TypeError)) as error:
        kind(**given)(mc.nn.Input((4, 4)))
    text = str(error.value)
    assert argument.rstrip("s") in text or str(value) in text
    assert "unexpected" not in text


def test_values_of_keras_that_change_nothing_are_taken():
    for name, values in NAMES["defaults"].items():
        for value in values:
            if (name, value) == ("write_graph", True):
                continue  # no graph is written
            if name != "max_queue_size":  # of what is not here
                assert taken("this", (), {name: value}) == {}, name
    given = {"loss": "mse", "run_eagerly": False, "jit_compile": "auto"}
    model = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(1)], trainable=False)
    model.compile("sgd", **given, auto_scale_loss=True, steps_per_execution=1)
    assert model.get_layer(index=0).trainable is False
    assert mc.nn.Dense(3, kernel_constraint=None, autocast=True).units == 3
    with pytest.raises(
        TypeError, match=r"Dense does not .*dtype='float32' keeps .* True"
    ):
        mc.nn.Dense(3, autocast=False)
    with pytest.raises(TypeError, match=r"Model.compile does not .*program of its own"):
        model.compile("sgd", "mse", steps_per_execution=True + 1)
    with pytest.raises(TypeError, match=r"Dense does not .*float32$"):
        mc.nn.Dense(3, quantization_config=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'unit'"):
        mc.nn.Dense(unit=3)


def test_a_name_in_another_case_or_of_fewer_words_is_told():
    with pytest.raises(AttributeError, match="did you mean 'Adam'"):
        mc.nn.optimizers.adam  # noqa: B018
    for name, meant in (
        ("sparse_crossentropy", "sparse_categorical_crossentropy"),
        ("mean_error", "mean_squared_error"),
    ):
        with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
            mc.nn.losses.get(name)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("load_model", "memcfg.nn.models"),
        ("Dense", "memcfg.nn"),
        ("Dataset", "memcfg.data"),
        ("set_memory_limit", "memcfg.config"),
    ],
)
def test_a_name_at_the_top_says_where_it_is(name, places):
    with pytest.raises(AttributeError, match=f"{name!r}: it is in {places}$"):
        getattr(mc, name)
    assert not hasattr(mc, name)
    with pytest.raises(ImportError, match=f"it is in {places}"):
        exec(f"from memcfg import {name}")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: mc.nn.Dense(3, act="relu"), "'act': did you mean 'activation'"),
        (lambda: mc.nn.Adam(learning_rat=1), "did you mean 'learning_rate'"),
        (lambda: mc.nn.Sequential().fit(epoch=2), "did you mean 'epochs'"),
        (lambda: mc.nn.Sequential().compile(optimiser="sgd"), "mean 'optimizer'"),
        (lambda: mc.nn.Dense(3, zzz=1), r"unexpected keyword argument 'zzz'$"),
        (lambda: mc.nn.Sequential().memory_timeline(verfy=True), "mean 'verify'"),
        (lambda: mc.nn.Sequential().predict([], batchsize=1), "mean 'batch_size'"),
        (lambda: mc.nn.Sequential().fit(limit="1GiB"), r"memcfg.budget\('1GiB'\)"),
    ],
)
def test_the_argument_that_was_meant_is_told(call, told):
    with pytest.raises(TypeError, match=told):
        call()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("losses", name) for name in ("MeanSquaredError", "Hinge", "KLDivergence")),
        *(("metrics", name) for name in ("MeanSquaredError", "Recall")),
        ("metrics", "FalsePositives"),
    ],
)
def test_too_many_arguments_are_told_of_the_class_that_was_called(module, name):
    with pytest.raises(TypeError, match=rf"^{name}\(\): too many positional"):
        getattr(getattr(mc.nn, module), name)(*range(20))


def test_a_layer_of_a_users_hands_arguments_on():
    class Own(mc.nn.Layer):
        def __init__(self, units, **options):
            super().__init__(**options)
            self.units = units

    assert Own(3, name="own", autocast=True, trainable=False).trainable is False
    with pytest.raises(TypeError, match=r"Layer does not .*'renorm'"):
        Own(3, renorm=True)


MADE = {  # layers that need arguments
    "Bidirectional": lambda: mc.nn.Bidirectional(mc.nn.LSTM(2)),
    "ConvLSTM1D": lambda: mc.nn.ConvLSTM1D(2, 2),
    "ConvLSTM2D": lambda: mc.nn.ConvLSTM2D(2, 2),
    "ConvLSTM3D": lambda: mc.nn.ConvLSTM3D(2, 2),
    "CenterCrop": lambda: mc.nn.CenterCrop(2, 2),
    "Dense": lambda: mc.nn.Dense(2),
    "EinsumDense": lambda: mc.nn.EinsumDense("abc,cd->adb", (2, None)),
    "GroupQueryAttention": lambda: mc.nn.GroupQueryAttention(2, 2, 1),
    "Lambda": lambda: mc.nn.Lambda(abs),
    "MultiHeadAttention": lambda: mc.nn.MultiHeadAttention(1, 2),
    "Pipeline": lambda: mc.nn.layers.Pipeline([mc.nn.Dense(2)]),
    "RNN": lambda: mc.nn.RNN(mc.nn.GRUCell(2)),
    "RandomBrightness": lambda: mc.nn.RandomBrightness(0.5),
    "RandomContrast": lambda: mc.nn.RandomContrast(0.5),
    "ReversibleEmbedding": lambda: mc.nn.ReversibleEmbedding(5, 4),
    "SpectralNormalization": lambda: mc.nn.SpectralNormalization(mc.nn.Dense(2)),
    "StackedRNNCells": lambda: mc.nn.StackedRNNCells([mc.nn.GRUCell(4)]),
    "TimeDistributed": lambda: mc.nn.TimeDistributed(mc.nn.Dense(2)),
    **{
        kind: partial(getattr(mc.nn, kind), 4)
        for kind in ("LSTM", "GRU", "SimpleRNN", "LSTMCell", "GRUCell", "SimpleRNNCell")
    },
    **{
        kind: partial(getattr(mc.nn, kind), 0.5)
        for kind in NAMES["calls"]
        if ("Dropout" in kind or "Noise" in kind) and hasattr(mc.nn, kind)
    },
}
SHAPES = {"SpatialDropout2D": (4, 4, 4), "ConvLSTM1D": (4, 4, 4)}
SHAPES |= {"ConvLSTM2D": (2, 4, 4, 4), "ConvLSTM3D": (2, 4, 4, 4, 1)}
SHAPES["SpatialDropout3D"] = (2, 2, 2, 4)
SHAPES |= dict.fromkeys(("CenterCrop", "RandomFlip"), (4, 4, 4))
SHAPES |= dict.fromkeys(("RandomBrightness", "RandomContrast"), (4, 4, 4))
MASKED = {"attention_mask", "use_causal_mask"}  # which are taken


def a_call(kind):
    """A layer, what it is called on, and more that it needs."""
    layer = MADE.get(kind, getattr(mc.nn, kind))()
    x = mc.nn.Input((4,) if "Cell" in kind else SHAPES.get(kind, (4, 4)))
    more = {}
    if "Cell" in kind:
        more["states"] = [x] * (2 if kind == "LSTMCell" else 1)
    if kind in ("MultiHeadAttention", "GroupQueryAttention"):
        more["value"] = x
    return layer, [x, x] if kind in ("Attention", "AdditiveAttention") else x, more


ON_ARRAYS = ("CategoryEncoding", "RandomCrop", "RandomRotation", "RandomTranslation")
ON_ARRAYS += ("RandomZoom", "Resizing")  # no parts of models
ON_ARRAYS += ("AutoContrast", "RandomColorDegeneration", "RandomGrayscale", "RandomHue")
ON_ARRAYS += ("RandomInvert", "RandomPosterization", "RandomSaturation")
ON_ARRAYS += ("RandomSharpness", "Solarization", "AugMix", "CutMix", "Equalization")
ON_ARRAYS += ("ContrastLimitedAdaptiveHistogramEqualization", "MixUp", "RandAugment")
ON_ARRAYS += ("RandomColorJitter", "RandomElasticTransform", "RandomErasing")
ON_ARRAYS += ("RandomGaussianBlur", "RandomPerspective", "RandomShear")
CALLED = [k for k in NAMES["calls"] if hasattr(mc.nn, k) and k not in ON_ARRAYS]


@pytest.mark.parametrize("kind", CALLED)
def test_a_call_takes_arguments_or_refuses_them_in_words(kind):
    made, given, more = a_call(kind)
    for name in NAMES["calls"][kind]:
        if name.endswith("mask") and name not in MASKED and kind != "Lambda":
            with pytest.raises(
                TypeError, match=r"a mask is a symb|mask must be a list"
            ):
                made(given, **more, **{name: object()})
            made(given, **more, **{name: None})
        if name == "training":
            for mode in (None, True, False):
                made(given, **more, training=mode)


def test_a_model_in_a_model_refuses_what_it_would_ignore():
    inner = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dropout(0.5)])
    x = mc.nn.Input((4,))
    with pytest.raises(TypeError, match="masks come"):
        inner(x, mask=x)
    assert inner(x, training=None).shape == (None, 4)


def test_at_the_top_too():
    with pytest.raises(AttributeError, match=r"'OrbaxCheckpoint': use Model"):
        _ = mc.nn.OrbaxCheckpoint
    place = "it is in nn.losses and nn.metrics"
    with pytest.raises(AttributeError, match=f"'MeanSquaredError': {place}"):
        _ = mc.nn.MeanSquaredError
    with pytest.raises(AttributeError, match=r"'Adam': it is in nn.optimizers"):
        _ = mc.nn.layers.Adam
    with pytest.raises(AttributeError, match=r"'Dence': did you mean 'Dense'"):
        _ = mc.nn.Dence
    with pytest.raises(AttributeError, match=r"'RandomNormal': it is in nn.initial"):
        _ = mc.nn.layers.RandomNormal  # and no layer for images
    assert not hasattr(mc.nn, "RandomHue")


def test_activations_are_functions_of_symbolic_tensors_and_settings_of_layers():
    from memcfg.nn import activations

    x = mc.nn.Input((4,))
    for name in activations.__all__:
        skipped = ("deserialize", "get", "glu", "serialize", "sparsemax", "threshold")
        if name in skipped:
            continue
        function = getattr(activations, name)
        assert function(x).shape == (None, 4)
        assert activations.get(name) is function
        mc.nn.Dense(3, activation=function)
    assert activations.glu(x).shape == (None, 2)
    assert activations.get("sparsemax")(x).shape == (None, 4)
    assert activations.threshold(x, 1, 0).shape == (None, 4)
    for name in ("glu", "sparsemax"):
        with pytest.raises(ValueError, match="has no axis 0 beside the batch"):
            getattr(activations, name)(x, axis=0)
    assert mc.nn.Dense(3, activation="relu").activation is activations.relu
    assert activations.get(None) is activations.linear
    with pytest.raises(ValueError, match="unknown activation 'cube'"):
        activations.get("cube")
    assert activations.get(np.tanh) is np.tanh  # a function of one's own, perhaps


@given(
    shape=st.sampled_from([(2, 5), (3, 4, 1), (2, 3, 4)]),
    axis=st.sampled_from([-1, 1]),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_sparsemax_is_the_nearest_point_of_probabilities(shape, axis, seed):
    """The threshold of each row is found by bisection."""
    x = np.random.default_rng(seed).normal(size=shape)
    low, high = x.max(axis, keepdims=True) - 1, x.max(axis, keepdims=True)
    for _ in range(60):
        middle = (low + high) / 2
        more = np.maximum(x - middle, 0).sum(axis, keepdims=True) > 1
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    found = mc.nn.activations.sparsemax(np.float32(x), axis=axis)
    np.testing.assert_allclose(found, np.maximum(x - low, 0), atol=2e-6)


def test_to_categorical():
    rows = mc.nn.utils.to_categorical([[0], [2]])
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert mc.nn.utils.to_categorical(np.zeros((2, 3), int), 4).shape == (2, 3, 4)
    with pytest.raises(ValueError, match="0 to 1"):
        mc.nn.utils.to_categorical([0, 2], 2)
    with pytest.raises(TypeError, match="integers"):
        mc.nn.utils.to_categorical([0.5])


def test_pad_sequences_and_normalize():
    pad = mc.nn.utils.pad_sequences
    assert pad([[1, 2, 3], [4]]).tolist() == [[1, 2, 3], [0, 0, 4]]
    short = pad([[1, 2, 3], [4], []], 2, padding="post", truncating="post", value=9)
    assert short.tolist() == [[1, 2], [4, 9], [9, 9]]
    with pytest.raises(ValueError, match="padding"):
        pad([[1]], padding="left")
    with pytest.raises(ValueError, match=r"the same shape, got \(2,\) and \(3,\)"):
        pad([[[1, 2]], [[1, 2, 3]]])
    found = mc.nn.utils.normalize([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0]])


def test_the_page_of_names_is_up_to_date():
    written = (Path(__file__).parents[2] / "docs" / "keras.md").read_text()
    assert written == keras_table.page(), "run python tests/keras_table.py"


@pytest.mark.parametrize(
    ("room", "name", "advice"),
    [
        (mc.nn, "Linear", r"use layers\.Dense"),
        (mc.nn.layers, "BatchNorm2d", r"use layers\.BatchNormalization"),
        (mc.nn, "MSELoss", r"use losses\.MeanSquaredError"),
        (
            mc.nn.losses,
            "CrossEntropyLoss",
            r"SparseCategoricalCrossentropy\(from_logits",
        ),
        (mc.nn, "no_grad", r"predict computes no gradients"),
        (mc.nn, "functional", r"functions are in nn\.ops"),
        (mc.nn.ops, "cat", r"use ops\.concatenate"),
        (mc.nn.ops, "reduce_mean", r"use ops\.mean"),
        (mc.nn, "Module", r"subclass nn\.Model"),
    ],
)
def test_names_of_pytorch_are_told_what_they_are_here(room, name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(room, name)


OF_OTHERS = (
    *("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "MaxPool2d"),
    *("AvgPool3d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "BatchNorm2d"),
    *("LayerNorm", "GroupNorm", "RMSNorm", "Dropout1d", "Dropout2d", "Upsample"),
    *("ZeroPad2d", "MultiheadAttention", "MSELoss", "L1Loss", "NLLLoss", "BCELoss"),
    *("SmoothL1Loss", "KLDivLoss", "CTCLoss", "cat", "unsqueeze", "mm", "permute"),
    *("clamp", "masked_fill", "gather", "reduce_sum", "reduce_max", "pow", "flatten"),
)


@pytest.mark.parametrize("name", OF_OTHERS)
def test_advice_on_names_of_others_is_of_names_that_there_are(name):
    with pytest.raises(AttributeError) as error:
        getattr(mc.nn, name)
    room, found = re.search(r"use (\w+)\.(\w+)", str(error.value)).groups()
    assert hasattr(getattr(mc.nn, room), found)
