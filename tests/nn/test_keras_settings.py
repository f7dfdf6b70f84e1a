"""Keras's settings, nested structures and `Config`; layers' names and inputs."""

from __future__ import annotations

import copy
import pickle
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
    nn.config.disable_traceback_filtering()
    assert not nn.config.is_traceback_filtering_enabled()
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
        ("config", "set_backend", "one backend"),
        ("config", "enable_flash_attention", "same way"),
        ("config", "enable_traceback_filtering", "whole traceback"),
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
