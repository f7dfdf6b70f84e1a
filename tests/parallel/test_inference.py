"""Requests of many threads are answered as the model answers them one by one.

I1 to I9 are ports of DL4J's tests of ParallelInference, and the oracle is the model's
own `predict_on_batch`, or arithmetic where a layer only copies.
"""

from __future__ import annotations

import gc
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
from calls import Call, eventually, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted_lines import Ends

import memcfg as mc
from memcfg.errors import InfeasiblePlanError, QueueFullError
from memcfg.parallel import InferenceMode, LoadBalanceMode, ParallelInference

nn = mc.nn
MODES = ["batched", "inplace", "sequential"]
SOON = 120  # seconds that nothing here takes
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = threading.active_count()
    yield
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    assert eventually(lambda: threading.active_count() <= before, 10), names


def mlp(inputs=6, outputs=4, *, kind=nn.Sequential):
    nn.set_random_seed(7)
    hidden = nn.Dense(16, activation="tanh")
    return kind([nn.Input((inputs,)), hidden, nn.Dense(outputs, activation="softmax")])


def copying(width=100, *, kind=nn.Sequential):
    """A model whose output is its input."""
    return kind([nn.Input((width,)), nn.Activation("linear")])


def several(outputs=2):
    """Two inputs, and some outputs."""
    nn.set_random_seed(8)
    a, b = nn.Input((3, 5, 5)), nn.Input((7,))
    joined = nn.Concatenate()([nn.Flatten()(a), b])
    return nn.Model([a, b], [nn.Dense(3 + i)(joined) for i in range(outputs)])


def held_model(kind=nn.Sequential):
    """A class of models that wait for a gate, and tell what they have computed."""

    class Held(kind):
        gate = threading.Event()
        begun = threading.Semaphore(0)
        sizes: ClassVar = []  # of the batches
        seen: ClassVar = []  # the batches

        def predict_on_batch(self, x):
            self.begun.release()
            assert self.gate.wait(SOON)
            self.sizes.append(len(x[0] if isinstance(x, list) else x))
            self.seen.append(x)
            return super().predict_on_batch(x)

    return Held


def rows(count, width=6, seed=0):
    return np.random.default_rng(seed).standard_normal((count, width)).astype("f")


def held(inference, kind, x):
    """Let a worker begin with a request, and wait at the gate."""
    future = inference.submit(x)
    assert kind.begun.acquire(timeout=SOON)
    return future


# I1


@pytest.mark.parametrize("clients", [1, 10])
@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_each_of_two_workers_answers(mode, clients):
    model, x = mlp(), rows(64)
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, mode, workers=2, batch_limit=8) as inference:

        def ask(i):
            with mc.workspace(f"of {i}"):
                result = inference.output(x[i : i + 1])
                assert not mc.is_attached(result)
            np.testing.assert_allclose(result, wanted[i : i + 1], **CLOSE)

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(ask, range(64)))
        stats = inference.stats()
        assert sum(stats.requests) == 64
        assert min(stats.requests) > 0
        assert min(stats.batches) > 0
        assert stats.samples == 64


# I2


def test_requests_that_wait_share_a_batch_in_their_order():
    kind = held_model()
    model = copying(kind=kind)
    with ParallelInference(model, batch_limit=2) as inference:
        first = held(inference, kind, np.zeros((1, 100), "f"))
        values = [1, 2, 3]
        futures = [inference.submit(np.full((1, 100), v, "f")) for v in values]
        assert inference.stats().waiting == 3
        kind.gate.set()
        assert first.result(SOON).shape == (1, 100)
        for value, future in zip(values, futures, strict=True):
            result = future.result(SOON)
            assert result.shape == (1, 100)
            assert result.base is None
            np.testing.assert_array_equal(result, value)
    assert kind.sizes == [1, 2, 1]
    assert kind.seen[1].shape == (2, 100)
    np.testing.assert_array_equal(kind.seen[1].mean(1), [1, 2])


# I3


def test_32_requests_are_one_batch_whose_row_i_is_of_request_i():
    kind = held_model()
    with ParallelInference(copying(kind=kind), batch_limit=32) as inference:
        held(inference, kind, np.zeros((1, 100), "f"))
        futures = [inference.submit(np.full((1, 100), i, "f")) for i in range(32)]
        kind.gate.set()
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(SOON), np.full((1, 100), i))
    assert kind.sizes == [1, 32]
    np.testing.assert_array_equal(kind.seen[1].mean(1), np.arange(32))


def test_images_are_one_batch():
    kind = held_model()
    model = kind([nn.Input((3, 12, 12)), nn.Activation("linear")])
    x = np.random.default_rng(0).standard_normal((32, 3, 12, 12)).astype("f")
    with ParallelInference(model, batch_limit=32) as inference:
        held(inference, kind, x[:1])
        futures = [inference.submit(x[i : i + 1]) for i in range(32)]
        kind.gate.set()
        got = np.concatenate([future.result(SOON) for future in futures])
    np.testing.assert_array_equal(got, x)
    assert kind.seen[1].shape == (32, 3, 12, 12)


