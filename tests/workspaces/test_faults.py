"""What goes wrong around a workspace: exceptions, threads, tasks, long runs."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import numpy as np
import pytest

import memcfg as mc
from memcfg import memory
from memcfg.config import get_host_memory_info
from memcfg.errors import (
    WorkspaceLeakError,
    WorkspaceLeakWarning,
)

MIB = 2**20
BASIC = mc.WorkspaceConfig(initial_size="1MiB", allocation="strict", learning="none")
LEARNS = mc.WorkspaceConfig(allocation="strict")
RING = mc.WorkspaceConfig(reset="end_of_buffer", overallocation=3)


@pytest.fixture
def make(pool):
    return lambda config=BASIC, name="one": mc.workspace(name, config, resource=pool)


def in_thread(work) -> None:
    failures = []

    def run():
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failures == []


@pytest.mark.parametrize("config", [BASIC, LEARNS, RING])
@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, GeneratorExit])
def test_an_exception_closes_every_scope(make, config, kind):
    outer, inner = make(config, "outer"), make(config, "inner")

    def fails():
        with outer, inner, outer.borrow(), mc.scope_out(), inner.disabled():
            raise kind

    for _ in range(3):
        with pytest.raises(kind):
            fails()
        assert mc.workspaces.current_workspace() is None
        assert not outer.is_open
        assert not inner.is_open
        assert inner.enabled
    mc.testing.assert_no_workspaces_open("after an exception")
    with outer:
        with inner:
            array = inner.ones(10)
            assert mc.workspace_of(array) is inner
            del array
        with outer.borrow():
            pass


@pytest.mark.parametrize("on_escape", ["warn", "error"])
def test_escapes_do_not_hide_an_exception(make, on_escape):
    ws = make(BASIC.replace(on_escape=on_escape))
    kept = []

    def fails():
        with ws:
            kept.append(ws.ones(10))
            raise KeyError("mine")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkspaceLeakWarning)
        with pytest.raises(KeyError, match="mine"):
            fails()
    assert not ws.is_open
    assert (kept[0] == 1).all()


def test_escapes_are_told_after_all_is_safe(make):
    ws = make(BASIC.replace(on_escape="error"))
    ws.open()
    kept = ws.ones(10)
    with pytest.raises(WorkspaceLeakError, match="one"):
        ws.close()
    assert not ws.is_open
    assert mc.workspaces.current_workspace() is None
    with ws:
        other = ws.zeros(10)
        assert (kept == 1).all()
        del other
    ws = make(BASIC.replace(on_escape="warn"), "two")
    ws.open()
    again = ws.ones(10)
    with pytest.warns(WorkspaceLeakWarning, match="two"):
        ws.close()
    assert again.sum() == 10


@pytest.mark.parametrize("config", [BASIC, LEARNS, RING])
def test_destruction_leaves_arrays_alone(make, pool, config):
    kept = []
    for name in "abc":
        ws = make(config, name)
        for step in range(4):
            with ws:
                kept.append((ws.full(1000, step), step))
    mc.destroy_all_workspaces()
    assert mc.list_workspaces() == []
    others = [np.full(1000, -1.0) for _ in range(10)]
    for array, step in kept:
        assert (array == step).all()
        array += 1
        assert not mc.workspaces.is_in_scope(array)
        assert mc.detach(array).sum() == 1000 * (step + 1)
    assert pool.stats().current_bytes >= 12 * 8000
    del array, others
    kept.clear()
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_destruction_inside_the_scope(make):
    with make() as outer:
        ws = make(name="inner")
        ws.open()
        array = ws.ones(10)
        mc.destroy_all_workspaces()
        assert mc.workspaces.current_workspace() is None
        assert not outer.is_open
        assert not mc.is_attached(np.ones(3))
        assert array.sum() == 10
        outer.open()
    assert mc.workspaces.current_workspace() is None


def test_a_thread_dies_with_its_scopes_open(pool):
    kept = []

    def work():
        for name in "ab":
            ws = mc.workspace(name, BASIC, resource=pool).open()
            kept.append(ws.full(1000, 3.0))
            kept.append(np.full(1000, 3.0))
        with mc.scope_out():
            kept.append(np.full(10, 3.0))

    in_thread(work)
    gc.collect()
    assert pool.stats().current_bytes >= 4 * 8000
    for array in kept:
        assert (array == 3).all()
        assert mc.workspaces.is_valid(array)
    assert not mc.workspaces.is_in_scope(kept[0])
    assert mc.detach(kept[0]).sum() == 3000
    assert mc.list_workspaces() == []
    kept.clear()
    del array
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_workspaces_of_one_name_in_two_threads(pool):
    barrier = threading.Barrier(2, timeout=30)
    seen, failures = [], []

    def work(number):
        try:
            config = BASIC.replace(initial_size=(number + 1) * MIB)
            for step in range(200):
                with mc.workspace("same", config, resource=pool) as ws:
                    if step % 50 == 0:
                        barrier.wait()
                    array, other = np.empty(1000), ws.empty(1000)
                    assert ws.stats().offset == 16_000
                    array[:], other[:] = number * 1000 + step, -step
                    assert mc.workspace_of(array) is mc.workspace_of(other) is ws
                    assert (array == number * 1000 + step).all()
                    assert (other == -step).all()
                    del array, other
            seen.append(ws)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen[0] is not seen[1]
    assert [ws.stats().cycles for ws in seen] == [200, 200]


def test_frees_from_other_threads_while_the_scope_cycles(make, pool):
    ws = make(BASIC.replace(initial_size="64KiB"))
    shelf, stop, failures = [], threading.Event(), []

    def free():
        try:
            while not stop.is_set() or shelf:
                if shelf:
                    array, value = shelf.pop()
                    assert (array == value).all()
                    del array
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=free) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(3000):
        with ws:
            for count in 10, 1000, 300:
                array = ws.full(count, step)
                if step % 3:
                    shelf.append((array, step))
                del array
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ws.stats().live_arrays == 0
    ws.memory.check()
    pool.check()


def test_tasks_that_go_on_behind_the_scope(make, pool):
    ws = make()
    kept = []

    async def work(gate, number):
        assert mc.workspaces.current_workspace() is ws
        kept.append(np.full(1000, number))
        assert mc.workspace_of(kept[-1]) is ws
        await gate.wait()
        assert mc.workspaces.current_workspace() is None
        late = np.full(1000, -number)
        assert not mc.is_attached(late)
        assert memory.owner_of(late) is not None
        kept.append(late)
        with ws:
            again = np.full(1000, 7)
            assert mc.workspace_of(again) is ws
            del again

    async def main():
        gate = asyncio.Event()
        with ws:
            tasks = [asyncio.create_task(work(gate, number)) for number in (1, 2, 3)]
            await asyncio.sleep(0)
            assert ws.is_open
        assert mc.workspaces.current_workspace() is None
        gate.set()
        await asyncio.gather(*tasks)
        assert not mc.is_attached(np.ones(3))

    asyncio.run(main())
    assert sorted(array[0] for array in kept) == [-3, -2, -1, 1, 2, 3]
    assert all((array == array[0]).all() for array in kept)
    assert not ws.is_open
    kept.clear()
    gc.collect()
    assert pool.stats().current_bytes == MIB


@pytest.mark.parametrize("config", [BASIC, LEARNS, RING])
def test_a_hundred_thousand_cycles(make, pool, config, tenths):
    ws, outer = make(config), make(name="outer")
    array = None

    def cycles(count):
        nonlocal array
        for step in range(count):
            with outer, ws:
                array = np.empty(1000)  # the one before outlives its scope
                array[:] = step
                if step % 1000 == 999:
                    array = None

    cycles(2000)
    tracked, allocations = pool.stats().current_bytes, pool.stats().allocation_count
    resident = get_host_memory_info()["resident"]
    cycles(10_000 * tenths)
    assert pool.stats().current_bytes == tracked
    assert pool.stats().allocation_count == allocations
    assert get_host_memory_info()["resident"] < resident + 2 * MIB
