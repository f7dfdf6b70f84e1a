"""The ring: what it learns, what it holds, and that nothing in it is overwritten."""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg import memory

# Blocks and their bytes are seen from inside only: a pass tells their sum.
from memcfg.data.engine._batch_blocks import SPARE, Ring
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up


def batch(ring, nbytes, value=0, buffer_size=2):
    ring.fit(buffer_size)
    with ring:
        array = np.empty(nbytes, np.uint8)
    array.fill(value)  # here: NumPy makes arrays for it
    return array


@pytest.fixture
def ring(pool):
    return Ring("a ring", pool)


def test_the_first_batch_tells_the_size(ring, pool):
    assert (ring.block_bytes, ring.nbytes) == (0, 0)
    first = batch(ring, 1000)
    assert ring.block_bytes == align_up(1000)
    assert ring.nbytes == 0
    ring.fit(2)
    assert ring.nbytes == 4 * 1024
    assert pool.stats().current_bytes == 5 * 1024
    del first
    assert pool.stats().current_bytes == 4 * 1024
    ring.destroy()
    assert pool.stats().current_bytes == 0


def test_a_cycle_without_arrays_learns_nothing(ring):
    for _ in range(3):
        ring.fit(2)
        with ring:
            pass
    assert (ring.block_bytes, ring.nbytes) == (0, 0)


@pytest.mark.parametrize("buffer_size", [1, 2, 8])
def test_in_the_steady_state_nothing_is_allocated(ring, pool, buffer_size):
    alive = deque(maxlen=buffer_size + SPARE - 1)  # but for the one that is made
    for number in range(100):
        if number == 2 * (buffer_size + SPARE):
            before = pool.stats()
        alive.append(batch(ring, 1000, number % 256, buffer_size))
        kept = range(max(0, number - len(alive) + 1), number + 1)
        assert [int(each[0]) for each in alive] == [n % 256 for n in kept]
        del kept
    after = pool.stats()
    assert after.allocation_count == before.allocation_count
    assert after.peak_bytes == before.peak_bytes <= (buffer_size + SPARE + 1) * 1024
    alive.clear()
    ring.destroy()


def test_batches_that_are_kept_stay(ring, pool):
    kept = [batch(ring, 1000, number) for number in range(20)]
    assert [int(each.min()) for each in kept] == list(range(20))
    assert [int(each.max()) for each in kept] == list(range(20))
    ring.destroy()
    assert [int(each.max()) for each in kept] == list(range(20))
    assert pool.stats().current_bytes == 20 * 1024
    del kept
    assert pool.stats().current_bytes == 0


def test_one_that_is_kept_keeps_its_block_only(ring, pool):
    first = [batch(ring, 1000, 7)]
    kept = [batch(ring, 1000, 8)]
    first.clear()
    for number in range(50):
        batch(ring, 1000, number)
    assert pool.stats().current_bytes == 4 * 1024
    alive = [batch(ring, 1000, number) for number in range(4)]  # one block too few
    assert pool.stats().current_bytes == 5 * 1024
    assert int(kept[0].max()) == 8
    alive.clear()
    kept.clear()
    ring.destroy()


def test_a_block_that_was_used_lately_is_used_again(ring):
    batch(ring, 1000)
    addresses = {batch(ring, 1000).ctypes.data for _ in range(10)}
    assert len(addresses) == 1
    ring.destroy()


def test_a_larger_batch_lies_outside_and_blocks_grow_one_by_one(ring, pool):
    for _ in range(5):
        batch(ring, 1000)
    assert ring.nbytes == 4 * 1024
    large = [batch(ring, 4000)]
    assert ring.block_bytes == align_up(int(align_up(4000) * 1.3))
    alive = []
    for number in range(1, 5):
        alive.append(batch(ring, 1000))
        assert ring.nbytes == (4 - number) * 1024 + number * ring.block_bytes
    alive.clear()
    count = pool.stats().allocation_count
    large.clear()
    for _ in range(10):
        batch(ring, 4000)
    assert pool.stats().allocation_count == count
    ring.destroy()


def test_a_smaller_batch_changes_nothing(ring):
    for nbytes in (1000, 10, 1, 1000):
        batch(ring, nbytes)
    assert ring.nbytes == 4 * 1024
    ring.destroy()


def test_temporaries_of_a_cycle_count(ring, pool):
    ring.fit(1)
    with ring:
        first, second = np.zeros(500, np.uint8), np.zeros(500, np.uint8)
        kept = first + second
        del first, second
    assert ring.block_bytes == 3 * 512
    del kept
    ring.destroy()


def test_another_buffer_size_is_another_number_of_blocks(ring, pool):
    alive = [batch(ring, 1000, 0, 2), batch(ring, 1000, 1, 2)]
    for buffer_size in (5, 1, 3, 1):
        alive.append(batch(ring, 1000, len(alive), buffer_size))
        assert ring.nbytes == (buffer_size + SPARE) * 1024
    assert [int(each.max()) for each in alive] == list(range(6))
    alive.clear()
    assert pool.stats().current_bytes == ring.nbytes
    ring.destroy()


