"""Samples and labels as pandas and PyTorch hold them."""

from __future__ import annotations

import os

import numpy as np
import pytest

import memcfg as mc

if not os.environ.get("MEMCFG_PARITY"):
    pytest.skip("set MEMCFG_PARITY=1 to read other libraries'", allow_module_level=True)

nn = mc.nn
COUNT, WIDTH = 60, 5


@pytest.fixture
def rows():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(COUNT, WIDTH))
    return x, (x[:, 0] > 0).astype(np.int64)


def made():
    nn.set_random_seed(1)
    model = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def results(x, y, weights=None):
    model = made()
    history = model.fit(
        x, y, 16, 2, 0, seed=1, validation_split=0.2, sample_weight=weights
    ).history
    found = history, model.train_on_batch(x, y), model.predict(x, verbose=0).tobytes()
    model.close()
    return found


def test_frames(rows):
    pandas = pytest.importorskip("pandas")
    x, y = rows
    frame = pandas.DataFrame(x, columns=list("abcde"))
    weights = np.linspace(0.5, 1.5, COUNT)
    expected = results(x, y, weights)
    index = np.arange(COUNT)[::-1]  # places count, not labels of rows
    series = pandas.Series(y, index=index)
    for given in (frame, frame.set_index(index), frame.copy()):
        assert results(given, series, pandas.Series(weights)) == expected
    assert results(frame, series.to_frame(), weights) == expected
    nullable = pandas.Series(y).astype("Int64")
    assert results(frame.astype("Float64"), nullable, weights) == expected


def test_frames_of_unequal_dtypes(rows):
    pandas = pytest.importorskip("pandas")
    x, y = rows
    frame = pandas.DataFrame(x, columns=list("abcde"))
    frame["b"] = (frame["b"] > 0).astype(bool)
    frame["c"] = (10 * frame["c"]).astype("int16")
    frame["d"] = frame["d"].astype("float32")
    array = np.stack([frame[name].to_numpy(np.float32) for name in frame], 1)
    assert results(frame, y) == results(array, y)
    frame["e"] = "text"
    with pytest.raises(TypeError, match="column 'e' holds"):
        made().fit(frame, y, verbose=0)
    frame["e"] = pandas.Series([None] * COUNT, dtype="Int64")
    with pytest.raises(TypeError, match="column 'e' has places for no number"):
        made().fit(frame, y, verbose=0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "bool"])
def test_tensors(rows, dtype):
    torch = pytest.importorskip("torch")
    x, y = rows
    x = x.astype(dtype)
    expected = results(x, y)
    assert results(torch.from_numpy(x), torch.from_numpy(y)) == expected
    weights = torch.ones(COUNT)
    assert results(torch.from_numpy(x), y.tolist(), weights) == results(
        x, y, np.ones(COUNT)
    )


def test_tensors_that_are_not_handed_out(rows):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rows[0]).requires_grad_()
    with pytest.raises(TypeError, match="detach"):
        made().fit(x, rows[1], verbose=0)
    assert made().predict(x.detach(), verbose=0).shape == (COUNT, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders(rows, workers):
    torch = pytest.importorskip("torch")
    x, y = rows
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=workers)
    found, expected = made(), made()
    history = found.fit(loader, epochs=2, verbose=0, validation_data=loader).history
    alike = expected.fit(x, y, 16, 2, 0, shuffle=False, validation_data=(x, y)).history
    for name, values in history.items():
        assert values == pytest.approx(alike[name], rel=1e-6)
    assert np.array_equal(found.predict(loader, verbose=0), expected.predict(x, 16, 0))
