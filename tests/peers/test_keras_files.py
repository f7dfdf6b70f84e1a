"""Files of Keras: what it wrote predicts and trains alike here, and the other way."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from beside_keras import MARKS, keras
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg.errors import FormatError, WeightsError

pytestmark = MARKS
h5py = pytest.importorskip("h5py")
nn = mc.nn
load = nn.models.load_model
ROWS = 4


@contextmanager
def folder():
    """A folder for one of hypothesis's examples."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def chain(k, draw):
    """A chain over images, sequences or rows."""
    kind = draw(st.sampled_from(["image", "sequence", "row"]))
    shape = {"image": (6, 6, 2), "sequence": (5, 3), "row": (4,)}[kind]
    layers = k.layers
    choices = {
        "image": [
            lambda: layers.Conv2D(3, 3, padding="same", activation="relu"),
            lambda: layers.BatchNormalization(),
            lambda: layers.SeparableConv2D(2, 2),
            lambda: layers.DepthwiseConv2D(2, padding="same"),
            lambda: layers.Conv2DTranspose(2, 2),
            lambda: layers.GroupNormalization(1),
            lambda: layers.UpSampling2D(),
            lambda: layers.PReLU(shared_axes=[1, 2]),
            lambda: layers.SpectralNormalization(layers.Conv2D(2, 2)),
        ],
        "sequence": [
            lambda: layers.LSTM(3, return_sequences=True),
            lambda: layers.Bidirectional(layers.GRU(2, return_sequences=True)),
            lambda: layers.RNN(
                [layers.LSTMCell(3), layers.GRUCell(2)], return_sequences=True
            ),
            lambda: layers.TimeDistributed(layers.Dense(3, activation="tanh")),
            lambda: layers.LayerNormalization(),
            lambda: layers.Conv1D(3, 2, padding="causal"),
            lambda: layers.SimpleRNN(3, return_sequences=True),
            lambda: layers.EinsumDense("abc,ce->abe", (5, 3), bias_axes="e"),
        ],
        "row": [
            lambda: layers.Dense(5, kernel_regularizer="l2", activation="gelu"),
            lambda: layers.UnitNormalization(),
            lambda: layers.RMSNormalization(),
            lambda: k.Sequential([layers.Dense(3), layers.LeakyReLU(0.2)]),
            lambda: layers.Dense(4, use_bias=False, kernel_constraint="max_norm"),
        ],
    }[kind]
    made = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=4))
    head = [k.layers.Flatten(), k.layers.Dense(3, activation="softmax")]
    return k.Sequential([k.Input(shape), *(each() for each in made), *head]), shape


def graph(k, draw):
    """A graph of layers and functions over sequences, some of them shared."""
    layers, ops = k.layers, k.ops
    x = k.Input((5, 4))
    shared = layers.Dense(4, activation="tanh")
    inner = k.Sequential([layers.Dense(6), layers.Dense(4)])
    choices = [
        lambda t: shared(t),
        lambda t: inner(t),
        lambda t: layers.Add()([t, shared(x)]),
        lambda t: layers.MultiHeadAttention(2, 3)(t, x),
        lambda t: layers.MultiHeadAttention(2, 3)(t, x, use_causal_mask=True),
        lambda t: layers.GroupQueryAttention(2, 2, 1)(t, x),
        lambda t: layers.Attention(use_scale=True)([t, x]),
        lambda t: layers.LSTM(4, return_sequences=True)(t, initial_state=[t[:, 0]] * 2),
        lambda t: t * 2 - ops.relu(x) / 3,
        lambda t: ops.concatenate([t, x], axis=-1)[..., :4],
        lambda t: ops.softmax(t) + ops.mean(x, axis=1, keepdims=True),
        lambda t: layers.Dense(4)(t) + layers.Dense(4)(x),
        lambda t: layers.Concatenate()([layers.Dense(2)(t), layers.Dense(2)(x)]),
    ]
    y = x
    for make in draw(st.lists(st.sampled_from(choices), min_size=1, max_size=5)):
        y = make(y)
    end = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(y))
    return k.Model(x, end), (5, 4)


