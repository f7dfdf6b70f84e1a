"""Padded batches: shapes, values, and what tf.data refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from steps import Items, passing

import memcfg as mc

Dataset = mc.data.Dataset


def padded(items, shapes=None, values=None, size=2, drop=False, pool=None):
    data = Vague(items).dataset.padded_batch(size, shapes, values, drop)
    with passing(data, pool) as batches:
        return list(batches)


class Vague(Items):
    """Items of which nothing is known before the pass."""

    is_probed = True


def row(*values):
    return np.array(values, np.int32)


VECTORS = [row(1), row(2, 3), row(4)]
PAIRS = [(np.int32(1), row(1)), (np.int32(2), row(2, 3))]


@pytest.mark.parametrize(
    ("shapes", "values", "expected"),
    [
        (None, None, [[[1, 0], [2, 3]], [[4]]]),
        ([-1], None, [[[1, 0], [2, 3]], [[4]]]),
        ((None,), None, [[[1, 0], [2, 3]], [[4]]]),
        ([3], -1, [[[1, -1, -1], [2, 3, -1]], [[4, -1, -1]]]),
        (np.array([3]), np.int32(9), [[[1, 9, 9], [2, 3, 9]], [[4, 9, 9]]]),
        (2, None, [[[1, 0], [2, 3]], [[4, 0]]]),
    ],
)
def test_vectors(shapes, values, expected):
    assert [batch.tolist() for batch in padded(VECTORS, shapes, values)] == expected


@pytest.mark.parametrize(
    ("shapes", "values", "expected"),
    [
        (None, None, [[1, 0], [2, 3]]),
        (((), [4]), None, [[1, 0, 0, 0], [2, 3, 0, 0]]),
        (None, 7, [[1, 7], [2, 3]]),
        (None, (None, 7), [[1, 7], [2, 3]]),
        (([], [-1]), (5, 8), [[1, 8], [2, 3]]),
    ],
)
def test_nests(shapes, values, expected):
    ((numbers, rows),) = padded(PAIRS, shapes, values)
    assert numbers.tolist() == [1, 2]
    assert rows.tolist() == expected
    dicts = [{"b": number, "a": (vector,)} for number, vector in PAIRS]
    keys = [None, None]
    for index, given_ in enumerate((shapes, values)):
        if isinstance(given_, tuple):
            keys[index] = {"a": (given_[1],), "b": given_[0]}
        else:
            keys[index] = given_
    (batch,) = padded(dicts, *keys)
    assert batch["a"][0].tolist() == expected


def test_what_fills_up_is_zero_of_the_dtype():
    for dtype, zero in (
        (bool, False),
        ("f4", 0.0),
        ("c8", 0j),
        ("U1", ""),
        ("S2", b""),
    ):
        one, two = np.ones(1, dtype), np.ones(2, dtype)
        (batch,) = padded([one, two])
        assert batch.dtype == np.dtype(dtype)
        assert batch.tolist() == [[one[0], zero], two.tolist()]


def test_text_is_as_wide_as_it_must_be():
    words = [np.array(["a"]), np.array(["bcd", "e"])]
    (batch,) = padded(words, None, "wide")
    assert batch.tolist() == [["a", "wide"], ["bcd", "e"]]
    (batch,) = padded([word.astype("S") for word in words], None, "wide")
    assert batch.tolist() == [[b"a", b"wide"], [b"bcd", b"e"]]


@given(
    shapes=st.lists(hnp.array_shapes(min_dims=2, max_dims=2, min_side=0), max_size=7),
    size=st.integers(1, 4),
    height=st.none() | st.integers(10, 12),
    drop=st.booleans(),
)
def test_matrices(shapes, size, height, drop):
    items = [np.full(shape, index + 1) for index, shape in enumerate(shapes)]
    found = padded(items, [height, None], -1, size, drop)
    groups = [items[i : i + size] for i in range(0, len(items), size)]
    groups = [group for group in groups if not drop or len(group) == size]
    assert len(found) == len(groups)
    for batch, group in zip(found, groups, strict=True):
        rows = max(len(one) for one in group) if height is None else height
        width = max(one.shape[1] for one in group)
        assert batch.shape == (len(group), rows, width)
        for mine, one in zip(batch, group, strict=True):
            inside = mine[: one.shape[0], : one.shape[1]]
            assert (inside == one).all()
            assert (mine == -1).sum() == mine.size - one.size


@pytest.mark.parametrize(
    ("items", "shapes", "values", "error", "words"),
    [
        (VECTORS, [1], None, ValueError, r"padded to \[1\].* has 2 along axis 0"),
        (VECTORS, [], None, ValueError, "not compatible with shape"),
        (VECTORS, [None, 2], None, ValueError, "not compatible with shape"),
        (VECTORS, [-2], None, ValueError, "-1 or more"),
        (VECTORS, [2.0], None, TypeError, "sequence of int"),
        (VECTORS, None, 1.5, TypeError, "component's dtype, int32"),
        (VECTORS, None, True, TypeError, "component's dtype, int32"),
        (VECTORS, None, np.int64(1), TypeError, "component's dtype, int32"),
        (VECTORS, None, 2**31, ValueError, "out of range"),
        (VECTORS, None, [1], ValueError, "scalars"),
        (VECTORS, None, "a", TypeError, "component's dtype, int32"),
        (PAIRS, [4], None, TypeError, "padded_shapes must be a tuple"),
        (PAIRS, ((), [4], []), None, ValueError, "has 3 parts, elements 2"),
        (PAIRS, None, (1,), ValueError, "padding_values has 1 parts"),
        ([{"a": row(1)}], {"b": [1]}, None, ValueError, "has keys"),
        ([{"a": row(1)}], ([1],), None, TypeError, "must be a dict"),
        ([row(1), row(1).reshape(1, 1)], None, None, ValueError, "cannot be padded"),
        ([row(1), row(1).astype(float)], None, None, TypeError, "different dtypes"),
        ([row(1), (row(1),)], None, None, TypeError, "same structure"),
        ([np.array(["a"])], None, b"b", TypeError, "component's dtype, <U1"),
    ],
    ids=str,
)
def test_what_cannot_be_padded(items, shapes, values, error, words):
    with pytest.raises(error, match=words):
        padded(items, shapes, values)


@pytest.mark.parametrize(
    ("shapes", "values", "error"),
    [
        ([2], None, ValueError),
        ([3, 3], None, ValueError),
        (([3],), None, TypeError),
        (None, "a", TypeError),
    ],
)
def test_what_is_known_to_fail_is_refused_at_once(shapes, values, error):
    data = Dataset.from_tensor_slices(np.zeros((4, 3)))
    with pytest.raises(error):
        data.padded_batch(2, shapes if shapes != ([3],) else {"a": 3}, values)


def test_an_unknown_number_of_axes_needs_shapes():
    spec = mc.data.TensorSpec(None, np.int32)
    data = Dataset.from_generator(lambda: iter(VECTORS), output_signature=spec)
    with pytest.raises(ValueError, match="padded_shapes is needed"):
        data.padded_batch(2)
    first, _ = data.padded_batch(2, [2])
    assert first.tolist() == [[1, 0], [2, 3]]


def test_what_is_known_of_batches():
    data = Dataset.from_tensor_slices(np.zeros((5, 3)))
    assert data.padded_batch(2).element_spec.shape == (None, 3)
    assert data.padded_batch(2, [4], drop_remainder=True).element_spec.shape == (2, 4)
    assert data.padded_batch(2, [-1]).element_spec.shape == (None, None)
    assert data.padded_batch(2).cardinality() == 3
    for size in (0, 1.5):
        with pytest.raises((TypeError, ValueError), match="batch_size"):
            data.padded_batch(size)
    with pytest.raises(TypeError, match="drop_remainder"):
        data.padded_batch(2, drop_remainder=None)


def test_a_map_before_it():
    data = Dataset.range(1, 4).map(lambda n: np.full(n, n))
    (batch,) = data.map(lambda row: row * 2).padded_batch(3)
    assert batch.tolist() == [[2, 0, 0], [4, 4, 0], [6, 6, 6]]
    assert batch.flags.writeable


def test_nothing_is_allocated_in_the_steady_state(pool):
    data = Dataset.range(2000).map(lambda n: np.full(n % 7 + 1, 1.0))
    counts = []
    prefetched = data.padded_batch(20, [7]).prefetch(2)
    with passing(prefetched, pool) as batches:
        counts = [pool.stats().allocation_count for _ in batches]
    assert len(counts) == 100
    assert counts[-1] == counts[50]