def test_several_inputs_and_outputs_stay_together():
    model = several()
    kind = held_model(nn.Model)
    model = kind(model.inputs, model.outputs)
    generator = np.random.default_rng(1)
    a = generator.standard_normal((96, 3, 5, 5)).astype("f")
    b = generator.standard_normal((96, 7)).astype("f")
    kind.gate.set()
    wanted = model.predict_on_batch([a, b])
    kind.gate.clear()
    kind.sizes.clear()
    assert kind.begun.acquire(timeout=SOON)
    with ParallelInference(model, batch_limit=96) as inference:
        held(inference, kind, [a[:1], b[:1]])
        parts = [slice(3 * i, 3 * i + 3) for i in range(32)]
        futures = [inference.submit([a[part], b[part]]) for part in parts]
        kind.gate.set()
        for part, future in zip(parts, futures, strict=True):
            result = future.result(SOON)
            assert [each.shape for each in result] == [(3, 3), (3, 4)]
            for got, whole in zip(result, wanted, strict=True):
                np.testing.assert_allclose(got, whole[part], **CLOSE)
    assert kind.sizes == [1, 96]


# I4


def sequences():
    nn.set_random_seed(9)
    return nn.Sequential([nn.Input((None, 4)), nn.LSTM(5), nn.Dense(3)])


def convolutions():
    nn.set_random_seed(9)
    conv = nn.Conv2D(4, 3, padding="same", activation="relu")
    return nn.Sequential(
        [nn.Input((None, None, 3)), conv, nn.GlobalAveragePooling2D(), nn.Dense(2)]
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [convolutions, sequences])
def test_requests_of_different_lengths(make, mode, workers):
    generator = np.random.default_rng(2)
    shapes = [(length, 4) for length in (3, 5, 7, 10, 50)]
    if make is convolutions:
        shapes = [(10, 10, 3), (10, 15, 3), (20, 15, 3), (30, 30, 3), (40, 45, 3)]
    model = make()
    requests = []
    for i in range(40):
        shape = (1 + i % 3, *shapes[generator.integers(len(shapes))])
        requests.append(generator.standard_normal(shape).astype("f"))
    wanted = [model.predict_on_batch(each) for each in requests]
    with (
        ParallelInference(model, mode, workers, batch_limit=20) as inference,
        ThreadPoolExecutor(8) as pool,
    ):
        for got, each in zip(pool.map(inference.output, requests), wanted, strict=True):
            np.testing.assert_allclose(got, each, **CLOSE)


def test_only_requests_of_one_shape_and_dtype_share_a_batch():
    kind = held_model()
    model = kind([nn.Input((None, 2)), nn.Activation("linear")])
    with ParallelInference(model, batch_limit=8) as inference:
        held(inference, kind, np.zeros((1, 3, 2), "f"))
        given = []
        for i in range(8):
            length, dtype = (4, "f4") if i % 2 else (5, "f8" if i % 4 else "f4")
            given.append(np.full((1, length, 2), i, dtype))
        futures = [inference.submit(each) for each in given]
        kind.gate.set()
        for each, future in zip(given, futures, strict=True):
            np.testing.assert_array_equal(future.result(SOON), each)
    shapes = [each.shape[1] for each in kind.seen]
    assert shapes == [3, 5, 4, 5]  # the oldest first; those alike join it
    assert kind.sizes == [1, 2, 4, 2]


# I5


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_an_error_is_the_models_and_of_its_request_alone(mode, workers):
    model, x = mlp(), rows(3)
    wanted = model.predict_on_batch(x)
    with pytest.raises(ValueError, match="shape") as own:
        model.predict_on_batch(rows(3, 5))
    with ParallelInference(model, mode, workers) as inference:
        for _ in range(3):
            np.testing.assert_allclose(inference.output(x), wanted, **CLOSE)
            with pytest.raises(ValueError, match="shape") as raised:
                inference.output(rows(3, 5))
            assert str(raised.value) == str(own.value)
        for wrong in (None, "x", np.zeros(()), np.zeros((0, 6)), [x, x]):
            for ask in (inference.output, inference.submit):
                with pytest.raises((TypeError, ValueError)):
                    ask(wrong)
    with pytest.raises(RuntimeError, match="closed"):
        inference.submit(x)


def test_a_wrong_request_among_right_ones_fails_alone():
    """Numbers are checked as they are read: the batch fails, and each is tried."""
    kind = held_model()
    nn.set_random_seed(3)
    model = kind([nn.Input((2,), dtype="int32"), nn.Embedding(5, 3)])
    table = model.get_weights()[0]
    with ParallelInference(model) as inference:
        held(inference, kind, np.ones((1, 2)))
        futures = [inference.submit(np.full((1, 2), float(i))) for i in range(4)]
        wrong = inference.submit(np.array([[1.5, 0.0]]))
        more = inference.submit(np.full((1, 2), 2.0))
        with pytest.raises(ValueError, match="out of range"):
            inference.submit(np.full((1, 2), 5.0))
        kind.gate.set()
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(SOON)[0, 0], table[i])
        np.testing.assert_array_equal(more.result(SOON)[0, 1], table[2])
        with pytest.raises(ValueError, match="whole numbers"):
            wrong.result(SOON)
        np.testing.assert_array_equal(inference.output([[4, 0]])[0], table[[4, 0]])
    assert 6 in [len(each) for each in kind.seen]  # tried together first


