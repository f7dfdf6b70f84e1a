"""Batches that are read where they lie: the same bits, no copy, the same peaks."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import set_bytes_worth_binding
from placed import locked, placed

import memcfg as mc

nn = mc.nn
MODES = ["enabled", "none", "single", "separate"]


@pytest.fixture(autouse=True)
def _small_batches_too(monkeypatch):
    set_bytes_worth_binding(monkeypatch, 0)


def convolutional(loss, mode="enabled"):
    nn.set_random_seed(3)
    model = nn.Sequential(
        [
            nn.Input((8, 8, 2)),
            nn.Conv2D(4, 3, padding="same", activation="relu"),
            nn.BatchNormalization(),
            nn.MaxPool2D(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Dense(5),
        ]
    )
    model.compile(
        nn.Adam(0.01),
        loss,
        metrics=["accuracy"],
        training_workspace_mode=mode,
        inference_workspace_mode=mode,
    )
    return model


@pytest.fixture
def images():
    """32 images whose batches of 8 begin at multiples of 64, and labels."""
    generator = np.random.default_rng(5)
    x = placed(generator.standard_normal((32, 8, 8, 2)).astype(np.float32))
    return x, generator.integers(0, 5, 32)


def used(model, x, y):
    """Train, evaluate and predict in order; everything that comes out."""
    history = model.fit(x, y, 8, 2, 0, shuffle=False).history
    numbers = model.evaluate(x, y, 8, 0)
    predicted = model.predict(x, 8, 0)
    return (
        history,
        numbers,
        predicted.tobytes(),
        [w.tobytes() for w in model.get_weights()],
    )


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_an_array_are_read_in_place(loss, images, mode, runs):
    x, y = images
    model = convolutional(loss, mode)
    used(model, x, y)
    starts = [x.__array_interface__["data"][0] + 8 * i * x[0].nbytes for i in range(4)]
    assert [where for _, where, _ in runs.bindings] == 4 * starts
    assert all(bound for _, _, bound in runs.bindings)
    assert runs.copied == []


@pytest.mark.parametrize("mode", MODES)
def test_copied_and_bound_batches_give_the_same_bits(
    loss, images, mode, runs, tmp_path
):
    x, y = images
    results = [
        used(convolutional(loss, mode), samples, y)
        for samples in (
            placed(x, 4),
            x,
            locked(x, tmp_path / "x"),
            np.asfortranarray(x),
        )
    ]
    assert all(result == results[0] for result in results)
    assert len(runs.copied) == 2 * 16


@pytest.mark.parametrize("mode", MODES)
def test_predicted_and_measured_peaks_are_what_they_were(loss, images, mode):
    x, y = images
    for samples in (x, placed(x, 4)):
        model = convolutional(loss, mode)
        pool = mc.config.logical_device().pool
        before = pool.stats().current_bytes
        pool.reset_peak()
        model.fit(samples, y, 8, 1, 0, shuffle=False)
        peak = pool.stats().peak_bytes - before
        report = model.memory_report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes == peak
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes == peak
        model.close()


def test_rows_that_do_not_begin_at_a_line_are_copied(loss, images, runs):
    x, y = images
    model = nn.Sequential([nn.Input((3,)), nn.Dense(5)])
    model.compile("sgd", loss)
    rows = placed(np.ascontiguousarray(x.reshape(32, -1)[:, :3]))
    model.fit(rows, y, 8, 1, 0, shuffle=False)  # 96 bytes a batch
    assert runs.bindings == []
    model.fit(rows[:8], y[:8], 8, 1, 0, shuffle=False)  # one batch
    model.fit(rows, y, 16, 1, 0, shuffle=False)  # 192 bytes
    assert len(runs.bindings) == 3


def test_a_shuffled_array_is_gathered_and_a_batch_of_its_own_is_bound(
    loss, images, runs
):
    x, y = images
    model = convolutional(loss)
    model.fit(x, y, 8, 1, 0)
    assert runs.bindings == []
    assert len(runs.copied) == 4
    model.train_on_batch(x[:8], y[:8])
    model.test_on_batch(x[:8], y[:8])
    model.predict_on_batch(x[:8])
    assert [bound for _, _, bound in runs.bindings] == [True] * 3


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_kept_behind_a_step(loss, images, mode):
    x, y = images
    model = convolutional(loss, mode)
    x = placed(x)
    model.train_on_batch(x[:8], y[:8])
    model.evaluate(x, y, 8, 0)
    model.predict(x, 8, 0)
    base = weakref.ref(x.base)
    del x
    assert base() is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("mode", MODES)
def test_an_error_between_binding_and_running_leaves_no_binding(
    loss, images, mode, error, runs
):
    x, y = images
    model, expected = convolutional(loss, mode), convolutional(loss, mode)
    for each in (model, expected):
        each.train_on_batch(x[:8], y[:8])

    def fail(name):
        raise error

    other = placed(x[8:16])
    base = weakref.ref(other.base)
    before, runs.begun = runs.begun, fail
    with pytest.raises(error):
        model.train_on_batch(other, y[8:16])
    runs.begun = before
    del other
    gc.collect()  # the traceback
    assert base() is None
    for each in (model, expected):
        each.train_on_batch(placed(x[16:24], 4), y[16:24])
    for one, two in zip(model.get_weights(), expected.get_weights(), strict=True):
        assert np.array_equal(one, two)


def test_small_batches_of_arrays_are_copied(loss, runs, monkeypatch):
    x = placed(np.ones((32, 1024), np.float32))
    set_bytes_worth_binding(monkeypatch, 16 * x[0].nbytes)
    model = nn.Sequential([nn.Input((1024,)), nn.Dense(5)])
    model.compile("sgd", loss)
    counts = []
    for size in (1, 15, 16, 32):
        runs.bindings.clear()
        model.fit(x[:size], np.zeros(size, int), 32, verbose=0, shuffle=False)
        counts.append(len(runs.bindings))
    assert counts == [0, 0, 1, 1]


def test_a_report_between_two_steps_measures_the_arena(loss, images):
    x, y = images
    model = convolutional(loss)
    for _ in range(2):
        model.train_on_batch(x[:8], y[:8])
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes


LAYERS = {
    "conv": lambda: nn.Conv2D(3, 3, padding="same"),
    "conv relu": lambda: nn.Conv2D(2, 1, activation="relu"),
    "norm": nn.BatchNormalization,
    "relu": nn.ReLU,
    "dropout": lambda: nn.Dropout(0.5),
    "max": lambda: nn.MaxPool2D(2, strides=1),
    "average": lambda: nn.AveragePooling2D(2, strides=1),
}
LAYOUTS = {
    "aligned": placed,
    "off by 4": lambda x: placed(x, 4),
    "off by 32": lambda x: placed(x, 32),
    "columns first": np.asfortranarray,
    "every other": lambda x: placed(np.repeat(x, 2, axis=0))[::2],
    "a part": lambda x: placed(np.concatenate([x, x, x]))[len(x) : 2 * len(x)],
    "read only": lambda x: np.broadcast_to(placed(x), x.shape),
}


@settings(deadline=None, max_examples=40)
@given(
    names=st.lists(st.sampled_from(list(LAYERS)), max_size=4),
    flat_first=st.booleans(),
    layout=st.sampled_from(list(LAYOUTS)),
    batch_size=st.integers(1, 7),
    mode=st.sampled_from(MODES),
    memory=st.sampled_from(["keep_all", "share", "sqrt_checkpoint"]),
)
def test_any_model_gives_the_same_bits_with_any_layout(
    names, flat_first, layout, batch_size, mode, memory
):
    generator = np.random.default_rng(9)
    x = generator.standard_normal((7, 6, 6, 2)).astype(np.float32)
    y = generator.integers(0, 3, 7)

    def run(samples):
        nn.set_random_seed(4)
        layers = [] if flat_first else [LAYERS[name]() for name in names]
        head = [nn.Flatten(), nn.ReLU(), nn.Dense(3)]
        model = nn.Sequential([nn.Input((6, 6, 2)), *layers, *head])
        model.compile(
            nn.SGD(0.001, momentum=0.9),  # linear chains diverge at 0.1
            nn.SparseCategoricalCrossentropy(from_logits=True),
            memory=memory if mode == "enabled" else None,
            training_workspace_mode=mode,
            inference_workspace_mode=mode,
        )
        history = model.fit(samples, y, batch_size, 2, 0, shuffle=False).history
        predicted = model.predict(samples, batch_size, 0).tobytes()
        weights = [weight.tobytes() for weight in model.get_weights()]
        model.close()
        return history, predicted, weights

    given_x = LAYOUTS[layout](x)
    before = given_x.tobytes()
    assert run(given_x) == run(placed(x, 4))
    assert given_x.tobytes() == before
