"""Datasets side by side and one behind the other, numbered and filtered."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

Dataset, Spec = mc.data.Dataset, mc.data.TensorSpec
INFINITE, UNKNOWN = mc.data.INFINITE_CARDINALITY, mc.data.UNKNOWN_CARDINALITY
Pair = namedtuple("Pair", "first second")  # noqa: PYI024
lengths = st.lists(st.integers(0, 9), min_size=1, max_size=4)


def generated(stop, start=0):
    spec = Spec((), "int64")
    return Dataset.from_generator(lambda: range(start, stop), output_signature=spec)


def kinds():
    """Five elements, as many as nobody knows, without end, none."""
    return Dataset.range(5), generated(5), Dataset.range(5).repeat(), Dataset.range(0)


@settings(deadline=None)
@given(lengths, st.booleans())
def test_zip_is_pythons(stops, rows):
    make = Dataset.range if rows else generated
    parts = [make(stop).map(lambda x: x) if not rows else make(stop) for stop in stops]
    expected = list(zip(*map(range, stops), strict=False))
    assert list(Dataset.zip(tuple(parts))) == expected
    if len(stops) > 1:
        assert list(Dataset.zip(*parts)) == expected
    batches = list(Dataset.zip(tuple(parts)).batch(4))
    columns = [np.concatenate(column).tolist() for column in zip(*batches, strict=True)]
    assert list(zip(*columns, strict=True)) == expected
    if rows:
        assert len(Dataset.zip(tuple(parts))) == min(stops)


def test_forms_of_zip():
    one, two = Dataset.range(2), Dataset.range(5, 9)
    assert list(Dataset.zip(one)) == [0, 1]
    assert list(Dataset.zip((one,))) == [(0,), (1,)]
    assert list(Dataset.zip(datasets=(one, two))) == [(0, 5), (1, 6)]
    nested = Dataset.zip({"b": one, "a": (two, Pair(one, two))})
    assert list(nested) == [
        {"b": 0, "a": (5, Pair(0, 5))},
        {"b": 1, "a": (6, Pair(1, 6))},
    ]
    assert list(nested.element_spec) == ["b", "a"]
    inner = Dataset.zip(Dataset.zip(one, two), one)
    assert list(inner) == [((0, 5), 0), ((1, 6), 1)]
    [batch] = inner.batch(2)
    assert [part.tolist() for part in (*batch[0], batch[1])] == [[0, 1], [5, 6], [0, 1]]
    many = Dataset.from_tensor_slices({"x": np.zeros((3, 2)), "y": [1, 2, 3]})
    [(number, batch)] = Dataset.zip(one, many).batch(5)
    assert number.tolist() == [0, 1]
    assert batch["x"].shape == (2, 2)


@pytest.mark.parametrize(
    "args", [(), ((),), (3,), ([Dataset.range(1)],), ((Dataset.range(1), 3),), ({},)]
)
def test_what_is_no_zip(args):
    with pytest.raises(TypeError):
        Dataset.zip(*args)


def test_datasets_in_a_list_are_given_one_by_one():
    with pytest.raises(TypeError, match=r"not list: zip\(\*datasets\)"):
        Dataset.zip([Dataset.range(1)])


def test_a_zip_is_given_in_one_way():
    with pytest.raises(TypeError, match="either datasets or one nest"):
        Dataset.zip(Dataset.range(1), datasets=Dataset.range(1))


def test_a_zip_of_rows_has_rows():
    rows, other = Dataset.range(3), generated(3)
    assert Dataset.zip(rows, rows.enumerate())._node.has_rows
    assert not Dataset.zip(rows, other)._node.has_rows
    assert not Dataset.zip(rows, rows.shuffle(3))._node.has_rows
    shuffled = Dataset.zip(rows, rows).shuffle(3, seed=1).repeat(2)
    assert all(a == b for a, b in shuffled)
    assert len(list(shuffled.batch(2))) == 3


def test_cardinalities_are_tfs():
    def table(join):
        return [int(join(a, b).cardinality()) for a in kinds() for b in kinds()]

    zipped = [5, -2, 5, 0, -2, -2, -2, -2, 5, -2, -1, 0, 0, -2, 0, 0]
    appended = [10, -2, -1, 5, -2, -2, -1, -2, -1, -1, -1, -1, 5, -2, -1, 0]
    assert table(Dataset.zip) == zipped
    assert table(Dataset.concatenate) == appended
    numbered = [int(kind.enumerate().cardinality()) for kind in kinds()]
    assert numbered == [5, -2, -1, 0]
    filtered = [int(kind.filter(bool).cardinality()) for kind in kinds()]
    assert filtered == [-2, -2, -2, -2]


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_concatenate_appends(first, second, rows):
    make = Dataset.range if rows else generated
    both = make(first).concatenate(make(second))
    assert list(both) == [*range(first), *range(second)]
    assert [n for batch in both.batch(4) for n in batch] == list(both)


def test_the_spec_of_both():
    def of(shape):
        return Dataset.from_tensors(np.zeros(shape))

    assert of((2, 3)).concatenate(of((4, 3))).element_spec == Spec((None, 3), "f8")
    assert of((2, 3)).concatenate(of((4,))).element_spec == Spec(None, "f8")


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (Dataset.range(3, output_type="int32"), "dtype"),
        (Dataset.zip(Dataset.range(3), Dataset.range(3)), "structure"),
        ([1], "not list"),
    ],
)
def test_what_is_not_appended(other, match):
    with pytest.raises(TypeError, match=match):
        Dataset.range(3).concatenate(other)


def test_where_only_elements_tell_the_pass_compares():
    called = []
    mapped = Dataset.range(2).map(lambda x: called.append(x) or np.float32(x))
    both = Dataset.range(3).concatenate(mapped)
    assert called == []
    elements = iter(both)
    assert [next(elements) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TypeError, match="dtype"):
        next(elements)
    assert list(mapped.concatenate(mapped)) == [0, 1, 0, 1]
    nothing = mapped.take(0)
    assert list(nothing.concatenate(mapped).concatenate(nothing)) == [0, 1]


@settings(deadline=None)
@given(st.integers(-9, 9), st.integers(0, 9))
def test_enumerate_numbers(start, stop):
    for source in (Dataset.range(stop), generated(stop)):
        assert list(source.enumerate(start)) == list(enumerate(range(stop), start))
        batches = list(source.enumerate(start).batch(20))
        numbers = [n for batch in batches for n in batch[0].tolist()]
        assert numbers == list(range(start, start + stop))


def test_numbers_of_enumerate():
    assert Dataset.range(3).enumerate().element_spec == (Spec((), "i8"), Spec((), "i8"))
    assert list(Dataset.range(1).enumerate(2**63 - 1)) == [(2**63 - 1, 0)]
    with pytest.raises(TypeError, match="start"):
        Dataset.range(3).enumerate(1.5)
    with pytest.raises(ValueError, match="int64"):
        Dataset.range(3).enumerate(2**63)


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), max_size=12))
def test_filter_keeps(numbers):
    dataset = Dataset.from_tensor_slices(np.array(numbers, np.int64))
    kept = [number for number in numbers if number > 0]
    assert list(dataset.filter(lambda x: x > 0)) == kept
    assert [
        n for batch in dataset.filter(lambda x: x > 0).batch(3) for n in batch
    ] == kept


def test_a_predicate_takes_the_parts_of_a_tuple():
    pairs = Dataset.zip(Dataset.range(4), Dataset.range(4, 8))
    assert list(pairs.filter(lambda a, b: a + b > 7)) == [(2, 6), (3, 7)]
    named = Dataset.zip({"a": Dataset.range(4)})
    assert list(named.filter(lambda x: x["a"] == 2)) == [{"a": 2}]
    assert list(pairs.filter(lambda a, b: np.array(a == 1))) == [(1, 5)]


@pytest.mark.parametrize(
    "answer", [1, None, [True], np.array([True]), np.int64(1), "yes"]
)
def test_a_predicate_answers_with_one_bool(answer):
    with pytest.raises(ValueError, match="one bool"):
        list(Dataset.range(3).filter(lambda x: answer))


def test_what_is_no_predicate():
    with pytest.raises(TypeError, match="callable"):
        Dataset.range(3).filter(True)


def test_an_error_of_a_predicate_is_the_readers():
    error = LookupError("mine")

    def fails(x):
        if x == 2:
            raise error
        return True

    elements = iter(Dataset.range(5).filter(fails))
    assert [next(elements), next(elements)] == [0, 1]
    with pytest.raises(LookupError) as caught:
        next(elements)
    assert caught.value is error
    assert list(elements) == []


def test_all_passes_of_a_zip_end_with_the_shortest():
    ended = []

    def make(stop):
        try:
            yield from range(stop)
        finally:
            ended.append(stop)

    parts = [Dataset.from_generator(make, args=(stop,)) for stop in (5, 2, 7)]
    assert len(list(Dataset.zip(*parts))) == 2
    assert sorted(ended) == [2, 5, 7]