class Poisoned(nn.Sequential):
    """A model that refuses 13, as an error of any class."""

    errors = (ValueError, KeyboardInterrupt, SystemExit, MemoryError)

    def predict_on_batch(self, x):
        found = x[(x >= 13).all(1)]
        if len(found):
            raise self.errors[int(found[0, 0]) - 13]("poison")
        return super().predict_on_batch(x)


@pytest.mark.parametrize("kind", range(4))
def test_any_exception_reaches_its_future_and_the_thread_goes_on(kind):
    model = copying(6, kind=Poisoned)
    with ParallelInference(model, "batched", batch_limit=16) as inference:
        futures = [
            inference.submit(np.full((2, 6), 13 + kind if i % 5 == 4 else i, "f"))
            for i in range(12)
        ]
        for i, future in enumerate(futures):
            if i % 5 == 4:
                with pytest.raises(Poisoned.errors[kind], match="poison"):
                    future.result(SOON)
            else:
                assert future.result(SOON)[0, 0] == i


# I6


def test_masks_of_sequences_in_one_batch():
    nn.set_random_seed(4)
    model = nn.Sequential([nn.Input((9, 3)), nn.Masking(0.0), nn.GRU(4), nn.Dense(2)])
    generator = np.random.default_rng(3)
    x = generator.standard_normal((30, 9, 3)).astype("f")
    for row in x:
        row[generator.integers(1, 10) :] = 0
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, batch_limit=5) as inference:
        futures = [inference.submit(x[i : i + 1]) for i in range(30)]
        got = np.concatenate([future.result(SOON) for future in futures])
    np.testing.assert_allclose(got, wanted, **CLOSE)


# I7


@pytest.mark.parametrize("mode", MODES)
def test_every_worker_has_the_new_model(mode):
    old, new, x = mlp(), several(3), rows(2)
    given = [np.ones((2, 3, 5, 5), "f"), np.ones((2, 7), "f")]
    wanted = new.predict_on_batch(given)
    with ParallelInference(old, mode, workers=4) as inference:
        before = inference.output(x)
        inference.update_model(new)
        assert inference.model is new
        assert inference.stats().requests == (0, 0, 0, 0)
        for _ in range(8):
            for got, each in zip(inference.output(given), wanted, strict=True):
                np.testing.assert_array_equal(got, each)
        assert min(inference.stats().requests) > 0
    np.testing.assert_array_equal(old.predict_on_batch(x), before)


def test_new_weights_of_the_same_model_reach_every_worker():
    model, x = mlp(), rows(4)
    with ParallelInference(model, workers=3, batch_limit=4) as inference:
        old = inference.output(x)
        model.set_weights([each + 1 for each in model.get_weights()])
        inference.update_model(model)
        wanted = model.predict_on_batch(x)
        assert not np.allclose(wanted, old)
        for _ in range(6):
            np.testing.assert_array_equal(inference.output(x), wanted)
        assert min(inference.stats().requests) > 0


def test_requests_during_an_update_have_the_old_or_the_new_answer():
    models = [mlp() for _ in range(2)]
    models[1].set_weights([each + 1 for each in models[0].get_weights()])
    x = rows(1)
    answers = [each.predict_on_batch(x) for each in models]
    stop = threading.Event()
    with ParallelInference(models[0], workers=2) as inference:

        def ask():
            count = 0
            while not stop.is_set():
                got = inference.output(x)
                assert any(np.allclose(got, each, **CLOSE) for each in answers)
                count += 1
            return count

        calls = [Call(ask) for _ in range(4)]
        for i in range(6):
            inference.update_model(models[(i + 1) % 2])
            np.testing.assert_allclose(
                inference.output(x), answers[(i + 1) % 2], **CLOSE
            )
        stop.set()
        assert all(call.result() for call in calls)


def test_a_model_that_cannot_answer_changes_nothing():
    model, x = mlp(), rows(3)
    wanted = model.predict_on_batch(x)
    stateful = nn.Sequential(
        [nn.Input((2, 6), batch_size=1), nn.LSTM(3, stateful=True)]
    )
    with ParallelInference(model, workers=2) as inference:
        for wrong, error in ((None, TypeError), (stateful, ValueError)):
            with pytest.raises(error):
                inference.update_model(wrong)
        with pytest.raises(RuntimeError, match="shapes"):
            inference.update_model(nn.Sequential([nn.Dense(3)]))
        mc.config.set_memory_limit("CPU:0", "256KiB")
        huge = nn.Sequential([nn.Input((6,)), nn.Dense(65536)])
        with pytest.raises(InfeasiblePlanError):
            inference.update_model(huge)
        assert inference.model is model
        for _ in range(2):
            np.testing.assert_allclose(inference.output(x), wanted, **CLOSE)
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


