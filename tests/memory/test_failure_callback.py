"""The failure callback: asked before a request fails, free to do what it likes."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from memcfg import memory
from memcfg.errors import ResourceExhaustedError


def test_it_makes_room_until_the_request_fits():
    pool = memory.Pool(limit=2**20)
    cached = [pool.allocate(2**18, tag="cache") for _ in range(4)]
    asked = []

    def drop(nbytes):
        asked.append(nbytes)
        if not cached:
            return False
        cached.pop().free()
        return True

    careful = memory.failure_callback(pool, drop)
    with careful.allocate(2**19):
        assert asked == [2**19] * 2
        assert len(cached) == 2
    with pytest.raises(ResourceExhaustedError, match="memory limit"):
        careful.allocate(2**21)
    assert asked == [2**19] * 2 + [2**21] * 3
    assert pool.stats().current_bytes == 0


@pytest.mark.parametrize("answer", [False, None, 0, ""])
def test_anything_false_lets_the_refusal_stand(answer):
    careful = memory.failure_callback(memory.Pool(limit=64), lambda _: answer)
    with pytest.raises(ResourceExhaustedError) as caught:
        careful.allocate(65)
    assert caught.value.limit_bytes == 64


def test_it_is_not_asked_about_what_is_no_request():
    def never(_):
        raise AssertionError("asked")

    careful = memory.failure_callback(memory.Pool(limit=64), never)
    for bad in (0, -1, "64"):
        with pytest.raises((TypeError, ValueError)):
            careful.allocate(bad)
    careful.allocate(64).free()


@pytest.mark.parametrize("error", [KeyError, MemoryError, KeyboardInterrupt])
def test_what_it_raises_leaves_allocate(error):
    def fail(_):
        raise error("no")

    pool = memory.Pool(limit=64)
    stacked = memory.statistics(
        memory.limiting(memory.failure_callback(pool, fail), 1024)
    )
    for _ in range(3):
        with pytest.raises(error, match="no"):
            stacked.allocate(65)
    for resource in (pool, stacked):
        resource.check()
        assert resource.stats().current_bytes == 0
        assert resource.stats().allocation_count == 0
    stacked.allocate(64).free()


def test_a_truth_that_cannot_be_told_is_raised_too():
    class Undecided:
        def __bool__(self):
            raise RuntimeError("neither")

    careful = memory.failure_callback(memory.Pool(limit=64), lambda _: Undecided())
    with pytest.raises(RuntimeError, match="neither"):
        careful.allocate(65)


def test_it_may_use_the_resource_and_the_pool():
    pool = memory.Pool(limit=4096)
    depth = []

    def again(nbytes):
        pool.trim()
        pool.check()
        assert pool.stats().current_bytes <= 4096
        depth.append(nbytes)
        if len(depth) > 4:
            return False
        with pytest.raises(ResourceExhaustedError):
            careful.allocate(nbytes + 1)
        with careful.allocate(64):
            return False

    careful = memory.failure_callback(pool, again)
    with pytest.raises(ResourceExhaustedError):
        careful.allocate(5000)
    assert depth == [5000, 5001, 5002, 5003, 5004]


def test_it_can_wait_for_another_thread():
    pool = memory.Pool(limit=2**20)
    held = pool.allocate(2**20)
    asked = threading.Event()
    room = threading.Event()

    def wait(_):
        asked.set()
        return room.wait(30)

    def free():
        asked.wait(30)
        held.free()
        room.set()

    helper = threading.Thread(target=free)
    helper.start()
    with memory.failure_callback(pool, wait).allocate(2**20) as block:
        assert block.nbytes == 2**20
    helper.join()


def test_it_must_be_callable_and_stand_on_a_resource():
    pool = memory.Pool()
    with pytest.raises(TypeError, match="not callable"):
        memory.failure_callback(pool, 3)
    for bad in (None, 3, pool.allocate(1)):
        with pytest.raises(TypeError):
            memory.failure_callback(bad, bool)


def test_a_pool_does_not_stand_on_one():
    careful = memory.failure_callback(memory.system(), lambda _: False)
    for below in (careful, memory.statistics(careful)):
        with pytest.raises(ValueError, match="on top of a pool"):
            memory.Pool(below)


def test_a_callback_that_knows_its_resource_is_collected_with_it():
    class Owner:
        def __init__(self):
            self.resource = memory.failure_callback(memory.system(), self.drop)
            self.block = self.resource.allocate(64)

        def drop(self, _):
            return False

    owner = Owner()
    system = owner.resource.upstream
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
    assert system.stats().current_bytes == 0


def test_it_lives_as_long_as_what_stands_on_it():
    asked = []
    stacked = memory.limiting(
        memory.failure_callback(memory.Pool(limit=64), asked.append), None
    )
    gc.collect()
    with pytest.raises(ResourceExhaustedError):
        stacked.allocate(65)
    assert asked == [65]