def optimizer(k, draw):
    rate = draw(st.sampled_from([0.01, "decay"]))
    if rate == "decay":
        rate = k.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
    kinds = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "Nadam", "Lion"]
    kinds += ["Adadelta", "Lamb"]
    options = {
        "SGD": [{}, {"momentum": 0.9}],
        "Adam": [{}, {"amsgrad": True}, {"use_ema": True}],
        "RMSprop": [{}, {"momentum": 0.5, "centered": True}],
    }
    kind = draw(st.sampled_from(kinds))
    more = draw(st.sampled_from(options.get(kind, [{}])))
    return getattr(k.optimizers, kind)(rate, **more)


def data(shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, *shape)).astype(np.float32)
    return x, rng.integers(0, 3, ROWS)


def spread(model):
    """Give weights other values than the first ones, of which many are zeros."""
    rng = np.random.default_rng(5)
    model.set_weights(
        [
            np.asarray(w + rng.uniform(0.05, 0.2, w.shape), w.dtype)
            for w in model.get_weights()
        ]
    )


def agree(ours, theirs, x, rtol=1e-4, atol=1e-5):
    made = (each.predict(x, batch_size=ROWS, verbose=0) for each in (ours, theirs))
    np.testing.assert_allclose(*made, rtol=rtol, atol=atol)


def train_alike(x, y, *models):
    """Ten steps have the losses of the first model.

    Weights may differ by more: where a gradient is zero, as that of a bias before a
    normalization, Adam makes steps of what rounding leaves of it.
    """
    for _ in range(10):
        wanted, *losses = (np.ravel(each.train_on_batch(x, y))[0] for each in models)
        np.testing.assert_allclose(losses, wanted, rtol=2e-3, atol=1e-4)


QUIET = settings(
    suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=20
)