# I8


@pytest.mark.parametrize("mode", MODES)
def test_a_hundred_requests_at_once_with_several_outputs(mode):
    model = several()
    generator = np.random.default_rng(6)
    a = generator.standard_normal((100, 3, 5, 5)).astype("f")
    b = generator.standard_normal((100, 7)).astype("f")
    wanted = model.predict_on_batch([a, b])
    with (
        ParallelInference(model, mode, queue_limit=8) as inference,
        ThreadPoolExecutor(20) as pool,
    ):
        one = [slice(i, i + 1) for i in range(100)]
        results = pool.map(lambda part: inference.output([a[part], b[part]]), one)
        for part, result in zip(one, results, strict=True):
            for got, whole in zip(result, wanted, strict=True):
                np.testing.assert_allclose(got, whole[part], **CLOSE)


# I9


@pytest.mark.parametrize("balance", ["fifo", "round_robin"])
def test_inplace_gives_equal_results_twice(balance):
    model, x = mlp(), rows(2)
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, "INPLACE", 2, load_balance=balance) as inference:
        for _ in range(2):
            np.testing.assert_array_equal(inference.output(x), wanted)
        assert inference.stats().requests == (1, 1)
        assert inference.submit(x).done()
        assert threading.active_count() == len(threading.enumerate())
        assert not any("inference" in each.name for each in threading.enumerate())


# Many threads


