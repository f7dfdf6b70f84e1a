"""Scopes in tasks and copied contexts, out of step, and what came up in them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
from memcfg import memory
from memcfg.errors import WorkspaceError, WorkspaceFullError, WorkspaceLeakError


@pytest.fixture
def pool():
    pool = memory.Pool(limit="8MiB")
    yield pool
    assert mc.workspaces.current_workspace() is None
    assert not mc.is_attached(np.empty(1))
    gc.collect()
    pool.check()
    assert pool.stats().current_bytes == 0


def made(pool, name="w", **settings):
    return mc.Workspace(mc.WorkspaceConfig(**settings), name, resource=pool)


@pytest.fixture
def ws(pool):
    ws = made(pool, initial_size=4096)
    yield ws
    ws.destroy()


def test_a_task_that_enters_after_its_parent_has_left(ws):
    async def late():
        assert mc.workspaces.current_workspace() is None
        with ws:
            assert ws.parent is None
            return mc.detach(ws.array([1, 2, 3]))

    async def main():
        with ws:
            task = asyncio.create_task(late())
        return await task

    assert asyncio.run(main()).tolist() == [1, 2, 3]


def test_two_workspaces_in_a_copied_context(pool, ws):
    other = made(pool, "other")
    with ws:
        context = contextvars.copy_context()

    def again():
        with other, ws:
            assert ws.parent is other
            return mc.detach(ws.array([1]))

    assert context.run(again).tolist() == [1]
    other.destroy()


def test_what_a_task_makes_in_a_cycle_of_before_is_outside(ws):
    def late():
        array = np.empty(10)
        return mc.is_attached(array), mc.workspaces.is_valid(array)

    with ws:
        context = contextvars.copy_context()
    with ws:
        assert context.run(late) == (False, True)


def test_two_tasks_in_one_workspace_leave_their_own_entry(ws):
    async def work(first, second, seen):
        with ws:
            first.set()
            await second.wait()
            assert mc.is_attached(np.empty(3))
        seen.append(
            (mc.workspaces.current_workspace(), mc.is_attached(np.empty(3)), ws.is_open)
        )

    async def main():
        seen = []
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(work(one, two, seen), work(two, one, seen))
        return seen

    assert asyncio.run(main()) == [(None, False, True), (None, False, False)]
    assert ws.stats().cycles == 1


def test_it_is_closed_where_it_was_opened(ws):
    ws.open()
    with pytest.raises(WorkspaceError, match="not open in this thread or task"):
        contextvars.Context().run(ws.close)
    assert ws.is_open
    assert ws.is_current
    ws.close()
    ws.open()
    contextvars.Context().run(ws.destroy)
    assert not ws.is_open
    assert not mc.is_attached(np.empty(1))
    with ws:
        assert mc.is_attached(np.empty(1))


def test_a_cycle_is_one_thread_s(ws):
    with ThreadPoolExecutor(1) as pool, ws:
        with pytest.raises(WorkspaceError, match="open in another thread"):
            pool.submit(ws.open).result()
        before = contextvars.copy_context()
        with pytest.raises(WorkspaceError, match="open in another thread"):
            pool.submit(before.run, ws.open).result()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ws.open).result()
        pool.submit(ws.close).result()
    assert ws.stats().cycles == 2


def test_an_error_is_not_hidden_by_a_scope_that_is_gone(ws):
    with pytest.raises(ValueError, match="mine"), ws:  # noqa: PT012
        ws.destroy()
        raise ValueError("mine")


def test_it_may_be_destroyed_inside_its_block(pool, ws):
    with ws:
        kept = np.ones(3)
        ws.destroy()
        assert mc.workspaces.current_workspace() is None
    assert kept.sum() == 3
    del kept
    assert pool.stats().current_bytes == 0


def test_a_callback_cannot_open_what_is_being_opened(pool):
    told = []

    def callback(nbytes):
        with pytest.raises(WorkspaceError, match="being opened"):
            ws.open()
        told.append(nbytes)
        return False

    resource = memory.failure_callback(memory.limiting(pool, 4096), callback)
    ws = made(resource)
    with ws:
        for _ in range(2):
            np.empty(3000, np.uint8)
    with pytest.warns(mc.errors.WorkspaceSpillWarning):
        ws.open()
    ws.close()
    assert told == [7820]
    ws.destroy()


def test_an_allocator_that_was_left_out_of_turn_does_not_come_back(pool, ws):
    allocator = memory.numpy_allocator(pool)
    allocator.__enter__()
    ws.open()
    with pytest.raises(RuntimeError, match="entered later"):
        allocator.__exit__(None, None, None)
    ws.close()
    assert memory.owner_of(np.empty(3)) is None
    with allocator:
        assert memory.owner_of(np.empty(3)) is pool


def refusing(pool, **settings):
    return made(pool, initial_size=4096, spill="fail", **settings)


@pytest.mark.parametrize("outside", [False, True])
def test_a_refusal_in_a_scope_that_was_entered_again(pool, outside):
    ws = refusing(pool)
    with ws, mc.scope_out() if outside else ws, pytest.raises(WorkspaceFullError), ws:
        np.empty(5000)
    ws.destroy()


def callback_that_fails(pool):
    def callback(nbytes):
        raise KeyError(nbytes)

    return memory.failure_callback(memory.limiting(pool, 4096), callback)


def test_open_and_close_tell_what_came_up(pool):
    ws = made(callback_that_fails(pool))
    ws.open()
    with pytest.raises(MemoryError):
        np.empty(5000)
    with pytest.raises(KeyError):
        ws.close()
    assert not ws.is_open
    with ws:
        pass
    ws.destroy()


def test_a_leak_is_told_with_what_came_up_before_it(pool):
    ws = made(callback_that_fails(pool), on_escape="error")
    ws.open()
    with pytest.raises(MemoryError):
        np.empty(5000)
    kept = np.empty(10)
    with pytest.raises(WorkspaceLeakError) as caught:
        ws.close()
    assert isinstance(caught.value.__cause__, KeyError)
    del kept, caught
    with ws:
        pass
    ws.destroy()


def test_parents_keep_nobody_alive(pool):
    one, two = made(pool, "one"), made(pool, "two")

    def cross(one, two):
        one.open()
        two.open()
        one.close()
        one.open()

    contextvars.copy_context().run(cross, one, two)
    assert one.parent is two
    assert two.parent is one
    references = [weakref.ref(one), weakref.ref(two)]
    for each in (one, two):
        each.destroy()
    del one, two, each
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_chains_do_not_grow(pool):
    """Two scopes that are opened and closed alternately, as PingPong does."""
    one, two = made(pool, "one"), made(pool, "two")
    one.open()
    for _ in range(1000):
        two.open()
        one.close()
        one.open()
        two.close()
    before = len(gc.get_objects())
    for _ in range(1000):
        two.open()
        one.close()
        one.open()
        two.close()
    assert len(gc.get_objects()) < before + 100
    one.close()
    for each in (one, two):
        each.destroy()


@pytest.mark.parametrize("reset", ["block_left", "end_of_buffer"])
def test_an_array_of_before_can_be_resized(pool, reset):
    overallocation = 0.0 if reset == "block_left" else 2.0
    ws = made(pool, reset=reset, on_escape="invalidate", overallocation=overallocation)
    with ws:
        spilled = np.arange(10.0)
    with ws:
        spilled.resize(20, refcheck=False)
        assert spilled[:10].tolist() == list(range(10))
        here = np.arange(10.0)
        here.resize(1000, refcheck=False)
        assert here[:10].tolist() == list(range(10))
    del here, spilled
    ws.destroy()


def test_kept_arrays_do_not_make_cycles_slow(ws):
    """Cycles look at no page that they do not need (their number, not their time)."""
    kept = []
    for _ in range(1500):
        with ws:
            kept.append(np.empty(8))
    assert ws.stats().live_arrays == 1500
    assert ws.stats().retired_bytes == 1499 * 64 + 5376
    ws.memory.check()
    ws.destroy()
    assert ws.stats().retired_bytes == 1500 * 64
