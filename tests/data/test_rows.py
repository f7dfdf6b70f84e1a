"""Rows of arrays: gathered from memory of any form, element by element or at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import passing

from memcfg.data import Dataset

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


@pytest.mark.parametrize("form", forms())
@settings(deadline=None)
@given(
    seed=st.integers(0, 99),
    size=st.integers(1, 30),
    start=st.integers(0, LENGTH - 1),
    length=st.integers(1, LENGTH),
)
def test_rows_are_gathered(form, seed, size, start, length):
    array = forms()[form]
    dataset = Dataset.from_tensor_slices(array)
    order = list(Dataset.range(LENGTH).repeat(3).shuffle(40, seed))
    mixed = dataset.repeat(3).shuffle(40, seed).batch(size)
    in_order = dataset.skip(start).take(length).batch(size)
    for batches, numbers in (
        (mixed, order),
        (in_order, range(LENGTH)[start:][:length]),
    ):
        found = list(batches)
        for batch in found:
            assert batch.dtype == array.dtype.newbyteorder("=")
            assert batch.flags.c_contiguous
            assert batch.flags.writeable
        assert np.array_equal(np.concatenate(found), array[list(numbers)])


@pytest.mark.parametrize("form", forms())
def test_elements_are_rows(form):
    array = forms()[form]
    dataset = Dataset.from_tensor_slices(array)
    elements = list(dataset)
    assert np.array_equal(elements, array)
    assert np.array_equal(list(dataset.take(5)), array[:5])
    spec = dataset.element_spec
    for element in [*elements, *dataset.skip(2)]:
        assert element.dtype == spec.dtype
        assert element.dtype.isnative
        assert element.shape == spec.shape
        assert isinstance(element, np.ndarray) == (element.ndim > 0)


def test_a_batch_of_strided_rows_copies_no_more_than_itself(pool):
    array = np.asfortranarray(np.zeros((1000, 50)))
    with passing(
        Dataset.from_tensor_slices(array).shard(300, 1).batch(3), pool
    ) as rows:
        found = next(rows)
        numbers = 3 * 8 * len(array)  # of rows, which lie in the pool too
        assert pool.stats().peak_bytes < found.nbytes + 1000 + numbers < array.nbytes
    del found


def test_a_nest_of_columns():
    x, y = np.arange(6).reshape(3, 2), np.arange(3)
    dataset = Dataset.from_tensor_slices({"b": x, "a": (y,)})
    batch = next(iter(dataset.shard(2, 0).batch(2)))
    assert list(batch) == ["b", "a"]
    assert batch["b"].tolist() == [[0, 1], [4, 5]]
    assert batch["a"][0].tolist() == [0, 2]
    element = next(iter(dataset.skip(1)))
    assert element["b"].tolist() == [2, 3]
    assert element["a"] == (1,)
    assert [element["a"] for element in dataset] == [(0,), (1,), (2,)]


@settings(deadline=None)
@given(st.sampled_from([0, 1, 5, 8191, 8192, 8193, 16384, 20001]))
def test_numbers_in_order(count):
    batches = [batch.tolist() for batch in Dataset.range(count).batch(1000)]
    assert all(batches)
    assert [n for batch in batches for n in batch] == list(range(count))