def answers_of_many_threads(inference, wanted, x, threads, total):
    """Count the answers, each of which is compared with what is wanted."""
    close = {"rtol": 0, "atol": 1e-6 * float(np.abs(wanted).max())}

    def ask(number):
        draws = random.Random(number)
        for _ in range(total // threads):
            count = draws.choice((1, 1, 1, 1, 2, 3, 7))
            begin = draws.randrange(len(x) - count)
            part = slice(begin, begin + count)
            asks = inference.output if draws.random() < 0.8 else inference.submit
            got = asks(x[part])
            got = got if isinstance(got, np.ndarray) else got.result(SOON)
            np.testing.assert_allclose(got, wanted[part], **close)
        return total // threads

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(ask, range(threads)))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "total", [480, pytest.param(10_000, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_sixteen_threads_lose_no_request(mode, workers, total):
    model = mc.models.lenet5((16, 16, 1))
    x = np.random.default_rng(5).standard_normal((64, 16, 16, 1)).astype("f")
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, mode, workers, batch_limit=24) as inference:
        assert answers_of_many_threads(inference, wanted, x, 16, total) == total
        stats = inference.stats()
        assert sum(stats.requests) == total
        assert stats.waiting == 0
        if mode == "batched":
            assert sum(stats.batches) < total
        else:
            assert stats.padding == 0
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    limit=st.integers(1, 20),
)
def test_batches_are_full_in_order_and_never_over_the_limit(sizes, limit):
    """The oracle packs the requests one after another, as a reader would."""
    kind = held_model()
    model = copying(2, kind=kind)
    with ParallelInference(model, batch_limit=limit) as inference:
        first = held(inference, kind, np.zeros((1, 2), "f"))
        x = np.arange(sum(sizes) * 2, dtype="f").reshape(-1, 2)
        ends = np.cumsum(sizes)
        futures = [
            inference.submit(x[end - n : end])
            for n, end in zip(sizes, ends, strict=True)
        ]
        kind.gate.set()
        first.result(SOON)
        for n, end, future in zip(sizes, ends, futures, strict=True):
            np.testing.assert_array_equal(future.result(SOON), x[end - n : end])
        stats = inference.stats()
    batches, room = [], 0
    for n in sizes:
        if n > limit:
            batches += [limit] * (n // limit) + ([n % limit] if n % limit else [])
            room = 0
        elif n <= room:
            batches[-1] += n
            room -= n
        else:
            batches.append(n)
            room = limit - n
    assert max(kind.sizes) <= limit
    assert len(kind.sizes) == len(batches) + 1
    for computed, real in zip(kind.sizes[1:], batches, strict=True):
        assert real <= computed <= max(real * 3 // 2, real + real // 3 + 1, 2)
    assert stats.samples == sum(sizes) + 1
    assert stats.padding == sum(kind.sizes) - stats.samples


# Lone requests


@pytest.mark.parametrize("mode", MODES)
def test_a_lone_request_has_the_bits_of_predict_and_no_thread(mode):
    model, x = mlp(), rows(4)
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, mode) as inference:
        before = threading.active_count()
        assert inference.output(x).tobytes() == wanted.tobytes()
        assert (
            inference.output(x[:1]).tobytes() == model.predict_on_batch(x[:1]).tobytes()
        )
        assert threading.active_count() == before


def test_padding_has_the_bits_of_predict_at_the_size_of_the_batch():
    model, x = mlp(), rows(5)
    padded = np.concatenate([x, np.zeros((1, 6), "f")])
    with ParallelInference(model, batch_limit=8) as inference:
        wanted = model.predict_on_batch(padded)[:5]
        assert inference.output(x).tobytes() == wanted.tobytes()
        assert inference.stats().padding == 1


def test_a_request_larger_than_the_limit_is_computed_in_parts():
    kind = held_model()
    kind.gate.set()
    model, x = mlp(kind=kind), rows(21)
    with ParallelInference(model, batch_limit=8) as inference:
        got = inference.output(x)
    assert kind.sizes == [8, 8, 6]
    np.testing.assert_allclose(got, mlp().predict_on_batch(x), **CLOSE)


def test_max_wait_waits_for_others_and_no_longer():
    kind = held_model()
    kind.gate.set()
    with ParallelInference(
        copying(kind=kind), batch_limit=4, max_wait=600.0
    ) as inference:
        futures = [inference.submit(np.full((1, 100), i, "f")) for i in range(4)]
        for i, future in enumerate(futures):  # the batch is full: nobody waits 600 s
            assert future.result(SOON)[0, 0] == i
    assert kind.sizes == [4]
    with ParallelInference(copying(kind=kind), batch_limit=4, max_wait=0.05) as short:
        assert short.output(np.ones((1, 100), "f")).mean() == 1
    with ParallelInference(copying(kind=kind), max_wait=600.0) as closing:
        last = closing.submit(np.ones((1, 100), "f"))
    assert last.result(0).mean() == 1  # closing answers what waits, at once


# A full queue


def test_a_full_queue_raises_and_keeps_what_waits():
    kind = held_model()
    model = copying(kind=kind)
    with ParallelInference(model, queue_limit=2, on_full="raise") as inference:
        futures = [held(inference, kind, np.zeros((1, 100), "f"))]
        futures += [inference.submit(np.full((1, 100), i, "f")) for i in (1, 2)]
        for ask in (inference.submit, inference.output):
            with pytest.raises(QueueFullError, match="2 requests are waiting"):
                ask(np.full((1, 100), 3, "f"))
        kind.gate.set()
        assert [future.result(SOON)[0, 0] for future in futures] == [0, 1, 2]
        assert inference.output(np.ones((1, 100), "f")).mean() == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_full_queue_blocks_until_there_is_space(mode):
    kind = held_model()
    model = copying(kind=kind)
    with ParallelInference(model, mode, queue_limit=1) as inference:
        calls = [Call(inference.output, np.full((1, 100), i, "f")) for i in range(5)]
        assert all(call.waits for call in calls)
        assert inference.stats().waiting <= 1
        kind.gate.set()
        assert [call.result()[0, 0] for call in calls] == [0, 1, 2, 3, 4]


# The end


def test_close_answers_what_waits():
    kind = held_model()
    inference = ParallelInference(copying(kind=kind))
    first = held(inference, kind, np.zeros((1, 100), "f"))
    futures = [inference.submit(np.full((1, 100), i, "f")) for i in range(5)]
    call = Call(inference.output, np.full((1, 100), 9, "f"))
    assert eventually(lambda: inference.stats().waiting == 6)
    closing = Call(inference.close)
    assert closing.waits
    for ask in (inference.submit, inference.output):
        with pytest.raises(RuntimeError, match="closed"):
            ask(np.zeros((1, 100), "f"))
    kind.gate.set()
    closing.result()
    assert inference.closed
    assert [future.result(0)[0, 0] for future in (first, *futures)] == [0, *range(5)]
    assert call.result()[0, 0] == 9
    inference.close()
    with pytest.raises(RuntimeError, match="closed"):
        inference.update_model(copying())


@pytest.mark.parametrize("mode", MODES)
def test_close_cancels_what_waits_if_told_to(mode):
    kind = held_model()
    inference = ParallelInference(copying(kind=kind), mode)
    x = np.zeros((1, 100), "f")
    first = Call(inference.output, x)
    assert kind.begun.acquire(timeout=SOON)
    waiting = [Call(inference.output, x) for _ in range(3)]
    assert eventually(lambda: inference.stats().waiting == 3)
    future = None if mode == "inplace" else inference.submit(x)
    closing = Call(inference.close, cancel_futures=True)
    for call in waiting:
        with pytest.raises(RuntimeError, match="closed before"):
            call.result()
    kind.gate.set()
    closing.result()
    assert first.result().shape == (1, 100)
    if future is not None:
        with pytest.raises(CancelledError):
            future.result(0)


def test_a_blocked_caller_hears_that_it_is_closed():
    kind = held_model()
    inference = ParallelInference(copying(kind=kind), queue_limit=1)
    x = np.zeros((1, 100), "f")
    held(inference, kind, x)
    inference.submit(x)
    blocked = Call(inference.submit, x)
    assert blocked.waits
    closing = Call(inference.close)
    with pytest.raises(RuntimeError, match="closed"):
        blocked.result()
    kind.gate.set()
    closing.result()


def test_an_error_in_the_block_cancels_what_waits():
    kind = held_model()
    x = np.zeros((1, 100), "f")

    def block():
        with ParallelInference(copying(kind=kind)) as inference:
            futures.append(held(inference, kind, x))
            futures.append(inference.submit(x))
            raise ZeroDivisionError

    futures = []
    call = Call(block)
    assert eventually(lambda: len(futures) == 2 and futures[1].cancelled())
    kind.gate.set()
    with pytest.raises(ZeroDivisionError):
        call.result()
    assert futures[0].result(0).shape == (1, 100)


def test_what_is_forgotten_ends_its_threads_and_cancels():
    kind = held_model()
    inference = ParallelInference(copying(kind=kind))
    x = np.zeros((1, 100), "f")
    first, second = held(inference, kind, x), inference.submit(x)
    del inference
    gc.collect()
    assert eventually(second.cancelled)
    kind.gate.set()
    assert first.result(SOON).shape == (1, 100)


def test_a_cancelled_future_is_not_computed():
    kind = held_model()
    with ParallelInference(copying(kind=kind), batch_limit=4) as inference:
        first = held(inference, kind, np.zeros((1, 100), "f"))
        futures = [inference.submit(np.full((1, 100), i, "f")) for i in range(3)]
        assert futures[1].cancel()
        assert not first.cancel()
        kind.gate.set()
        assert futures[2].result(SOON)[0, 0] == 2
    assert kind.sizes == [1, 2]
    assert inference.stats().requests == (3,)


def test_a_callback_may_submit_and_cannot_wait():
    model, x = mlp(), rows(1)
    found = []

    def back(future):
        found.append(future.result())
        found.append(inference.submit(x))
        for wait in (inference.output, inference.update_model):
            try:
                wait(x)
            except RuntimeError as error:
                found.append(str(error))

    with ParallelInference(model) as inference:
        inference.submit(x).add_done_callback(back)
        assert eventually(lambda: len(found) == 4)
        assert found[1].result(SOON).shape == (1, 4)
        assert all("callbacks" in each for each in found[2:])


# Interrupts and forks


def test_an_interrupt_of_a_waiting_caller_takes_its_request_along():
    kind = held_model()
    with ParallelInference(copying(kind=kind), queue_limit=4) as inference:
        first = held(inference, kind, np.zeros((1, 100), "f"))
        for _ in range(8):  # more than the queue holds
            timer = threading.Timer(
                0.02, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)
            )
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                inference.output(np.full((1, 100), 7, "f"))
            timer.join()
        assert inference.stats().waiting == 0
        kind.gate.set()
        assert first.result(SOON).shape == (1, 100)
        assert inference.output(np.ones((1, 100), "f")).mean() == 1
    assert 7 not in [float(each[0, 0]) for each in kind.seen]


