"""A loader and a model under one budget: never over it, each with what it needs."""

from __future__ import annotations

import gc
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import memcfg as mc
from memcfg.data import Dataset
from memcfg.errors import InfeasiblePlanError, ResourceExhaustedError

nn = mc.nn
pytestmark = pytest.mark.usefixtures("no_threads")

KIB = 1024
WIDTH = 64


@pytest.fixture(autouse=True)
def _seed_outside_of_budgets():
    yield
    nn.set_random_seed(1)  # the state of the last one is in a pool


def make(width=256, layers=1):
    nn.set_random_seed(1)
    hidden = [nn.Dense(width, activation="relu") for _ in range(layers)]
    model = nn.Sequential([nn.Input((WIDTH,)), *hidden, nn.Dense(2)])
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    return model


def arrays(samples):
    x = np.random.default_rng(0).random((samples, WIDTH), np.float32)
    return x, (x.sum(axis=1) > WIDTH / 2).astype(np.int64)


class Pipeline:
    """A function, a cache, a shuffle buffer and a prefetch, which count calls."""

    def __init__(self, samples, ahead=8):
        self.calls = 0
        dataset = Dataset.from_tensor_slices(arrays(samples)).map(self.function).cache()
        self.dataset = dataset.shuffle(500, seed=1).batch(32).prefetch(ahead)

    def function(self, x, y):
        self.calls += 1
        return (x - 0.5) * 2, y


class Observer:
    """A thread that compares what a pool has in use with a limit, all the time."""

    def __init__(self, limit):
        self.pool = mc.config.logical_device("CPU:0").pool
        self.limit = limit
        self.over = self.looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._ended.wait(0.0005):
            stats = self.pool.stats()
            most = max(stats.current_bytes, stats.peak_bytes)
            self.over = max(self.over, most - self.limit)
            self.looks += 1

    def __enter__(self):
        self.pool.reset_peak()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def read(pipeline):
    with iter(pipeline.dataset) as batches:
        return sum(1 for _ in batches)


def weights(model):
    return [weight.tobytes() for weight in model.get_weights()]


@pytest.mark.parametrize("limit", [1200 * KIB, 2048 * KIB, 64 * 1024 * KIB])
@pytest.mark.always
def test_a_loader_and_a_model_are_never_over_the_budget(limit, tenths):
    """In 10^5 samples, a tenth of that in the gate."""
    epochs, samples = 4, 2_500 * tenths
    pipeline, model = Pipeline(samples), make()
    with mc.budget(limit), Observer(limit) as observer:
        history = model.fit(pipeline.dataset, epochs=epochs, verbose=0)
        assert len(model.predict(pipeline.dataset, verbose=0)) == samples
        model.evaluate(pipeline.dataset, verbose=0)
    assert observer.over == 0
    assert observer.looks > 20
    losses = history.history["loss"]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == epochs
    fresh = make()  # without a limit: the same batches, the same plan's bits
    fresh.fit(Pipeline(samples).dataset, epochs=epochs, verbose=0)
    assert weights(model) == weights(fresh)


# Trains within a budget, after what is taken only once has been taken; says when it
# begins and ends, and waits until it is told to go on.
_WATCHED = """
import sys
import numpy as np
import memcfg as mc
from memcfg import nn

def train(samples, epochs):
    data = mc.data.Dataset.from_tensor_slices((x[:samples], y[:samples]))
    data = data.map(lambda x, y: ((x - 0.5) * 2, y)).cache()
    data = data.shuffle(500, seed=1).batch(32).prefetch(8)
    model = nn.Sequential([nn.Input((width,)), nn.Dense(64), nn.Dense(2)])
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(data, epochs=epochs, verbose=0)
    model.close()

limit, samples, width, epochs = map(int, sys.argv[1:])
x = np.random.default_rng(0).random((samples, width), np.float32)
y = np.zeros(samples, np.int64)
train(300, 3)
mc.config.trim("CPU:0")
mc.config.reset_memory_stats("CPU:0")
print("begin", flush=True)
input()
with mc.budget(limit):
    train(samples, epochs)
    print("end", mc.config.get_memory_info("CPU:0")["peak"], flush=True)
    input()
"""


