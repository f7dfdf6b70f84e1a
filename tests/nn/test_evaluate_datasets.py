"""Evaluation on datasets, iterators and whatever else gives batches."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.data import AsyncDataSetIterator, DataSet, Dataset, MultiDataSet

nn = mc.nn
pytestmark = pytest.mark.usefixtures("no_threads")

MODES = ["enabled", "none", "single", "separate"]


def dataset(x, y, size=8):
    return Dataset.from_tensor_slices((x, y)).batch(size)


def parts(x, y, size=8):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


SOURCES = {
    "dataset": dataset,
    "prefetched": lambda x, y: dataset(x, y).prefetch(mc.data.AUTOTUNE),
    "mapped": lambda x, y: dataset(x, y).map(lambda x, y: (x + 0, y)),
    "list": parts,
    "generator": lambda x, y: (part for part in parts(x, y)),
    "data sets": lambda x, y: [DataSet(*part) for part in parts(x, y)],
    "multi": lambda x, y: iter([MultiDataSet(*part) for part in parts(x, y)]),
    "int8 labels": lambda x, y: dataset(x, y.astype(np.int8)),
    "columns of labels": lambda x, y: dataset(x, y[:, None]),
}


@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_numbers_are_those_of_arrays(source, mode, dense, rows):
    model = dense(metrics=["accuracy"], inference_workspace_mode=mode)
    expected = model.evaluate(*rows, 8, 0)
    assert model.evaluate(SOURCES[source](*rows), verbose=0) == expected
    named = model.evaluate(SOURCES[source](*rows), verbose=0, return_dict=True)
    assert named == dict(zip(("loss", "accuracy"), expected, strict=True))


def test_weights_of_samples_may_be_a_dict_by_output():
    inputs = nn.Input((2,))
    outputs = {name: nn.Dense(1, name=name)(inputs) for name in "ab"}
    model = nn.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"})
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 2)).astype("f4")
    y = {name: rng.normal(size=(6, 1)).astype("f4") for name in "ab"}
    weights = {"a": np.arange(6, dtype="f4"), "b": np.ones((6, 1), "f4")}
    p = model.predict(x, verbose=0)
    wanted = [
        (weights["a"][:, None] * (y["a"] - p["a"]) ** 2).mean(),
        np.abs(y["b"] - p["b"]).mean(),
    ]
    data = Dataset.from_tensor_slices((x, y, weights)).batch(3)
    found = model.evaluate(data, verbose=0)
    np.testing.assert_allclose(found, [sum(wanted), *wanted], rtol=1e-5)


def test_some_steps(dense, rows):
    x, y = rows
    model = dense()
    first = model.evaluate(x[:16], y[:16], 8, 0)
    for source in SOURCES.values():
        assert model.evaluate(source(x, y), verbose=0, steps=2) == first
    assert model.evaluate(x, y, 8, 0, steps=2) == first
    endless = dataset(x, y).repeat()
    assert model.evaluate(endless, verbose=0, steps=2) == first
    with pytest.raises(ValueError, match="no end: say steps"):
        model.evaluate(endless, verbose=0)


@pytest.mark.parametrize("source", ["dataset", "generator"])
def test_too_few_batches(source, dense, rows):
    model = dense()
    expected = model.evaluate(*rows, 8, 0)
    with pytest.warns(RuntimeWarning, match="4 of 9 batches.*Lower steps") as told:
        assert model.evaluate(SOURCES[source](*rows), verbose=0, steps=9) == expected
    assert len(told) == 1
    assert told[0].filename == __file__


def test_no_batch(dense):
    with pytest.raises(ValueError, match="empty"):
        dense().evaluate([], verbose=0)


@pytest.mark.parametrize("wrong", [{"y": np.zeros(30, int)}, {"batch_size": 8}])
def test_arguments_of_arrays(wrong, dense, rows):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} goes with arrays"):
        dense().evaluate(dataset(*rows), verbose=0, **wrong)


def test_arrays_need_labels(dense, rows):
    with pytest.raises(TypeError, match="y is an array, or what gives one"):
        dense().evaluate(rows[0], verbose=0)


def test_wrong_batches_leave_nothing(dense, rows):
    x, y = rows
    model = dense()
    held = mc.config.logical_device().pool.owners
    for bad, kind in [
        ((x.astype(complex), y), TypeError),
        ((x, y + 9), ValueError),
        ((x[:, :2].copy(), y), ValueError),
        (DataSet(x, y, np.ones(x.shape)), ValueError),
    ]:
        with pytest.raises(kind, match=r"^batch 3: ") as caught:
            model.evaluate([*parts(x, y)[:2], bad], verbose=0)
        assert list(held()) == [f"model {model.name}"]
        assert caught.value is not None


def test_an_iterator_that_was_given_is_left_open(dense, rows):
    model = dense()
    expected = model.evaluate(*rows, 8, 0)
    with AsyncDataSetIterator(parts(*rows)) as iterator:
        assert model.evaluate(iterator, verbose=0) == expected
        assert model.evaluate(iterator, verbose=0) == expected  # it restarts


def test_an_unbuilt_model_is_built(loss, rows):
    for source in SOURCES.values():
        nn.set_random_seed(1)
        model = nn.Sequential([nn.Dense(4)])
        model.compile("sgd", loss)
        found = model.evaluate(source(*rows), verbose=0)
        assert found == model.evaluate(*rows, 8, 0)


def test_a_model_that_is_not_compiled(rows):
    with pytest.raises(RuntimeError, match="needs a compiled model"):
        nn.Sequential([nn.Input((6,)), nn.Dense(4)]).evaluate(dataset(*rows))
