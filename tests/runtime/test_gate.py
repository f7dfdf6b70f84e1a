"""How many programs run at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
from memcfg import config
from memcfg.runtime import _executor
from memcfg.runtime._gate import Gate


class Watched(Gate):
    """A gate that remembers how many were inside together."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __enter__(self):
        super().__enter__()
        self.most = max(self.most, self._running)


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_no_more_than_the_bound_are_inside(bound):
    config.threading.set_inter_op_parallelism_threads(bound)
    gate, full = Watched(), threading.Barrier(bound)

    def enter(_):
        with gate:
            full.wait(60)  # passes only when the bound is reached

    with ThreadPoolExecutor(3 * bound) as threads:
        list(threads.map(enter, range(3 * bound)))
    assert gate.most == bound
    assert gate._running == 0


def test_without_a_bound_all_are_inside():
    gate, everyone = Watched(), threading.Barrier(8)

    def enter(_):
        with gate:
            everyone.wait(60)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(enter, range(8)))
    assert gate.most == 8


def test_an_error_inside_opens_it_again():
    config.threading.set_inter_op_parallelism_threads(1)
    gate = Gate()
    for _ in range(2):
        with pytest.raises(KeyError), gate:
            raise KeyError


def test_models_in_threads_pass_it(monkeypatch):
    config.threading.set_inter_op_parallelism_threads(1)
    gate = Watched()
    monkeypatch.setattr(_executor, "gate", gate)
    x = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)

    def train(seed):
        mc.nn.set_random_seed(seed)
        model = mc.nn.Sequential([mc.nn.Input((6,)), mc.nn.Dense(3)])
        model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(x, np.arange(64) % 3, batch_size=4, epochs=3, verbose=0)
        model.memory_report()
        return model.memory_report(verify=True)

    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(train, range(4)))
    assert gate.most == 1
    assert all(r.measured_peak_bytes == r.predicted_peak_bytes for r in reports)
