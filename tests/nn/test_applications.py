"""Keras's applications: what they consist of, their arguments, pixels and files."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from network_layers import RECORD, record
from numpy.testing import assert_allclose, assert_array_equal

import memcfg as mc

nn = mc.nn
applications = nn.applications
RECORDED = json.loads(RECORD.read_text())
SMALL = {"input_shape": (32, 32, 3), "alpha": 0.25, "weights": None}


def test_all_are_recorded():
    assert {*RECORDED} == {each for each in applications.__all__ if each[0].isupper()}


@pytest.mark.parametrize("name", RECORDED)
def test_layers_and_weights_are_kerass(name):
    """No value is drawn: the largest network has 350 million."""
    nn.backend.clear_session()
    assert record(getattr(applications, name)(weights=None)) == RECORDED[name]


@pytest.mark.parametrize("name", ["MobileNetV2", "EfficientNetB0", "MobileNetV3Small"])
def test_images_of_any_size_are_taken(name):
    model = getattr(applications, name)(include_top=False, weights=None, pooling="avg")
    assert model.input_shape == (None, None, None, 3)
    for side in (32, 45):
        images = np.ones((1, side, side, 3), np.float32)
        assert np.isfinite(model.predict(images, verbose=0)).all()
    model.close()


def test_any_tensor_is_taken_as_images():
    start = nn.Input((40, 40, 1))
    images = nn.Conv2D(3, 3)(start)
    model = applications.MobileNetV2(
        alpha=0.35, input_tensor=images, weights=None, include_top=False
    )
    assert model.input is start
    assert model.output_shape == (None, 2, 2, 1280)
    assert model.name == "mobilenetv2_0.35_38"


def test_images_of_other_channels_are_noted():
    with pytest.warns(UserWarning, match="images with 4 channels"):
        model = applications.MobileNet((32, 32, 4), 0.25, weights=None)
    assert model.get_layer("conv1").kernel.shape == (3, 3, 4, 8)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("VGG16", {"weights": "nowhere.h5"}, "None, 'imagenet' or the path of a file"),
        ("VGG16", {"classes": 10}, "of 1000 classes, not 10: pass include_top=False"),
        ("VGG16", {"classifier_activation": "relu"}, "'softmax' or None"),
        ("VGG16", {"input_shape": (64, 64, 3)}, r"\(224, 224, 3\), not \(64, 64, 3\)"),
        ("VGG16", {"input_shape": (224, 224, 1)}, r"not \(224, 224, 1\)$"),
        ("VGG16", {"input_shape": (8, 8, 3), "weights": None}, "at least 32 x 32"),
        ("Xception", {"input_shape": (70, 71, 3), "weights": None}, "not 70 x 71"),
        ("VGG16", {"input_shape": (32, 32), "weights": None}, "a height, a width"),
        ("VGG16", {"input_shape": (None, 32, 3), "weights": None}, "known lengths"),
        (
            "NASNetMobile",
            {"input_shape": (32, None, 3), "include_top": False, "weights": None},
            "known lengths",
        ),
        ("VGG16", {"pooling": "mean", "weights": None}, "unknown pooling 'mean'"),
        ("MobileNet", {"alpha": 0.3}, "alpha 0.25, 0.5, 0.75 or 1"),
        ("MobileNet", {"depth_multiplier": 2}, "not of 1.0 and 2"),
        ("MobileNetV2", {"alpha": 0.3}, "not 0.3"),
        ("MobileNetV3Small", {"alpha": 0.5}, "alpha 0.75 and 1"),
    ],
)
def test_arguments_that_make_no_model_are_refused(name, options, told):
    with pytest.raises(ValueError, match=f"^{name}.*{told}"):
        getattr(applications, name)(**options)


def test_a_tensor_of_another_shape_is_refused():
    images = nn.Input((32, 32, 3))
    options = {"input_tensor": images, "weights": None}
    with pytest.raises(ValueError, match=r"input_shape is \(48, 48, 3\), but"):
        applications.ResNet50(input_shape=(48, 48, 3), **options)
    with pytest.raises(TypeError, match="input_tensor must be a symbolic tensor"):
        applications.ResNet50(input_tensor=np.ones((1, 32, 32, 3)), weights=None)


def test_words_for_wrong_arguments():
    with pytest.raises(TypeError, match=r"ResNet50\(\).*did you mean 'weights'"):
        applications.ResNet50(weight=None)
    with pytest.raises(TypeError, match=r"ResNet50\(\): too many positional"):
        applications.ResNet50(*range(9))
    with pytest.raises(AttributeError, match="did you mean 'ResNet50'"):
        _ = applications.Resnet50


def test_constructors_are_functions_of_their_modules():
    for name in RECORDED:
        made = getattr(applications, name)
        assert (made.__name__, made.__qualname__) == (name, name)
        assert pickle.loads(pickle.dumps(made)) is made
        assert f"{name}." not in made.__doc__
    assert applications.resnet50.ResNet50 is applications.resnet.ResNet50


def test_weights_are_those_of_a_file(tmp_path):
    path = tmp_path / "weights.safetensors"
    first = applications.MobileNet(**SMALL)
    first.save_weights(path)
    second = applications.MobileNet(**{**SMALL, "weights": path})
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        assert_array_equal(one, other)
    with pytest.raises(mc.errors.WeightsError):
        applications.MobileNet(**{**SMALL, "weights": path, "alpha": 0.5})


def test_a_file_that_cannot_be_downloaded_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(OSError, match=r"^VGG16: https://.*cannot be .*path of a file"):
        applications.VGG16()
    with pytest.raises(OSError, match=r"^decode_predictions: https://"):
        applications.vgg16.decode_predictions(np.zeros((1, 1000)))
    with (
        pytest.warns(UserWarning, match="those of 224 are read"),
        pytest.raises(OSError, match=r"mobilenet_1_0_224_tf_no_top\.h5"),
    ):
        applications.MobileNet((96, 96, 3), include_top=False)


def pixels(x, mode):
    """Compute pixels in float64, from the papers' means and deviations."""
    if mode == "tf":
        return x / 127.5 - 1
    if mode == "torch":
        return (x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    return x[..., ::-1] - [103.939, 116.779, 123.68]


@pytest.mark.parametrize(
    ("module", "mode"), [("vgg19", "caffe"), ("nasnet", "tf"), ("densenet", "torch")]
)
def test_pixels(module, mode):
    prepare = getattr(applications, module).preprocess_input
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
    kept = x.copy()
    wanted = pixels(x.astype(float), mode)
    assert_allclose(prepare(x), wanted, rtol=1e-5, atol=1e-4)
    assert_array_equal(x, kept)
    first = prepare(np.moveaxis(x, -1, 1), "channels_first")
    assert_allclose(np.moveaxis(first, 1, -1), wanted, rtol=1e-5, atol=1e-4)
    floats = x.astype(np.float32)
    floats.flags.writeable = False
    assert_allclose(prepare(floats), wanted, rtol=1e-5, atol=1e-4)
    images = nn.Input((4, 5, 3), dtype="int32")
    model = nn.Model(images, nn.layers.Identity()(prepare(images)))
    found = model.predict(x.astype(np.int32), verbose=0)
    assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert pickle.loads(pickle.dumps(prepare)) is prepare


def test_wrong_pixels_are_refused():
    prepare = applications.imagenet_utils.preprocess_input
    with pytest.raises(ValueError, match="unknown mode 'jax'"):
        prepare(np.ones((2, 2, 3)), mode="jax")
    with pytest.raises(ValueError, match="unknown data_format 'last'"):
        prepare(np.ones((2, 2, 3)), data_format="last")
    with pytest.raises(ValueError, match=r"three channels, not shape \(2, 2, 1\)"):
        prepare(np.ones((2, 2, 1)))
    with pytest.raises(ValueError, match=r"shape \(n, 1000\), not \(2, 10\)"):
        applications.imagenet_utils.decode_predictions(np.ones((2, 10)))


@pytest.mark.parametrize("weights", [True, 3.5, "no such file", "."])
def test_weights_of_no_file_are_refused(weights):
    with pytest.raises(ValueError, match="None, 'imagenet' or the path of a file, got"):
        applications.MobileNetV2(input_shape=(32, 32, 3), alpha=0.35, weights=weights)


def test_an_input_tensor_has_the_shape_that_images_need():
    small, wide = nn.Input((8, 8, 3)), nn.Input((32, 32))
    options = {"weights": None, "include_top": False}
    with pytest.raises(ValueError, match="needs images of at least 32 x 32, not 8 x 8"):
        applications.MobileNetV2(input_tensor=small, **options)
    with pytest.raises(ValueError, match="must be a height, a width and a number"):
        applications.MobileNetV2(input_tensor=wide, **options)