def test_a_failed_cycle_takes_no_block(ring, pool):
    alive = [batch(ring, 1000, 0)]
    for number in range(1, 10):
        ring.fit(2)
        with pytest.raises(IndexError), ring:
            np.zeros(5000)[5000]
        assert ring.block_bytes == 1024
        alive.append(batch(ring, 1000, number))
        if len(alive) == 3:
            alive.pop(0)
    assert [int(each[0]) for each in alive] == [8, 9]
    assert ring.nbytes == 4 * 1024
    alive.clear()
    ring.destroy()


def test_after_its_end_it_can_be_destroyed_again(ring):
    kept = batch(ring, 10)
    ring.fit(2)
    for _ in range(3):
        ring.destroy()
    assert ring.nbytes == 0
    assert kept.size == 10


def test_blocks_have_the_rings_name(ring, pool):
    kept = [batch(ring, 1000) for _ in range(2)]
    assert pool.owners() == {"workspace a ring": 5 * 1024}
    assert mc.workspace_of(kept[1]).name == "a ring"
    kept.clear()
    ring.destroy()


def test_no_memory_says_what_fits():
    pool = memory.Pool(limit=8 * 1024)
    ring = Ring("a ring", pool)
    first = [batch(ring, 1000)]
    with pytest.raises(ResourceExhaustedError) as caught:
        ring.fit(8)
    assert "a ring of 10 blocks of 1.00 KiB (buffer_size=8)" in str(caught.value)
    assert "buffer_size=4 fits." in str(caught.value)  # and a block is left
    assert ring.fits == 4
    assert caught.value.limit_bytes == 8 * 1024
    ring.fit(4)
    assert pool.stats().current_bytes == 7 * 1024
    first.clear()
    ring.fit(6)
    ring.destroy()
    assert pool.stats().current_bytes == 0


def test_no_memory_for_any_buffer_says_so():
    pool = memory.Pool(limit=3 * 1024)
    ring = Ring("a ring", pool)
    first = batch(ring, 1000)
    with pytest.raises(ResourceExhaustedError, match="No buffer fits: lower the batch"):
        ring.fit(1)
    assert ring.fits <= 0
    ring.destroy()
    del first


class RefusedError(Exception):
    """The ring does not fit; the arguments are what does, and for which batch."""


def run(sizes, buffer_size, limit):
    """Play a producer as fast as it can be, and a consumer who only comes if he must.

    A refusal stands only when nothing waits and the consumer has but one batch, as for
    the real producer. Each batch is checked against its number when it is let go.
    """
    pool = memory.Pool(limit=limit)
    ring = Ring("a ring", pool)
    waiting, held = deque(), []

    def consume():
        held[:] = [waiting.popleft()]
        number, array = held[0]
        assert (array == number % 251).all()

    def fit(number):
        try:
            ring.fit(buffer_size)
        except ResourceExhaustedError:
            while waiting:
                consume()
            try:
                ring.fit(buffer_size)
            except ResourceExhaustedError as error:
                said = re.search(r"buffer_size=(\d+) fits", str(error))
                raise RefusedError(int(said[1]) if said else 0, number) from None

    try:
        for number, size in enumerate(sizes):
            if len(waiting) >= buffer_size:
                consume()
            fit(number)
            with ring:
                array = np.empty(size, np.uint8)
            array.fill(number % 251)
            waiting.append((number, array))
            del array
        while waiting:
            consume()
    finally:
        waiting.clear()
        held.clear()
        ring.destroy()
        assert pool.owners() == {}
        pool.check()
    return pool.stats().peak_bytes


@given(st.integers(1, 5000), st.integers(1, 12), st.integers(1, 60_000))
def test_the_buffer_that_is_said_to_fit_does(size, buffer_size, limit):
    """Batches of one size: exactly, and none larger would."""
    sizes = [size] * 30
    try:
        run(sizes, buffer_size, limit)
    except RefusedError as refused:
        fits = refused.args[0]
        block = align_up(size)
        most = max(0, limit // 64 * 64 // block - 1 - SPARE)
        assert fits == (most - 1 if most > 1 else most)
        if fits:
            run(sizes, fits, limit)
            run(sizes, most, limit)
    except MemoryError:
        assert limit < align_up(size)


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(4000, 100_000),
)
def test_what_is_said_to_fit_does_for_the_batches_so_far(sizes, buffer_size, limit):
    """A second refusal can only be for a batch that the first did not know."""
    try:
        run(sizes, buffer_size, limit)
    except RefusedError as refused:
        fits, number = refused.args
        assert fits < buffer_size
        if fits:
            with suppress(MemoryError):
                run(sizes[: number + 1], fits, limit)
    except MemoryError:
        pass  # a batch larger than the blocks, and no memory beside them


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.integers(0, 12), st.integers(1, 4)),
        max_size=40,
    )
)
def test_no_batch_is_overwritten_however_long_it_is_kept(steps):
    """Batches of any size, each kept for some cycles, in a ring of changing depth."""
    pool = memory.Pool()
    ring = Ring("a ring", pool)
    alive: list[tuple[int, int, np.ndarray]] = []
    for number, (size, cycles, buffer_size) in enumerate(steps):
        array = batch(ring, size, number % 251, buffer_size)
        alive.append((number + cycles, number, array))
        for _, made, each in alive:
            assert (each == made % 251).all()
        alive = [entry for entry in alive if entry[0] > number]
    ring.destroy()
    for _, made, each in alive:
        assert (each == made % 251).all()
    array = each = None
    alive.clear()
    pool.check()
    assert pool.owners() == {}
