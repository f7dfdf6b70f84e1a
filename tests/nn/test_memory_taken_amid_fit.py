"""Arrays that need memory of a model amid `fit`: it is planned again, and goes on."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg import nn
from memcfg.data import Dataset
from memcfg.errors import FallbackWarning, InfeasiblePlanError, ResourceExhaustedError

SIZE, STEPS, EPOCHS = 32, 4, 2
_generator = np.random.default_rng(5)
X = _generator.standard_normal((SIZE * STEPS - 9, 20, 8)).astype(np.float32)
Y = _generator.integers(0, 5, len(X))


def made(**options):
    nn.set_random_seed(7)
    hidden = [nn.Dense(48, activation=each) for each in ("relu", "tanh", "gelu")]
    layers = [nn.Input((20, 8)), *hidden, nn.Dropout(0.2, seed=1)]
    model = nn.Sequential([*layers, nn.GlobalAveragePooling1D(), nn.Dense(5)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.optimizers.Adam(0.01), loss, **options)
    return model


def lossless(model):
    """The bytes of a step with each op once, and the least of a plan."""
    return [each.limit_bytes for each in model.estimate(SIZE).levers[:2]]


@pytest.fixture
def pool():
    """The pool of a device with as many bytes as the fastest plan takes."""
    once, _ = lossless(made())
    mc.config.set_memory_limit("CPU:0", -(-once // 4096) * 4096)
    return mc.config.logical_device("CPU:0").pool


def blocks_of(model, pool):
    """The bytes that others than a model hold."""
    held = sum(n for who, n in pool.owners().items() if who.startswith("model"))
    return pool.stats().current_bytes - held


@pytest.fixture(autouse=True)
def _seed_outside_of_budgets():
    yield
    nn.set_random_seed(1)  # the state of the last one is in a pool


class Taker(nn.callbacks.Callback):
    """Take a block once, at a moment of training or validation."""

    def __init__(self, pool, nbytes, moment="train batch", place=3, thread=False):
        super().__init__()
        self.block = self.error = None
        self._pool, self._nbytes, self._left = pool, nbytes, place
        self._thread = thread
        hooks = {
            "train batch": "on_train_batch_end",
            "test batch": "on_test_batch_end",
            "epoch": "on_epoch_end",
        }
        setattr(self, hooks[moment], self._called)

    def _called(self, *_):
        self._left -= 1
        if self._left == 0 and self._thread:
            thread = threading.Thread(target=self._take)
            thread.start()
            thread.join()
        elif self._left == 0:
            self._take()

    def _take(self):
        try:
            self.block = self._pool.allocate(self._nbytes, tag="taken")
        except ResourceExhaustedError as error:
            self.error = error


def trained(model, *callbacks, validate=True, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        history = model.fit(
            X,
            Y,
            batch_size=SIZE,
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            validation_data=(X, Y) if validate else None,
            callbacks=callbacks,
            **options,
        )
    return history, model.get_weights()


def bits(weights):
    return [each.tobytes() for each in weights]


def near(weights, others):
    for mine, theirs in zip(weights, others, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@settings(max_examples=25)
@given(
    part=st.floats(0.02, 1.1),
    moment=st.sampled_from([("train batch", 8), ("test batch", 8), ("epoch", 2)]),
    place=st.integers(0, 7),
    thread=st.booleans(),
    on_oom=st.sampled_from(["micro_batch", "replan", "raise"]),
)
def test_a_block_is_given_and_training_goes_on_or_it_is_refused(
    part, moment, place, thread, on_oom
):
    """With the bits of an undisturbed run, unless the batch runs in parts from then."""
    mc.config.set_memory_limit("CPU:0", None)
    model = made()
    once, least = lossless(model)
    limit = -(-once // 4096) * 4096
    mc.config.set_memory_limit("CPU:0", limit)
    pool = mc.config.logical_device("CPU:0").pool
    history, expected = trained(model)
    model.close()
    model = made(on_oom=on_oom)
    nbytes = int(part * limit)
    moment, times = moment
    taker = Taker(pool, nbytes, moment, 1 + place % times, thread)
    pool.reset_peak()
    told, weights = trained(model, taker)
    assert pool.stats().peak_bytes <= limit
    left = limit - nbytes
    rounded = -(-nbytes // 64) * 64
    if taker.block is None:
        assert taker.error.requested_bytes == nbytes
        assert on_oom == "raise" or left < least
        assert blocks_of(model, pool) == 0
    else:
        assert blocks_of(model, pool) == rounded
        assert on_oom != "raise" or left >= once
    if on_oom == "replan" and left >= least:
        assert taker.block is not None
    if told.fallbacks:
        assert on_oom == "micro_batch"
        assert left < least
        near(weights, expected)
    else:
        assert bits(weights) == bits(expected)
        assert told.history == history.history
    model.close()
    taker.block = None


@pytest.mark.always
def test_to_the_byte_what_the_least_plan_leaves_is_given(pool):
    least = lossless(made())[1]
    model = made(on_oom="replan")
    _, expected = trained(model, validate=False)
    model.close()
    for excess in (64, 0):
        taker = Taker(pool, pool.limit - least + excess)
        model = made(on_oom="replan")
        history, weights = trained(model, taker, validate=False)
        assert bits(weights) == bits(expected)
        assert history.fallbacks == []
        assert (taker.block is None) == bool(excess)
        if excess:
            assert "does not fit the memory limit" in str(taker.error)
            assert model.memory_plan.peak_bytes > least
        else:
            assert model.memory_plan.peak_bytes == least
            assert pool.stats().current_bytes == pool.limit
        model.close()


def test_what_fits_beside_the_model_changes_no_plan(pool):
    model = made()
    mc.config.set_memory_limit("CPU:0", pool.limit + 2**16)
    taker = Taker(pool, 2**16 - 4096)
    trained(model, taker)
    assert taker.block is not None
    assert model.memory_plan.peak_bytes == lossless(model)[0]


def test_there_is_one_warning_where_batches_run_in_parts_from_then_on(pool):
    model = made()
    least = lossless(model)[1]
    taker = Taker(pool, pool.limit - least * 3 // 4)
    with pytest.warns(FallbackWarning, match="with accumulated gradients") as caught:
        history = model.fit(X, Y, batch_size=SIZE, verbose=0, callbacks=[taker])
    assert taker.block is not None
    assert len(caught) == 1
    assert {each.step for each in history.fallbacks} == {"micro_batch"}


def test_the_plan_is_the_first_one_again_once_the_block_is_gone(pool):
    model = made()
    once, least = lossless(model)
    taker = Taker(pool, (once - least) // 2)
    trained(model, taker)
    assert model.memory_plan.peak_bytes < once
    taker.block.free()
    trained(model)
    assert model.memory_plan.peak_bytes == once


def test_a_program_that_is_loaded_later_is_planned_within_what_is_left(pool):
    """A callback evaluates larger batches, and only then the last batch comes."""

    class Evaluation(nn.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                taker.on_train_batch_end()
                found.append(self.model.evaluate(X, Y, batch_size=48, verbose=0))

    found = []
    taker = Taker(pool, 0, place=9)
    model = made()
    _, expected = trained(model, Evaluation(), validate=False)
    model.close()
    once, least = lossless(model)
    taker = Taker(pool, (once - least) * 3 // 4, place=1)
    model = made()
    history, weights = trained(model, Evaluation(), validate=False)
    assert taker.block is not None
    assert history.fallbacks == []
    assert found[:2] == found[2:]
    assert bits(weights) == bits(expected)


def test_threads_of_a_dataset_take_what_they_need_between_steps(pool):
    once, least = lossless(made())
    mc.config.set_memory_limit("CPU:0", once + 2**17)  # and what the dataset takes
    held, left = [], threading.Semaphore(8)  # two threads take

    def taking(x, y):
        if armed and left.acquire(blocking=False):
            held.append(pool.allocate((2**17 + once - least) // 20, tag="taken"))
        return x * np.float32(0.5), y

    armed, weights = [], []
    for steps in ([], [True]):
        armed += steps
        data = Dataset.from_tensor_slices((X, Y)).map(taking, num_parallel_calls=2)
        model = made()
        model.fit(data.batch(SIZE).prefetch(1), epochs=EPOCHS, verbose=0)
        weights.append(bits(model.get_weights()))
        assert (model.memory_plan.peak_bytes < once) == bool(armed)
        assert pool.stats().peak_bytes <= pool.limit
        model.close()
    assert len(held) == 8
    assert weights[0] == weights[1]


def test_a_lower_limit_amid_fit_has_the_model_planned_again(pool):
    class Lowering(nn.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                mc.config.set_memory_limit("CPU:0", least)
                with pytest.raises(ResourceExhaustedError):
                    mc.config.set_memory_limit("CPU:0", least - 4096)

    least = -(-lossless(made())[1] // 4096) * 4096
    _, expected = trained(made(on_oom="replan"))
    mc.config.set_memory_limit("CPU:0", None)
    mc.config.set_memory_limit("CPU:0", 4 * least)
    model = made(on_oom="replan")
    _, weights = trained(model, Lowering())
    assert pool.limit == least
    assert model.memory_plan.peak_bytes <= least
    assert bits(weights) == bits(expected)


@pytest.mark.parametrize("by_budget", [False, True])
def test_devices_can_be_looked_up_while_a_lower_limit_waits_for_a_model(
    pool, by_budget
):
    """Also by the model, amid a load that the limit waits for."""

    def looking(graph, limit_bytes=None):
        if armed:
            armed.clear()
            amid.set()
            end = time.monotonic() + 60
            while not model._session.lock.waiting and time.monotonic() < end:
                time.sleep(0.001)
            waited.append(model._session.lock.waiting)
            found.append(mc.config.logical_device("CPU:0"))
        return mc.plan.auto()(graph, limit_bytes)

    armed, waited, found, amid = [], [], [], threading.Event()
    model = made(memory=looking)
    once, least = lossless(model)
    limit = (once + least) // 2 // 4096 * 4096
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    armed.append(True)
    with ThreadPoolExecutor(1) as threads, contextlib.ExitStack() as stack:
        step = threads.submit(model.train_on_batch, X[:9], Y[:9])
        assert amid.wait(60)
        if by_budget:
            stack.enter_context(mc.budget(limit))
        else:
            mc.config.set_memory_limit("CPU:0", limit)
        step.result(60)
        assert waited == [1]
        assert model._session.executor.nbytes <= pool.limit == limit < once
    assert found == [mc.config.logical_device("CPU:0")]


def test_arrays_of_numpy_take_it_under_a_budget():
    class Growing(nn.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            arrays.append(np.ones(once // 64, np.uint8))

    once, least = lossless(made())
    limit = (once + 2**18) * 16 // 15
    arrays, weights = [], []
    for callbacks in ([], [Growing()]):
        with mc.budget(limit) as budget:
            model = made()
            history, found = trained(model, *callbacks)
            assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
            weights.append(bits(found))
            peak = model.memory_plan.peak_bytes
            model.close()
            assert budget.limit_bytes == limit
        assert history.fallbacks == []
    assert sum(each.nbytes for each in arrays) + once > limit - 2**18
    assert all(each.min() == 1 for each in arrays)
    assert least <= peak <= once
    assert weights[0] == weights[1]


def test_the_program_in_use_gives_no_memory_to_its_own_planning(pool):
    """A request amid a step or a load is refused as if there were no model."""
    refused = []

    def greedy(graph, limit_bytes=None):
        if armed:
            with pytest.raises(ResourceExhaustedError) as caught:
                pool.allocate(pool.limit // 2)
            refused.append(caught)
        return mc.plan.share()(graph, limit_bytes)

    armed = []
    model = made(memory=greedy)
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    armed.append(True)
    model.train_on_batch(X[:9], Y[:9])
    assert refused


def test_other_models_and_their_workspaces_take_nothing_of_it(pool):
    first, second = made(), made(training_workspace_mode="none", on_oom="raise")
    first.train_on_batch(X[:SIZE], Y[:SIZE])
    peak = first.memory_plan.peak_bytes
    for other in (second, made(on_oom="raise")):
        with pytest.raises(ResourceExhaustedError):
            other.train_on_batch(X[:SIZE], Y[:SIZE])
    first.train_on_batch(X[:SIZE], Y[:SIZE])
    assert first.memory_plan.peak_bytes == peak


def test_a_refused_request_is_not_planned_for_again(pool):
    calls = []

    def counted(graph, limit_bytes=None):
        calls.append(limit_bytes)
        return mc.plan.share()(graph, limit_bytes)

    model = made(memory=counted, on_oom="replan")
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    for expected in (True, False, False):
        calls.clear()
        with pytest.raises(ResourceExhaustedError):
            pool.allocate(pool.limit // 2)
        assert bool(calls) == expected
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    with pytest.raises(InfeasiblePlanError):
        model.plan(SIZE, "1KiB")


def parts_only(pool, model):
    """Bytes that leave the model no plan but one of micro-batches."""
    return pool.limit - lossless(model)[1] * 3 // 4


def test_between_two_steps_layers_do_not_begin_to_compute_in_bfloat16(pool):
    """Steps of `on_oom` that change what a whole batch computes wait for a load."""

    def stepped(**options):
        model = made(**options)
        for _ in range(2):
            model.train_on_batch(X[:SIZE], Y[:SIZE])
            if options:
                nbytes = parts_only(pool, model)
                with pytest.warns(FallbackWarning, match="accumulated gradients"):
                    blocks.append(pool.allocate(nbytes))
                options.clear()
        return model, model.get_weights()

    blocks = []
    model, expected = stepped()
    model.close()
    model, weights = stepped(on_oom=["mixed_bfloat16", "micro_batch"])
    (fallback,) = model.memory_report().fallbacks
    assert "it runs as" in fallback
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}
    near(weights, expected)
    blocks.pop().free()


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was(pool):
    weights = []
    for raises in (False, True):
        model = made()
        nbytes = parts_only(pool, model)
        model.train_on_batch(X[:SIZE], Y[:SIZE])
        held, plan = pool.stats().current_bytes, model.memory_plan
        if raises:
            with warnings.catch_warnings():
                warnings.simplefilter("error", FallbackWarning)
                with pytest.raises(FallbackWarning):
                    pool.allocate(nbytes)
            assert model.memory_report().fallbacks == ()
        assert pool.stats().current_bytes == held
        assert model.memory_plan == plan
        history, found = trained(model)
        assert history.fallbacks == []
        weights.append(bits(found))
        if raises:
            with pytest.warns(FallbackWarning, match="accumulated gradients"):
                block = pool.allocate(nbytes)
            block.free()
        model.close()
    assert weights[0] == weights[1]


def test_a_refused_request_leaves_the_loader_its_bytes(pool):
    model = made(on_oom="replan")
    once, least = lossless(model)
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    executor = model._session.executor
    assert model._session.leave((once - least) // 2)
    left = executor.budget_bytes()
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(pool.limit - least + 64)
    assert executor.budget_bytes() == left


def test_a_load_that_fails_does_not_keep_the_model_from_growing_back(pool):
    def failing(graph, limit_bytes=None):
        if failures:
            raise failures.pop()
        return mc.plan.auto()(graph, limit_bytes)

    failures = []
    model = made(memory=failing)
    once, least = lossless(model)
    taker = Taker(pool, (once - least) // 2)
    trained(model, taker)
    assert model.memory_plan.peak_bytes < once
    taker.block.free()
    failures.append(OSError("a disk that is gone for a moment"))
    with pytest.raises(OSError, match="gone"):
        trained(model)
    trained(model)
    assert model.memory_plan.peak_bytes == once
