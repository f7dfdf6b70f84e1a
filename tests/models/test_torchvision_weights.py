"""Files of torchvision's weights are read whole or not at all, by names and layouts."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import memcfg as mc
from memcfg.errors import WeightsError

nn, models = mc.nn, mc.models


def small():
    """A network with a layer of each kind that has weights, and a flattened image."""
    x = start = nn.Input((4, 6, 2))
    x = nn.Conv2D(4, 3, padding=1, groups=2, name="features.0")(x)
    x = nn.BatchNormalization(name="features.1")(x)
    x = nn.DepthwiseConv2D((1, 3), depth_multiplier=2, use_bias=False, name="dw")(x)
    x = nn.Dropout(0.5)(nn.Flatten()(nn.MaxPooling2D()(x)))
    x = nn.Dense(5, name="fc1")(x)
    return nn.Model(start, nn.Dense(3, name="fc2")(x))


SHAPES = {
    "features.0.weight": (4, 1, 3, 3),
    "features.0.bias": (4,),
    "features.1.weight": (4,),
    "features.1.bias": (4,),
    "features.1.running_mean": (4,),
    "features.1.running_var": (4,),
    "dw.weight": (8, 1, 1, 3),
    "fc1.weight": (5, 8 * 2 * 2),
    "fc1.bias": (5,),
    "fc2.weight": (3, 5),
    "fc2.bias": (3,),
}


def state():
    random = np.random.default_rng(2)
    found = {
        name: random.uniform(0.5, 1.5, shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    return {**found, "features.1.num_batches_tracked": np.array(7)}


@pytest.fixture
def path(tmp_path):
    save_file(state(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_values_have_our_layouts(path):
    model, values = small(), state()
    models.load_torchvision_weights(model, path)
    get = model.get_layer
    for place in np.ndindex(4, 1, 3, 3):
        out, within, row, column = place
        ours = get("features.0").kernel.numpy()[row, column, within, out]
        assert ours == values["features.0.weight"][place]
    for place in np.ndindex(8, 1, 1, 3):
        out, _, row, column = place
        ours = get("dw").kernel.numpy()[row, column, out // 2, out % 2]
        assert ours == values["dw.weight"][place]
    matrix = get("fc1").kernel.numpy().reshape(2, 2, 8, 5)
    theirs = values["fc1.weight"].reshape(5, 8, 2, 2)
    np.testing.assert_array_equal(matrix, theirs.transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(get("fc2").kernel.numpy(), values["fc2.weight"].T)
    norm = get("features.1")
    for ours, name in zip(
        norm.get_weights(),
        ("weight", "bias", "running_mean", "running_var"),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, values[f"features.1.{name}"])


def renamed(values, old, new):
    return {new if name == old else name: value for name, value in values.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda v: renamed(v, "fc2.bias", "fc3.bias"),
            "Missing: 'fc2.bias'; unexpected",
        ),
        (lambda v: v | {"fc9.weight": v["fc2.bias"]}, "unexpected: 'fc9.weight'"),
        (lambda v: v | {"aux.weight": v["fc2.bias"]}, "unexpected: 'aux.weight'"),
        (lambda v: v | {"fc2.bias": v["fc1.bias"]}, r"'fc2.bias' has shape \(3,\) in"),
        (lambda v: v | {"fc2.bias": v["fc2.bias"].astype("f2")}, "is float16"),
        (
            lambda v: v | {"fc1.weight": v["fc1.weight"].T.copy()},
            r"'fc1.weight' has shape \(5, 32\) in the model, got \(32, 5\)",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_and_changes_nothing(tmp_path, change, message):
    path = tmp_path / "w.safetensors"
    save_file(change(state()), path)
    model = small()
    before = model.get_weights()
    with pytest.raises(WeightsError, match=message) as error:
        models.load_torchvision_weights(model, path)
    assert "\n" not in str(error.value)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_damaged_and_missing_files(path, tmp_path):
    model = small()
    with pytest.raises(FileNotFoundError):
        models.load_torchvision_weights(model, tmp_path / "none")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsError, match="damaged"):
        models.load_torchvision_weights(model, path)
    path.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(WeightsError, match="zip archive, as Keras, PyTorch"):
        models.load_torchvision_weights(model, path)


def test_what_is_no_model_or_no_path_is_refused(path):
    with pytest.raises(TypeError, match="the model is a str; write the model first"):
        models.load_torchvision_weights(str(path), small())
    with pytest.raises(TypeError, match=r"the path is a dict; write a state_dict\(\)"):
        models.load_torchvision_weights(small(), {})


def test_models_of_other_layers_are_refused(path):
    model = nn.Sequential([nn.Input((3, 2)), nn.LSTM(3, name="cells")])
    with pytest.raises(WeightsError, match="'cells' is a LSTM"):
        models.load_torchvision_weights(model, path)


def test_auxiliary_classifiers_are_passed_over_where_there_are_none(path):
    model = small()
    values = load_file(path) | {"aux1.fc1.weight": np.zeros((2, 2), np.float32)}
    save_file(values, path)
    models.load_torchvision_weights(model, path)
    np.testing.assert_array_equal(
        model.get_layer("fc2").bias.numpy(), values["fc2.bias"]
    )


def dense_layer():
    start = nn.Input((2, 2, 3))
    y = nn.BatchNormalization(name="features.denseblock1.denselayer1.norm1")(start)
    y = nn.Conv2D(2, 1, use_bias=False, name="features.denseblock1.denselayer1.conv2")(
        y
    )
    return nn.Model(start, y)


def test_names_of_old_files_of_densenets(tmp_path):
    """As torchvision's published files have them, and its own loader renames them."""
    path, block = tmp_path / "w.safetensors", "features.denseblock1.denselayer1"
    ones = np.ones(3, np.float32)
    norm = {
        f"{block}.norm.1.{each}": i * ones
        for i, each in enumerate(("weight", "bias", "running_mean", "running_var"), 1)
    }
    kernel = {f"{block}.conv.2.weight": np.full((2, 3, 1, 1), 5, np.float32)}
    save_file(norm | kernel, path)
    model = dense_layer()
    models.load_torchvision_weights(model, path)
    assert [float(each.mean()) for each in model.get_weights()] == [1, 2, 3, 4, 5]
    save_file({**norm, **kernel, f"{block}.norm1.bias": ones}, path)
    with pytest.raises(WeightsError, match="unexpected:"):
        models.load_torchvision_weights(model, path)
