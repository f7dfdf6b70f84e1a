"""Configurations in Keras's form: objects, models as JSON, copies, own names."""

from __future__ import annotations

import inspect
import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg.errors import FormatError

nn = mc.nn
utils = nn.utils
ROOMS = ("losses", "metrics", "initializers", "regularizers", "constraints")
REQUIRED = {
    "num_classes": 3,
    "target_class_ids": [0, 2],
    "recall": 0.3,
    "precision": 0.3,
    "specificity": 0.3,
    "sensitivity": 0.3,
    "fn": "mse",
}
BASES = ("Loss", "Metric", "Initializer", "Regularizer", "Constraint", "Target")


def objects(room):
    module = getattr(nn, room)
    for name in module.__all__:
        kind = getattr(module, name)
        if not inspect.isclass(kind) or name in (*BASES, "OrthogonalRegularizer"):
            continue
        wanted = inspect.signature(kind).parameters.values()
        options = {
            each.name: REQUIRED[each.name]
            for each in wanted
            if each.default is each.empty and each.name in REQUIRED
        }
        yield kind(**options)


@pytest.mark.parametrize("room", ROOMS)
def test_an_object_of_a_configuration_is_the_same(room):
    module = getattr(nn, room)
    found = list(objects(room))
    assert len(found) > 2
    for each in found:
        text = json.dumps(module.serialize(each))
        again = module.deserialize(json.loads(text))
        assert type(again) is type(each)
        assert json.dumps(module.serialize(again)) == text
        assert repr(module.get(json.loads(text))) == repr(again)


@pytest.mark.parametrize(
    ("made", "argument", "value"),
    [
        (nn.metrics.SparseCategoricalCrossentropy(from_logits=True), "from_logits", 1),
        (nn.metrics.BinaryCrossentropy(label_smoothing=0.1), "label_smoothing", 0.1),
        (nn.metrics.AUC(thresholds=[0.2, 0.6]), "thresholds", [0.2, 0.6]),
        (nn.metrics.PrecisionAtRecall(0.5, num_thresholds=9), "num_thresholds", 9),
        (nn.losses.Huber(0.3, reduction="sum"), "delta", 0.3),
    ],
)
def test_what_a_constructor_was_given_is_in_the_configuration(made, argument, value):
    assert made.get_config()[argument] == value
    assert type(made).from_config(made.get_config()).get_config() == made.get_config()


def test_a_metric_of_a_saved_model_measures_as_before(tmp_path):
    """Its settings are those of a loss, which is not among its attributes."""
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    metric = nn.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")
    loss = nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[metric])
    x, y = np.eye(3, dtype="f4"), np.array([0, 1, 1])
    before = model.evaluate(x, y, verbose=0)
    model.save(tmp_path / "m.memcfg")
    again = nn.models.load_model(tmp_path / "m.memcfg")
    assert again.evaluate(x, y, verbose=0) == before
    assert before[0] == pytest.approx(before[1])


def branches(draw):
    """Draw a model between symbolic tensors, with shared and inner layers."""
    nn.set_random_seed(1)
    x = nn.Input((4, 3), name="x")
    tensors, shared = [x], nn.Dense(3, "tanh", name="shared")
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.sampled_from(tensors))
        kind = draw(st.sampled_from(["dense", "add", "rnn", "own", "mha", "op", "in"]))
        made = {
            "dense": lambda at: shared(at),
            "add": lambda at: nn.Add()([at, x]),
            "rnn": lambda at: nn.GRU(3, return_sequences=True)(at, at[:, 0]),
            "own": lambda at: at * 2 + nn.ops.relu(x),
            "mha": lambda at: nn.MultiHeadAttention(2, 2)(at, x, use_causal_mask=True),
            "op": lambda at: nn.ops.concatenate([at, x], axis=-1)[:, :, :3],
            "in": lambda at: nn.Sequential([nn.Dense(3), nn.ReLU(3.0)])(at),
        }[kind](at)
        tensors.append(made)
    ends = {"a": tensors[-1], "b": nn.Flatten()(tensors[-1])}
    return nn.Model(x, draw(st.sampled_from([ends, [*ends.values()], ends["b"]])))


