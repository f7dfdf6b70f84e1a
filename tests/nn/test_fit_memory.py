"""Batches of a stream and the model share a device: blocks, limits, no copy."""

from __future__ import annotations

import gc
import itertools
import re
import weakref
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg.data import AsyncDataSetIterator, Dataset, DataSetIterator
from memcfg.errors import InfeasiblePlanError, ResourceExhaustedError
from memcfg.units import align_up

nn = mc.nn
pytestmark = pytest.mark.usefixtures("no_threads")

SIZE = 16
X = np.random.default_rng(0).standard_normal((96, 8, 8, 8)).astype(np.float32)
Y = np.arange(96) % 5
BLOCK = align_up(SIZE * X[0].nbytes) + align_up(SIZE * 8)
MODES = ["enabled", "none", "single", "separate"]


def make(mode="enabled"):
    nn.set_random_seed(1)
    layers = [nn.Input((8, 8, 8))]
    for _ in range(4):
        layers += [nn.Conv2D(8, 3, padding="same", activation="relu")]
        layers += [nn.BatchNormalization()]
    model = nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(5)])
    model.compile(
        "sgd",
        nn.SparseCategoricalCrossentropy(from_logits=True),
        training_workspace_mode=mode,
        inference_workspace_mode=mode,
    )
    return model


def weights(model):
    return [weight.tobytes() for weight in model.get_weights()]


def dataset(buffer=None):
    data = Dataset.from_tensor_slices((X, Y)).batch(SIZE)
    return data if buffer is None else data.prefetch(buffer)


@pytest.fixture
def pool():
    return mc.config.logical_device().pool


def limited(nbytes):
    mc.config.set_memory_limit(mc.config.logical_device().name, f"{nbytes}B")


def state_bytes():
    """The bytes of weights and optimizer state."""
    graph = make().graph(SIZE)
    return sum(graph.tensors[each].nbytes for each in graph.persistent)


def owned(pool, name):
    return sum(nbytes for owner, nbytes in pool.owners().items() if name in owner)


@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("buffer", [None, 2, -1])
def test_no_batch_of_a_ring_is_copied(buffer, mode, runs, pool):
    model = make(mode)
    model.fit(dataset(buffer), epochs=2, verbose=0)
    model.evaluate(dataset(buffer), verbose=0)
    model.predict(dataset(buffer), verbose=0)
    assert len(runs.bindings) == 4 * 6
    if mode != "enabled" or mc.config.logical_device().kernels.name != "reference":
        assert all(bound for _, _, bound in runs.bindings)
        assert runs.copied == []
    addresses = {where for _, where, _ in runs.bindings[:6]}
    assert len(addresses) < 6  # blocks are used again


@pytest.mark.strength(1)
@pytest.mark.parametrize("kind", ["dataset", "mapped", "generator", "iterator"])
@pytest.mark.parametrize("buffer", [1, 2, 4])
def test_a_ring_has_two_blocks_more_than_batches_that_wait(kind, buffer, pool):
    model = make()
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    arena = pool.stats().current_bytes
    most = []

    def note(part):
        most.append(owned(pool, "workspace"))
        return part

    parts = [(X[i : i + SIZE], Y[i : i + SIZE]) for i in range(0, 96, SIZE)]
    made = ((x.copy(), y.copy()) for x, y in itertools.chain(*[parts] * 5))
    data = dataset().repeat(5).map(lambda x, y: note((x, y))).prefetch(buffer)
    if kind == "mapped":
        data = dataset().repeat(5).map(lambda x, y: note((x + 0, y))).prefetch(buffer)
    if kind == "generator":
        buffer, data = 2, (note(part) for part in made)
    if kind == "iterator":
        data = AsyncDataSetIterator((note(part) for part in made), buffer)
    model.fit(data, verbose=0)
    if kind == "iterator":
        data.close()
    block = 2 * BLOCK if kind == "mapped" else BLOCK  # before and behind the function
    assert max(most) <= (buffer + 2 + 1) * block  # and the first batch
    assert most[-1] <= (buffer + 2) * block
    assert pool.stats().current_bytes == arena


def test_a_batch_is_let_go_before_the_next_is_taken():
    alive = []

    class Watched(DataSetIterator):
        async_supported = False
        batch = None
        left = 5

        def has_next(self):
            return self.left > 0

        def next(self):
            alive.append(self.batch is not None and self.batch() is not None)
            self.left -= 1
            x, y = X[:SIZE].copy(), Y[:SIZE].copy()
            self.batch = weakref.ref(x)
            return x, y

        def reset(self):
            self.left = 5

    model = make()
    watched = Watched()
    model.fit(watched, verbose=0)
    watched.reset()
    model.evaluate(watched, verbose=0)
    watched.reset()
    model.predict(watched, verbose=0)
    assert alive == [False] * 15
    assert watched.batch() is None


