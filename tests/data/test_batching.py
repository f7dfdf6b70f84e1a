"""Batches: what they hold, where they lie, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import Items, passing

import memcfg as mc
from memcfg.errors import ResourceExhaustedError

Dataset = mc.data.Dataset


def batched(items, size=2, drop=False, pool=None, **known):
    data = Items(items, **known).dataset.batch(size, drop)
    with passing(data, pool) as batches:
        return list(batches)


def oracle(values, size, drop):
    ends = range(size, len(values) + size, size)
    found = [values[end - size : end] for end in ends]
    return [each for each in found if not drop or len(each) == size]


@given(
    count=st.integers(0, 40),
    size=st.integers(1, 50),
    drop=st.booleans(),
    shuffled=st.booleans(),
    mapped=st.booleans(),
    rows=st.booleans(),
    known=st.booleans(),
)
def test_batches_are_what_stacking_gives(
    count, size, drop, shuffled, mapped, rows, known
):
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    y = np.arange(count)
    data = Dataset.from_tensor_slices({"x": x, "y": (y,)})
    order = np.arange(count)
    if shuffled:
        data = data.shuffle(7, seed=3)
        order = np.array([int(one["y"][0]) for one in data], int)
        data = Dataset.from_tensor_slices({"x": x[order], "y": (y[order],)})
    if not rows:
        data = data.filter(lambda _: True)
    if not known:
        data = data.concatenate(data.take(0).filter(lambda _: True))
    if mapped:
        data = data.map(lambda one: {"x": one["x"] * 2, "y": one["y"]})
    expected = oracle(order.tolist(), size, drop)
    found = list(data.batch(size, drop_remainder=drop))
    assert [one["y"][0].tolist() for one in found] == expected
    for one in found:
        assert one["x"].dtype == np.float32
        assert one["x"].flags.writeable
        assert one["x"].flags.c_contiguous
        assert (one["x"] == x[one["y"][0]] * (2 if mapped else 1)).all()


@pytest.mark.parametrize("known", [False, True])
def test_a_batch_may_be_larger_than_all_there_is(known):
    data = Dataset.range(3) if known else Dataset.range(3).filter(lambda _: True)
    (batch,) = data.batch(2**40)
    assert batch.tolist() == [0, 1, 2]
    assert list(data.batch(2**40, drop_remainder=True)) == []


def test_text_is_as_wide_as_the_longest():
    words = ["a", "bcd", "ef", "ghijk", "l"]
    found = batched([np.array(word)[()] for word in words])
    assert [batch.tolist() for batch in found] == [["a", "bcd"], ["ef", "ghijk"], ["l"]]
    assert [batch.dtype.str for batch in found] == ["<U3", "<U5", "<U1"]


def test_batches_may_differ_in_shape():
    items = [np.zeros(n) for n in (2, 2, 3, 3, 1)]
    assert [batch.shape for batch in batched(items)] == [(2, 2), (2, 3), (1, 1)]


A, B = np.zeros((2, 3)), np.zeros((2, 4))


@pytest.mark.parametrize("before", [0, 2, 4], ids="{} batches before".format)
@pytest.mark.parametrize(
    ("items", "error", "words"),
    [
        (
            [A, B],
            ValueError,
            r"in component 0: element 0 .*\[2, 3\].*1 .*\[2, 4\]",
        ),
        ([(A, A), (A, B)], ValueError, "in component 1: "),
        ([A, A.astype(np.int8)], TypeError, "float64, element 1 is int8"),
        ([A, (A,)], TypeError, "same structure: the first is"),
        ([(A, A), (A, A, A)], TypeError, "same structure"),
        ([{"a": A}, {"b": A}], TypeError, "same structure"),
        ([np.int64(1), np.array([1])], ValueError, "different shapes"),
    ],
    ids=str,
)
def test_elements_of_a_batch_are_alike(items, error, words, before):
    with passing(Items([items[0]] * before + items).dataset.batch(2)) as batches:
        for _ in range(before // 2):
            next(batches)
        with pytest.raises(error, match=words):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None, "2"])
def test_sizes(size):
    error = ValueError if type(size) is int else TypeError
    with pytest.raises(error, match="batch_size"):
        Dataset.range(3).batch(size)


def test_other_arguments():
    data = Dataset.range(3)
    with pytest.raises(TypeError, match="drop_remainder"):
        data.batch(2, drop_remainder=1)
    for calls in (0, -2):
        with pytest.raises(ValueError, match="num_parallel_calls"):
            data.batch(2, num_parallel_calls=calls)
    with pytest.raises(TypeError, match="deterministic"):
        data.batch(2, num_parallel_calls=2, deterministic=1)
    with pytest.warns(UserWarning, match="no effect without num_parallel_calls"):
        data.batch(2, deterministic=False)


def test_what_is_known_of_batches():
    data = Dataset.from_tensor_slices(np.zeros((5, 3), np.int8))
    assert data.batch(2).element_spec.shape == (None, 3)
    assert data.batch(2, drop_remainder=True).element_spec.shape == (2, 3)
    assert data.batch(2).cardinality() == 3
    assert data.batch(2, drop_remainder=True).cardinality() == 2
    assert data.repeat().batch(2).cardinality() == mc.data.INFINITE_CARDINALITY
    some = data.filter(lambda _: True)
    assert some.batch(2).cardinality() == mc.data.UNKNOWN_CARDINALITY


def test_a_failure_comes_behind_the_batches_before_it():
    error = KeyError("boom")
    items = [np.int64(n) for n in range(5)]
    with passing(Items([*items, error]).dataset.batch(2)) as batches:
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(KeyError) as caught:
            next(batches)
        assert caught.value is error


def test_a_batch_that_is_kept_is_not_overwritten():
    x = np.arange(1000.0).reshape(500, 2)
    data = Dataset.from_tensor_slices(x).map(lambda row: row + 1).batch(7).prefetch(2)
    kept = list(data)
    assert (np.concatenate(kept) == x + 1).all()


def test_limits_hold(pool):
    def make():
        return np.zeros(1 << 20)

    data = Items([make] * 200).dataset.batch(100)
    with passing(data, pool) as batches, pytest.raises(ResourceExhaustedError):
        next(batches)


X, Y = np.arange(64_000.0).reshape(8000, 8), np.arange(8000)


def doubled(x, y):
    return x * 2 + 1, y


STEPS = {
    "rows": lambda data: data.batch(32).prefetch(2),
    "elements": lambda data: data.filter(yes).batch(32).prefetch(2),
    "map": lambda data: data.map(doubled).batch(32).prefetch(2),
    "map, repeat": lambda data: data.map(doubled).repeat(1).batch(32).prefetch(2),
    "map of elements": lambda data: data.filter(yes).map(doubled).batch(32).prefetch(2),
    "parallel": lambda data: data.map(doubled, 2).batch(32).prefetch(2),
    "parallel alone": lambda data: data.map(doubled, 2).batch(32),
    "AUTOTUNE": lambda data: data.map(doubled, -1).batch(32).prefetch(2),
    "parallel batch": lambda data: data.batch(32, num_parallel_calls=2).prefetch(2),
    "parallel elements": lambda data: data.filter(yes).map(doubled, 2).batch(32),
}


def yes(*_):
    return True


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_nothing_is_allocated_in_the_steady_state(steps, pool):
    options = mc.data.Options()
    options.autotune.enabled = False  # nothing is just being tried
    data = steps(Dataset.from_tensor_slices((X, Y)))
    counts, rows = [], 0
    with passing(data.with_options(options), pool) as batches:
        for _, y in batches:
            rows += len(y)
            counts.append(pool.stats().allocation_count)
    assert rows == len(Y)
    assert longest_run(counts) >= 100


def longest_run(counts):
    """How many batches at most came one after the other without an allocation.

    Threads may need one block more at any time, and have it from then on.
    """
    return max(map(counts.count, counts))
