"""Rows of arrays: gathered from memory of any form, element by element or at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memcfg.data.rows._rows import ArrayColumn, Rows, in_order
from memcfg.memory import numpy_allocator

LENGTH = 12


def forms() -> dict[str, np.ndarray]:
    """Arrays with the rows 0 to 11, however they lie in memory."""
    plain = np.arange(LENGTH * 6).reshape(LENGTH, 2, 3)
    odd = np.frombuffer(b"x" + plain.tobytes(), np.int8)[1:].view(plain.dtype)
    wide = np.repeat(np.repeat(plain, 2, axis=0), 2, axis=2)
    return {
        "plain": plain,
        "columns first": np.asfortranarray(plain),
        "another order": plain.astype(plain.dtype.newbyteorder(">")),
        "not aligned": odd.reshape(plain.shape),
        "backwards": plain[::-1].copy()[::-1],
        "every second": wide[::2, :, ::2],
        "one again and again": np.broadcast_to(plain[0], plain.shape),
        "no axis beside": plain[:, 0, 0],
        "strided, no axis beside": plain[:, 1, 1],
        "text": plain.astype(str),
        "days": plain.astype("M8[D]"),
        "bools": plain % 5 == 0,
        "no bytes": np.zeros((LENGTH, 0)),
    }


rows = hnp.arrays(np.int64, st.integers(1, 30), elements=st.integers(0, LENGTH - 1))


@pytest.mark.parametrize("form", forms())
@settings(deadline=None)
@given(rows=rows, start=st.integers(0, LENGTH - 1), length=st.integers(1, LENGTH))
def test_rows_are_gathered(form, rows, start, length):
    array = forms()[form]
    column = ArrayColumn(array)
    run = np.arange(start, min(start + length, LENGTH))
    for numbers in (rows, run):
        found = column.take(numbers)
        assert found.dtype == array.dtype.newbyteorder("=")
        assert found.flags.c_contiguous
        assert found.flags.writeable
        assert np.array_equal(found, array[numbers])


@pytest.mark.parametrize("form", forms())
def test_values_are_rows(form):
    array = forms()[form]
    column = ArrayColumn(array)
    values = [column.value(row) for row in range(LENGTH)]
    assert np.array_equal(values, array)
    assert np.array_equal(list(column.values(LENGTH)), array)
    assert np.array_equal(list(column.values(5)), array[:5])
    for value in [*values, *column.values(LENGTH)]:
        assert value.dtype == column.spec.dtype
        assert value.dtype.isnative
        assert value.shape == column.spec.shape
        assert isinstance(value, np.ndarray) == (value.ndim > 0)


def test_a_batch_of_strided_rows_copies_no_more_than_itself(pool):
    array = np.asfortranarray(np.zeros((1000, 50)))
    column = ArrayColumn(array)
    with numpy_allocator(pool):
        found = column.take(np.array([1, 5, 3]))
    assert pool.stats().peak_bytes < found.nbytes + 1000 < array.nbytes
    del found


def test_a_nest_of_columns():
    x, y = np.arange(6).reshape(3, 2), np.arange(3)
    columns = {"b": ArrayColumn(x), "a": (ArrayColumn(y),)}
    rows = Rows(columns, 3)
    batch = rows.take(np.array([2, 0]))
    assert list(batch) == ["b", "a"]
    assert batch["b"].tolist() == [[4, 5], [0, 1]]
    assert batch["a"][0].tolist() == [2, 0]
    element = rows.element(1)
    assert element["b"].tolist() == [2, 3]
    assert element["a"] == (1,)
    assert [element["a"] for element in rows.elements()] == [(0,), (1,), (2,)]


@settings(deadline=None)
@given(st.sampled_from([0, 1, 5, 8191, 8192, 8193, 16384, 20001]))
def test_numbers_in_order(count):
    chunks = [chunk.copy() for chunk in in_order(count)]
    assert all(len(chunk) for chunk in chunks)
    assert [n for chunk in chunks for n in chunk.tolist()] == list(range(count))
