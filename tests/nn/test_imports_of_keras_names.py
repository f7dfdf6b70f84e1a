"""Importing a name of Keras's or TensorFlow's gives it, or says what to do instead."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from internals import DATASET_NAMES

import memcfg as mc

NAMES = json.loads(
    (Path(__file__).parents[1] / "support" / "keras_names.json").read_text()
)
NOT_MODULES = ("version", "Model", "calls", "Sequential", "defaults")
ROOMS = [room for room in NAMES if room not in NOT_MODULES]


def import_from(module, name):
    exec(f"from {module} import {name}", found := {})
    return found[name]


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_keras_can_be_imported_or_says_why_not(room):
    module = f"memcfg.nn.{room}".rstrip(".")
    for name in NAMES[room]:
        if hasattr(importlib.import_module(module), name):
            assert import_from(module, name) is not None
            continue
        with pytest.raises(ImportError) as error:
            import_from(module, name)
        start = f"cannot import name {name!r} from {module!r}: "
        assert str(error.value).startswith(start)
        assert len(str(error.value)) >= len(start) + 8
        assert error.value.name == name


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("from memcfg.nn.layers import JaxLayer", "layers of other frameworks"),
        ("from memcfg.nn.applications import Resnet50", "did you mean 'ResNet50'"),
        ("import memcfg.nn.export", r"Model\.export"),
        ("from memcfg.nn.datasets import imdb", "is a pickle"),
        ("from memcfg.nn.layers import Dence", "did you mean 'Dense'"),
        (
            "from memcfg.nn.losses import Squaredhinge",
            "did you mean 'SquaredHinge'",
        ),
        ("from memcfg.nn.layers import Adam", r"it is in nn\.optimizers"),
        ("from memcfg.nn.ops import polar", "numbers are real"),
        ("from memcfg.nn.ops import eig", "numbers are real"),
        ("from memcfg.nn.callbacks import OrbaxCheckpoint", "ModelCheckpoint"),
        ("from memcfg import keras", r"from memcfg import nn as keras"),
        ("from memcfg.keras import layers", r"from memcfg import nn as keras"),
        ("from memcfg import hessians", r"memcfg\.grad"),
        ("from memcfg import plann", "did you mean 'plan'"),
        ("from memcfg.data import NumpyIterator", "iterate over it"),
        ("from memcfg.data import Option", "did you mean 'Options'"),
        ("from memcfg.config import run_functions_eagerly", "remove the call"),
        ("from memcfg.config import list_physical_device", "'list_physical_devices'"),
    ],
)
def test_the_sentence_reaches_the_import(line, told):
    with pytest.raises(ImportError, match=told):
        exec(line, {})


@pytest.mark.parametrize(
    "name", ["hessians", "autograph", "distribute", "TensorSpec", "float32", "keras"]
)
def test_names_of_tensorflow_have_words(name):
    with pytest.raises(AttributeError, match=f"{name}', which TensorFlow has: .{{8}}"):
        getattr(mc, name)
    assert not hasattr(mc, name)


@pytest.mark.parametrize("name", DATASET_NAMES)
def test_methods_of_tf_datas_have_words(name):
    dataset = mc.data.Dataset.range(3)
    for owner in (mc.data.Dataset, dataset):
        with pytest.raises(AttributeError, match=r"which tf.data has: .{8}"):
            getattr(owner, name)
        assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'windw'$"):
        _ = dataset.windw


def test_a_name_that_nobody_has_is_an_import_error_without_advice():
    with pytest.raises(ImportError, match=r"from 'memcfg\.nn\.layers'$"):
        import_from("memcfg.nn.layers", "zzzzzz")


def test_other_ways_to_ask_keep_their_errors():
    with pytest.raises(AttributeError, match="TFSMLayer"):
        _ = mc.nn.layers.TFSMLayer
    assert getattr(mc.nn.layers, "TFSMLayer", None) is None
    with pytest.raises(
        ModuleNotFoundError, match=r"No module named 'memcfg\.nothing'$"
    ):
        importlib.import_module("memcfg.nothing")