@given(st.data())
def test_a_model_of_its_text_is_the_same(data):
    model = branches(data.draw)
    text = model.to_json()
    again = nn.models.model_from_json(text)
    copy = nn.models.clone_model(model)
    assert again.to_json() == text
    assert copy.to_json() == text
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 3)).astype("f4")
    weights = [rng.normal(size=w.shape).astype("f4") for w in model.get_weights()]
    results = []
    for each in (model, again, copy):
        each.set_weights(weights)
        made = each.predict(x, verbose=0)
        results.append(made.values() if isinstance(made, dict) else made)
        each.close()
    for one, *others in zip(*results, strict=True):
        for other in others:
            np.testing.assert_array_equal(one, other)


def test_a_chain_of_its_text_is_the_same():
    model = nn.Sequential(
        [nn.Dense(3, kernel_regularizer="l2"), nn.BatchNormalization()]
    )
    unbuilt = nn.models.model_from_json(model.to_json())
    assert not unbuilt.built
    model.build((None, 5))
    again = nn.models.model_from_json(model.to_json())
    assert again.to_json() == model.to_json()
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]
    model.trainable = False
    assert nn.Sequential.from_config(model.get_config()).trainable_weights == []


def test_a_copy_takes_layers_tensors_and_calls_of_a_function():
    x = nn.Input((4,))
    model = nn.Model(x, nn.Dense(2, name="end")(nn.Dense(3, name="first")(x)))
    called = []

    def wider(layer):
        config = layer.get_config()
        config["units"] += 1
        return type(layer).from_config(config)

    def call(layer, *args, **options):
        called.append(layer.name)
        return layer(*args, **options)

    start = nn.Input((4,), name="other")
    copy = nn.models.clone_model(model, start, wider, call)
    assert [w.shape for w in copy.weights] == [(4, 4), (4,), (4, 3), (3,)]
    assert called == ["first", "end"]
    assert copy.inputs[0].name == "other"
    assert model.output_shape == (None, 2)


@utils.register_keras_serializable("tests")
class Shifted(nn.Layer):
    def __init__(self, by, **options):
        super().__init__(**options)
        self.by = by

    def call(self, x):
        return x + self.by


class Scaled(nn.Layer):
    def __init__(self, inner, factor, **options):
        super().__init__(**options)
        self.inner, self.factor = inner, factor

    def call(self, x):
        return self.inner(x) * self.factor


def doubled(x):
    return x + x


def test_classes_and_functions_of_ones_own_are_found_by_name():
    x = nn.Input((2,))
    inner = nn.Dense(2, kernel_initializer="ones", name="inner")
    y = nn.Lambda(doubled)(Scaled(inner, 3.0)(Shifted(1.0)(x)))
    text = nn.Model(x, y).to_json()
    with pytest.raises(FormatError, match=r"custom_objects=\{'Scaled': Scaled\}"):
        nn.models.model_from_json(text)
    own = {"Scaled": Scaled, "doubled": doubled}
    again = nn.models.model_from_json(text, own)
    with utils.custom_object_scope({"Scaled": Scaled}):
        with pytest.raises(FormatError, match="the function 'doubled' is unknown"):
            nn.models.model_from_json(text)
        with utils.CustomObjectScope({"doubled": doubled}):
            nn.models.model_from_json(text)
    np.testing.assert_array_equal(
        again.predict(np.zeros((1, 2)), verbose=0), [[12, 12]]
    )
    assert utils.get_registered_name(Shifted) == "tests>Shifted"
    assert utils.get_registered_object("tests>Shifted") is Shifted
    assert utils.get_custom_objects()["tests>Shifted"] is Shifted
    assert utils.get_registered_object("tests>None") is None
    assert utils.get_registered_object("a", {"a": 3}) == 3


@utils.register_keras_serializable("tests")
class Halves(nn.optimizers.schedules.LearningRateSchedule):
    def __init__(self, start):
        self.start = start

    def __call__(self, step):
        return self.start * 0.5**step


@utils.register_keras_serializable("tests")
class Slow(nn.SGD):
    pass


