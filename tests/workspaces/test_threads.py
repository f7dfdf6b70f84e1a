"""Each thread has workspaces of its own; arrays are everybody's."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import WorkspaceLeakWarning

PAGE = mc.WorkspaceConfig(initial_size=64_000, allocation="strict", learning="none")


def in_a_thread(function, *arguments):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *arguments).result(30)


def test_a_thread_begins_with_none(pool):
    with mc.workspace("loop", PAGE, resource=pool) as ws:
        seen = in_a_thread(
            lambda: (
                mc.workspaces.current_workspace(),
                mc.is_attached(np.ones(3)),
                mc.workspaces.summary(),
            )
        )
        assert seen == (None, False, "No workspaces of this thread")
        assert mc.workspaces.current_workspace() is ws


def test_the_same_name_is_another_workspace(pool):
    here = mc.workspace("loop", PAGE, resource=pool)
    settings = PAGE.replace(initial_size=640)
    barrier = threading.Barrier(4)

    def work(number):
        ws = mc.workspace("loop", settings, resource=pool)
        for _ in range(50):
            with ws:
                a = ws.full(20, number)
                barrier.wait(30)
                assert mc.workspace_of(a) is ws
                assert (a == number).all()
                assert ws.stats().live_arrays < 10
                del a
            barrier.wait(30)
        return id(ws), ws.thread_id

    with ThreadPoolExecutor(4) as executor:
        made = list(executor.map(work, range(4)))
    assert len({*made, (id(here), threading.get_ident())}) == 5
    assert mc.list_workspaces() == [here]


def test_a_threads_workspaces_go_with_it(pool):
    def work():
        ws = mc.workspace("there", PAGE, resource=pool)
        with ws:
            ws.ones(10)
        return weakref.ref(ws), pool.owners()

    known, held = in_a_thread(work)
    assert held == {"workspace there": 64_000}
    assert known() is None
    assert pool.owners() == {}


def test_an_open_one_goes_too(pool):
    def work():
        mc.workspace("there", PAGE, resource=pool).open()
        np.ones(10)

    in_a_thread(work)
    gc.collect()  # the thread's context, with the allocator in it
    assert pool.owners() == {}


def test_arrays_stay_when_the_thread_has_gone(pool):
    def work():
        with mc.workspace("there", PAGE, resource=pool) as ws:
            return ws.full(100, 5.0), np.full(10, 6.0)

    first, second = in_a_thread(work)
    assert (first == 5).all()
    assert (second == 6).all()
    for array in (first, second):
        assert mc.is_attached(array)
        assert mc.workspaces.is_valid(array)
        assert mc.workspace_of(array) is None
        assert not mc.workspaces.is_in_scope(array)
        assert mc.workspaces.generation_of(array) == 1
    assert list(pool.owners()) == ["workspace there"]
    out = mc.detach(first)
    del first, second, array
    assert pool.owners() == {}
    assert (out == 5).all()


def test_leverage_of_what_a_dead_thread_left(pool):
    def work():
        with mc.workspace("there", PAGE, resource=pool) as ws:
            return ws.full(3, 5.0)

    a = in_a_thread(work)
    with mc.workspace("here", PAGE, resource=pool) as ws:
        assert mc.workspace_of(mc.workspaces.leverage(a)) is None
        assert mc.workspace_of(mc.workspaces.leverage_to(a, ws)) is ws
        assert mc.workspace_of(mc.workspaces.migrate(a)) is ws
    del a


def test_an_array_is_freed_by_another_thread(pool):
    ws = mc.workspace("loop", PAGE, resource=pool)
    box = []
    with ws:
        box.append(ws.ones(10))
        in_a_thread(box.clear)
        assert ws.stats().live_arrays == 0
    assert ws.stats().escaped_arrays == 0


def test_an_array_of_another_thread_can_be_taken(pool):
    with mc.workspace("here", PAGE, resource=pool) as ws:
        box = [ws.full(10, 3.0)]

        def work():
            with mc.workspace("there", PAGE, resource=pool) as there:
                moved = mc.workspaces.leverage_to(box.pop(), there)
                assert mc.workspace_of(moved) is there
                return mc.detach(moved)

        assert (in_a_thread(work) == 3).all()
        assert ws.stats().live_arrays == 0


def test_a_workspace_can_be_handed_on(pool):
    ws = mc.workspace("loop", PAGE, resource=pool)

    def work():
        with ws:
            return mc.workspace_of(np.ones(3)) is ws, mc.workspaces.workspace_exists(
                "loop"
            )

    assert in_a_thread(work) == (True, False)
    assert ws.stats().cycles == 1


def test_a_copied_context_takes_the_workspace_along(pool):
    with mc.workspace("loop", PAGE, resource=pool) as ws:
        context = contextvars.copy_context()
        found = in_a_thread(context.run, mc.workspaces.current_workspace)
        assert found is ws


def test_tasks_inherit_and_do_not_disturb_each_other(pool):
    async def inner(name):
        with mc.workspace(name, PAGE, resource=pool) as ws:
            await asyncio.sleep(0)
            assert mc.workspaces.current_workspace() is ws
            await asyncio.sleep(0)
            return mc.workspace_of(np.ones(3)) is ws

    async def outer():
        with mc.workspace("outer", PAGE, resource=pool) as ws:
            tasks = [asyncio.create_task(inner(f"task {n}")) for n in range(3)]
            assert mc.workspaces.current_workspace() is ws
            assert await asyncio.gather(*tasks) == [True] * 3
            assert mc.workspaces.current_workspace() is ws

    asyncio.run(outer())


def test_a_hundred_threads_leave_nothing(pool):
    def work(number):
        for name in ("one", "two"):
            with mc.workspace(name, resource=pool) as ws:
                assert (ws.full(1000, number) == number).all()

    for number in range(100):
        in_a_thread(work, number)
    assert pool.owners() == {}


def test_destroying_all_while_threads_come_and_go(pool):
    stop = threading.Event()
    failures = []

    def work():
        try:
            while not stop.wait(0.0002):
                ws = mc.workspace("loop", PAGE, resource=pool)
                a = ws.full(10, 1.0)  # closed: outside
                assert (a == 1).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        mc.destroy_all_workspaces(thread="all")
        in_a_thread(lambda: mc.workspace("short", PAGE, resource=pool) and None)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    mc.destroy_all_workspaces(thread="all")
    gc.collect()
    assert pool.owners() == {}


def test_the_child_of_a_fork_goes_on(pool):
    ws = mc.workspace("loop", PAGE, resource=pool)
    with ws:
        kept = ws.full(10, 3.0)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert mc.workspaces.current_workspace() is ws
                assert mc.list_workspaces() == [ws]
                assert (kept == 3).all()
                ws.full(10, 4.0)
                del kept
                ws.close()
                mc.destroy_all_workspaces(thread="all")
                assert mc.workspaces.current_workspace() is None
                with mc.workspace("loop", resource=pool):
                    np.ones(100)
                mc.destroy_all_workspaces()
                assert pool.owners() == {}
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (kept == 3).all()
        del kept
    assert ws.stats().live_arrays == 0


def test_an_escape_told_in_a_thread(pool):
    def work():
        ws = mc.workspace("loop", PAGE.replace(on_escape="warn"), resource=pool)
        with pytest.warns(WorkspaceLeakWarning, match="kept in"), ws:
            kept = ws.ones(3)
        return kept.sum()

    assert in_a_thread(work) == 3
