"""Reservations that fail at any moment of `fit` on datasets: nothing hangs or is lost.

At a random moment, in any thread, another block takes all free memory of the device,
until the first request after that has been refused. Either the library handles the
refusal, and `fit` ends as without it, or `fit` raises, with weights as after the last
whole step. Training then goes on with the batch behind it. By default a model also
gives memory to others, between two steps, and runs batches in parts where it has none.
"""

from __future__ import annotations

import random
import threading
import warnings

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.data import Dataset
from memcfg.errors import FallbackWarning, ResourceExhaustedError

pytestmark = [
    pytest.mark.usefixtures("no_threads"),
    pytest.mark.filterwarnings("ignore::memcfg.errors.WorkspaceSpillWarning"),
    pytest.mark.filterwarnings("ignore:a pass over 'cache' ended:UserWarning"),
]

ROWS, SIZE, EPOCHS = 40, 4, 2
STEPS = ROWS // SIZE
LIMIT = 2**20
generator = np.random.default_rng(7)
X = generator.standard_normal((ROWS, 24)).astype(np.float32)
Y = generator.integers(0, 4, ROWS)


class Withdrawal:
    """Take all free memory of a pool, and give it back amid the next refusal."""

    def __init__(self, pool, seed):
        self._pool = pool
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._blocks = []
        self._taker = None  # the thread that takes memory
        self.share = 0.0  # of the calls of `perhaps` that take memory
        self.count = 0  # of requests, and of plans, that were refused for it
        self.spare_bytes = 0
        pool.holders.add(self, -1)  # asked first

    def perhaps(self, *_):
        if self._random.random() < self.share:
            with self._lock:
                self._taker = threading.get_ident()
                try:
                    self._take()
                finally:
                    self._taker = None

    def _take(self):
        while (left := self._pool.stats().largest_free_bytes) >= 64:
            try:
                self._blocks.append(self._pool.allocate(left, tag="withdrawn"))
            except ResourceExhaustedError:
                return  # another thread was faster, and its request was the one

    def give_back(self, nbytes):
        if self._taker != threading.get_ident():
            self.count += self.stop()
        return 0  # so the request is refused, though there is room now

    def stop(self):
        """Give the memory back; return whether there was any."""
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            block.free()
        return bool(blocks)


class Again:
    """An iterable that makes its elements with each pass."""

    def __init__(self, make, numbers):
        self._make, self._numbers = make, numbers

    def __iter__(self):
        return map(self._make, self._numbers)


def rows(withdrawal, begin=0):
    def change(x, y):
        withdrawal.perhaps()
        return x * np.float32(0.5), y

    def batches(x, y):
        withdrawal.perhaps()
        return x + np.float32(1), y

    data = Dataset.from_tensor_slices((X, Y))
    return {
        "prefetch": lambda: data.map(change).batch(SIZE).skip(begin).prefetch(2),
        "buffer of fit": lambda: data.map(change).batch(SIZE).skip(begin),
        "shuffle and cache": lambda: (
            data.map(change)
            .cache()
            .shuffle(16, seed=3, reshuffle_each_iteration=False)
            .batch(SIZE)
            .skip(begin)
            .map(batches)
            .prefetch(1)
        ),
        "map in threads": lambda: (
            data.map(change, num_parallel_calls=2)
            .batch(SIZE)
            .skip(begin)
            .prefetch(mc.data.AUTOTUNE)
        ),
        "map of batches in threads": lambda: (
            data.batch(SIZE).skip(begin).map(batches, num_parallel_calls=2).prefetch(2)
        ),
        "iterable": lambda: Again(
            lambda i: batches(X[i : i + SIZE], Y[i : i + SIZE]),
            range(begin * SIZE, ROWS, SIZE),
        ),
    }


def made(mode, on_oom):
    nn.set_random_seed(5)
    layers = [nn.Dense(24, activation="relu"), nn.Dropout(0.2, seed=1), nn.Dense(4)]
    model = nn.Sequential([nn.Input((24,)), *layers])
    model.compile(
        nn.optimizers.Adam(0.01),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        training_workspace_mode=mode,
        **on_oom,
    )
    return model


class Moments(nn.callbacks.Callback):
    """Withdraw memory between steps, too."""

    def __init__(self, withdrawal):
        super().__init__()
        self.on_train_batch_begin = withdrawal.perhaps
        self.on_train_batch_end = withdrawal.perhaps
        self.on_epoch_begin = withdrawal.perhaps


def trained(name, mode, on_oom, withdrawal):
    """Train to the end; return the weights, and how many calls were refused."""
    model, refused = made(mode, on_oom), 0
    total = STEPS * EPOCHS
    while (done := model.optimizer.iterations) < total:
        epoch, begin = divmod(int(done), STEPS)
        before = [weight.tobytes() for weight in model.get_weights()]
        for _ in range(5):  # where only loading takes memory, this is the only moment
            withdrawal.perhaps()
        try:
            model.fit(
                rows(withdrawal, begin)[name](),
                epochs=1,
                shuffle=False,
                verbose=0,
                callbacks=[Moments(withdrawal)],
            )
        except ResourceExhaustedError:
            refused += 1
            withdrawal.count += withdrawal.stop()  # no plan was left room
            if int(model.optimizer.iterations) == int(done):  # no step, no change
                now = [weight.tobytes() for weight in model.get_weights()]
                assert now == before
        else:
            assert int(model.optimizer.iterations) == (epoch + 1) * STEPS
        finally:
            withdrawal.stop()
    weights = model.get_weights()
    model.close()
    return weights, refused


NAMES = ["prefetch", "buffer of fit", "shuffle and cache", "map in threads"]
NAMES += ["map of batches in threads", "iterable"]


@pytest.mark.strength(1)
@pytest.mark.parametrize("on_oom", [{}, {"on_oom": "raise"}], ids=["default", "raise"])
@pytest.mark.parametrize("mode", ["enabled", "separate", "none"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("failures", "seed"),
    [
        pytest.param(17, 0, id="a hundredth"),  # of 10,000, in the gate's 6 cells
        *(  # 10,000 in the 18 cells of each
            pytest.param(112, seed, id=f"in full, {seed}", marks=pytest.mark.slow)
            for seed in range(1, 6)
        ),
    ],
)
def test_no_batch_is_lost_and_weights_are_those_of_an_uninterrupted_run(
    failures, seed, name, mode, on_oom
):
    """In bits, unless a batch ran in parts: then to rounding."""
    mc.config.set_alternatives_seconds(0)
    mc.config.set_memory_limit("CPU:0", LIMIT)
    pool = mc.config.logical_device("CPU:0").pool
    withdrawal = Withdrawal(pool, f"{name} {mode} {seed}")
    expected, refused = trained(name, mode, on_oom, withdrawal)
    assert refused == withdrawal.count == 0
    withdrawal.share = 0.1
    while withdrawal.count < failures:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            found, _ = trained(name, mode, on_oom, withdrawal)
        assert not (caught and on_oom)
        for one, other in zip(found, expected, strict=True):
            if caught:
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
            else:
                np.testing.assert_array_equal(one, other)
