"""Prediction on datasets, iterators and whatever else gives batches."""

from __future__ import annotations

import numpy as np
import pytest
from calls import Call

import memcfg as mc
from memcfg.data import AsyncDataSetIterator, DataSet, Dataset

nn = mc.nn
pytestmark = pytest.mark.usefixtures("no_threads")

MODES = ["enabled", "none", "single", "separate"]


def slices(x, y, size=8):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


SOURCES = {
    "x": lambda x, y: Dataset.from_tensor_slices(x).batch(8),
    "(x,)": lambda x, y: Dataset.from_tensor_slices((x,)).batch(8),
    "(x, y)": lambda x, y: Dataset.from_tensor_slices((x, y)).batch(8).prefetch(2),
    "text as labels": lambda x, y: Dataset.from_tensor_slices((x, y.astype(str))).batch(
        8
    ),
    "mapped": lambda x, y: Dataset.from_tensor_slices(x).batch(8).map(lambda x: x + 0),
    "arrays": lambda x, y: [part for part, _ in slices(x, y)],
    "tuples": lambda x, y: iter(slices(x, y)),
    "lists": lambda x, y: [list(part) for part in slices(x, y)],
    "data sets": lambda x, y: [DataSet(part) for part, _ in slices(x, y)],
}


@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_outputs_are_those_of_arrays(source, mode, dense, rows):
    model = dense(inference_workspace_mode=mode)
    expected = model.predict(rows[0], 8, 0)
    found = model.predict(SOURCES[source](*rows), verbose=0)
    assert found.dtype == np.float32
    assert found.flags.owndata
    assert np.array_equal(found, expected)
    # A model that nobody compiled predicts, too.
    plain = nn.Sequential([nn.Input((6,)), nn.Dense(4)])
    assert np.array_equal(
        plain.predict(SOURCES[source](*rows), verbose=0),
        plain.predict(rows[0], 8, verbose=0),
    )


def test_some_steps(dense, rows):
    x, y = rows
    model = dense()
    first = model.predict(x[:16], 8, 0)
    for source in SOURCES.values():
        assert np.array_equal(model.predict(source(x, y), verbose=0, steps=2), first)
    assert np.array_equal(model.predict(x, 8, 0, steps=2), first)
    assert len(model.predict(x, 8, 0, steps=4)) == 30
    endless = Dataset.from_tensor_slices(x).batch(8).repeat()
    assert np.array_equal(model.predict(endless, verbose=0, steps=2), first)
    with pytest.raises(ValueError, match="no end: say steps"):
        model.predict(endless, verbose=0)
    with pytest.warns(RuntimeWarning, match="4 of 7 batches"):
        assert len(model.predict(SOURCES["x"](x, y), verbose=0, steps=7)) == 30
    with pytest.warns(RuntimeWarning, match="4 of 7 batches"):
        model.predict(x, 8, 0, steps=7)


def test_images_and_feature_maps(images):
    x, _ = images
    model = nn.Sequential([nn.Conv2D(2, 3)])
    found = model.predict(Dataset.from_tensor_slices(x).batch(16), verbose=0)
    assert found.shape == (40, 6, 6, 2)
    assert np.array_equal(found, model.predict(x, 16, 0))


def test_batches_of_different_sizes(dense, rows):
    x, _ = rows
    model = dense()
    parts = [x[:3], x[3:4], x[4:20], x[20:]]
    expected = np.concatenate([model.predict_on_batch(part) for part in parts])
    assert np.array_equal(model.predict(parts, verbose=0), expected)


def test_into_a_workspace(dense, rows):
    model = dense()
    expected = model.predict(rows[0], 8, 0)
    for source in ("x", "tuples"):
        with mc.workspace("answers") as ws:
            found = model.predict(SOURCES[source](*rows), verbose=0, workspace=ws)
            assert mc.workspace_of(found) is ws
            assert np.array_equal(found, expected)
            outside = model.predict(SOURCES[source](*rows), verbose=0)
            assert not mc.is_attached(outside)
            del found
        ws.destroy()


@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        (np.ones((4, 6), complex), TypeError, "got complex128"),
        (np.ones((4, 5), "f4"), ValueError, "the model reads"),
        ((), ValueError, "this one has 0 parts"),
        ((1, 2, 3, 4), ValueError, "this one has 4 parts"),
        ({"x": 1}, ValueError, "but x has 'x'"),
        (DataSet(np.ones((4, 6), "f4"), None, np.ones(4)), ValueError, "masks"),
        ([["a"] * 6], TypeError, "x is an array, or"),
    ],
)
def test_wrong_batches(bad, kind, text, dense, rows):
    model = dense()
    with pytest.raises(kind, match=rf"^batch 2: .*{text}") as caught:
        model.predict([rows[0], bad], verbose=0)
    assert list(mc.config.logical_device().pool.owners()) == [f"model {model.name}"]
    assert caught.value is not None


def test_arguments_of_arrays(dense, rows):
    with pytest.raises(ValueError, match="batch_size goes with arrays"):
        dense().predict(SOURCES["x"](*rows), 8, verbose=0)
    with pytest.raises(ValueError, match="empty"):
        dense().predict(iter(()), verbose=0)


def test_samples_without_batches_are_told(dense, rows):
    with pytest.raises(ValueError, match=r"the model reads .*: make batches first"):
        dense().predict(Dataset.from_tensor_slices(rows[0]), verbose=0)


def test_several_threads_and_an_open_iterator(dense, rows):
    model = dense()
    expected = model.predict(rows[0], 8, 0)
    data = SOURCES["(x, y)"](*rows)
    calls = [Call(model.predict, data, verbose=0) for _ in range(4)]
    assert all(np.array_equal(call.result(), expected) for call in calls)
    with AsyncDataSetIterator(slices(*rows)) as iterator:
        for _ in range(2):
            assert np.array_equal(model.predict(iterator, verbose=0), expected)