@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("buffer", [1, 2, 4])
def test_the_plan_leaves_room_for_the_ring(buffer, mode, pool):
    """With just so much as the error asks for it works; with less, nothing begins."""
    limited(state_bytes() + 64)
    with pytest.raises(InfeasiblePlanError, match="for batches read ahead") as caught:
        make(mode).fit(dataset(buffer), verbose=0)
    assert "Prefetch fewer batches" in str(caught.value)
    need = caught.value.smallest_limit_bytes
    assert need >= (buffer + 2) * BLOCK
    model = make(mode)
    before = weights(model)
    if mode == "enabled":  # without a plan it may work with less
        limited(need - 64)
        with pytest.raises(InfeasiblePlanError):
            model.fit(dataset(buffer), verbose=0)
        assert weights(model) == before
        assert pool.stats().current_bytes == 0
    limited(need)
    model.fit(dataset(buffer), epochs=3, verbose=0)
    assert pool.stats().peak_bytes <= need
    assert weights(model) == trained(3)


def trained(epochs):
    """The weights that training without a limit gives."""
    device = mc.config.logical_device()
    limit = device.pool.limit
    mc.config.set_memory_limit(device.name, None)
    model = make()
    model.fit(X, Y, SIZE, epochs, 0, shuffle=False)
    found = weights(model)
    model.close()
    if limit is not None:
        mc.config.set_memory_limit(device.name, limit)
    return found


def test_the_plan_computes_again_to_leave_room(pool):
    model = make()
    model.fit(dataset(2), verbose=0)
    assert model.memory_plan.method == "share"
    peak = model.memory_plan.peak_bytes
    model.close()
    limited(64)
    with pytest.raises(InfeasiblePlanError) as caught:
        model.fit(dataset(2), verbose=0)
    limited(max(peak, caught.value.smallest_limit_bytes))
    model.fit(X, Y, SIZE, verbose=0)
    assert model.memory_plan.method == "share"
    # The programs are there, but they leave no room.
    model.fit(dataset(2), verbose=0)
    assert model.memory_plan.method == "look_ahead"
    assert model.memory_plan.peak_bytes < peak
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_a_ring_that_does_not_fit_says_what_would(pool):
    model = make()
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    limited(pool.stats().current_bytes + 8 * BLOCK + 64 * 1024)
    batches = dataset().map(lambda x, y: (x[:8] + 0, y[:8]))
    with pytest.raises(ResourceExhaustedError, match="ring of 10 blocks") as caught:
        model.fit(batches.prefetch(8), verbose=0)
    fits = int(re.search(r"buffer_size=(\d+) fits", str(caught.value))[1])
    assert 1 <= fits < 8
    assert model.optimizer.iterations == 1
    model.fit(batches.prefetch(fits), verbose=0)
    assert list(pool.owners()) == [f"model {model.name}"]


def test_autotune_shrinks_to_what_is_left(pool):
    limited(64)
    with pytest.raises(InfeasiblePlanError) as caught:
        make().fit(dataset(mc.data.AUTOTUNE), verbose=0)
    need = caught.value.smallest_limit_bytes
    with pytest.raises(InfeasiblePlanError) as caught:
        make().fit(dataset(1), verbose=0)
    assert caught.value.smallest_limit_bytes == need
    limited(need)
    model = make()
    model.fit(dataset(mc.data.AUTOTUNE), epochs=2, verbose=0)
    assert weights(model) == trained(2)


def test_validation_has_room_too(pool):
    limited(64)
    data = dataset(1)

    def need(**options):
        with pytest.raises(InfeasiblePlanError) as caught:
            make().fit(data, verbose=0, **options)
        return caught.value.smallest_limit_bytes

    alone = need()
    assert need(validation_data=data) >= alone
    together = need(validation_data=data, steps_per_epoch=3)
    assert together >= alone + 3 * BLOCK
    limited(together)
    model = make()
    model.fit(
        dataset().repeat().prefetch(1),
        steps_per_epoch=3,
        epochs=4,
        verbose=0,
        validation_data=data,
    )
    assert model.optimizer.iterations == 12


