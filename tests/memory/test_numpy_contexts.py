"""Where an allocator holds: blocks, threads, tasks, generators; and how it is left."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

from memcfg import memory
from memcfg.errors import ResourceExhaustedError

MIB = 2**20


@pytest.fixture
def pool():
    pool = memory.Pool(limit="64MiB")
    yield pool
    assert get_handler_name() == "default_allocator"
    gc.collect()
    pool.check()
    assert pool.stats().current_bytes == 0


enter = memory.numpy_allocator


def owner():
    return memory.owner_of(np.ones(3))


def in_thread(work):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result(timeout=60)


def test_allocators_nest(pool):
    inner, system = memory.Pool(limit="1MiB"), memory.system()
    with memory.numpy_allocator(pool):
        assert owner() is pool
        with memory.numpy_allocator(inner):
            assert owner() is inner
            with memory.numpy_allocator(system):
                assert owner() is system
            assert owner() is inner
        assert owner() is pool
    assert owner() is None


def test_only_the_innermost_that_refused_turns_a_refusal(pool):
    inner = memory.Pool(limit="1MiB", name="inner")
    with memory.numpy_allocator(pool) as outer:
        with pytest.raises(ResourceExhaustedError) as caught, enter(inner):
            np.ones(MIB)
        assert caught.value.device == "inner"
        assert outer.refusal is None
        with memory.numpy_allocator(inner):
            first = caught.value
    with pytest.raises(ResourceExhaustedError) as caught, memory.numpy_allocator(pool):
        raise first
    assert caught.value is first


def test_an_allocator_serves_again_and_again(pool):
    allocator = memory.numpy_allocator(pool)
    for _ in range(3):
        with allocator as entered:
            assert entered is allocator
            assert owner() is pool
        assert owner() is None


def test_entering_twice_at_once_is_refused(pool):
    allocator = memory.numpy_allocator(pool)
    with allocator:
        with pytest.raises(RuntimeError, match="already"):
            allocator.__enter__()
        with pytest.raises(RuntimeError, match="already"):
            in_thread(allocator.__enter__)
        assert owner() is pool
    with pytest.raises(RuntimeError, match="not entered"):
        allocator.__exit__(None, None, None)


def test_leaving_out_of_order_is_refused_and_the_later_one_leaves_both(pool):
    system = memory.system()
    first, second = memory.numpy_allocator(pool), memory.numpy_allocator(system)
    first.__enter__()
    second.__enter__()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="entered later"):
            first.__exit__(None, None, None)
        assert owner() is system
    second.__exit__(None, None, None)
    assert owner() is None
    with pytest.raises(RuntimeError, match="not entered"):
        first.__exit__(None, None, None)
    with first:
        assert owner() is pool


def test_generators_that_take_turns_leave_nothing_behind(pool):
    def chunks(tag):
        with memory.numpy_allocator(pool, tag=tag):
            yield from (1, 2)

    with pytest.raises(RuntimeError, match="entered later"):
        list(zip(chunks("a"), chunks("b"), chunks("c"), strict=True))
    gc.collect()
    assert owner() is None


def test_leaving_in_another_thread_or_task_is_refused(pool):
    allocator = memory.numpy_allocator(pool)
    with allocator:
        copied = contextvars.copy_context()
        with pytest.raises(RuntimeError, match="another thread or task"):
            in_thread(lambda: allocator.__exit__(None, None, None))
        with pytest.raises(RuntimeError, match="another task"):
            copied.run(allocator.__exit__, None, None, None)
        assert copied.run(owner) is pool
        assert owner() is pool
    assert owner() is None


def test_the_exception_on_its_way_is_not_lost_by_a_refused_exit(pool):
    first = memory.numpy_allocator(pool)
    second = memory.numpy_allocator(pool)

    def work():
        with first:
            second.__enter__()
            raise KeyError("mine")

    with pytest.raises(RuntimeError) as caught:
        work()
    assert isinstance(caught.value.__context__, KeyError)
    second.__exit__(None, None, None)
    assert owner() is None


def test_a_thread_begins_with_numpy_s_own_unless_it_runs_in_a_copied_context(pool):
    with memory.numpy_allocator(pool):
        assert in_thread(owner) is None
        copied = contextvars.copy_context()
        assert in_thread(lambda: copied.run(owner)) is pool


def test_a_decorated_function_enters_one_in_whatever_thread(pool):
    @memory.numpy_allocator(pool, tag="worker")
    def work(nbytes, *, value):
        """Fill."""
        return np.full(nbytes, value, np.uint8)

    assert work.__name__ == "work"
    assert work.__doc__ == "Fill."
    with ThreadPoolExecutor(4) as executor:
        futures = [executor.submit(work, MIB, value=i) for i in range(20)]
        arrays = [future.result() for future in futures]
        assert [int(array.max()) for array in arrays] == list(range(20))
        assert pool.owners() == {"worker": 20 * MIB}
        with pytest.raises(ResourceExhaustedError):
            executor.submit(work, 64 * MIB, value=0).result()
    assert work(3, value=1).sum() == 3
    del arrays, futures


def test_what_runs_later_than_it_is_called_is_not_decorated(pool):
    allocator = memory.numpy_allocator(pool)

    async def coroutine():
        pass

    async def generator():
        yield

    def plain():
        yield

    for later in (coroutine, generator, plain):
        with pytest.raises(TypeError, match="with statement"):
            allocator(later)
    with pytest.raises(TypeError, match="not callable"):
        allocator(3)


def test_tasks_have_their_own(pool):
    system = memory.system()

    async def child(inside):
        assert owner() is inside
        with memory.numpy_allocator(system):
            for _ in range(5):
                await asyncio.sleep(0)
                assert owner() is system
        assert owner() is inside

    async def alone():
        for _ in range(20):
            await asyncio.sleep(0)
            assert owner() is None

    async def main():
        first = asyncio.create_task(alone())
        with memory.numpy_allocator(pool):
            await asyncio.gather(child(pool), child(pool))
            later = asyncio.create_task(child(pool))
            assert await asyncio.to_thread(owner) is pool
        assert owner() is None
        await later  # it began inside
        await asyncio.gather(first, child(None))

    asyncio.run(main())


def test_a_refusal_in_a_task_is_turned_where_it_leaves_the_block(pool):
    async def child():
        await asyncio.sleep(0)
        return np.ones(9 * MIB)

    async def main():
        with pytest.raises(ResourceExhaustedError), memory.numpy_allocator(pool):
            await asyncio.create_task(child())

    asyncio.run(main())


def test_a_generator_that_is_suspended_inside_shares_the_context(pool):
    def rows():
        with memory.numpy_allocator(pool):
            while True:
                yield owner()

    def work():
        first = rows()
        assert next(first) is pool
        assert owner() is pool
        with memory.numpy_allocator(memory.system()) as inner:
            with pytest.raises(RuntimeError, match="entered later"):
                first.close()
            assert owner() is inner.resource
        assert owner() is None

    contextvars.copy_context().run(work)
    second = rows()
    contextvars.copy_context().run(next, second)
    with pytest.raises(RuntimeError, match="another thread or task"):
        second.close()


def test_a_generator_in_order(pool):
    def rows():
        with memory.numpy_allocator(pool):
            for i in range(3):
                yield np.full(10, i)

    assert [memory.owner_of(row) for row in rows()] == [pool] * 3
    assert owner() is None


def test_the_context_goes_with_its_allocator(pool):
    gone = []

    class Marker:
        pass

    def work():
        marker = Marker()
        gone.append(weakref.ref(marker))
        callback = memory.failure_callback(pool, lambda _, __=marker: False)
        allocator = memory.numpy_allocator(callback)
        with allocator:
            return np.ones(1000).sum()

    assert contextvars.copy_context().run(work) == 1000
    gc.collect()
    assert gone[0]() is None


def test_the_pool_waits_for_other_threads():
    pool = memory.Pool(limit="4MiB", retry_seconds=30)
    held = pool.allocate(3 * MIB)
    threading.Timer(0.1, held.free).start()
    with memory.numpy_allocator(pool) as allocator:
        begin = time.monotonic()
        array = np.ones(3 * MIB, np.uint8)
        assert time.monotonic() - begin < 15
        assert allocator.refusal is None
        other = [pool.allocate(MIB // 2)]
        threading.Timer(0.1, other.clear).start()
        array.resize(7 * MIB // 2, refcheck=False)
        assert array.sum() == 3 * MIB
    del array


def test_it_waits_no_longer_than_it_was_told():
    pool = memory.Pool(limit="4MiB", retry_seconds=0.2)
    begin = time.monotonic()
    with pytest.raises(ResourceExhaustedError), memory.numpy_allocator(pool):
        np.empty(5 * MIB)
    assert 0.2 <= time.monotonic() - begin < 15


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX timers")
def test_ctrl_c_while_it_waits_is_not_swallowed():
    pool = memory.Pool(limit="4MiB", retry_seconds=1e9)
    caught = []
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])

    def swallow():
        for _ in range(3):
            try:
                np.empty(5 * MIB)
            except MemoryError as error:
                caught.append(error)
                for _ in range(10):
                    pass

    timer.start()
    with pytest.raises(KeyboardInterrupt), memory.numpy_allocator(pool):
        swallow()
    assert len(caught) <= 1
    assert owner() is None
    timer.join()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX timers")
def test_what_a_signal_raises_while_it_waits_leaves_the_block():
    pool = memory.Pool(limit="4MiB", retry_seconds=1e9)

    def too_late(_signal, _frame):
        raise TimeoutError("too late")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TimeoutError) as caught, memory.numpy_allocator(pool):
            np.empty(5 * MIB)
    finally:
        signal.signal(signal.SIGALRM, before)
    context = caught.value.__context__  # none, if it came before NumPy was asked
    assert context is None or isinstance(context, MemoryError)


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
def test_what_a_callback_raises_leaves_the_block(pool, kind, swallowed):
    def fail(_):
        raise kind("from the callback")

    def work():
        try:
            np.empty(65 * MIB)
        except MemoryError:
            if not swallowed:
                raise

    allocator = memory.numpy_allocator(memory.failure_callback(pool, fail))
    with pytest.raises(kind) as caught, allocator:
        work()
    if kind is not KeyboardInterrupt:
        assert caught.value.args == ("from the callback",)
    assert allocator.refusal is None
    assert owner() is None
    with allocator:
        assert np.ones(3).sum() == 3


@pytest.mark.parametrize("kind", [MemoryError, type("Mine", (MemoryError,), {})])
def test_a_memory_error_of_a_callback_takes_the_place_of_numpy_s(pool, kind):
    def fail(_):
        raise kind("from the callback")

    allocator = memory.numpy_allocator(memory.failure_callback(pool, fail))
    with allocator, pytest.raises(MemoryError, match="shape"):
        np.empty(65 * MIB)
    with pytest.raises(kind, match="from the callback"), allocator:
        np.empty(65 * MIB)
    with pytest.raises(MemoryError, match="another"), allocator:
        raise MemoryError("another")


def test_the_second_exception_does_not_hide_the_first(pool, monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda each: told.append(each.exc_value))
    counter = iter(range(9))

    def fail(_):
        raise KeyError(next(counter))

    def work():
        for _ in range(3):
            with pytest.raises(MemoryError):
                np.empty(65 * MIB)

    with pytest.raises(KeyError) as caught, enter(memory.failure_callback(pool, fail)):
        work()
    assert [each.args for each in told] == [(0,), (1,)]
    assert caught.value.args == (2,)


def test_where_no_block_will_be_left_an_exception_is_told_at_once(pool, monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda each: told.append(each.exc_value))

    def fail(_):
        raise KeyError("from the callback")

    with memory.numpy_allocator(memory.failure_callback(pool, fail)):
        context = contextvars.copy_context()
    with pytest.raises(MemoryError):
        context.run(np.empty, 65 * MIB)
    assert [each.args for each in told] == [("from the callback",)]


def test_a_callback_makes_room_out_of_arrays():
    pool = memory.Pool(limit="16MiB")
    cached = []

    def drop(_):
        return bool(cached) and cached.pop(0) is not None

    with memory.numpy_allocator(memory.failure_callback(pool, drop)):
        for i in range(20):
            cached.append(np.full(4 * MIB - 64, i, np.uint8))
            assert [int(a[-1]) for a in cached] == list(range(i + 1))[-len(cached) :]
        assert len(cached) == 4
        grown = np.arange(MIB // 8)
        while cached:
            grown.resize(grown.size + MIB // 8, refcheck=False)
            np.testing.assert_array_equal(grown[: MIB // 8], range(MIB // 8))
    del grown
    assert pool.stats().current_bytes == 0


@pytest.mark.parametrize("wanted", [500, 110_000, 200_000])
def test_a_callback_cannot_resize_the_array_that_is_being_resized(wanted):
    pool = memory.Pool(limit="1MiB")
    seen = []
    arrays = []

    def meddle(_):
        if arrays:
            with pytest.raises(MemoryError):
                arrays[0].resize(wanted, refcheck=False)
            seen.append(wanted)
        return False

    with enter(memory.failure_callback(pool, meddle)) as allocator:
        arrays.append(np.arange(100_000))
    with pytest.raises(RuntimeError, match="being resized"), allocator:
        arrays[0].resize(300_000, refcheck=False)
    assert seen == [wanted]
    np.testing.assert_array_equal(arrays[0], range(100_000))
    arrays.clear()
    assert pool.stats().current_bytes == 0
