"""Nested structures, `Config`, `InputSpec` and resized images beside Keras's."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from internals import set_data_source

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
BOTH = keras, mc.nn


class Pair(NamedTuple):
    left: Any
    right: Any


VALUES = [1, None, [], [1], (1, [2, None]), {"b": 1, "a": [2]}, Pair(1, {"x": 2})]


@pytest.mark.parametrize("value", VALUES)
def test_structures(value):
    def results(tree):
        yield tree.flatten(value)
        yield tree.flatten_with_path(value)
        yield tree.is_nested(value)
        yield tree.lists_to_tuples(value)
        yield tree.map_structure(lambda x: (x,), value)
        yield tree.map_structure(lambda x: -x, value, none_is_leaf=False)
        yield tree.traverse(lambda x: "all" if isinstance(x, list) else None, value)
        yield tree.traverse(
            lambda x: tree.MAP_TO_NONE if x == 2 else None, value, top_down=False
        )
        yield tree.map_structure_up_to([0, 0], lambda x: x, [value, (value,)])
        yield tree.pack_sequence_as(value, [5] * len(tree.flatten(value)))
        yield tree.map_shape_structure(lambda x: x, {"a": (None, 3), "b": [(2,)]})

    one, other = (list(results(each.tree)) for each in BOTH)
    assert one == other


def test_a_config():
    one, other = (each.utils.Config(b=1, a=[2]) for each in BOTH)
    for each in (one, other):
        each.c = 3
        each.freeze()
        with pytest.raises(ValueError, match="frozen"):
            each.d = 3
    assert repr(one) == repr(other)
    assert [*one] == [*other]
    assert one.to_json() == other.to_json()


def test_specs():
    for options in ({"ndim": 3, "axes": {1: 2}}, {"shape": (None, 2)}, {"min_ndim": 2}):
        one, other = (each.InputSpec(**options) for each in BOTH)
        for name in ("shape", "ndim", "min_ndim", "max_ndim", "axes", "dtype", "name"):
            assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("size", [(4, 7), (9, 3), (20, 20)])
def test_smart_resize(size):
    image = np.random.default_rng(0).uniform(0, 255, (11, 8, 3)).astype(np.float32)
    for how in ("bilinear", "nearest"):
        for layout in ("channels_last", "channels_first"):
            given = image if layout == "channels_last" else image.transpose(2, 0, 1)
            one, other = (
                np.asarray(
                    each.preprocessing.image.smart_resize(given, size, how, layout)
                )
                for each in BOTH
            )
            assert one.shape == other.shape
            np.testing.assert_allclose(other, one, atol=0.05)


def test_circle_losses():
    random = np.random.default_rng(0)
    p, q = (random.normal(size=(n, 3)).astype(np.float32) for n in (6, 4))
    p, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (p, q))
    t, u = np.int32([0, 1, 0, 2, 1, 0]), np.int32([1, 0, 1, 2])
    for given in ((t, p), (t, p, u, q, False, 10, 0.2), (t[:4], p[:4], None, q)):
        one, other = (each.losses.circle(*given) for each in BOTH)
        one = keras.ops.convert_to_numpy(one)
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["boston_housing", "california_housing"])
def test_orders_of_tables(name, tmp_path, monkeypatch):
    x = np.arange(2000.0).reshape(1000, 2)
    np.savez(tmp_path / f"{name}.npz", x=x, y=x[:, 1])
    theirs = importlib.import_module(f"keras.src.datasets.{name}")
    monkeypatch.setattr(theirs, "get_file", lambda *_, **__: tmp_path / f"{name}.npz")
    set_data_source(monkeypatch, tmp_path)
    for options in ({}, {"test_split": 0.35, "seed": 4}):
        one, other = (
            getattr(each.datasets, name).load_data(**options) for each in BOTH
        )
        for a, b in zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True):
            np.testing.assert_array_equal(a, b)


def test_limits_of_runs():
    x, y = np.ones((20, 2), np.float32), np.ones((20, 1), np.float32)
    counts = []
    for each in BOTH:
        assert each.config.max_epochs() is each.config.max_steps_per_epoch() is None
        model = each.Sequential([each.Input((2,)), each.layers.Dense(1)])
        model.compile("sgd", "mse")
        each.config.set_max_epochs(2)
        each.config.set_max_steps_per_epoch(4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            history = model.fit(x, y, batch_size=2, epochs=3, verbose=0)
            rows = len(model.predict(x, batch_size=2, verbose=0))
        counts.append((len(history.epoch), int(model.optimizer.iterations), rows))
        each.config.set_max_epochs(None)
        each.config.set_max_steps_per_epoch(None)
    assert counts[0] == counts[1] == (2, 8, 8)