def _interrupted(call, line):
    """Interrupt a call at a line of the room; return whether it was reached."""
    ends = Ends(line, ("/memcfg/parallel/",))
    with traced(ends), suppress(KeyboardInterrupt):
        call()
    return ends.left <= 0


@pytest.mark.parametrize("mode", MODES)
def test_an_interrupt_at_any_line_holds_no_worker(mode):
    model, x = mlp(), rows(1)
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, mode, batch_limit=2, queue_limit=2) as inference:
        for ask in (inference.output, inference.submit):
            line = 1
            while _interrupted(lambda ask=ask: ask(x), line):
                line += 1
            assert line > 5
            got = Call(inference.output, x).result()
            np.testing.assert_allclose(got, wanted, **CLOSE)


@pytest.mark.always
def test_the_child_of_a_fork_answers_and_fails_what_was_lost(tmp_path):
    code = """
    import os, threading, warnings
    import numpy as np
    import memcfg as mc

    class Held(mc.nn.Sequential):
        gate, begun = threading.Event(), threading.Semaphore(0)

        def predict_on_batch(self, x):
            self.begun.release()
            assert self.gate.wait(60)
            return super().predict_on_batch(x)

    x = np.ones((1, 6), "f")
    model = Held([mc.nn.Input((6,)), mc.nn.Dense(2)])
    inference = mc.parallel.ParallelInference(model)
    first = inference.submit(x)
    assert Held.begun.acquire(timeout=60)
    second = inference.submit(x)
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    Held.gate.set()
    if not child:
        for future in (first, second):
            try:
                future.result(60)
            except RuntimeError as error:
                assert "forked" in str(error)
            else:
                os._exit(3)
        got = inference.output(x), inference.submit(x).result(60)
        inference.close()
        os._exit(0 if got[0].tobytes() == got[1].tobytes() else 4)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    inference.close()
    print(status, first.result(0).shape, second.result(0).shape)
    """
    path = tmp_path / "forks.py"
    path.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.stdout == "0 (1, 2) (1, 2)\n", done.stderr


@pytest.mark.always
def test_a_program_ends_though_nobody_closes(tmp_path):
    code = """
    import numpy as np
    import memcfg as mc
    model = mc.nn.Sequential([mc.nn.Input((6,)), mc.nn.Dense(2)])
    inference = mc.parallel.ParallelInference(model, workers=2)
    print(inference.submit(np.ones((1, 6))).result().shape)
    """
    path = tmp_path / "ends.py"
    path.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1, 2)\n", "")


