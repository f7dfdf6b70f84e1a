"""Keras's applications: the same layers, weights by file, outputs, steps and pixels."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from beside_keras import MARKS, keras
from keras_networks import CONSTRUCTORS, theirs
from network_layers import RECORD, described, record

import memcfg as mc

pytest.importorskip("h5py")
pytestmark = MARKS
nn = mc.nn
applications = nn.applications
RECORDED = json.loads(RECORD.read_text())

# The smallest images of a network of each kind, and arguments that make it small.
NETWORKS = {
    "ConvNeXtTiny": (33, {}),
    "DenseNet121": (32, {}),
    "EfficientNetB0": (33, {}),
    "EfficientNetV2B0": (32, {}),
    "InceptionV3": (75, {"include_top": False, "pooling": "max"}),
    "MobileNet": (33, {"alpha": 0.25, "depth_multiplier": 2}),
    "MobileNetV2": (34, {"alpha": 0.35}),
    "MobileNetV3Large": (32, {"alpha": 0.35, "include_top": False, "pooling": "avg"}),
    "MobileNetV3Small": (35, {"alpha": 1.1, "minimalistic": True}),
    "ResNet50": (32, {"include_top": False, "pooling": "avg"}),
    "ResNet50V2": (33, {"include_top": False}),
    "VGG16": (32, {"include_top": False, "pooling": "avg"}),
    "Xception": (71, {"include_top": False, "pooling": "avg"}),
}
LARGE = {"InceptionResNetV2": (75, {}), "NASNetMobile": (32, {})}
HEAD = {"classes": 6, "classifier_activation": None}


def spread(model, rng):
    """Give each vector of weights values of its own."""
    for each in model.weights:
        if len(each.shape) == 1:
            positive = each.name in ("gamma", "moving_variance", "variance")
            low, high = (0.5, 1.5) if positive else (-0.1, 0.1)
            each.assign(rng.uniform(low, high, each.shape))


def both(name, side, options, folder, rng):
    """Return a network twice, with weights that Keras has written to a file."""
    options = {"input_shape": (side, side, 3), **HEAD, **options}
    peer = theirs(name, weights=None, valued=True, **options)
    spread(peer, rng)
    path = folder / "network.weights.h5"
    peer.save_weights(path)
    nn.backend.clear_session()
    return getattr(applications, name)(weights=path, **options), peer


@pytest.mark.parametrize(
    "name",
    [*NETWORKS, *(pytest.param(each, marks=pytest.mark.slow) for each in LARGE)],
)
def test_weights_of_a_file_give_the_same_outputs(name, tmp_path):
    side, options = {**NETWORKS, **LARGE}[name]
    rng = np.random.default_rng(3)
    ours, peer = both(name, side, options, tmp_path, rng)
    assert described(ours) == described(peer)
    x = rng.uniform(-1, 1, (2, side, side, 3)).astype(np.float32)
    found = ours.predict(x, verbose=0)
    wanted = keras.ops.convert_to_numpy(peer(x, training=False))
    scale = np.abs(wanted).max()
    assert scale > 0
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * scale)
    ours.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_what_is_recorded_is_kerass(name):
    assert RECORDED[name] == record(theirs(name, weights=None))


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_arguments_are_kerass(name):
    wanted = inspect.signature(getattr(keras.applications, name)).parameters
    found = inspect.signature(getattr(applications, name)).parameters
    assert [*found] == [*wanted]
    defaults = {each: wanted[each].default for each in wanted}
    if name == "MobileNet":
        defaults["depth_multiplier"] = 1
    assert {each: found[each].default for each in found} == defaults


def test_the_modules_have_kerass_names():
    for name in dir(keras.applications):
        module = getattr(keras.applications, name)
        if inspect.ismodule(module):
            own = getattr(applications, name)
            names = {each for each in dir(module) if not each.startswith("_")}
            assert names <= {*own.__all__}
            assert all(hasattr(own, each) for each in names)


@pytest.mark.parametrize(
    ("name", "side", "options"),
    [
        ("MobileNetV2", 64, {"alpha": 0.35}),
        ("MobileNetV3Small", 64, {"alpha": 0.35, "dropout_rate": 0.0}),
        ("ConvNeXtTiny", 32, {}),
    ],
)
def test_a_step_changes_weights_as_in_keras(name, side, options, tmp_path):
    rng = np.random.default_rng(4)
    options = {**options, "classifier_activation": "softmax"}
    pair = both(name, side, options, tmp_path, rng)
    x = rng.uniform(-1, 1, (8, side, side, 3)).astype(np.float32)
    y = rng.integers(0, 6, 8)
    before = [np.array(each) for each in pair[1].get_weights()]
    losses = []
    for model, k in zip(pair, (nn, keras), strict=True):
        model.compile(k.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        losses.append(float(model.train_on_batch(x, y)))
    np.testing.assert_allclose(*losses, rtol=1e-4)
    found, wanted = (model.get_weights() for model in pair)
    for ours, peers, first in zip(found, wanted, before, strict=True):
        moved = np.abs(peers - first).max()
        np.testing.assert_allclose(ours, peers, rtol=1e-4, atol=5e-3 * moved + 1e-6)
    pair[0].close()


def alike(ours, peer, x):
    wanted = peer.predict(x, verbose=0)
    found = ours.predict(x, verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    ours.close()


@pytest.mark.parametrize("name", ["network.keras", "network.h5"])
def test_files_of_whole_networks_are_read(name, tmp_path):
    from keras.src.applications.convnext import ConvNeXt

    rng = np.random.default_rng(5)
    options = {"layer_scale_init_value": 0.5, "input_shape": (64, 64, 3), "classes": 5}
    peer = ConvNeXt([1, 2, 1, 1], [8, 16, 24, 32], **options)
    spread(peer, rng)
    peer.save(tmp_path / name)
    x = rng.uniform(0, 255, (2, 64, 64, 3)).astype(np.float32)
    alike(nn.models.load_model(tmp_path / name), peer, x)
    ours = nn.models.load_model(tmp_path / name)
    ours.save(tmp_path / "again.keras")
    alike(ours, keras.models.load_model(tmp_path / "again.keras"), x)


def test_layers_of_networks_are_read_and_written(tmp_path):
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

    inputs = keras.Input((4,))
    outputs = CustomScaleLayer(0.3)([inputs, keras.layers.Dense(4)(inputs)])
    keras.Model(inputs, outputs).save(tmp_path / "first.keras")
    ours = nn.models.load_model(tmp_path / "first.keras")
    ours.save(tmp_path / "second.keras")
    peer = keras.models.load_model(tmp_path / "second.keras")
    alike(ours, peer, np.eye(4, dtype=np.float32))


@pytest.mark.parametrize("include_top", [True, False])
def test_imagenet_is_a_file_of_the_cache(include_top, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    rng = np.random.default_rng(6)
    options = {"input_shape": (128, 128, 3), "alpha": 0.25, "include_top": include_top}
    peer = theirs("MobileNet", weights=None, valued=True, **options)
    spread(peer, rng)
    tail = "" if include_top else "_no_top"
    peer.save(tmp_path / "models" / f"mobilenet_2_5_128_tf{tail}.h5")
    x = rng.uniform(-1, 1, (2, 128, 128, 3)).astype(np.float32)
    ours = applications.MobileNet(**options)
    assert ours.name == peer.name == "mobilenet_0.25_128"
    alike(ours, peer, x)


MODULES = [
    name
    for name in dir(keras.applications)
    if inspect.ismodule(getattr(keras.applications, name))
]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_pixels_are_kerass(name, data_format, dtype):
    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, (2, 3, 3, 3)).astype(dtype)
    prepare, peer = (
        getattr(side, name).preprocess_input
        for side in (applications, keras.applications)
    )
    for each in (x, x[0]):
        wanted = peer(each.copy(), data_format=data_format)
        found = prepare(each.copy(), data_format=data_format)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    inputs = nn.Input(x.shape[1:])
    model = nn.Model(inputs, nn.layers.Identity()(prepare(inputs, data_format)))
    wanted = peer(x.astype(np.float32), data_format=data_format)
    np.testing.assert_allclose(
        model(x.astype(np.float32)), wanted, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("mode", ["caffe", "tf", "torch"])
def test_modes_of_pixels_are_kerass(mode):
    x = np.random.default_rng(8).uniform(0, 255, (2, 3, 4, 3))
    prepare, peer = (
        side.imagenet_utils.preprocess_input
        for side in (applications, keras.applications)
    )
    np.testing.assert_array_equal(
        prepare(x.copy(), mode=mode), peer(x.copy(), mode=mode)
    )


def test_names_of_classes_are_kerass(tmp_path, monkeypatch):
    """The list has the hash of Keras's; PyTorch Image Models has what it is made of."""
    spec = importlib.util.find_spec("timm")
    if spec is None:
        pytest.skip("needs timm: tox run -e parity")
    folder = Path(spec.origin).parent / "data" / "_info"
    lines = (folder / "imagenet_synset_to_lemma.txt").read_text().splitlines()
    words = dict(line.split("\t", 1) for line in lines)
    names = (folder / "imagenet_synsets.txt").read_text().split()
    index = {
        str(i): [name, words[name].split(",")[0].replace(" ", "_")]
        for i, name in enumerate(names)
    }
    text = json.dumps(index)
    assert hashlib.md5(text.encode()).hexdigest() == "c2c37ea517e94d9795004a39431a14cb"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "imagenet_class_index.json").write_text(text)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    rows = np.random.default_rng(9).random((3, 1000)).astype(np.float32)
    found = applications.vgg16.decode_predictions(rows, top=4)
    for row, several in zip(rows, found, strict=True):
        best = sorted(range(1000), key=lambda i, row=row: -row[i])[:4]
        assert several == [(*index[str(i)], row[i]) for i in best]
