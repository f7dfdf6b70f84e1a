"""Arguments by position mean the same as in Keras 3."""

from __future__ import annotations

import inspect
import json
import os
from operator import attrgetter
from pathlib import Path

import pytest

import memcfg as mc

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = pytest.mark.parity
ROOMS = (
    *("layers", "losses", "metrics", "optimizers", "callbacks", "initializers"),
    *(
        "regularizers",
        "utils",
        "utils.bounding_boxes",
        "wrappers",
        "distillation",
        "visualization",
        "quantizers",
    ),
)
OWN = {"Optimizer"}  # whose base class is no user's to make


def by_position(what):
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(what).parameters.values()
    return [each.name for each in parameters if each.kind in kinds]


def test_the_public_names_that_are_counted_are_keras_s():
    path = Path(__file__).parents[1] / "support" / "keras_public_names.json"
    for room, names in json.loads(path.read_text()).items():
        module = keras
        for part in filter(None, room.split(".")):
            module = getattr(module, part)
        found = [
            name
            for name in dir(module)
            if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
        ]
        assert sorted(found) == names, room


@pytest.mark.parametrize("room", ROOMS)
def test_positions(room):
    theirs, ours = (attrgetter(room)(each) for each in (keras, mc.nn))
    for name in set(ours.__all__) & set(dir(theirs)) - OWN:
        if not callable(getattr(theirs, name)):
            continue
        wanted = by_position(getattr(theirs, name))
        found = by_position(getattr(ours, name))
        common = min(len(wanted), len(found))
        assert found[:common] == wanted[:common], name


@pytest.mark.parametrize(
    "method",
    [
        *("fit", "evaluate", "predict", "compile", "train_on_batch", "test_on_batch"),
        *("predict_on_batch", "save", "save_weights", "load_weights", "get_layer"),
    ],
)
def test_positions_of_methods(method):
    wanted = by_position(getattr(keras.Model, method))
    found = by_position(getattr(mc.nn.Model, method))
    aliases = {"path": "filepath"}
    found = [aliases.get(each, each) for each in found]
    common = min(len(wanted), len(found))
    assert found[:common] == wanted[:common]
