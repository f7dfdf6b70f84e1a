"""Shuffled passes against a plain model of tf.data's, and what they keep where."""

from __future__ import annotations

import threading
import time
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shuffle_oracle import seeds_of, shuffled
from steps import Items, listed, passing

from memcfg.data import UNKNOWN_CARDINALITY, Dataset
from memcfg.errors import ResourceExhaustedError
from memcfg.memory import Pool

rows = Dataset.range


def numbers(count):
    """The same elements as those of `rows`, one by one."""
    return Dataset(Items([np.int64(number) for number in range(count)]))


SIZES = st.integers(1, 300)
COUNTS = st.integers(0, 300)
SEEDS = st.integers(-(2**70), 2**70)


@given(COUNTS, SIZES, SEEDS, st.booleans())
@settings(deadline=None)
def test_passes_are_tensorflows_over_rows_and_elements(count, size, seed, reshuffle):
    seeds = seeds_of(seed, reshuffle)
    one_by_one = numbers(count).shuffle(size, seed, reshuffle)
    by_rows = rows(count).shuffle(size, seed, reshuffle)
    assert by_rows._node.has_rows
    assert not one_by_one._node.has_rows
    for _ in range(3):
        expected = shuffled(range(count), size, next(seeds))
        assert listed(one_by_one) == expected
        assert listed(by_rows) == expected


def test_repeated_passes_draw_from_one_sequence():
    for source in (numbers(10), rows(10)):
        seeds = seeds_of(3)
        node = source.shuffle(4, 3).repeat(3)
        expected = [shuffled(range(10), 4, next(seeds)) for _ in range(3)]
        assert listed(node) == list(chain(*expected))


def test_a_pass_draws_when_it_begins_and_not_when_it_is_read():
    for source in (numbers(10), rows(10)):
        seeds = seeds_of(3)
        node = source.shuffle(4, 3)
        first, second = passing(node), passing(node)
        assert [int(x) for x in second] != (one := shuffled(range(10), 4, next(seeds)))
        assert [int(x) for x in first] == one
        second.close()


def test_the_source_of_a_shuffle_begins_at_its_first_element():
    inner = rows(10).shuffle(4, 3)
    outer = inner.shuffle(5, 1)
    assert not outer._node.has_rows
    with passing(outer) as later:
        with passing(inner) as sooner:
            expected = shuffled(range(10), 4, next(seeds_of(3)))
            assert [int(x) for x in sooner] == expected
        list(later)


def test_asking_what_elements_are_draws_nothing():
    for source in (numbers(10), rows(10)):
        node = source.shuffle(4, 3)
        assert node.map(lambda x: x).element_spec.dtype == np.int64
        assert node.flat_map(lambda n: rows(2)).element_spec.dtype == np.int64
        assert listed(node) == shuffled(range(10), 4, next(seeds_of(3)))


def test_without_a_seed_orders_differ():
    node = rows(100).shuffle(100)
    assert listed(node) != listed(node)
    assert listed(node) != listed(rows(100).shuffle(100))
    fixed = rows(100).shuffle(100, reshuffle_each_iteration=False)
    assert listed(fixed) == listed(fixed)
    assert listed(fixed) != listed(
        rows(100).shuffle(100, reshuffle_each_iteration=False)
    )


def test_a_buffer_of_unknown_size_holds_everything():
    expected = shuffled(range(100), 10**9, next(seeds_of(1)))
    assert listed(rows(100).shuffle(UNKNOWN_CARDINALITY, 1)) == expected
    assert listed(numbers(100).shuffle(UNKNOWN_CARDINALITY, 1)) == expected


def test_every_order_of_four_is_about_as_likely():
    node = rows(4).shuffle(4, 7)
    counts = {}
    for _ in range(24 * 50):
        order = tuple(listed(node))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 50) ** 2 / 50 for count in counts.values()) < 60  # p ~ 4e-5


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0,), ValueError),
        ((-1,), ValueError),
        ((-3,), ValueError),
        ((2.0,), TypeError),
        ((True,), TypeError),
        ((None,), TypeError),
        ((3, 1.5), TypeError),
        ((3, "a"), TypeError),
        ((3, 1, 1), TypeError),
    ],
)
def test_arguments_that_are_none_are_refused(arguments, error):
    with pytest.raises(error):
        rows(3).shuffle(*arguments)


def test_elements_that_wait_are_let_go_when_they_went(pool):
    made = []

    def element():
        made.append(np.ones(1000))
        return made.pop()

    with passing(Items([element] * 100).dataset.shuffle(10, 1), pool) as elements:
        for _ in range(50):
            next(elements)
        kept = pool.stats().current_bytes
        assert 9 * 8000 <= kept <= 11 * 8064 + 4096
        list(elements)
        assert pool.stats().current_bytes == 0


def test_numbers_of_rows_are_in_the_pool(pool):
    with passing(rows(50_000).shuffle(50_000, 1), pool) as elements:
        next(elements)
        assert pool.stats().current_bytes >= 50_000 * 8


def test_a_buffer_that_does_not_fit_is_an_error_and_keeps_nothing():
    pool = Pool(limit="1MiB", name="small")
    node = rows(1000).repeat().shuffle(10**9, 1)
    elements = passing(node, pool)
    with pytest.raises(ResourceExhaustedError):
        next(elements)
    assert list(elements) == []
    del elements
    assert pool.stats().current_bytes == 0


def test_an_error_of_the_source_is_raised_and_ends_the_pass():
    boom = ValueError("boom")
    source = Items([*map(np.int64, range(5)), boom]).dataset
    with passing(source.shuffle(3, 1)) as elements:
        found = [int(next(elements)) for _ in range(3)]
        with pytest.raises(ValueError, match="boom") as caught:
            next(elements)
        assert caught.value is boom
        assert list(elements) == []
    assert len(set(found)) == 3


@pytest.mark.parametrize("has_rows", [True, False])
def test_filling_a_buffer_ends_when_the_pass_is_closed(has_rows, pool):
    source = rows(10) if has_rows else Items([np.int64(1)], endless=True).dataset
    elements = passing(source.repeat().shuffle(2**61, 1), pool)
    found = []
    thread = threading.Thread(target=lambda: found.extend(elements))
    thread.start()
    time.sleep(0.05)
    elements.close()
    thread.join(60)
    assert not thread.is_alive()
    assert found == []