def resident(process):
    """The bytes of anonymous memory that a process has resident, as Linux says."""
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(text.partition("RssAnon:")[2].split()[0]) * KIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("samples", "width", "epochs"),
    [(2_000, 4096, 2), pytest.param(25_000, 1024, 4, marks=pytest.mark.slow)],
)
def test_another_process_sees_the_budget_and_objects(samples, width, epochs):
    """A cache of all samples, 10^5 with those of later epochs, would take more.

    The pool counts exactly, and is never above the budget. Objects of the interpreter
    are outside of it, and Linux shows them as well: plans, and for each element that
    the cache keeps its tuple and its number, 0.3 KB as counted by tracemalloc; of one
    by itself its arrays' objects and notes of the pool, 1.3 KB. Both are rounded up to
    what the heap takes.
    """
    limit = 24 << 20
    of_plans, of_an_element = 2 << 20, 512 if width < 4096 else 1536
    others = of_plans + limit // (width * 4) * of_an_element
    assert samples * width * 4 > limit + others
    command = [
        sys.executable,
        "-c",
        _WATCHED,
        *map(str, (limit, samples, width, epochs)),
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as child:
        assert child.stdout.readline() == "begin\n"
        before, most, looks = resident(child), 0, 0
        child.stdin.write("\n")
        child.stdin.flush()
        while not select.select([child.stdout], [], [], 0.002)[0]:
            most, looks = max(most, resident(child) - before), looks + 1
        word, peak = child.stdout.readline().split()
        most = max(most, resident(child) - before)
        child.communicate("\n")
    assert word == "end"
    assert child.returncode == 0
    assert looks > 20
    assert limit // 2 < int(peak) <= limit
    assert limit // 2 < most <= limit + others


def test_a_cache_makes_way_for_a_model_and_is_filled_again():
    samples = 4000
    pipeline = Pipeline(samples)
    free = make(480, 2)
    free.build((None, WIDTH))
    peak = free.plan(32).peak_bytes
    free.close()
    with mc.budget("3MiB") as budget:
        read(pipeline)
        held = budget.in_use_bytes
        assert held >= 1000 * KIB
        assert peak > budget.limit_bytes - held
        pipeline.calls = 0
        large = make(480, 2)
        large.fit(pipeline.dataset, verbose=0)
        assert pipeline.calls > 0
        assert large.memory_plan.peak_bytes == peak  # the cache alone made way
        assert budget.in_use_bytes <= budget.limit_bytes
        large.close()
        del large
        gc.collect()
        for _ in range(2):
            pipeline.calls = 0
            read(pipeline)
        assert pipeline.calls == 0
        assert budget.in_use_bytes - held in (0, 64)  # the state of random numbers


def test_the_model_is_refused_only_without_what_the_loader_has():
    pipeline = Pipeline(4000)
    with mc.budget("3MiB"):
        read(pipeline)
        with pytest.raises(InfeasiblePlanError) as caught:
            make(1024, 2).fit(pipeline.dataset, verbose=0)
    smallest = caught.value.smallest_limit_bytes
    model = make(1024, 2)
    with pytest.raises(InfeasiblePlanError), mc.budget(smallest - 64 * KIB):
        model.fit(pipeline.dataset, verbose=0, steps_per_epoch=2)
    with mc.budget(smallest):
        model.fit(pipeline.dataset, verbose=0, steps_per_epoch=2)


def test_a_shuffle_buffer_is_left_room_for():
    """Its bytes are taken after the model has been planned."""
    x, y = arrays(3000)
    dataset = Dataset.from_tensor_slices((x, y)).filter(lambda x, y: np.bool_(True))
    dataset = dataset.shuffle(2000, seed=1).batch(32)
    model = make(512, 6)
    model.build((None, WIDTH))
    unlimited = make(512, 6)
    unlimited.fit(x, y, verbose=0)
    peak = unlimited.plan(32).peak_bytes
    unlimited.close()
    limit = (peak + 2000 * 320) * 23 // 20
    with mc.budget(limit), Observer(limit) as observer:
        model.fit(dataset, verbose=0)
    assert observer.over == 0


def test_small_elements_leave_no_pages_that_others_cannot_use():
    """Those of a shuffle lie among those of a cache, and with either in one page."""
    x = np.random.default_rng(0).random((3000, 512), np.float32)
    data = Dataset.from_tensor_slices((x, np.arange(3000) % 2))
    data = data.map(lambda x, y: ((x - 0.5) * 2, y)).cache()
    data = data.shuffle(500, seed=1).batch(32).prefetch(8)
    model = nn.Sequential([nn.Input((512,)), nn.Dense(64), nn.Dense(2)])
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    sizes = []

    class Taker(nn.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            sizes.append(np.ones((31, 100, 300)[batch % 3] * KIB, np.uint8).nbytes)

    limit = 2500 * KIB
    with mc.budget(limit), Observer(limit) as observer:
        model.fit(data, epochs=3, verbose=0, callbacks=[Taker()])
        model.close()
    assert observer.over == 0
    assert len(sizes) == 3 * 94


def test_more_is_read_ahead_where_memory_is_free_than_where_it_is_not():
    sizes, missing = [], []
    for limit in ("700KiB", "64MiB"):
        pipeline, model = Pipeline(2000, ahead=64), make()
        with mc.budget(limit):
            model.fit(pipeline.dataset, verbose=0)
            with iter(pipeline.dataset) as batches:
                for _ in batches:
                    pass
                report = batches.report()
        (stage,) = (each for each in report.stages if each.name == "prefetch")
        sizes.append(stage.buffer_size)
        missing.append(stage.missing_bytes)
        model.close()
    assert 1 <= sizes[0] < sizes[1] == 64
    block = missing[0] // (64 - sizes[0])
    assert missing == [block * (64 - sizes[0]), 0]
    assert block >= 32 * (WIDTH * 4 + 8)


def test_arrays_of_the_program_have_room_beside_a_model():
    x, y = arrays(256)
    with mc.budget("4MiB") as budget:
        model = make(448, 2)
        model.fit(x, y, batch_size=128, verbose=0, shuffle=True)
        left = budget.limit_bytes - budget.in_use_bytes
        assert left >= 4 * 1024 * KIB // 16
        np.ones(200 * KIB, np.uint8)
        with pytest.raises(ResourceExhaustedError):
            mc.config.logical_device().pool.allocate(left + 64)


def test_callbacks_may_take_and_free_memory_between_batches():
    pipeline, model = Pipeline(2000), make()
    held = []

    class Taker(nn.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 7 == 0:
                held.append(np.ones(60 * KIB, np.uint8))
            if batch % 7 == 4:
                held.clear()

    limit = 1500 * KIB
    with mc.budget(limit), Observer(limit) as observer:
        model.fit(pipeline.dataset, epochs=2, verbose=0, callbacks=[Taker()])
        held.clear()
    assert observer.over == 0


def images(seconds, *, cached=True):
    """Make a dataset of 256 images, of which each takes a while to read.

    Seconds may be in a list, to be changed.
    """
    calls = []

    def function(x, y):
        calls.append(None)
        time.sleep(seconds[0] if isinstance(seconds, list) else seconds)
        return x, y

    x = np.random.default_rng(0).random((256, 16, 16, 3), np.float32)
    dataset = Dataset.from_tensor_slices((x, np.arange(256) % 4)).map(function)
    return (dataset.cache() if cached else dataset).batch(32), calls


def convolutions():
    nn.set_random_seed(1)
    layers = [nn.Input((16, 16, 3))]
    for _ in range(4):
        layers += [nn.Conv2D(8, 3, padding="same"), nn.BatchNormalization(), nn.ReLU()]
    model = nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(4)])
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_a_model_that_waits_for_a_cache_makes_way_for_it():
    """A fixed split that gives the model its fastest plan would be the worse one."""
    made, peaks = [], []
    counts = nn.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: made.append(len(calls)) or calls.clear()
    )
    dataset, calls = images(seconds=0.004)
    unlimited = convolutions()
    fast = unlimited.plan(32).peak_bytes
    nbytes = 256 * (16 * 16 * 3 * 4 + 64)
    with mc.budget((fast + nbytes // 2) * 16 // 15):
        model = convolutions()
        model.fit(dataset, epochs=7, verbose=0, callbacks=[counts])
        peaks.append(model.memory_report().predicted_peak_bytes)
    assert made[0] == 256
    assert made[-1] < made[1] / 2
    assert peaks[0] < fast
    unlimited.fit(images(0)[0], epochs=7, verbose=0)
    assert weights(model) == weights(unlimited)


def test_a_division_that_is_no_faster_leaves_the_one_before():
    """The model does not take more after the trial than it had before it."""
    seconds, peaks, ends = [0.0], [], [time.perf_counter()]
    dataset, _ = images(seconds)

    class Slow(nn.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            seconds[0] = 3 * (time.perf_counter() - self.begun) / 32  # the model waits
            if batch == 0 and 1 <= sum(each < peaks[0] for each in peaks) <= 2:
                time.sleep(1.2 * max(np.diff(ends)))  # the trial's epoch is slow

        def on_epoch_end(self, epoch, logs=None):
            peaks.append(self.model.memory_report().predicted_peak_bytes)
            ends.append(time.perf_counter())

    nbytes = 256 * (16 * 16 * 3 * 4 + 64)
    model = convolutions()
    fast = model.plan(32).peak_bytes
    with mc.budget((fast + nbytes // 2) * 16 // 15):
        model.fit(dataset, epochs=5, verbose=0, callbacks=[Slow()])
        peaks.append(model.memory_report().predicted_peak_bytes)
        model.close()
    assert min(peaks) < peaks[0] == peaks[-1]


def test_a_model_that_waits_for_a_ring_makes_way_for_it():
    """The first plan leaves the ring few blocks; the trial's plan leaves it all."""
    dataset, _ = images(seconds=0.004, cached=False)
    fast = convolutions().plan(32).peak_bytes
    block = 32 * (16 * 16 * 3 * 4 + 64)
    peaks = []
    notes = nn.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: peaks.append(
            model.memory_report().predicted_peak_bytes
        )
    )
    limit = (fast + 5 * block) * 16 // 15
    with mc.budget(limit), Observer(limit) as observer:
        model = convolutions()
        model.fit(dataset.prefetch(8), epochs=5, verbose=0, callbacks=[notes])
    assert observer.over == 0
    assert peaks[2] < peaks[1] == peaks[0]
    model.close()


def test_a_model_that_fills_a_budget_can_be_closed():
    """Its values are copied into the memory that the arena gives back."""
    x, y = arrays(32)
    free = make(256, 2)
    free.fit(x, y, verbose=0)
    peak = free.memory_plan.peak_bytes
    free.close()
    with mc.budget(peak + peak // 15 + 4096) as budget:
        model = make(256, 2)
        model.fit(x, y, verbose=0)
        rest = np.ones(budget.limit_bytes - budget.in_use_bytes - 8192, np.uint8)
        for _ in range(2):
            model.close()
            assert weights(model) == weights(free)
        assert budget.in_use_bytes <= budget.limit_bytes
        assert rest.all()


def test_a_model_that_cannot_be_closed_is_as_before():
    free, x = make(256, 2), arrays(1)[0]
    expected = free.predict_on_batch(x)
    with mc.budget("2MiB") as budget:
        model = make(256, 2)
        outputs = model.predict_on_batch(x)
        rest = [
            np.ones(budget.limit_bytes - budget.in_use_bytes - 4096 * pages, np.uint8)
            for pages in (12, 1)
        ]
        with pytest.raises((ResourceExhaustedError, MemoryError)):
            model.close()
        del rest
        assert weights(model) == weights(free)
        np.testing.assert_array_equal(model.predict_on_batch(x), outputs)
        np.testing.assert_array_equal(outputs, expected)
        model.close()
        assert weights(model) == weights(free)


def deep():
    """Make a model whose state is most of what a step takes."""
    nn.set_random_seed(1)
    hidden = [nn.Dense(96, activation="relu") for _ in range(8)]
    model = nn.Sequential([nn.Input((WIDTH,)), *hidden, nn.Dense(2)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.optimizers.Adam(0.001), loss)
    return model


def test_a_closed_model_takes_its_state_once_when_it_is_used_again():
    """Its values move into the arena one by one, so no more than one is there twice."""
    x, y = arrays(32)
    free = deep()
    free.fit(x, y, epochs=2, verbose=0, shuffle=False)
    arena = free.memory_plan.peak_bytes
    sizes = [each.nbytes for each in free.get_weights()]
    state, largest = 3 * sum(-(-each // 64) * 64 for each in sizes), max(sizes)
    free.close()
    assert state > arena * 2 // 3
    with mc.budget(arena + arena // 15 + 4096) as budget:
        pool = mc.config.logical_device("CPU:0").pool
        model = deep()
        model.fit(x, y, verbose=0, shuffle=False)
        others = budget.in_use_bytes - arena
        model.close()
        closed = budget.in_use_bytes
        assert closed - state - others in (0, 64)  # the number of steps
        assert closed + arena > budget.limit_bytes  # it is not there twice
        assert model.plan(32).peak_bytes == arena
        pool.reset_peak()
        model.fit(x, y, verbose=0, shuffle=False)
        assert budget.in_use_bytes == others + arena
        of_fit = pool.stats().peak_bytes - max(others + arena, closed + largest)
        assert 0 <= of_fit < KIB  # indices and sums, as before it was closed
        model.close()
        with pool.allocate(budget.limit_bytes - budget.in_use_bytes - 8192):
            before = budget.in_use_bytes
            with pytest.raises(InfeasiblePlanError) as caught:
                model.fit(x, y, verbose=0, shuffle=False)
            assert budget.in_use_bytes == before
            assert caught.value.in_use_bytes == before - state
        model.fit(x, y, verbose=0, shuffle=False)
    free.fit(x, y, verbose=0, shuffle=False)
    assert weights(model) == weights(free)
    model.close()


def test_a_closed_model_whose_memory_is_taken_amid_its_load_keeps_its_values():
    x, y = arrays(32)
    free = deep()
    free.fit(x, y, verbose=0, shuffle=False)
    arena, taken = free.memory_plan.peak_bytes, []
    free.close()

    def taking(graph, limit_bytes=None):
        plan = mc.plan.auto()(graph, limit_bytes)
        if taken:  # what the plan counts on
            taken.append(pool.allocate(pool.stats().largest_free_bytes // 2))
        return plan

    with mc.budget(arena + arena // 15 + 4096):
        pool = mc.config.logical_device("CPU:0").pool
        model = deep()
        model.compile(free.optimizer.__class__(0.001), model.loss, memory=taking)
        model.fit(x, y, verbose=0, shuffle=False)
        model.close()
        taken.append(None)
        with pytest.raises(ResourceExhaustedError):
            model.fit(x, y, verbose=0, shuffle=False)
        assert len(taken) > 1
        taken.clear()
        model.fit(x, y, verbose=0, shuffle=False)
    free.fit(x, y, verbose=0, shuffle=False)
    assert weights(model) == weights(free)
    model.close()


def test_values_that_a_failed_load_has_moved_in_are_not_first_values():
    """Layers that outlive their model do not draw them again: they are lost."""
    x = np.ones((1400, 64), np.float32)
    hidden = [nn.Dense(64, activation="relu") for _ in range(3)]
    layers = [nn.Input((64,)), *hidden, nn.Dense(2)]
    taken = []

    def taking(graph, limit_bytes=None):
        plan = mc.plan.auto()(graph, limit_bytes)
        if taken:  # what the plan counts on
            taken.append(pool.allocate(pool.stats().largest_free_bytes * 3 // 4))
        return plan

    with mc.budget("1MiB"):
        pool = mc.config.logical_device("CPU:0").pool
        model = nn.Sequential(layers)
        model.compile("sgd", "mse", memory=taking, on_oom="raise")
        model.predict(x[:1], verbose=0)  # with first values
        model.close()
        model.set_weights([value + 1 for value in model.get_weights()])
        taken.append(None)
        with pytest.raises(ResourceExhaustedError):
            model.predict(x, batch_size=len(x), verbose=0)
        assert len(taken) > 1
        taken.clear()
        assert all((value == 1).all() for value in model.get_weights()[1::2])
        del model
        gc.collect()
        with pytest.raises(RuntimeError, match="is lost"):
            nn.Sequential(layers).get_weights()


@pytest.mark.parametrize("same", [True, False])
def test_a_model_that_fills_a_budget_can_be_compiled_again(same):
    """Where there is no memory for copies of its values, they move out and in."""
    x, y = arrays(32)

    def train(model):
        model.fit(x, y, verbose=0, shuffle=False)
        optimizer = model.optimizer if same else nn.optimizers.SGD(0.1)
        model.compile(optimizer, model.loss)
        model.fit(x, y, verbose=0, shuffle=False)

    free = deep()
    arena = free.plan(32).peak_bytes
    train(free)
    free.close()
    limit = arena + arena // 15 + 4096
    with mc.budget(limit), Observer(limit) as observer:
        model = deep()
        train(model)
    assert observer.over == 0
    assert weights(model) == weights(free)
    model.close()
