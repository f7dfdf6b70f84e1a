"""Keras's settings, nested structures and `Config`; layers' names and inputs."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn


class Pair(NamedTuple):
    left: Any
    right: Any


TREES = st.recursive(
    st.integers(-9, 9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=9,
)


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_leaves_packed_again_are_the_structure(value):
    tree = nn.tree
    leaves = tree.flatten(value)
    assert tree.pack_sequence_as(value, leaves) == value
    assert repr(tree.pack_sequence_as(value, leaves)) == repr(value)
    doubled = tree.map_structure(lambda x, y: x + y, value, value)
    assert tree.flatten(doubled) == [2 * each for each in leaves]
    for path, leaf in tree.flatten_with_path(value):
        part = value
        for key in path:
            part = part[key]
        assert part == leaf
    tree.assert_same_structure(value, doubled)
    with pytest.raises(ValueError, match="leaves for a structure of"):
        tree.pack_sequence_as(value, [*leaves, 0])
    assert "[" not in repr(tree.lists_to_tuples(value))
    assert tree.traverse(lambda x: None, value) == value


def test_structures_of_different_forms():
    tree = nn.tree
    for a, b in (([1], (1,)), ([1, 2], [1]), ({"a": 1}, {"b": 1}), ([1], 1), (1, [1])):
        with pytest.raises(ValueError, match="different forms"):
            tree.map_structure(lambda *_: None, a, b)
    tree.assert_same_paths([1, (2,)], (1, [2]))
    with pytest.raises(ValueError, match=r"only one of the structures: .1,"):
        tree.assert_same_paths([1, 2], [1])
    for name in ("map_structure", "map_structure_up_to"):
        with pytest.raises(ValueError, match="at least one structure"):
            getattr(tree, name)(*[lambda: 0] * (1 + (name != "map_structure")))
    assert tree.map_structure(lambda x: 1, [None, 2], none_is_leaf=False) == [None, 1]
    ordered = OrderedDict(b=1, a=2)
    assert tree.flatten(ordered) == [1, 2]
    assert type(tree.map_structure(abs, ordered)) is OrderedDict
    by_top = tree.traverse(lambda x: tree.MAP_TO_NONE if x == 1 else None, [1, [1, 2]])
    assert by_top == [None, [None, 2]]


def test_settings_are_those_that_compute():
    for module in (nn.backend, nn.config):
        assert module.backend() == "memcfg"
        assert (module.floatx(), module.epsilon()) == ("float32", 1e-7)
        assert module.image_data_format() == "channels_last"
        module.set_floatx("float32")
        module.set_epsilon(1e-7)
        module.set_image_data_format("channels_last")
        for call, value, told in (
            (module.set_floatx, "float16", "mixed_bfloat16"),
            (module.set_epsilon, 1e-3, "pass epsilon"),
            (module.set_image_data_format, "channels_first", "data_format='channels_f"),
        ):
            with pytest.raises(ValueError, match=told):
                call(value)
    nn.config.set_backend("memcfg")
    with pytest.raises(
        ValueError, match=r"no backend 'torch': .* memcfg\.torch\.budget"
    ):
        nn.config.set_backend("torch")
    assert not nn.config.is_nnx_enabled()
    assert nn.backend.is_float_dtype("bfloat16")
    assert not nn.backend.is_float_dtype(np.int8)
    assert nn.backend.is_int_dtype("uint8")
    assert not nn.backend.is_int_dtype(bool)
    try:
        nn.mixed_precision.set_global_policy("mixed_bfloat16")
        assert nn.config.dtype_policy().compute_dtype == "bfloat16"
        assert nn.mixed_precision.global_policy().name == "mixed_bfloat16"
        policy = nn.dtype_policies.get("mixed_bfloat16")
        again = nn.dtype_policies.deserialize(nn.dtype_policies.serialize(policy))
        assert again == policy == nn.FloatDTypePolicy("mixed_bfloat16")
    finally:
        mc.config.set_dtype_policy("float32")
    with nn.device("CPU:0"):
        assert nn.KerasTensor is nn.SymbolicTensor


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        ("backend", "mean", "nn.ops"),
        ("backend", "get_value", "numpy"),
        ("config", "enable_unsafe_deserialization", "nothing in a file is executed"),
        ("config", "flotx", "did you mean 'floatx'"),
        ("dtype_policies", "QuantizedDTypePolicy", "float32"),
        ("mixed_precision", "LossScaleOptimizer", "inner optimizer"),
        ("preprocessing", "text", "TextVectorization"),
    ],
)
def test_what_is_not_there_says_so(module, name, told):
    with pytest.raises(AttributeError, match=told):
        getattr(getattr(nn, module), name)


def test_modules_of_data():
    image, sequence = nn.preprocessing.image, nn.preprocessing.sequence
    assert sequence.pad_sequences([[1], [2, 3]]).tolist() == [[0, 1], [2, 3]]
    assert image.smart_resize(np.zeros((8, 4, 3)), (2, 2)).shape == (2, 2, 3)
    for module, name in (
        (image, "ImageDataGenerator"),
        (sequence, "TimeseriesGenerator"),
    ):
        with pytest.raises(AttributeError, match=r"use nn\.utils\.\w+_dataset"):
            getattr(module, name)
    with pytest.raises(ValueError, match="takes images"):
        image.smart_resize(np.zeros((8, 4)), (2, 2))


def test_names_begin_again():
    nn.utils.clear_session()
    assert nn.Dense(2).name == "dense"
    assert nn.Dense(2).name == "dense_1"
    assert [nn.backend.get_uid("a") for _ in range(2)] == [1, 2]
    nn.backend.clear_session(free_memory=False)
    assert nn.Dense(2).name == "dense"
    assert nn.backend.get_uid("a") == 1


def test_memory_of_models_that_are_gone_comes_back():
    used = mc.config.get_memory_info("CPU:0")["current"]
    cycle = []
    cycle += [nn.Sequential([nn.Input((64,)), nn.Dense(64)]), cycle]
    cycle[0].predict(np.zeros((2, 64), np.float32), verbose=0)
    assert mc.config.get_memory_info("CPU:0")["current"] > used
    del cycle  # which only the collector finds
    nn.utils.clear_session()
    assert mc.config.get_memory_info("CPU:0")["current"] == used


def test_progress_can_be_off_by_default(capsys):
    model = nn.Sequential([nn.Input((2,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((4, 2), np.float32)
    nn.utils.disable_interactive_logging()
    try:
        assert not nn.config.is_interactive_logging_enabled()
        model.fit(x, x[:, :1])
        model.predict(x)
        assert capsys.readouterr().out == ""
        model.fit(x, x[:, :1], verbose=2)
        assert "loss" in capsys.readouterr().out
    finally:
        nn.utils.enable_interactive_logging()
    model.evaluate(x, x[:, :1])
    assert "loss" in capsys.readouterr().out
    model.close()


def test_config_is_a_dictionary_with_attributes():
    config = nn.utils.Config(rate=0.1, units=3)
    config.more = [1]
    config["last"] = "x"
    assert config.rate == config["rate"] == config.get("rate") == 0.1
    assert [*config] == ["last", "more", "rate", "units"]
    assert config.as_dict() == {"rate": 0.1, "units": 3, "more": [1], "last": "x"}
    assert nn.utils.Config(**config).to_json() == (
        '{"last": "x", "more": [1], "rate": 0.1, "units": 3}'
    )
    assert config.pop("last") == "x"
    config.update(units=4)
    assert "units" in config
    assert len(config) == 3
    config.freeze()
    for change in (
        lambda: config.update(units=5),
        lambda: setattr(config, "units", 5),
        lambda: config.pop("units"),
    ):
        with pytest.raises(ValueError, match="frozen"):
            change()
    assert config.units == 4
    for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert twin.as_dict() == config.as_dict()
        assert twin.frozen
    config.unfreeze()
    del config["units"]
    assert repr(config) == "<Config {'rate': 0.1, 'more': [1]}>"
    with pytest.raises(AttributeError, match="no 'rats': did you mean 'rate'"):
        _ = config.rats
    with pytest.raises(AttributeError, match="is a method"):
        config.keys = 3


def test_an_input_layer_begins_a_model():
    start = nn.layers.InputLayer(shape=(4,), name="row", batch_size=2)
    model = nn.Model(start.output, nn.Dense(3)(start.output))
    assert model.predict(np.ones((2, 4), np.float32), verbose=0).shape == (2, 3)
    assert model.input_shape == (2, 4)
    stack = nn.Sequential([nn.layers.InputLayer(batch_shape=(None, 4)), nn.Dense(2)])
    assert stack.output_shape == (None, 2)
    assert isinstance(nn.Input((3,)).node.layer, nn.layers.InputLayer)
    model.close()
    with pytest.raises(ValueError, match="not 'float64'"):
        nn.layers.InputLayer((3,), dtype="float64")
    again = nn.layers.deserialize(nn.layers.serialize(start))
    assert (again.shape, again.batch_size, again.name) == ((4,), 2, "row")


class Checked(nn.Layer):
    def __init__(self, spec):
        super().__init__()
        self.input_spec = spec

    def call(self, x):
        return x * 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ndim": 2}, "expected ndim=2, found float32 of shape"),
        ({"min_ndim": 4}, "min_ndim=4"),
        ({"max_ndim": 2}, "max_ndim=2"),
        ({"axes": {-1: 5}}, "axis -1 of length 5"),
        ({"axes": {7: 5}, "name": "mine"}, r"input 0 \('mine'\) .* axis 7"),
        ({"shape": (None, 4, 5)}, r"shape=\(None, 4, 5\)"),
        ({"dtype": "int32"}, "dtype=int32"),
        ({"shape": (None, 4), "allow_last_axis_squeeze": True}, "shape="),
    ],
)
def test_an_input_spec_is_checked(options, told):
    layer = Checked(nn.InputSpec(**options))
    with pytest.raises(ValueError, match=told):
        layer(nn.Input((4, 3)))
    with pytest.raises(ValueError, match=told):
        layer(np.zeros((2, 4, 3), np.float32))


def test_inputs_that_an_input_spec_allows():
    specs = [
        nn.InputSpec(ndim=3, axes={-1: 3, 1: None}, dtype="float32"),
        nn.layers.InputSpec(shape=(None, 4, 3)),
        nn.InputSpec(shape=(None, 4, 3, 1), allow_last_axis_squeeze=True),
        [nn.InputSpec(min_ndim=2), nn.InputSpec(optional=True)],
        None,
    ]
    for spec in specs:
        assert Checked(spec)(nn.Input((4, 3))).shape == (None, 4, 3)
    with pytest.raises(ValueError, match="expects 2 inputs"):
        Checked([nn.InputSpec()] * 2)(nn.Input((4, 3)))
    with pytest.raises(TypeError, match="a dict of integers"):
        nn.InputSpec(axes=[1])
    with pytest.raises(ValueError, match="axis 3 is beyond the 3 axes"):
        nn.InputSpec(ndim=3, axes={3: 1})
    assert nn.InputSpec(**nn.InputSpec(ndim=2).get_config()).ndim == 2
    assert repr(nn.InputSpec(shape=(None, 3))) == "InputSpec(shape=(None, 3))"


def test_there_are_no_policies_of_ones_own():
    config = nn.dtype_policies.serialize(nn.DTypePolicy("mixed_bfloat16"))
    for none in (None, {}):
        read = nn.dtype_policies.deserialize(config, custom_objects=none)
        assert read.name == "mixed_bfloat16"
    with pytest.raises(TypeError, match="custom_objects must be None"):
        nn.dtype_policies.deserialize(config, custom_objects={"Mine": object})


@pytest.fixture
def _limits():
    yield
    nn.config.set_max_epochs(None)
    nn.config.set_max_steps_per_epoch(None)


class Steps(nn.callbacks.Callback):
    """Counts the steps of each epoch, validation and prediction."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def on_epoch_begin(self, epoch, logs=None):
        self.counts.append(["epoch", 0])

    def on_test_begin(self, logs=None):
        self.counts.append(["test", 0])

    def on_predict_begin(self, logs=None):
        self.counts.append(["predict", 0])

    def on_train_batch_end(self, batch, logs=None):
        self.counts[-1][1] += 1

    on_test_batch_end = on_predict_batch_end = on_train_batch_end


