"""Batches taken apart."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import Items, passing

import memcfg as mc

Dataset = mc.data.Dataset


class Vague(Items):
    """Items of which nothing is known before the pass."""

    is_probed = True


def unbatched(items):
    with passing(Vague(items).dataset.unbatch()) as rows:
        return list(rows)


@given(count=st.integers(0, 30), size=st.integers(1, 9), again=st.integers(1, 9))
def test_unbatch_undoes_batch(count, size, again):
    x, y = np.arange(2.0 * count).reshape(count, 2), np.arange(count)
    data = Dataset.from_tensor_slices({"x": x, "y": y}).batch(size).unbatch()
    assert [(one["x"].tolist(), int(one["y"])) for one in data] == list(
        zip(x.tolist(), y.tolist(), strict=True)
    )
    batches = list(data.batch(again))
    assert [batch["y"].tolist() for batch in batches] == [
        y[i : i + again].tolist() for i in range(0, count, again)
    ]


def test_structures():
    one, two = np.array([1, 2]), np.array([3, 4])
    assert unbatched([one, two]) == [1, 2, 3, 4]
    assert unbatched([(one, two)]) == [(1, 3), (2, 4)]
    nest = {"b": (one,), "a": two}
    assert unbatched([nest]) == [{"b": (1,), "a": 3}, {"b": (2,), "a": 4}]
    assert list(unbatched([nest])[0]) == ["b", "a"]
    pair = collections.namedtuple("pair", "x y")  # noqa: PYI024
    assert unbatched([pair(one, two)])[1] == pair(2, 4)
    assert type(unbatched([pair(one, two)])[1]) is pair
    assert type(unbatched([one])[0]) is np.int64
    assert unbatched([np.zeros((0, 3)), np.zeros((1, 0))])[0].shape == (0,)
    assert unbatched([np.array(["a", "bc"])]) == ["a", "bc"]


def test_rows_of_what_is_stored_are_read_only():
    stored = np.zeros((2, 3))
    (first, _) = Dataset.from_tensors(stored).unbatch()
    assert not first.flags.writeable
    for fresh in Dataset.from_tensor_slices(stored).batch(2).unbatch():
        fresh += 1
    assert not stored.any()


def test_rows_that_are_kept_are_not_overwritten():
    x = np.arange(300.0).reshape(150, 2)
    data = Dataset.from_tensor_slices(x).batch(4).prefetch(2).unbatch().prefetch(3)
    assert (np.array(list(data)) == x).all()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((np.zeros(2), np.zeros(3)), "0 has 2 rows, component 1 has 3"),
        (np.int64(1), "component 0 is a number"),
        ({"a": np.zeros(2), "b": np.float32(1)}, "component 1 is a number"),
    ],
)
def test_what_cannot_be_taken_apart(batch, words):
    with pytest.raises(ValueError, match=words):
        unbatched(
            [np.zeros(1) if not isinstance(batch, tuple | dict) else batch, batch]
        )


def test_numbers_are_refused_where_they_are_known():
    with pytest.raises(ValueError, match="first axis"):
        Dataset.range(3).unbatch()


def test_what_is_known_of_rows():
    data = Dataset.from_tensors((np.zeros((4, 3)), np.zeros(4)))
    assert [spec.shape for spec in data.unbatch().element_spec] == [(3,), ()]
    unknown, infinite = mc.data.UNKNOWN_CARDINALITY, mc.data.INFINITE_CARDINALITY
    numbers = Dataset.range(5)
    for steps, expected in (
        (data, 4),
        (numbers.batch(2), unknown),
        (numbers.batch(2, drop_remainder=True), 4),
        (numbers.batch(2).repeat(), infinite),
        (numbers.batch(2, drop_remainder=True).map(lambda x: x), unknown),
        (Dataset.from_tensors(np.zeros((0, 3))), unknown),
    ):
        assert steps.unbatch().cardinality() == expected
