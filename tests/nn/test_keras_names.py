"""Every name of Keras's is here, or says why it is not and what to do instead."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

import memcfg as mc
from memcfg.nn._keras_names import ABSENT

NAMES = json.loads(
    (Path(__file__).parents[1] / "support" / "keras_names.json").read_text()
)
ROOMS = [room for room in NAMES if room not in ("version", "Model")]


def module_of(room):
    return importlib.import_module(f"memcfg.nn.{room}")


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_is_here_or_says_why_not(room):
    module = module_of(room)
    for name in NAMES[room]:
        if hasattr(module, name):
            assert name not in ABSENT.get(room, {}), f"{name} is here by now"
            continue
        with pytest.raises(AttributeError, match=r"which Keras has: .+") as error:
            getattr(module, name)
        assert name in str(error.value)
        assert name in ABSENT[room]


@pytest.mark.parametrize("room", ABSENT)
def test_reasons_are_of_names_that_keras_has(room):
    assert ABSENT[room].keys() <= NAMES[room].keys() | {"stft", "STFT", "legacy"}


def test_at_the_top_too():
    with pytest.raises(AttributeError, match=r"Conv3D.*Keras has: windows move"):
        _ = mc.nn.Conv3D
    with pytest.raises(AttributeError, match=r"no attribute 'Dence'$"):
        _ = mc.nn.Dence
    assert not hasattr(mc.nn, "RandomFlip")


def test_activations_are_functions_of_symbolic_tensors_and_settings_of_layers():
    from memcfg.nn import activations

    x = mc.nn.Input((4,))
    for name in activations.__all__:
        if name == "get":
            continue
        function = getattr(activations, name)
        assert function(x).shape == (None, 4)
        assert activations.get(name) is function
        mc.nn.Dense(3, activation=function)
    assert mc.nn.Dense(3, activation=activations.relu).activation == "relu"
    assert activations.get(None) is activations.linear
    with pytest.raises(ValueError, match="unknown activation 'cube'"):
        activations.get("cube")


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
    found = mc.nn.utils.normalize([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0]])


def test_the_page_of_names_is_up_to_date():
    import keras_table

    written = (Path(__file__).parents[2] / "docs" / "keras.md").read_text()
    assert written == keras_table.page(), "run python tests/keras_table.py"
