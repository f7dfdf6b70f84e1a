"""What passes do without when memory is short, and take again when it is not."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest
from calls import eventually
from hypothesis import given
from hypothesis import strategies as st
from steps import passing

from memcfg import memory
from memcfg.data import Dataset, Options
from memcfg.errors import ResourceExhaustedError

KIB = 1024


def rows(count, size=KIB):
    return (np.arange(count) % 256).astype(np.uint8)[:, None].repeat(size, axis=1)


class Counted:
    """A dataset of rows of 1 KiB, whose function counts its calls."""

    def __init__(self, count, step=lambda dataset: dataset):
        self.calls = 0
        self.fails = False
        dataset = Dataset.from_tensor_slices(rows(count)).map(self.function)
        self.dataset = step(dataset).cache()

    def function(self, row):
        self.calls += 1
        if self.fails:
            raise OSError("gone")
        return row + 1

    def read(self, pool):
        """Return the first bytes of a pass, and how often the function was called."""
        self.calls = 0
        with passing(self.dataset, pool) as elements:
            return [int(each.flat[0]) for each in elements], self.calls


@pytest.fixture
def pool():
    pool = memory.Pool(limit=64 * KIB, name="short")
    yield pool
    pool.check()


def test_a_cache_keeps_what_fits_and_reads_the_rest_again(pool):
    counted = Counted(100)
    wanted = list(range(1, 101))
    assert counted.read(pool) == (wanted, 100)
    for _ in range(3):
        found, calls = counted.read(pool)
        assert found == wanted
        assert 36 <= calls <= 50
    assert pool.stats().peak_bytes <= 64 * KIB


def test_a_cache_that_fits_reads_nothing_again(pool):
    counted = Counted(40)
    counted.read(pool)
    assert counted.read(pool)[1] == 0


def test_dropped_elements_are_kept_again_when_memory_is_free(pool):
    counted = Counted(50)
    counted.read(pool)
    held = pool.stats().current_bytes
    with pool.allocate(40 * KIB):
        assert pool.stats().current_bytes <= 64 * KIB
        found, calls = counted.read(pool)
        assert found == list(range(1, 51))
        assert 25 <= calls <= 40
    counted.read(pool)
    assert counted.read(pool) == (list(range(1, 51)), 0)
    assert pool.stats().current_bytes == held


def test_memory_may_be_taken_and_freed_amid_a_pass(pool):
    counted = Counted(50)
    for number in range(6):
        with passing(counted.dataset, pool) as elements:
            found, blocks = [], []
            for element in elements:
                found.append(int(element[0]))
                if len(found) == 7 * number:
                    blocks.append(pool.allocate(45 * KIB))
                if len(found) == 7 * number + 10:
                    blocks.clear()
                del element
            blocks.clear()
        assert found == list(range(1, 51))


def test_a_report_names_a_cache_that_is_not_whole(pool):
    counted = Counted(100)
    with passing(counted.dataset, pool) as elements:
        list(map(len, elements))
        assert elements.report().stages == ()
    with passing(counted.dataset, pool) as elements:
        list(map(len, elements))
        (stage,) = elements.report().stages
    assert (stage.name, stage.items) == ("cache", 100)
    assert 0 < stage.buffer_size < 64
    assert stage.nbytes == stage.buffer_size * KIB
    assert stage.missing_bytes == (100 - stage.buffer_size) * KIB


def test_behind_maps_and_batches_only_what_is_missing_is_computed(pool):
    counted = Counted(100, lambda dataset: dataset.batch(4))
    found, _ = counted.read(pool)
    again, calls = counted.read(pool)
    assert again == found
    assert calls < 60


@pytest.mark.parametrize(
    "step",
    [
        lambda dataset: dataset.shuffle(10, seed=1),
        lambda dataset: dataset.flat_map(lambda row: Dataset.from_tensors(row)),
        lambda dataset: dataset.map(abs, num_parallel_calls=2, deterministic=False),
    ],
)
def test_a_cache_of_what_does_not_repeat_has_to_fit(pool, step):
    counted = Counted(100, step)
    with pytest.raises(ResourceExhaustedError):
        counted.read(pool)
    assert eventually(lambda: pool.stats().current_bytes == 0)  # no cycle has any
    smaller = Counted(20, step)
    found = sorted(smaller.read(pool)[0])
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(50 * KIB)
    assert sorted(smaller.read(pool)[0]) == found


def test_without_determinism_a_cache_has_to_fit(pool):
    options = Options()
    options.deterministic = False
    counted = Counted(100)
    counted.dataset = counted.dataset.with_options(options)
    with pytest.raises(ResourceExhaustedError):
        counted.read(pool)


def test_a_shuffle_that_stays_may_be_cached_in_part(pool):
    def step(dataset):
        return dataset.shuffle(10, seed=1, reshuffle_each_iteration=False)

    counted = Counted(100, step)
    found, _ = counted.read(pool)
    again, calls = counted.read(pool)
    assert again == found
    assert calls == 100  # a shuffled row has no number to begin at
    assert sorted(found) == list(range(1, 101))


def test_passes_in_threads_share_a_cache_that_is_not_whole(pool):
    counted = Counted(100)
    counted.read(pool)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(counted.read(pool)[0]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [list(range(1, 101))] * 3


@given(st.data())
def test_any_demands_leave_the_elements_as_they_are(data):
    pool = memory.Pool(limit=64 * KIB, name="short")
    count = data.draw(st.integers(1, 120))
    counted = Counted(count)
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(1, 40))
        with pool.allocate(size * KIB):
            assert counted.read(pool)[0] == list(range(1, count + 1))
    assert pool.stats().peak_bytes <= 64 * KIB


def test_a_ring_gives_its_empty_blocks_and_grows_again():
    pool = memory.Pool(limit=64 * KIB, name="short")
    dataset = Dataset.from_tensor_slices(rows(900)).batch(1).prefetch(20)
    with passing(dataset, pool) as elements:

        def read(count):
            return [int(next(elements)[0, 0]) for _ in range(count)]

        def buffer_size():
            (stage,) = elements.report().stages
            return stage.buffer_size

        found = read(4)
        assert buffer_size() == 20
        with pytest.raises(ResourceExhaustedError):
            pool.allocate(61 * KIB)  # too much beside three blocks
        assert 1 <= buffer_size() < 20  # but the ring shrinks
        found += read(30)
        with pool.allocate(50 * KIB):
            found += read(50)
            assert 1 <= (least := buffer_size()) < 10
        found += read(900 - len(found))
        assert buffer_size() > least
    assert found == [number % 256 for number in range(900)]
    assert pool.stats().peak_bytes <= 64 * KIB


def test_a_ring_takes_memory_of_a_cache_but_not_the_other_way_round(pool):
    counted = Counted(100)
    counted.read(pool)
    dataset = counted.dataset.batch(2).prefetch(4)
    for _ in range(3):
        with passing(dataset, pool) as elements:
            found = [int(x) for each in elements for x in each[:, 0]]
            (stage, *_) = elements.report().stages
        assert found == list(range(1, 101))
        assert 1 < stage.buffer_size <= 4  # temporaries take a block of it
    assert pool.stats().peak_bytes <= 64 * KIB


def beside_others(limit, size, kept_every, others):
    """Cache rows of some bytes, and keep some of the arrays of the first pass.

    Return the pool, which a cache has filled, the arrays, and the dataset.
    """
    pool = memory.Pool(limit=limit, name="short")
    dataset = Dataset.from_tensor_slices(rows(2 * limit // size, size))
    dataset, kept, left = dataset.map(lambda row: row + 1).cache(), [], others
    with passing(dataset, pool) as elements:
        for number, element in enumerate(elements):
            if number % kept_every == 0 and left >= size:
                kept.append(element)
                left -= size
            del element
    return pool, kept, dataset


def granted(pool, size, most):
    """Allocate blocks of a size; return their bytes when `most` or none are left."""
    blocks = []
    try:
        while (len(blocks) + 1) * size <= most:
            blocks.append(pool.allocate(size))
    except ResourceExhaustedError:
        pass
    return len(blocks) * size


def test_small_elements_of_a_cache_leave_no_pages_in_pieces():
    """Elements of 2 KiB beside which a loader holds others, as a shuffle does."""
    pool, kept, _ = beside_others(1024 * KIB, 2 * KIB, 1, 500 * KIB)
    assert pool.stats().current_bytes > 1000 * KIB
    assert granted(pool, 31 * KIB, 500 * KIB) == 496 * KIB
    assert [int(each[0]) for each in kept] == [(i + 1) % 256 for i in range(len(kept))]
    pool.check()


@given(st.data())
def test_what_a_cache_gives_back_can_be_allocated_in_any_size(data):
    """But for the ends of pages that the 16 blocks share with other arrays."""
    limit, ends = 1024 * KIB, 16 * 2 * 4 * KIB
    size = 64 * data.draw(st.integers(8, 256), "lines of an element")
    every = data.draw(st.integers(1, 5), "one element in so many is kept")
    others = data.draw(st.integers(0, 800), "KiB of others") * KIB
    pool, kept, dataset = beside_others(limit, size, every, others)
    wanted = data.draw(st.integers(1, 200), "KiB of a block") * KIB
    most = limit - len(kept) * size - ends
    assert granted(pool, wanted, most) == most // wanted * wanted
    assert pool.stats().peak_bytes <= limit
    pool.check()
    with passing(dataset, memory.Pool(name="other")) as elements:
        found = bytes(int(each[0]) for each in elements)
    assert found == bytes((i + 1) % 256 for i in range(2 * limit // size))


def test_a_slab_is_no_larger_than_its_elements_once_a_pass_has_ended():
    pool = memory.Pool(limit=1024 * KIB, name="short")
    counted = Counted(39)
    counted.read(pool)
    assert pool.stats().current_bytes == 39 * KIB
    assert counted.read(pool)[1] == 0


@pytest.mark.parametrize("ending", ["close", "error", "collected"])
def test_what_a_pass_that_ends_early_has_added_stays_in_the_pool(pool, ending):
    """The rows that it adds where some were dropped, and trims when it ends."""
    counted = Counted(50)
    counted.read(pool)
    with pool.allocate(20 * KIB):
        pass
    assert 0 < counted.read(pool)[1] < 20
    with pool.allocate(20 * KIB):
        pass
    elements = passing(counted.dataset, pool)
    kept = pool.holders.spare_bytes // KIB
    for _ in range(kept + 3):
        next(elements)
    if ending == "close":
        elements.close()
    elif ending == "error":
        counted.fails = True
        with pytest.raises(OSError, match="gone"):
            next(elements)
        counted.fails = False
    del elements
    gc.collect()
    assert pool.holders.spare_bytes == pool.stats().current_bytes == (kept + 3) * KIB
    assert counted.read(pool)[1] == 50 - kept - 3


def test_a_shuffle_behind_a_cache_that_stays_holds_no_element_twice():
    pool = memory.Pool(limit=1024 * KIB)
    counted = Counted(300, lambda dataset: dataset.shuffle(300, seed=1))
    counted.read(pool)
    held = pool.stats().current_bytes
    assert held == 300 * KIB
    pool.reset_peak()
    with passing(counted.dataset.shuffle(300, seed=2), pool) as elements:
        found = sorted(int(each[0]) for each in elements)
    assert found == sorted((i + 1) % 256 for i in range(300))
    assert pool.stats().peak_bytes < held + 16 * KIB
    pool.check()


def test_elements_may_go_in_a_thread_while_passes_add_and_trim_them():
    pool, ended = memory.Pool(limit=512 * KIB), threading.Event()
    counted = Counted(200)
    counted.read(pool)

    def demand():
        drawn = np.random.default_rng(0)
        while not ended.is_set():
            pool.holders.give_back(int(drawn.integers(1, 200)) * KIB)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=demand)
    thread.start()
    try:
        for _ in range(20):
            assert counted.read(pool)[0] == [(i + 1) % 256 for i in range(200)]
    finally:
        ended.set()
        thread.join(60)
        sys.setswitchinterval(interval)
    assert pool.holders.spare_bytes == pool.stats().current_bytes
    assert counted.read(pool)[0] == [(i + 1) % 256 for i in range(200)]
    assert counted.read(pool)[1] == 0
    assert pool.holders.spare_bytes == pool.stats().current_bytes == 200 * KIB
    pool.check()