@pytest.mark.usefixtures("_limits")
@pytest.mark.parametrize("stream", [False, True])
def test_limits_of_epochs_and_steps(stream, monkeypatch):
    model = nn.Sequential([nn.Input((2,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((12, 2), np.float32), np.ones((12, 1), np.float32)
    data = mc.data.Dataset.from_tensor_slices((x, y)).batch(2)
    given = {"x": data} if stream else {"x": x, "y": y, "batch_size": 2}
    nn.config.set_max_steps_per_epoch(4)
    nn.config.set_max_epochs(2)
    assert (nn.config.max_epochs(), nn.config.max_steps_per_epoch()) == (2, 4)
    seen = Steps()
    with pytest.warns(
        UserWarning, match=r"epochs is 2 and not 5: nn\.config\.set_max_ep"
    ):
        model.fit(**given, epochs=5, validation_data=data, verbose=0, callbacks=seen)
    assert seen.counts == [["epoch", 4], ["test", 4]] * 2
    seen = Steps()
    model.fit(**given, steps_per_epoch=3, epochs=2, verbose=0, callbacks=seen)
    assert seen.counts == [["epoch", 3]] * 2
    with pytest.warns(UserWarning, match="steps_per_epoch is 4 and not 5"):
        model.fit(**given, steps_per_epoch=5, verbose=0)
    seen = Steps()
    model.evaluate(**given, verbose=0, callbacks=seen)
    given.pop("y", None)
    assert len(model.predict(**given, verbose=0, callbacks=seen)) == 8
    assert seen.counts == [["test", 4], ["predict", 4]]
    endless, seen = data.repeat(), Steps()
    model.fit(endless, verbose=0, callbacks=seen)
    assert seen.counts == [["epoch", 4]]
    nn.config.set_max_steps_per_epoch(9)
    model.fit(data, verbose=0, callbacks=seen)
    assert seen.counts[1:] == [["epoch", 6]]  # all that there is, without a warning
    model.close()


def test_limits_come_from_the_environment():
    script = """
import os
os.environ |= {"KERAS_MAX_EPOCHS": "3", "KERAS_MAX_STEPS_PER_EPOCH": "few"}
from memcfg.nn import config
print(config.max_epochs())
config.set_max_epochs(None)
print(config.max_epochs())
try:
    config.max_steps_per_epoch()
except ValueError as error:
    print(error)
"""
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    first, second, told = done.stdout.splitlines()
    assert (first, second) == ("3", "None")
    assert told == (
        "the environment's KERAS_MAX_STEPS_PER_EPOCH must be a positive integer, got "
        "'few'"
    )
    for wrong, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="max_epochs"):
            nn.config.set_max_epochs(wrong)


def frames(call):
    """Return the files of the frames of the error that a call raises."""
    with pytest.raises(ValueError, match=r"\w") as raised:
        call()
    return [str(frame.path) for frame in raised.traceback]


class Broken(nn.Layer):
    def call(self, x):
        if x.shape[-1] == 3:
            raise ValueError("three")
        return x


def test_tracebacks_leave_out_the_library():
    model = nn.Sequential([nn.Input((2,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    calls = (
        lambda: model.fit(np.ones((2, 3), np.float32), np.ones((2, 1)), verbose=0),
        lambda: nn.Dense(-1),
        lambda: nn.Conv2D(2, 3)(nn.Input((4,))),
        lambda: Broken()(nn.Input((3,))),
    )
    assert not nn.config.is_traceback_filtering_enabled()
    assert all(any("memcfg/nn" in each for each in frames(call)) for call in calls)
    nn.config.enable_traceback_filtering()
    try:
        assert nn.config.is_traceback_filtering_enabled()
        found = [frames(call) for call in calls]
        assert not any("memcfg/nn" in each for several in found for each in several)
        assert [each.count(__file__) for each in found] == [2, 2, 2, 3]
    finally:
        nn.config.disable_traceback_filtering()
    assert any("memcfg/nn" in each for each in frames(calls[0]))


def test_flash_attention_by_default():
    def scores(**options):
        start = nn.Input((8, 4))
        layer = nn.MultiHeadAttention(2, 4, **options)
        model = nn.Model(start, layer(start, start))
        model.compile("sgd", "mse")
        shapes = [each.shape for each in model.graph(2).tensors]
        return sum(tuple(shape) == (2, 2, 8, 8) for shape in shapes), layer

    assert nn.config.is_flash_attention_enabled() is None
    none, _ = scores()
    nn.config.disable_flash_attention()
    try:
        assert nn.config.is_flash_attention_enabled() is False
        some, layer = scores()
        assert layer.get_config()["flash_attention"] is False
        assert scores(flash_attention=True)[0] == none
    finally:
        nn.config.enable_flash_attention()
    assert nn.config.is_flash_attention_enabled() is None
    assert (none, scores()[0]) == (0, 0)
    assert some > 0


def test_names_of_ops_in_reports():
    class Scaled(nn.Layer):
        def __init__(self):
            super().__init__(name="scaled")
            self.inner = nn.Dense(3, name="inner")

        def call(self, x):
            with nn.name_scope("halves"):
                return self.inner(x / 2) * 2

    def made(scope):
        nn.set_random_seed(0)
        x = nn.Input((3,))
        with nn.name_scope("a"), nn.name_scope("b") if scope else nn.name_scope("c"):
            y = Scaled()(nn.ops.softmax(x))
        model = nn.Model(x, nn.Dropout(0.5)(y))
        model.compile("sgd", "mse")
        return model

    model = made(scope=True)
    names = [op.name for op in model.graph(2).ops]
    assert any(name.startswith("a/b/") for name in names)
    assert any(name.startswith("scaled/halves/") for name in names)
    assert any(name.startswith("scaled/inner/") for name in names)
    assert [w.path for w in model.weights] == [
        "scaled/inner/kernel",
        "scaled/inner/bias",
    ]
    x = np.ones((2, 3), np.float32)
    results = []
    for each in (model, made(scope=False)):
        each.fit(x, x, epochs=2, verbose=0)
        results.append(each.get_weights()[0])
        each.close()
    np.testing.assert_array_equal(*results)
    for wrong in ("a/b", "", 3):
        with pytest.raises(ValueError, match="without '/'"):
            nn.name_scope(wrong)


def test_the_version():
    assert nn.version() == mc.__version__