def test_registered_schedules_and_optimizers_are_found_by_name(tmp_path):
    model = nn.Sequential([nn.Input((2,)), nn.Dense(1)])
    model.compile(nn.SGD(Halves(0.5)), "mse")
    model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    model.save(tmp_path / "model.keras")
    again = nn.models.load_model(tmp_path / "model.keras").optimizer
    assert again.learning_rate == 0.25
    config = nn.optimizers.serialize(Slow(0.5))
    assert type(nn.optimizers.deserialize(config)) is Slow


def test_a_model_of_ones_own_class_is_made_by_its_arguments():
    @utils.register_keras_serializable()
    class Net(nn.Model):
        def __init__(self, units, name=None):
            super().__init__(name=name)
            self.units = units
            self.dense = nn.Dense(units)

        def call(self, x):
            return self.dense(x)

    net = Net(5, name="net")
    assert net.get_config() == {"name": "net", "trainable": True, "units": 5}
    again = nn.models.model_from_json(net.to_json())
    assert (type(again), again.units, again.name) == (Net, 5, "net")
    assert nn.models.clone_model(net).units == 5
    with pytest.raises(ValueError, match="takes no other arguments"):
        nn.models.clone_model(net, clone_function=lambda layer: layer)


def test_nothing_of_a_configuration_is_executed():
    ran = []
    with pytest.raises(TypeError, match="a lambda has no name"):
        nn.Sequential([nn.Lambda(lambda x: ran.append(x) or x)]).to_json()
    code = {"class_name": "__lambda__", "config": {"value": ["4wAAAA==", None, None]}}
    layer = nn.layers.serialize(nn.Lambda(doubled)) | {"module": "keras.layers"}
    layer["config"]["function"] = code
    with pytest.raises(FormatError, match="code of a lambda, which is never executed"):
        nn.layers.deserialize(layer)
    for name in ("eval", "os.system", "print"):
        layer["config"]["function"] = {"class_name": "function", "config": name}
        with pytest.raises(FormatError, match="is unknown"):
            nn.layers.deserialize(layer)
    module = {"module": "os", "class_name": "system", "config": {}}
    with pytest.raises(FormatError, match="the class 'system' is unknown"):
        utils.deserialize_keras_object(module)
    absent = {"module": "keras.layers", "class_name": "TFSMLayer", "config": {}}
    with pytest.raises(FormatError, match=r"no keras.layers.TFSMLayer: memcfg"):
        utils.deserialize_keras_object(absent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["class_name", "config", "x"]), inner)
    ),
    max_leaves=8,
)


def places(value, path=()):
    """Yield the paths of all values of a document."""
    yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, each in items:
        yield from places(each, (*path, key))


@given(st.data())
def test_a_damaged_description_is_refused_in_words(data):
    """Whatever is in it, it is a model or an error that callers can expect."""
    document = json.loads(branches(data.draw).to_json())
    path = data.draw(st.sampled_from([p for p in places(document) if p]))
    value = document
    for key in path[:-1]:
        value = value[key]
    if data.draw(st.booleans()):
        value[path[-1]] = data.draw(JSON)
    else:
        del value[path[-1]]
    with suppress(FormatError, TypeError, ValueError):
        nn.models.model_from_json(json.dumps(document)).close()


def test_arrays_and_other_values_have_configurations():
    given = {
        "a": np.arange(3, dtype="int32"),
        "b": (1, None, b"c", slice(1, None), ...),
        "d": nn.DTypePolicy("mixed_bfloat16"),
        "e": np.float32(2),
    }
    text = json.dumps(utils.serialize_keras_object(given))
    made = utils.deserialize_keras_object(json.loads(text))
    assert made["a"].dtype == "int32"
    assert made["a"].tolist() == [0, 1, 2]
    assert made["b"] == [1, None, b"c", slice(1, None), ...]
    assert (made["d"], made["e"]) == (given["d"], 2.0)
    with pytest.raises(TypeError, match="has no get_config"):
        utils.serialize_keras_object(object())


def test_activations_are_names_or_functions_of_ones_own():
    activations = nn.activations
    assert activations.serialize(activations.gelu) == "gelu"
    assert activations.deserialize("gelu") is activations.gelu
    own = activations.serialize(doubled)
    assert activations.deserialize(own, {"doubled": doubled}) is doubled
    assert activations.get(own | {"config": "relu"}) is activations.relu