@QUIET
@given(st.data(), st.sampled_from([chain, graph]), st.booleans())
def test_a_model_of_keras_predicts_and_trains_alike(source, make, trained):
    model, shape = make(keras, source.draw)
    model.compile(
        optimizer(keras, source.draw),
        source.draw(st.sampled_from(["sparse_categorical_crossentropy", None]))
        or keras.losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    spread(model)
    x, y = data(shape)
    if trained:
        for _ in range(3):
            model.train_on_batch(x, y)
    with folder() as at, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model.save(at / "m.keras")
        ours = load(at / "m.keras")
    agree(ours, model, x)
    train_alike(x, y, ours, model)
    assert ours.optimizer.iterations == int(model.optimizer.iterations.numpy())
    ours.close()


@QUIET
@given(st.data())
def test_keras_reads_what_is_written_for_it(source):
    model, shape = chain(nn, source.draw)
    model.compile(optimizer(nn, source.draw), nn.losses.SparseCategoricalCrossentropy())
    x, y = data(shape)
    for _ in range(3):
        model.train_on_batch(x, y)
    with folder() as at:
        model.save(at / "m.keras")
        theirs = keras.models.load_model(at / "m.keras")
        again = load(at / "m.keras")
        model.save_weights(at / "m.weights.h5")
    agree(model, theirs, x)
    train_alike(x, y, model, theirs, again)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for each in (model, again):
        each.close()


@QUIET
@given(st.data(), st.sampled_from([".weights.h5", ".keras", ".h5"]))
def test_weights_are_read_in_the_order_of_layers(source, suffix):
    theirs, shape = chain(keras, source.draw)
    ours = nn.Sequential.from_config(json.loads(theirs.to_json())["config"])
    ours.compile("sgd", "mse")
    spread(theirs)
    x, _ = data(shape)
    with folder() as at:
        path = at / f"w{suffix}"
        if suffix == ".weights.h5":
            theirs.save_weights(path)
        else:
            theirs.save(path)
        ours.load_weights(path)
        agree(ours, theirs, x)
        ours.save_weights(at / "again.weights.h5")
        theirs.load_weights(at / "again.weights.h5")
    agree(ours, theirs, x)
    ours.close()


def test_an_older_whole_model_is_read(tmp_path):
    k = keras
    x = k.Input((6, 4))
    y = k.layers.Bidirectional(k.layers.LSTM(3, return_sequences=True))(x)
    inner = k.Sequential([k.layers.Dense(4), k.layers.BatchNormalization()])
    y = k.layers.Add()([inner(y), k.layers.Dense(4)(x)])
    model = k.Model(x, k.layers.Dense(3, activation="softmax")(k.layers.Flatten()(y)))
    model.compile(
        k.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    inputs, labels = data((6, 4))
    for _ in range(3):
        model.train_on_batch(inputs, labels)
    model.save(tmp_path / "m.h5")
    ours = load(tmp_path / "m.h5")
    agree(ours, model, inputs)
    train_alike(inputs, labels, ours, model)
    assert load(tmp_path / "m.h5", compile=False)._config is None


KERAS_2 = {
    "class_name": "Functional",
    "config": {
        "name": "model",
        "trainable": True,
        "layers": [
            {
                "class_name": "InputLayer",
                "config": {
                    "batch_input_shape": [None, 4],
                    "dtype": "float32",
                    "sparse": False,
                    "ragged": False,
                    "name": "input_1",
                },
                "name": "input_1",
                "inbound_nodes": [],
            },
            {
                "class_name": "Dense",
                "config": {
                    "name": "a",
                    "trainable": True,
                    "dtype": "float32",
                    "units": 4,
                    "activation": "relu",
                    "use_bias": True,
                    "kernel_initializer": {
                        "class_name": "GlorotUniform",
                        "config": {"seed": None},
                    },
                    "bias_initializer": {"class_name": "Zeros", "config": {}},
                    "kernel_regularizer": {"class_name": "L2", "config": {"l2": 0.1}},
                    "bias_regularizer": None,
                    "activity_regularizer": None,
                    "kernel_constraint": None,
                    "bias_constraint": None,
                },
                "name": "a",
                "inbound_nodes": [[["input_1", 0, 0, {}]]],
            },
            {
                "class_name": "Add",
                "config": {"name": "add", "trainable": True, "dtype": "float32"},
                "name": "add",
                "inbound_nodes": [[["input_1", 0, 0, {}], ["a", 0, 0, {}]]],
            },
        ],
        "input_layers": [["input_1", 0, 0]],
        "output_layers": [["add", 0, 0]],
    },
}


def test_a_file_of_keras_2_is_read(tmp_path):
    rng = np.random.default_rng(1)
    kernel, bias = rng.normal(size=(4, 4)), rng.normal(size=4)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.attrs["model_config"] = json.dumps(KERAS_2)
        root = file.create_group("model_weights")
        root.attrs["layer_names"] = [b"input_1", b"a", b"add"]
        for name in ("input_1", "add"):
            root.create_group(name).attrs["weight_names"] = np.zeros(0, "S1")
        made = root.create_group("a")
        made.attrs["weight_names"] = [b"a/kernel:0", b"a/bias:0"]
        made["a/kernel:0"], made["a/bias:0"] = kernel, bias
    model = load(tmp_path / "m.h5")
    x = rng.normal(size=(3, 4)).astype("f4")
    wanted = x + np.maximum(x @ kernel + bias, 0)
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, rtol=1e-5)
    assert model.layers[1].get_config()["kernel_regularizer"]["config"] == {"l2": 0.1}


def test_a_model_of_ones_own_class_finds_its_layers_by_attributes(tmp_path):
    def made(k):
        class Net(k.Model):
            def __init__(self, **options):
                super().__init__(**options)
                self.last = k.layers.Dense(3)
                self.blocks = [k.layers.Dense(4), k.layers.Dense(5)]
                self.first = k.layers.Dense(4)

            def call(self, x):
                for each in (self.first, *self.blocks, self.last):
                    x = each(x)
                return x

        return Net()

    ours, theirs = made(nn), made(keras)
    x, _ = data((4,))
    for each in (ours, theirs):
        each.build((None, 4))
    theirs(x)
    spread(theirs)
    theirs.save_weights(tmp_path / "w.weights.h5")
    ours.load_weights(tmp_path / "w.weights.h5")
    agree(ours, theirs, x)
    spread(ours)
    ours.save_weights(tmp_path / "o.weights.h5")
    theirs.load_weights(tmp_path / "o.weights.h5")
    agree(ours, theirs, x)


def small(units=3):
    return nn.Sequential([nn.Input((4,)), nn.Dense(5), nn.Dense(units)])


def test_what_does_not_match_is_left_as_it_was_where_that_is_wanted(tmp_path):
    source, model = small(), small(7)
    source.save_weights(tmp_path / "w.weights.h5")
    source.save_weights(tmp_path / "w.safetensors")
    for name in ("w.weights.h5", "w.safetensors"):
        before = model.get_weights()
        with pytest.raises(WeightsError, match="shape"):
            model.load_weights(tmp_path / name)
        for a, b in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(a, b)
        with pytest.warns(RuntimeWarning, match=r"has no weights of their shapes for"):
            model.load_weights(tmp_path / name, skip_mismatch=True)
        after = model.get_weights()
        np.testing.assert_array_equal(after[0], source.get_weights()[0])
        np.testing.assert_array_equal(after[2], before[2])
    with pytest.raises(FileExistsError):
        source.save_weights(tmp_path / "w.weights.h5", overwrite=False)
    with pytest.raises(FileExistsError):
        source.save_weights(tmp_path / "w.safetensors", overwrite=False)
    with pytest.raises(WeightsError, match="unexpected"):
        nn.Sequential([nn.Input((4,)), nn.Dense(5)]).load_weights(
            tmp_path / "w.weights.h5"
        )
    with pytest.raises(FormatError, match="holds weights but no model"):
        load(tmp_path / "w.weights.h5")


def test_layers_that_keras_does_not_have_are_warned_of(tmp_path):
    x = nn.Input((6, 6, 3))
    model = nn.Model(x, nn.LocalResponseNormalization()(x))
    with pytest.warns(RuntimeWarning, match="has no LocalResponseNormalization"):
        model.save(tmp_path / "m.keras")
    load(tmp_path / "m.keras")


def archive(path, changes=(), **options):
    """Write a model's archive, with some of its entries changed or left out."""
    small().save(path)
    with zipfile.ZipFile(path) as source:
        parts = {each: source.read(each) for each in source.namelist()}
    parts |= dict(changes)
    with zipfile.ZipFile(path, "w", **options) as target:
        for name, each in parts.items():
            if each is not None:
                target.writestr(name, each)
    return path


def hdf5(write):
    """Return the bytes of a file of weights that a function has changed."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name, units in (("dense", (4, 5)), ("dense_1", (5, 3))):
            group = file.create_group(f"layers/{name}/vars")
            group["0"], group["1"] = np.ones(units, "f4"), np.zeros(units[1:], "f4")
        write(file)
    return stream.getvalue()


def replaced(name, **options):
    def write(file):
        del file["layers/dense/vars/0"]
        file["layers/dense/vars"].create_dataset("0", **options)

    write.__name__ = name
    return write


def linked(link):
    def write(file):
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = link

    return write


def virtual(file):
    del file["layers/dense/vars/0"]
    layout = h5py.VirtualLayout((4, 5), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (4, 5))
    file["layers/dense/vars"].create_virtual_dataset("0", layout)


def circle(file):
    file["layers/dense/again"] = file["layers"]


WEIGHTS = {
    "another file": (linked(h5py.ExternalLink("/etc/hostname", "/x")), "is a link"),
    "a soft link": (linked(h5py.SoftLink("/layers/dense/vars/1")), "is a link"),
    "external storage": (
        replaced("e", shape=(4, 5), dtype="f4", external=[("/etc/hostname", 0, 80)]),
        "in another file",
    ),
    "a virtual dataset": (virtual, "in another file"),
    "a circle": (circle, "circle"),
    "a huge shape": (replaced("h", shape=(2**40, 2**10), dtype="f4"), "has shape"),
    "a huge chunk": (
        replaced("c", shape=(4, 5), maxshape=(None, None), chunks=(2**12, 2**14)),
        "chunks that are larger",
    ),
    "text": (replaced("t", data=np.full((4, 5), b"a")), r"is \|S1"),
    "too few": (lambda file: file.__delitem__("layers/dense_1"), "Missing"),
    "too many": (lambda file: file.create_dataset("layers/x/vars/0", (2,)), "x/vars"),
}


@pytest.mark.parametrize("what", WEIGHTS)
def test_hostile_weights_are_refused(tmp_path, what):
    write, words = WEIGHTS[what]
    path = archive(tmp_path / "m.keras", {"model.weights.h5": hdf5(write)})
    with pytest.raises((FormatError, WeightsError), match=words):
        load(path)
    model, file = small(), tmp_path / "w.weights.h5"
    file.write_bytes(hdf5(write))
    before = model.get_weights()
    with pytest.raises((FormatError, WeightsError), match=words):
        model.load_weights(file)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert {each.name for each in tmp_path.iterdir()} == {"m.keras", "w.weights.h5"}


def config(change):
    text = json.loads(small().to_json())
    change(text)
    return {"config.json": json.dumps(text)}


LAYER = ("config", "layers", 1)
ARCHIVES = {
    "no description": ({"config.json": None}, "has no config.json"),
    "no weights": ({"model.weights.h5": None}, "has no model.weights.h5"),
    "no JSON": ({"config.json": b"{"}, "JSON"),
    "a list": ({"config.json": b"[]"}, "describes no model"),
    "assets": ({"assets/layers/a/vocabulary.txt": b"a"}, "which no layer reads"),
    "assets of bytes": ({"assets/layers/a/vocabulary.txt": b"\xff"}, "is no text"),
    "an unknown layer": (
        config(lambda c: c["config"]["layers"][1].update(class_name="Portal")),
        r"no keras.layers.Portal",
    ),
    "a module": (
        config(
            lambda c: c["config"]["layers"][1].update(module="os", class_name="system")
        ),
        "the class 'system' is unknown",
    ),
    "code": (
        config(
            lambda c: c["config"]["layers"][1].update(
                class_name="Lambda",
                config={
                    "name": "x",
                    "function": {
                        "class_name": "__lambda__",
                        "config": {"value": "4w=="},
                    },
                },
            )
        ),
        "never executed",
    ),
    "many units": (
        config(lambda c: c["config"]["layers"][1]["config"].update(units=2**50)),
        "",
    ),
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_hostile_archives_are_refused(tmp_path, what):
    changes, words = ARCHIVES[what]
    path = archive(tmp_path / "m.keras", changes)
    with pytest.raises((FormatError, WeightsError, MemoryError), match=words):
        load(path)


def test_names_of_entries_write_nothing(tmp_path):
    path = archive(tmp_path / "m.keras", {"../../outside": b"x", "/tmp/y": b"x"})
    load(path).close()
    assert [each.name for each in tmp_path.iterdir()] == ["m.keras"]


def test_compressed_weights_and_bombs_are_refused(tmp_path):
    path = archive(tmp_path / "m.keras", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match=r"is compressed.*zip -0"):
        load(path)
    bomb = {"config.json": b" " * (2**26 + 1)}
    path = archive(tmp_path / "b.keras", bomb, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="of which at most 67108864 are read"):
        load(path)
    twice = tmp_path / "t.keras"
    small().save(twice)
    with (
        zipfile.ZipFile(twice, "a") as target,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        target.writestr("config.json", "{}")
    with pytest.raises(FormatError, match="two of its entries have one name"):
        load(twice)


@QUIET
@given(st.data())
def test_a_damaged_file_is_refused_or_has_the_same_model(source):
    """Bytes cut off or changed anywhere: an expected error, or nothing lost."""
    with folder() as at:
        path = at / source.draw(st.sampled_from(["m.keras", "m.weights.h5"]))
        model = small()
        whole = path.suffix == ".keras"
        model.save(path) if whole else model.save_weights(path)
        content = bytearray(path.read_bytes())
        place = source.draw(st.integers(0, 2**20)) % len(content)
        if source.draw(st.booleans()):
            del content[place:]
        else:
            content[place] ^= source.draw(st.integers(1, 255))
        path.write_bytes(content)
        other = small()
        before = other.get_weights()
        refused = False
        try:
            loaded = load(path) if whole else other.load_weights(path)
            if whole:
                loaded.close()
        except (FormatError, WeightsError, TypeError, ValueError, MemoryError):
            refused = True
        if refused:
            for a, b in zip(other.get_weights(), before, strict=True):
                np.testing.assert_array_equal(a, b)


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    small().save(tmp_path / "m.keras")
    monkeypatch.setitem(sys.modules, "h5py", None)
    for act in (
        lambda: load(tmp_path / "m.keras"),
        lambda: small().load_weights(tmp_path / "m.keras"),
        lambda: small().save(tmp_path / "n.keras"),
        lambda: small().save_weights(tmp_path / "n.weights.h5"),
    ):
        with pytest.raises(ImportError, match=r"pip install memcfg\[h5\]"):
            act()
    assert [each.name for each in tmp_path.iterdir()] == ["m.keras"]


def test_weights_are_read_one_at_a_time(tmp_path, monkeypatch):
    """Beside the model, a whole file takes one weight of memory, and not all."""
    seen = []
    read = h5py.Dataset.__getitem__

    def noted(self, key):
        seen.append(self.name)
        return read(self, key)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", noted)
    small().save(tmp_path / "m.keras")
    model = load(tmp_path / "m.keras")
    assert sorted(seen) == [
        f"/layers/dense{n}/vars/{i}" for n in ("", "_1") for i in (0, 1)
    ]
    model.close()
