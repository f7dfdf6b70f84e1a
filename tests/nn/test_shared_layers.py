"""Models that share layers: what one trains the other has, in any thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
X = np.ones((4, 3), np.float32)
FAR = np.full((4, 2), 1e6, np.float32)  # its mean absolute error has one slope
RATE = 0.5


def pair():
    """Two models of one layer, whose every step adds the same to the kernel."""
    shared, made = nn.Dense(2, name="shared", use_bias=False), []
    for _ in range(2):
        x = nn.Input((3,))
        made.append(nn.Model(x, shared(x)))
        made[-1].compile(nn.SGD(RATE), "mae")
    return shared, *made


def steps_of(shared, before):
    """How many steps the kernel has gone."""
    gone = (shared.get_weights()[0] - before) / (RATE / 2)
    assert gone.max() - gone.min() < 1e-3
    return round(float(gone.mean()))


def in_threads(*functions):
    found = []

    def run(function):
        try:
            function()
        except RuntimeError as error:
            found.append(str(error))

    threads = [threading.Thread(target=run, args=(each,)) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_model_that_a_callback_uses_has_what_is_trained():
    shared, a, b = pair()
    before = shared.get_weights()[0]
    seen = []
    told = nn.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(b.predict(X, verbose=0)[0])
    )
    a.fit(X, FAR, 1, epochs=2, verbose=0, callbacks=[told])
    assert steps_of(shared, before) == 8
    expected = [X[0] @ before + 3 * (i + 1) * RATE / 2 for i in range(8)]
    np.testing.assert_allclose(seen, expected, 1e-5)
    np.testing.assert_array_equal(a.get_weights()[0], b.get_weights()[0])


def test_compiling_keeps_what_the_other_has_trained():
    shared, a, b = pair()
    before = shared.get_weights()[0]
    a.train_on_batch(X, FAR)
    b.train_on_batch(X, FAR)
    a.compile(nn.SGD(RATE), "mae")
    assert steps_of(shared, before) == 2
    a.train_on_batch(X, FAR)
    assert steps_of(shared, before) == 3


def test_steps_in_two_threads_are_all_there():
    shared, a, b = pair()
    before = shared.get_weights()[0]

    def train(model):
        for _ in range(40):
            model.train_on_batch(X, FAR)

    assert in_threads(lambda: train(a), lambda: train(b)) == []
    assert steps_of(shared, before) == 80


def test_one_thread_fits_while_another_makes_steps():
    shared, a, b = pair()
    before = shared.get_weights()[0]

    def train():
        for _ in range(20):
            b.train_on_batch(X, FAR)
            b.predict(X, verbose=0)

    refused = in_threads(lambda: a.fit(X, FAR, 1, epochs=20, verbose=0), train)
    assert refused == []
    assert steps_of(shared, before) == 100


def test_two_threads_do_not_fit_at_once():
    shared, a, b = pair()
    before = shared.get_weights()[0]
    meet = threading.Barrier(2)
    met = nn.callbacks.LambdaCallback(on_train_begin=lambda logs: meet.wait(60))

    def other():
        meet.wait(60)
        b.fit(X, FAR, verbose=0)

    wait = threading.Event()
    slow = nn.callbacks.LambdaCallback(on_train_end=lambda logs: wait.wait(60))

    def refused():
        with pytest.raises(RuntimeError, match="shares layers with it, is being"):
            other()
        wait.set()

    assert (
        in_threads(lambda: a.fit(X, FAR, 1, verbose=0, callbacks=[met, slow]), refused)
        == []
    )
    assert steps_of(shared, before) == 4
    b.fit(X, FAR, 1, verbose=0)
    assert steps_of(shared, before) == 8


def test_a_third_model_joins_two():
    layers = [nn.Dense(2, name=f"d{i}", use_bias=False) for i in range(2)]
    models = []
    for layer in layers:
        x = nn.Input((3,))
        models.append(nn.Model(x, layer(x)))
        models[-1].compile(nn.SGD(RATE), "mae")
        models[-1].train_on_batch(X, FAR)
    before = [layer.get_weights()[0] for layer in layers]
    x = nn.Input((3,))
    both = nn.Model(x, [layer(x) for layer in layers])
    both.compile(nn.SGD(RATE), ["mae", "mae"])

    def train(model, y):
        for _ in range(15):
            model.train_on_batch(X, y)

    refused = in_threads(
        lambda: train(models[0], FAR),
        lambda: train(models[1], FAR),
        lambda: train(both, [FAR, FAR]),
    )
    assert refused == []
    assert [steps_of(*each) for each in zip(layers, before, strict=True)] == [30, 30]
