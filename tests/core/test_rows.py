"""The loops in C over rows: elements written into them, and shuffled orders."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shuffle_oracle import shuffled, words_of

from memcfg._core.rows import RandomWords, RowWriter, ShuffleOrder


class Pair(NamedTuple):
    a: Any
    b: Any


def columns():
    return np.zeros((4, 3), np.float32), np.zeros(4, np.int64)


def elements(count, kind=tuple):
    made = ((np.full(3, i, np.float32), np.int64(i)) for i in range(count))
    return (kind(pair) for pair in made)


def test_elements_are_written_until_the_last_row():
    x, y = columns()
    source = elements(9)
    assert RowWriter((x, y), (0, 1)).fill(1, 4, source, None, False) == (4, ())
    assert y.tolist() == [0, 0, 1, 2]
    assert x.tolist() == [[0] * 3, [0] * 3, [1] * 3, [2] * 3]
    assert next(source)[1] == 3  # none was taken that was not written


def test_it_ends_with_the_elements():
    x, y = columns()
    assert RowWriter((x, y), (0, 1)).fill(0, 4, elements(2), None, False) == (2, ())


def test_a_function_is_applied():
    x, y = columns()
    writer = RowWriter((x, y), (0, 1))
    assert writer.fill(0, 4, elements(4), lambda a, b: (a + 1, b * 2), True) == (4, ())
    assert y.tolist() == [0, 2, 4, 6]
    assert writer.fill(0, 4, elements(4), lambda pair: pair[::1], False) == (4, ())
    assert x[:, 0].tolist() == [0, 1, 2, 3]


def test_what_a_function_raises_comes_through():
    def function(_):
        raise StopIteration

    (x, y) = columns()
    with pytest.raises(StopIteration):
        RowWriter((x, y), (0, 1)).fill(0, 4, elements(4), function, False)


def test_nests():
    x, y = columns()
    nested = ({"a": (pair[0],), "b": Pair(pair[1], pair[1])} for pair in elements(4))
    writer = RowWriter((x, y, y.copy()), {"b": Pair(1, 2), "a": (0,)})
    assert writer.fill(0, 4, nested, None, False) == (4, ())
    assert y.tolist() == [0, 1, 2, 3]
    (leaf,) = (np.zeros(2),)
    assert RowWriter((leaf,), 0).fill(0, 2, iter([1.5, 2.5]), None, False) == (
        0,
        (1.5,),
    )
    numbers = iter([np.float64(1.5), np.array(2.5)])
    assert RowWriter((leaf,), 0).fill(0, 2, numbers, None, False) == (2, ())
    assert leaf.tolist() == [1.5, 2.5]


GOOD = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    "element",
    [
        (GOOD,),
        (GOOD, np.int64(1), np.int64(1)),
        [GOOD, np.int64(1)],
        Pair(GOOD, np.int64(1)),
        {"a": GOOD, "b": np.int64(1)},
        (GOOD, 1),
        (GOOD, np.int32(1)),
        (GOOD, np.zeros(1, np.int64)),
        (np.zeros(3), np.int64(1)),
        (np.zeros(4, np.float32), np.int64(1)),
        (np.zeros((3, 1), np.float32), np.int64(1)),
        (np.zeros(6, np.float32)[::2], np.int64(1)),
        (np.zeros(3, ">f4"), np.int64(1)),
        (np.ma.masked_array(GOOD), np.int64(1)),
        (None, None),
        (np.float32(1), np.int64(1)),
    ],
    ids=repr,
)
def test_what_is_not_alike_is_handed_back(element):
    x, y = columns()
    source = iter([(GOOD, np.int64(7)), element, (GOOD, np.int64(8))])
    row, left = RowWriter((x, y), (0, 1)).fill(0, 4, source, None, False)
    assert row == 1
    assert left[0] is element
    assert len(list(source)) == 1


def test_large_rows_are_copied_with_the_lock_released():
    column, row = np.zeros((2, 1 << 16)), np.arange(1 << 16, dtype=float)
    writer = RowWriter((column,), 0)
    assert writer.fill(1, 2, iter([row]), None, False) == (2, ())
    assert (column[1] == row).all()
    assert not column[0].any()


@pytest.mark.parametrize(
    ("arrays", "form", "error"),
    [
        ((np.zeros(3),), 1, ValueError),
        ((np.zeros(3),), -1, ValueError),
        ((np.zeros(3),), [0], TypeError),
        ((np.zeros(3),), (0, None), TypeError),
        ((np.zeros(6)[::2],), 0, ValueError),
        ((np.float64(1),), 0, TypeError),
        ((np.zeros(()),), 0, ValueError),
        ((np.array([None]),), 0, ValueError),
        ((np.broadcast_to(1.0, (3,)),), 0, ValueError),
    ],
)
def test_columns_are_plain_memory(arrays, form, error):
    with pytest.raises(error):
        RowWriter(arrays, form)


def test_rows_that_are_not_there():
    writer = RowWriter(columns(), (0, 1))
    for row, stop in ((-1, 2), (0, 5)):
        with pytest.raises(IndexError):
            writer.fill(row, stop, elements(3), None, False)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 1000))
@settings(deadline=None, max_examples=20)
def test_words_are_philoxs(key, stream, count):
    words = RandomWords(key, stream)
    assert [words.next() for _ in range(count)] == list(
        islice(words_of(key, stream), count)
    )


@given(
    st.integers(0, 300), st.integers(1, 300), st.lists(st.integers(1, 100), min_size=1)
)
@settings(deadline=None)
def test_chunks_of_any_length_give_one_order(count, size, lengths):
    order = ShuffleOrder(size, 1, 2, lambda length: np.empty(length, np.int64))
    found, start = [], 0
    while start < count:
        length = min(lengths[start % len(lengths)], count - start)
        chunk = np.arange(start, start + length)
        found += chunk[: order.exchange_rows(chunk, chunk)].tolist()
        start += length
    out = np.empty(7, np.int64)
    while gone := order.drain(out):
        found += out[:gone].tolist()
    assert found == shuffled(range(count), size, (1, 2))
