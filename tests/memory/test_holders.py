"""Memory is given back before a request of a pool is refused."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from memcfg import memory
from memcfg.config import WorkspaceConfig
from memcfg.errors import ResourceExhaustedError
from memcfg.workspaces import Workspace

KIB = 1024


class Blocks:
    """Blocks of 1 KiB, given back from the last one on."""

    def __init__(self, pool, count=0, log=None):
        self.blocks = [pool.allocate(KIB, tag="spare") for _ in range(count)]
        self.log = [] if log is None else log

    @property
    def spare_bytes(self):
        return sum(block.nbytes for block in self.blocks)

    def give_back(self, nbytes):
        given = 0
        while given < nbytes and self.blocks:
            given += self.blocks.pop().nbytes
        self.log.append((self, nbytes, given))
        return given


@pytest.fixture
def pool():
    pool = memory.Pool(limit=64 * KIB, name="short")
    yield pool
    pool.check()


def block(pool):
    pool.allocate(40 * KIB).free()


def array(pool):
    with memory.numpy_allocator(pool):
        np.empty(40 * KIB, np.uint8)


def larger_array(pool):
    with memory.numpy_allocator(pool):
        array = np.empty(4 * KIB, np.uint8)
        array.resize(40 * KIB, refcheck=False)


def arena(pool):
    arena = pool.arena(tag="arena")
    arena.grow(40 * KIB)
    arena.free()


def lower_limit(pool):
    pool.set_limit(24 * KIB)


def page_of_workspace(pool):
    config = WorkspaceConfig(initial_size=40 * KIB, allocation="strict")
    Workspace(config, "page", resource=pool).destroy()


def array_in_workspace(pool):
    config = WorkspaceConfig(allocation="strict", learning="none")
    with Workspace(config, "empty", resource=pool) as workspace:
        np.empty(40 * KIB, np.uint8)
    workspace.destroy()


def through_statistics(pool):
    memory.statistics(pool).allocate(40 * KIB).free()


def pool_on_top(pool):
    memory.Pool(pool).allocate(40 * KIB).free()


@pytest.mark.parametrize(
    "request_memory",
    [
        block,
        array,
        larger_array,
        arena,
        lower_limit,
        page_of_workspace,
        array_in_workspace,
        through_statistics,
        pool_on_top,
    ],
)
def test_a_request_of_any_kind_has_memory_given_back(pool, request_memory):
    spare = Blocks(pool, 60)
    pool.holders.add(spare, 0)
    before = len(spare.blocks)
    request_memory(pool)
    assert 0 < len(spare.blocks) < before
    assert pool.stats().peak_bytes <= 64 * KIB


def test_those_of_lower_order_give_first_and_no_more_than_needed(pool):
    log = []
    second, first = Blocks(pool, 20, log), Blocks(pool, 20, log)
    pool.holders.add(second, 1)
    pool.holders.add(first, 0)
    assert pool.holders.spare_bytes == 40 * KIB
    with pool.allocate(40 * KIB):
        assert (len(first.blocks), len(second.blocks)) == (4, 20)
        with pool.allocate(10 * KIB):
            assert (len(first.blocks), len(second.blocks)) == (0, 14)
    assert [each is first for each, _, _ in log] == [True, True, False]


def test_without_enough_to_give_the_request_is_refused(pool):
    spare = Blocks(pool, 10)
    pool.holders.add(spare, 0)
    with pytest.raises(ResourceExhaustedError) as caught:
        pool.allocate(65 * KIB)
    assert caught.value.in_use_bytes == 0  # the numbers are those of the last try
    assert spare.blocks == []


def test_a_limit_on_top_asks_nobody(pool):
    spare = Blocks(pool, 10)
    pool.holders.add(spare, 0)
    with pytest.raises(ResourceExhaustedError):
        memory.limiting(pool, 4 * KIB).allocate(8 * KIB)
    assert len(spare.blocks) == 10


def test_a_holder_that_allocates_is_not_asked_again(pool):
    class Greedy(Blocks):
        def give_back(self, nbytes):
            with pytest.raises(ResourceExhaustedError):
                pool.allocate(64 * KIB)
            return super().give_back(nbytes)

    pool.holders.add(greedy := Greedy(pool, 40), 0)
    with pool.allocate(40 * KIB):
        assert len(greedy.log) == 1


def test_no_holder_is_kept_alive(pool):
    spare = Blocks(pool, 3)
    pool.holders.add(spare, 0)
    alive = weakref.ref(spare)
    del spare
    assert alive() is None
    assert len(pool.holders) == 0
    assert pool.stats().current_bytes == 0


@pytest.mark.parametrize("request_memory", [block, array])
def test_what_a_holder_raises_is_raised(pool, request_memory):
    class Broken(Blocks):
        def give_back(self, nbytes):
            raise ZeroDivisionError

    pool.holders.add(broken := Broken(pool, 60), 0)
    with pytest.raises(ZeroDivisionError):
        request_memory(pool)
    assert len(broken.blocks) == 60


def test_threads_take_and_give_within_the_limit(pool):
    spares = [Blocks(pool, 12) for _ in range(2)]
    for each in spares:
        pool.holders.add(each, 0)
    failures = []

    def work(own):
        try:
            for _ in range(300):
                own.blocks.extend(pool.allocate(KIB) for _ in range(4))
                with pool.allocate(16 * KIB):
                    pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in spares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert pool.stats().peak_bytes <= 64 * KIB
