"""Debug modes, the counters, serialisation: M1 to M8 of ND4J's tests."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
from workspace_rules import up

import memcfg as mc
from memcfg import config, memory

MIB = 2**20
BASIC = mc.WorkspaceConfig(initial_size="10MiB", allocation="strict", learning="none")
COLD = mc.WorkspaceConfig(allocation="strict")


@pytest.fixture
def make(pool):
    return lambda config=BASIC, name="modes": mc.workspace(name, config, resource=pool)


def test_m1_a_mode_is_what_it_was_set_to():
    assert config.get_debug_mode() is mc.config.DebugMode.DISABLED
    for mode in mc.config.DebugMode:
        before = config.get_debug_mode()
        assert config.set_debug_mode(mode) is before
        assert config.get_debug_mode() is mode
        config.set_debug_mode(mode.value)
        assert config.get_debug_mode() is mode
    with pytest.raises(ValueError, match="nonsense"):
        config.set_debug_mode("nonsense")


@pytest.mark.parametrize("initial", [10 * MIB, 0])
def test_m2_m3_everything_spills_and_nothing_is_learned(make, initial):
    config.set_debug_mode("spill_everything")
    ws = make(COLD.replace(initial_size=initial))
    assert (ws.stats().size, ws.stats().offset) == (initial, 0)
    with ws:
        array = np.empty((10, 10))
        assert mc.is_attached(array)
        stats = ws.stats()
        assert (stats.size, stats.offset) == (initial, 0)
        assert (stats.spilled_bytes, stats.spilled_count) == (up(800), 1)
        del array
    with ws:
        stats = ws.stats()
        assert (stats.size, stats.offset, stats.spilled_bytes) == (initial, 0, 0)
    config.set_debug_mode("disabled")
    with ws:
        array = np.empty((10, 10))
        assert ws.stats().offset == (up(800) if initial else 0)
        del array


def test_m4_workspaces_are_bypassed(make):
    config.set_debug_mode("bypass_everything")
    with make() as ws:
        for array in np.empty(10), ws.zeros(10), ws.array([1, 2]):
            assert not mc.is_attached(array)
    kept = array
    config.set_debug_mode("disabled")
    with make() as ws:
        array = np.empty(10)
        assert mc.is_attached(array)
        del array
    assert kept.tolist() == [1, 2]


def test_m5_the_pool_s_counters(make, pool):
    with memory.numpy_allocator(pool):
        first = np.empty(1000)
        assert pool.owners() == {"numpy": 8000}
        second = np.empty(1000)
    assert pool.stats().current_bytes == 16_000
    before = config.get_host_memory_info()["tracked"]
    ws = make()
    assert pool.owners()["workspace modes"] == 10 * MIB
    assert pool.stats().current_bytes == 16_000 + 10 * MIB
    ws.destroy()
    assert pool.stats().current_bytes == 16_000
    assert config.get_host_memory_info()["tracked"] <= before
    del first, second


def test_m5_spills_are_counted(make, pool):
    ws = make(COLD.replace(learning="over_time", learning_cycles=3))
    for step in range(5):
        with ws:
            before = pool.stats().current_bytes
            array = np.empty(1000)
            assert pool.stats().current_bytes == before + (8000 if step < 3 else 0)
            del array
            assert pool.stats().current_bytes == before
    assert pool.stats().current_bytes == 8000
    mc.destroy_all_workspaces()
    assert pool.stats().current_bytes == 0


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("shape", [10, (17, 57, 79)])
def test_m6_an_array_that_is_read_inside_is_made_there(make, shape, tmp_path):
    path = tmp_path / "array.npy"
    path.write_bytes(saved(np.ones(shape)))
    ws = make(BASIC.replace(initial_size="20MiB"))
    with ws:
        for source in path, io.BytesIO(path.read_bytes()):
            before = ws.stats().offset
            restored = np.load(source)
            assert mc.workspace_of(restored) is ws
            assert ws.stats().offset >= before + up(restored.nbytes)
            assert restored.shape == np.ones(shape).shape
            assert (restored == 1).all()
            del restored
        with mc.scope_out():
            before = ws.stats().offset
            outside = np.load(path)
            assert not mc.is_attached(outside)
            assert ws.stats().offset == before
    assert (outside == 1).all()


def test_m6_what_is_saved_inside_is_what_it_was(make):
    with make() as ws:
        array = ws.array([1.5, 2.5])
        text = saved(array)
        del array
    assert np.load(io.BytesIO(text)).tolist() == [1.5, 2.5]


def soak(ws, *counts: int) -> None:
    with ws:
        arrays = [np.empty(count, np.float32) for count in counts]
        for array in arrays:
            array[:: max(1, array.size // 16)] = 1
        del arrays, array


@pytest.mark.parametrize(
    ("initial", "counts", "learning"),
    [
        ("16MiB", [1_000_000], "none"),  # the page again and again
        ("10MiB", [2_000_000, 3_000_000], "none"),  # spills
        (0, [1000, 17, 250_000], "first_loop"),
    ],
)
def test_m7_cycles_without_end(make, pool, initial, counts, learning, tenths):
    ws = make(BASIC.replace(initial_size=initial, learning=learning))
    outer = make(name="outer")
    with outer:
        for _ in range(100):
            soak(ws, *counts)
        tracked = pool.stats().current_bytes
        resident = config.get_host_memory_info()["resident"]
        for _ in range(100 * tenths):
            soak(ws, *counts)
            assert pool.stats().current_bytes == tracked
    assert config.get_host_memory_info()["resident"] < resident + 8 * MIB


def test_m7_threads_without_end(pool, tenths):
    def work():
        with mc.workspace("churn", BASIC, resource=pool) as ws:
            array = np.zeros(1000)
            assert mc.workspace_of(array) is ws
            del array

    def thread():
        one = threading.Thread(target=work)
        one.start()
        one.join()

    for _ in range(50):
        thread()
    resident = config.get_host_memory_info()["resident"]
    for _ in range(50 * tenths):
        thread()
    assert pool.stats().current_bytes == 0
    assert config.get_host_memory_info()["resident"] < resident + 8 * MIB


def test_m8_a_limit_on_all(make, pool):
    ws = make(COLD)
    pool.set_limit(pool.stats().current_bytes + 10_048)
    with ws:
        first = np.empty(1024)
        with pytest.raises(MemoryError):
            np.empty(1024)
        first[:] = 3
        second = np.empty(128)
        assert first.sum(dtype="f8", out=np.empty(())) == 3 * 1024
        del first, second
    pool.set_limit(None)
    soak(ws, 100_000)
    soak(ws, 100_000)
