"""The tag of the context: for allocations that name none."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from memcfg import memory


def test_it_names_what_names_nothing():
    pool = memory.Pool()
    with memory.tag("outer"):
        blocks = [pool.allocate(64), pool.allocate(64, tag="own")]
        with memory.tag("inner"):
            blocks.append(pool.allocate(64))
            arena = pool.arena()
            arena.grow(64)
        with memory.tag(""):
            blocks.append(pool.allocate(64))
        blocks.append(pool.allocate(64))
    blocks.append(pool.allocate(64))
    assert [block.tag for block in blocks] == ["outer", "own", "inner", "", "outer", ""]
    assert arena.tag == "inner"
    held = {"unnamed": 128, "inner": 128, "outer": 128, "own": 64}
    assert pool.owners() == held
    with memory.tag("unnamed"):  # which a tag may be, too
        blocks.append(pool.allocate(64))
    assert pool.owners() == held | {"unnamed": 192}


def test_it_ends_when_the_context_fails():
    pool = memory.Pool()
    with pytest.raises(KeyError), memory.tag("lost"):
        raise KeyError
    assert pool.allocate(1).tag == ""


def test_it_passes_through_what_stands_on_a_pool():
    pool = memory.Pool()
    with memory.tag("batch"), memory.statistics(pool).allocate(64):
        assert pool.owners() == {"batch": 64}


def test_threads_and_tasks_have_their_own():
    pool = memory.Pool()
    tags = []

    def work():
        tags.append(pool.allocate(1).tag)

    async def task(name):
        with memory.tag(name):
            await asyncio.sleep(0)
            tags.append(pool.allocate(1).tag)

    async def tasks():
        await asyncio.gather(task("a"), task("b"))

    with memory.tag("main"):
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: contextvars.Context().run(work))
        thread.start()
        thread.join()
        asyncio.run(tasks())
    context.run(work)
    assert tags == ["", "a", "b", "main"]


@pytest.mark.parametrize("bad", [None, 3, b"tag"])
def test_it_is_a_string(bad):
    with pytest.raises(TypeError, match="a tag is a string"), memory.tag(bad):
        pass