# Memory


def test_the_largest_batch_is_the_planners_and_the_limit_holds(cpu):
    mc.config.set_logical_device_configuration(
        cpu, [mc.config.LogicalDeviceConfiguration(memory_limit="1MiB")]
    )
    model = mc.models.lenet5((16, 16, 1))
    largest = model.largest_batch(program="predict")
    assert 1 < largest < 1000
    x = np.random.default_rng(0).standard_normal((300, 16, 16, 1)).astype("f")
    with ParallelInference(model, queue_limit=largest) as inference:
        assert inference.batch_limit == largest
        got = inference.output(x)
        assert -(-300 // largest) <= sum(inference.stats().batches)
    info = mc.config.get_memory_info("CPU:0")
    assert info["peak"] <= 2**20
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    np.testing.assert_allclose(got, model.predict(x, verbose=0), **CLOSE)
    model.close()


def test_replicas_share_what_a_limit_leaves(cpu):
    mc.config.set_logical_device_configuration(
        cpu, [mc.config.LogicalDeviceConfiguration(memory_limit="2MiB")]
    )
    model = mc.models.lenet5((16, 16, 1))
    alone = model.largest_batch(program="predict")
    x = np.random.default_rng(0).standard_normal((40, 16, 16, 1)).astype("f")
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, workers=3) as inference:
        assert 0 < inference.batch_limit < alone
        for _ in range(3):
            np.testing.assert_allclose(inference.output(x), wanted, **CLOSE)
        assert min(inference.stats().requests) == 1
    assert mc.config.get_memory_info("CPU:0")["peak"] <= 2**21
    model.close()
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_each_worker_of_a_device_has_weights_of_its_own(mode):
    """To the byte; replicas share no arena, so that a new model reaches each whole."""
    held = []
    for workers in (1, 2, 3):
        model = mc.models.lenet5((16, 16, 1))
        weights = sum(each.nbytes for each in model.get_weights())
        with ParallelInference(model, mode, workers, batch_limit=4):
            held.append(mc.config.get_memory_info("CPU:0")["current"])
        model.close()
    assert weights < held[0]
    assert held == [held[0], 2 * held[0], 3 * held[0]]


def test_workers_that_do_not_fit_are_refused_in_words(cpu):
    model = mlp(64, 512)
    state = 4 * model.count_params()
    mc.config.set_logical_device_configuration(
        cpu, [mc.config.LogicalDeviceConfiguration(memory_limit=f"{5 * state // 2}B")]
    )
    with pytest.raises(InfeasiblePlanError, match=r"pass workers=\d") as refused:
        ParallelInference(model, workers=8, batch_limit=1)
    fit = int(re.search(r"workers=(\d)", str(refused.value))[1])
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    with ParallelInference(model, workers=fit, batch_limit=1) as inference:
        assert inference.output(rows(1, 64)).shape == (1, 512)
    model.close()


def test_workers_are_on_all_logical_devices_of_the_kind(cpu):
    limits = [
        mc.config.LogicalDeviceConfiguration(memory_limit="4MiB") for _ in range(2)
    ]
    mc.config.set_logical_device_configuration(cpu, limits)
    with mc.device("CPU:1"):
        model = mlp()
        model.compile("adam", "mse")
    x = rows(8)
    model.fit(x, np.zeros((8, 4)), verbose=0)
    wanted = model.predict_on_batch(x)
    trained = mc.config.get_memory_info("CPU:1")["current"]
    with ParallelInference(model) as inference:
        assert inference.workers == 2
        for _ in range(2):
            np.testing.assert_array_equal(inference.output(x), wanted)
        assert inference.stats().requests == (1, 1)
        weights = 4 * model.count_params()  # a copy has no state of the optimizer
        copy = mc.config.get_memory_info("CPU:0")["current"]
        assert weights <= copy < mc.config.get_memory_info("CPU:1")["current"]
        assert trained > 3 * weights
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    model.fit(x, np.zeros((8, 4)), verbose=0)
    model.close()
    assert mc.config.get_memory_info("CPU:1")["current"] == 0


class Small(nn.Sequential):
    """A model for which no batch of more than some samples has memory."""

    fits = 3

    def predict_on_batch(self, x):
        if len(x) > self.fits:
            raise MemoryError(f"{len(x)} samples")
        return super().predict_on_batch(x)


@pytest.mark.parametrize("mode", MODES)
def test_where_memory_does_not_suffice_batches_are_smaller(mode):
    model = copying(6, kind=Small)
    with ParallelInference(model, mode, batch_limit=16) as inference:
        futures = [inference.submit(np.full((1 + i, 6), i, "f")) for i in range(8)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(SOON), np.full((1 + i, 6), i))
        got = inference.output(np.arange(60, dtype="f").reshape(10, 6))
        np.testing.assert_array_equal(got.ravel(), np.arange(60))