def test_unknown_batches_come_first_and_the_plan_takes_what_they_leave(pool):
    mapped = dataset().map(lambda x, y: (x, y)).prefetch(2)
    limited(64 * 1024 + 4 * BLOCK)
    with pytest.raises(InfeasiblePlanError) as caught:
        make().fit(mapped, verbose=0)
    assert any("prefetch" in owner for owner in caught.value.owners)
    assert caught.value.in_use_bytes >= 4 * BLOCK
    assert pool.stats().current_bytes == 0
    limited(caught.value.smallest_limit_bytes + 64 * 1024)  # ends of pages
    model = make()
    model.fit(mapped, epochs=2, verbose=0)
    assert model.memory_plan.method == "look_ahead"
    assert weights(model) == trained(2)


def test_a_batch_size_that_comes_later_and_does_not_fit(pool):
    model = make()
    model.fit(X[:SIZE], Y[:SIZE], SIZE, verbose=0)
    limited(pool.stats().current_bytes + 8 * BLOCK)
    before = model.optimizer.iterations
    data = [(X[:SIZE], Y[:SIZE]), (X, Y)]
    with pytest.raises(InfeasiblePlanError):
        model.fit(data, verbose=0)
    assert model.optimizer.iterations == before + 1
    model.fit(X[:SIZE], Y[:SIZE], SIZE, verbose=0)


def test_batches_lie_on_the_models_device(cpu):
    mc.config.set_logical_device_configuration(
        cpu, [mc.config.LogicalDeviceConfiguration(memory_limit=16)] * 2
    )
    first, second = (mc.config.logical_device(f"CPU:{i}").pool for i in (0, 1))
    with mc.device("CPU:1"):
        model = make()
    seen = []

    def note(x, y):
        seen.append((first.stats().current_bytes, owned(second, "workspace")))
        return x, y

    model.fit(dataset().map(note), epochs=2, verbose=0)
    model.predict(dataset().map(note), verbose=0)
    assert all(bytes_of_first == 0 for bytes_of_first, _ in seen)
    assert any(ring >= 3 * BLOCK for _, ring in seen)


@settings(deadline=None, max_examples=25)
@given(
    share=st.floats(0.2, 1.6),
    buffer=st.sampled_from([None, 0, 1, 3, -1]),
    mode=st.sampled_from(MODES),
    mapped=st.booleans(),
)
def test_under_any_limit_it_trains_alike_or_says_why(share, buffer, mode, mapped):
    """Never a wrong result, a hang, or memory that is left."""
    device, expected = mc.config.logical_device(), _expected()
    device.pool.reset_peak()
    limited(int(share * 592_000) // 64 * 64)
    data = dataset().map(lambda x, y: (x, y)) if mapped else dataset()
    data = data if buffer is None else data.prefetch(buffer)
    model = make(mode)
    with suppress(ResourceExhaustedError):
        model.fit(data, epochs=2, verbose=0)
        assert weights(model) == expected
    assert device.pool.stats().peak_bytes <= device.pool.limit
    assert all(model.name in owner for owner in device.pool.owners())
    model.close()
    assert device.pool.stats().current_bytes == 0


_known: list[list[bytes]] = []


def _expected():
    if not _known:
        _known.append(trained(2))
    return _known[0]


def test_an_error_says_how_many_batches_fit():
    cpu = mc.config.list_physical_devices("CPU")[0]
    limit = mc.config.LogicalDeviceConfiguration(memory_limit=2)
    mc.config.set_logical_device_configuration(cpu, [limit])
    x, y = np.zeros((640, 1024), np.float32), np.zeros(640, np.int64)
    dataset = mc.data.Dataset.from_tensor_slices((x, y)).batch(32)

    def fit(buffer_size):
        model = nn.Sequential([nn.Dense(10)])
        model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
        try:
            model.fit(dataset.prefetch(buffer_size), verbose=0)
        finally:
            model.close()

    with pytest.raises(InfeasiblePlanError, match=r"prefetch\(\d+\) fits") as caught:
        fit(100)
    fits = int(re.search(r"prefetch\((\d+)\)", str(caught.value))[1])
    fit(fits)
    with pytest.raises(InfeasiblePlanError):
        fit(fits + 2)


def test_a_model_that_only_a_cycle_holds_makes_way(pool):
    model = make()
    model.train_on_batch(X[:SIZE], Y[:SIZE])
    limited(pool.stats().current_bytes * 5 // 4)
    held = [model]
    other = make()
    with pytest.raises(InfeasiblePlanError, match=f"Held by: model {model.name}"):
        other.train_on_batch(X[:SIZE], Y[:SIZE])
    held.append(held)
    gc.disable()  # it runs when the other model does not fit
    try:
        del model, held
        other.train_on_batch(X[:SIZE], Y[:SIZE])
    finally:
        gc.enable()
    assert list(pool.owners()) == [f"model {other.name}"]