@pytest.mark.parametrize("get", [nn.initializers.get, nn.losses.get, nn.metrics.get])
def test_none_is_none_and_a_name_of_ones_own_is_found(get):
    assert get(None) is None
    with pytest.raises(ValueError, match="unknown"):
        get("cube")


def test_a_name_of_ones_own_is_found():
    def quartic(y_true, y_pred):
        return nn.ops.mean((y_true - y_pred) ** 4, axis=-1)

    with utils.custom_object_scope({"quartic": quartic}):
        assert nn.losses.get("quartic").name == "quartic"


def test_names_that_keras_does_not_have_are_marked(request):
    names = json.loads(
        (request.path.parents[1] / "support" / "keras_names.json").read_text()
    )
    for room in ("layers", *ROOMS):
        module = getattr(nn, room)
        for name in module.__all__:
            kind = getattr(module, name)
            if not inspect.isclass(kind) or not hasattr(kind, "get_config"):
                continue
            ours = name in ("Bilinear", "LocalResponseNormalization")
            ours |= name in ("MaxUnpooling2D", "PositionEmbedding")
            known = {kind.__name__, kind.__name__.lower()} & names[room].keys()
            assert (not known) == ours, name


def test_parts_of_batches_and_tensors():
    x, y, w = np.ones((2, 3)), np.zeros(2), np.ones(2)
    pack, unpack = utils.pack_x_y_sample_weight, utils.unpack_x_y_sample_weight
    for parts in ((x,), (x, y), (x, y, w), ([x, x],)):
        again = unpack(pack(*parts))
        assert [a is b for a, b in zip(again, parts, strict=False)] == [True] * len(
            parts
        )
        assert again[len(parts) :] == (None,) * (3 - len(parts))
    with pytest.raises(ValueError, match="got 4 parts"):
        unpack((x, y, w, x))
    a, b = nn.Input((2,)), nn.Input((2,))
    assert utils.get_source_inputs(nn.Add()([nn.Dense(2)(a), b])) == [a, b]
    with pytest.raises(TypeError, match="a symbolic tensor is expected"):
        utils.get_source_inputs(x)
    assert utils.is_keras_tensor(a)
    assert not utils.is_keras_tensor(x)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "float32"),
        ("float64", "float64"),
        (np.int8, "int8"),
        (np.dtype("f2"), "float16"),
        ("torch.float32", "float32"),
        ("bfloat16", "bfloat16"),
        (float, "float64"),
    ],
)
def test_a_dtype_has_a_name(given, name):
    assert utils.standardize_dtype(given) == name
    with pytest.raises(ValueError, match="is no dtype"):
        utils.standardize_dtype("cube")


def test_files_and_configurations_are_in_one_module_as_in_keras():
    assert nn.saving.load_model is nn.models.load_model
    assert nn.saving.serialize_keras_object is utils.serialize_keras_object


class Stepped(nn.Model):
    """A class with a step of its own, made between tensors."""

    def train_step(self, data):
        return super().train_step(data)


class Chain(nn.Sequential):
    """A chain with a step of its own."""

    def train_step(self, data):
        return super().train_step(data)


def test_clones_of_classes_without_a_call_have_their_class_and_shapes():
    start = nn.Input((4,))
    model = Stepped(start, nn.Dense(1)(nn.Dense(3, name="h")(start)), name="m")
    chain = Chain([nn.Input((4,)), nn.Dense(3, name="h"), nn.Dense(1)])

    def wider(layer):
        return nn.Dense(5, name="h") if layer.name == "h" else type(layer)(1)

    for each, kind in ((model, Stepped), (chain, Chain)):
        alike = nn.models.clone_model(each)
        assert type(alike) is kind
        assert [w.shape for w in alike.weights] == [w.shape for w in each.weights]
        other = nn.models.clone_model(each, clone_function=wider)
        assert type(other) is kind
        assert other.get_layer("h").units == 5
    again = nn.models.clone_model(model, input_tensors=nn.Input((4,)))
    assert (type(again), again.name) == (Stepped, "m")