@pytest.mark.parametrize("mode", MODES)
def test_where_no_sample_has_memory_each_request_fails(mode, monkeypatch):
    monkeypatch.setattr(Small, "fits", 0)
    model = copying(6, kind=Small)
    with ParallelInference(model, mode) as inference:
        futures = [inference.submit(np.ones((2, 6), "f")) for _ in range(5)]
        for future in futures:
            with pytest.raises(MemoryError, match="1 samples"):
                future.result(SOON)
        monkeypatch.setattr(Small, "fits", 9)
        assert inference.output(np.ones((2, 6), "f")).shape == (2, 6)


def test_a_batch_limit_that_does_not_fit_runs_in_micro_batches(cpu):
    mc.config.set_logical_device_configuration(
        cpu, [mc.config.LogicalDeviceConfiguration(memory_limit="1MiB")]
    )
    model = mc.models.lenet5((16, 16, 1))
    x = np.random.default_rng(0).standard_normal((512, 16, 16, 1)).astype("f")
    with pytest.warns(mc.errors.FallbackWarning, match="runs as"):
        inference = ParallelInference(model, batch_limit=512, queue_limit=512)
    with inference:
        assert inference.output(x).shape == (512, 10)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= 2**20
    model.close()


# Arguments


def test_the_builder_is_the_constructor():
    model = mlp()
    builder = ParallelInference.Builder(model).inference_mode("sequential").workers(2)
    builder = builder.batch_limit(5).queue_limit(3).max_wait(0.0).on_full("raise")
    with builder.load_balance_mode(LoadBalanceMode.ROUND_ROBIN).build() as inference:
        assert inference.model is model
        assert inference.inference_mode is InferenceMode.SEQUENTIAL
        assert inference.workers == 2
        assert inference.batch_limit == 5
        assert not inference.closed


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"inference_mode": "batch"}, ValueError),
        ({"inference_mode": None}, ValueError),
        ({"workers": 0}, ValueError),
        ({"workers": 1.5}, TypeError),
        ({"batch_limit": 0}, ValueError),
        ({"queue_limit": 0}, ValueError),
        ({"queue_limit": True}, TypeError),
        ({"on_full": "drop"}, ValueError),
        ({"load_balance": "random"}, ValueError),
        ({"max_wait": -1}, ValueError),
        ({"max_wait": float("nan")}, ValueError),
        ({"max_wait": "1"}, TypeError),
        ({"max_wait": 1, "inference_mode": "inplace"}, ValueError),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(options, error):
    model = mlp()
    with pytest.raises(error):
        ParallelInference(model, **options)
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


class OwnPrediction(nn.Sequential):
    def predict_step(self, data):
        return 2 * self(data, training=False)


def test_a_prediction_of_ones_own_is_computed_request_by_request():
    model = mlp(kind=OwnPrediction)
    model.compile("sgd", "mse")
    x = rows(3)
    with pytest.raises(ValueError, match="predict_step"):
        ParallelInference(model)
    with ParallelInference(model, "sequential", batch_limit=8) as inference:
        wanted = 2 * mlp().predict_on_batch(x)
        np.testing.assert_allclose(inference.output(x), wanted, **CLOSE)
        np.testing.assert_allclose(inference.submit(x).result(SOON), wanted, **CLOSE)


class Centred(nn.Layer):
    """A layer whose results depend on the other samples of a batch."""

    def call(self, x):
        return x - nn.ops.mean(x, axis=0)


@pytest.mark.parametrize("nested", [False, True])
def test_samples_that_are_combined_stay_in_their_request(nested):
    model = nn.Sequential([nn.Input((3,)), Centred()])
    if nested:
        model = nn.Sequential([nn.Input((3,)), model])
    for options in {}, {"inference_mode": "sequential", "batch_limit": 8}:
        with pytest.raises(ValueError, match="depend on other samples of a batch"):
            ParallelInference(model, **options)
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("f")
    for mode in "sequential", "inplace":
        with ParallelInference(model, mode) as inference:
            made = inference.output(x)
        np.testing.assert_allclose(made, x - x.mean(0), rtol=1e-5, atol=1e-6)


def test_a_fixed_batch_size_is_refused():
    model = nn.Sequential([nn.Input((6,), batch_size=4), nn.Dense(2)])
    with pytest.raises(ValueError, match="fixed batch size"):
        ParallelInference(model)


def test_frames_dicts_and_other_dtypes_are_read_as_predict_reads_them():
    a, b = nn.Input((2,), name="a"), nn.Input((3,), name="b")
    model = nn.Model({"a": a, "b": b}, nn.Dense(2)(nn.Concatenate()([a, b])))
    x = {"b": np.arange(6).reshape(2, 3), "a": [[1.0, 2.0], [3.0, 4.0]]}
    wanted = model.predict_on_batch(x)
    with ParallelInference(model, batch_limit=4) as inference:
        np.testing.assert_allclose(inference.output(x), wanted, **CLOSE)
        np.testing.assert_allclose(inference.submit(x).result(SOON), wanted, **CLOSE)
