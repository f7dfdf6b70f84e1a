"""What every resource promises: one suite, run on each of them."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading

import numpy as np
import pytest
from machine import blocks_of
from resources import ALL_MAKERS, MAKERS, NAMES, touchable

from memcfg.errors import InvalidFreeError, ResourceExhaustedError
from memcfg.memory import Block, FailureCallbackResource, PoolStats, Resource
from memcfg.units import align_up


@pytest.fixture(params=NAMES)
def resource(request):
    resource = ALL_MAKERS[request.param]()
    yield resource
    resource.check()
    assert resource.stats().current_bytes == 0
    assert resource.owners() == {}


def state(resource: Resource) -> tuple[object, ...]:
    """What a refusal must leave alone."""
    stats = resource.stats()
    return (
        stats.current_bytes,
        stats.requested_bytes,
        stats.allocation_count,
        stats.deallocation_count,
        resource.owners(),
    )


@pytest.mark.strength(1)
@pytest.mark.parametrize("alignment", [1, 64, 128, 4096, 2**21])
@pytest.mark.parametrize("nbytes", [1, 64, 65, 100_000])
def test_blocks_are_aligned_and_rounded(resource, nbytes, alignment):
    with resource.allocate(nbytes, alignment=alignment) as block:
        assert block.address % max(alignment, 64) == 0
        assert (block.nbytes, block.requested) == (align_up(nbytes), nbytes)
        assert block.resource is resource
        stats = resource.stats()
        assert stats.current_bytes == align_up(nbytes) <= stats.reserved_bytes
        assert stats.requested_bytes == nbytes
        resource.check()


def test_numbers_are_those_of_the_blocks(resource):
    first = resource.allocate(100, tag="a")
    resource.allocate(1000, tag="b", lifetime="long").free()
    stats = resource.stats()
    assert isinstance(stats, PoolStats)
    assert (stats.current_bytes, stats.peak_bytes) == (128, 128 + 1024)
    assert (stats.allocation_count, stats.deallocation_count) == (2, 1)
    assert 0 <= stats.fragmentation <= 1
    assert resource.owners() == {"a": 128}
    resource.reset_peak()
    assert resource.stats().peak_bytes == 128
    assert pickle.loads(pickle.dumps(stats)) == stats == copy.copy(stats)
    first.free()


def test_blocks_can_be_written_where_there_is_memory(resource):
    block = resource.allocate(1000)
    if not touchable(resource):
        with pytest.raises(BufferError, match="addresses, but no memory"):
            memoryview(block)
        block.free()
        return
    view = np.frombuffer(block, np.uint8)
    assert len(view) == block.requested == 1000 < block.nbytes
    view[:] = 7
    with pytest.raises(BufferError, match="freed: 1 exported"):
        block.free()
    with pytest.raises(BufferError, match="detached: 1 exported"):
        block.detach()
    del block
    assert resource.stats().current_bytes == 1024
    assert view.sum() == 7 * 1000


@pytest.mark.strength(1)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"nbytes": 0}, ValueError),
        ({"nbytes": -1}, ValueError),
        ({"nbytes": 1.5}, TypeError),
        ({"nbytes": "1KiB"}, TypeError),
        ({"nbytes": True}, TypeError),
        ({"nbytes": 1, "alignment": 0}, ValueError),
        ({"nbytes": 1, "alignment": 3}, ValueError),
        ({"nbytes": 1, "alignment": 2**80}, ValueError),
        ({"nbytes": 1, "alignment": 64.0}, TypeError),
        ({"nbytes": 1, "lifetime": "forever"}, ValueError),
        ({"nbytes": 1, "lifetime": 1}, ValueError),
        ({"nbytes": 1, "tag": None}, TypeError),
    ],
)
def test_requests_that_are_none(resource, arguments, error):
    before = state(resource)
    with pytest.raises(error):
        resource.allocate(**arguments)
    assert state(resource) == before


@pytest.mark.strength(1)
@pytest.mark.parametrize("nbytes", [2**60, 2**63 - 1, 2**64 - 1, 2**70])
def test_more_than_there_is_is_refused(resource, nbytes):
    with resource.allocate(100, tag="held"):
        before = state(resource)
        with pytest.raises(ResourceExhaustedError) as caught:
            resource.allocate(nbytes)
        assert state(resource) == before
    error = caught.value
    assert error.requested_bytes == min(nbytes, 2**64 - 1)
    assert error.hint
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_a_block_frees_once(resource):
    for end in (Block.free, Block.detach):
        block = resource.allocate(10)
        address = block.address
        end(block)
        for use in (
            block.free,
            block.detach,
            block.__enter__,
            lambda: block.address,  # noqa: B023 - called at once
            lambda: block.nbytes,  # noqa: B023
            lambda: block.requested,  # noqa: B023
            lambda: memoryview(block),  # noqa: B023
        ):
            with pytest.raises(ValueError, match="freed or detached"):
                use()
        assert "freed or detached" in repr(block)
        if end is Block.detach:
            resource.deallocate(address, 10)
    with resource.allocate(10) as block:
        block.free()  # and leaving the context is no second time


def test_wrong_frees_raise_and_change_nothing(resource):
    address = resource.allocate(100, tag="a").detach()
    before = state(resource)
    for wrong in (0, 99, 101, 128, 2**64):
        with pytest.raises(InvalidFreeError):
            resource.deallocate(address, wrong)
    for foreign in (0, 64, address + 64, id(resource), 2**64 - 64):
        with pytest.raises(InvalidFreeError):
            resource.deallocate(foreign, 100)
    for bad in (1.5, "0", None):
        with pytest.raises(TypeError):
            resource.deallocate(bad, 100)
        with pytest.raises(TypeError):
            resource.deallocate(address, bad)
    with pytest.raises(ValueError, match="negative"):
        resource.deallocate(-64, 100)
    assert state(resource) == before
    resource.deallocate(address, 100)
    with pytest.raises(InvalidFreeError):
        resource.deallocate(address, 100)


@pytest.mark.strength(1)
@pytest.mark.parametrize("other", MAKERS)
def test_a_block_of_another_is_foreign(resource, other):
    foreign = MAKERS[other]()
    with foreign.allocate(100) as block, pytest.raises(InvalidFreeError):
        resource.deallocate(block.address, 100)


def test_a_block_that_was_freed_behind_its_back_says_so(resource):
    block = resource.allocate(100)
    resource.deallocate(block.address, 100)
    with pytest.raises(InvalidFreeError):
        block.free()
    del block  # and is silent then


def test_what_was_taken_for_it_is_not_freed_below(resource):
    if isinstance(resource, FailureCallbackResource):
        return  # it hands on blocks of upstream, and has none
    with resource.allocate(1000):
        before, below = state(resource), resource.upstream
        while below is not None:
            for address, nbytes, _, _ in blocks_of(below):
                with pytest.raises(InvalidFreeError, match="goes back there"):
                    below.deallocate(address, nbytes)
            below = below.upstream
        resource.check()
        assert state(resource) == before


def test_a_block_that_cannot_go_back_silently_is_reported(resource, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: reported.append(it.exc_type))
    block = resource.allocate(100)
    resource.deallocate(block.address, 100)
    del block
    assert reported == [InvalidFreeError]


def test_forgotten_blocks_go_back(resource):
    blocks = [resource.allocate(1000) for _ in range(100)]
    cycle = [blocks]
    cycle.append(cycle)
    del blocks, cycle
    gc.collect()
    assert resource.stats().current_bytes == 0


def test_blocks_outlive_the_names_of_what_they_came_from(resource):
    block = MAKERS["all at once"]().allocate(64)
    gc.collect()
    block.resource.check()
    block.free()


def test_trim_gives_back_what_no_block_holds(resource):
    blocks = [resource.allocate(100_000) for _ in range(10)]
    for block in blocks:
        block.free()
    reserved = resource.stats().reserved_bytes
    given = resource.trim()
    assert given == reserved - resource.stats().reserved_bytes
    assert resource.trim() == 0
    for bad in (-1, 1.5, None):
        with pytest.raises((TypeError, ValueError)):
            resource.trim(bad)


def test_threads_share_it(resource):
    shelf: list[Block] = []
    writes = touchable(resource)
    broken = []

    def work(lane: int) -> None:
        generator = np.random.default_rng(lane)
        for nbytes in generator.integers(1, 100_000, 300):
            block = resource.allocate(int(nbytes), tag=str(lane))
            if writes:
                memoryview(block)[:] = bytes([lane]) * block.requested
            shelf.append(block)
            if len(shelf) > 20:
                other = shelf.pop(0)  # atomic under the GIL; of any thread
                if writes and bytes(other) != bytes([int(other.tag)]) * other.requested:
                    broken.append(other)
                other.free()

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken
    resource.check()
    assert sum(resource.owners().values()) == sum(block.nbytes for block in shelf)
    shelf.clear()
    stats = resource.stats()
    assert stats.allocation_count == stats.deallocation_count == 1200


def test_two_threads_cannot_free_one_block(resource):
    for _ in range(50):
        block = resource.allocate(64)
        done = []
        barrier = threading.Barrier(2)

        def free(block=block, done=done, barrier=barrier):
            barrier.wait()
            try:
                block.free()
            except ValueError:
                return
            done.append(True)

        threads = [threading.Thread(target=free) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [True]


def test_any_text_is_a_tag(resource):
    tags = ["ä", "\udcff", "", "a" * 1000, "nul\0inside"]
    blocks = [resource.allocate(1, tag=tag) for tag in tags]
    assert resource.owners() == {tag or "unnamed": 64 for tag in tags}
    assert [block.tag for block in blocks] == tags


def test_it_is_neither_copied_nor_pickled_nor_made_by_hand(resource):
    block = resource.allocate(64)
    for thing in (resource, block):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.copy(thing)
    with pytest.raises(TypeError, match="made by"):
        Block()
    with pytest.raises(TypeError, match="made by"):
        Resource()
    with pytest.raises(TypeError, match="acceptable base type"):
        type("Mine", (type(resource),), {})
    with pytest.raises(TypeError, match="made by"):
        type("Mine", (Resource,), {})()


def test_its_repr_tells_the_numbers(resource):
    with resource.allocate(1000, tag="weights") as block:
        assert "1.00 KiB" in repr(resource)
        assert type(resource).__name__ in repr(resource)
        assert f"{block.address:#x}" in repr(block)
        assert "'weights'" in repr(block)
