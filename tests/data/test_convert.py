"""Python's values become the arrays that tf.data makes of them.

What is expected was found by running TensorFlow 2.21.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg.data import Dataset


def as_leaf(value):
    """Return what a dataset makes of a value."""
    return np.asarray(next(iter(Dataset.from_tensors(value))))


def as_element(value):
    """Return what a dataset makes of what a function returns."""
    return next(iter(Dataset.range(1).map(lambda _: value)))


I4, I8, F4, F8 = np.int32, np.int64, np.float32, np.float64


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (3, I4, ()),
        (2**31 - 1, I4, ()),
        (2**31, I8, ()),
        (-(2**31) - 1, I8, ()),
        (1.5, F4, ()),
        (True, np.bool_, ()),
        (1j, np.complex128, ()),
        ([1, 2], I4, (2,)),
        ([1, 2.5], F4, (2,)),
        ([2.5, 1], F4, (2,)),
        ([True, False], np.bool_, (2,)),
        ([1, True], I4, (2,)),
        ([2**40, 1], I8, (2,)),
        ([1, 2**31], I8, (2,)),
        (range(3), I4, (3,)),
        ([(1, 2), (3, 4)], I4, (2, 2)),
        ([], F4, (0,)),
        ([[], []], F4, (2, 0)),
        ([F8(1)], F8, (1,)),
        ([F8(1), I4(2)], F8, (2,)),
        ([np.int8(1), 2], I4, (2,)),
        ([np.uint8(1), np.uint8(2)], I4, (2,)),
        ([I8(1), 2.5], F4, (2,)),
        ([np.zeros(2), np.ones(2)], F8, (2, 2)),
        ([np.zeros(2), [1, 2]], F8, (2, 2)),
        (F8(2), F8, ()),
        (np.float16(1), np.float16, ()),
        (np.uint64(2**63), np.uint64, ()),
        (np.zeros((2, 3), np.int8), np.int8, (2, 3)),
        (np.zeros(2, ">f4"), F4, (2,)),
    ],
)
def test_dtypes(value, dtype, shape):
    found = as_leaf(value)
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape)
    assert np.array_equal(found, np.asarray(value))


@pytest.mark.parametrize(
    ("value", "dtype"), [("ab", "U2"), (b"ab", "S2"), (["a", "bcd"], "U3")]
)
def test_text_stays_numpys(value, dtype):
    assert as_leaf(value).dtype == np.dtype(dtype)


def test_a_column_of_text_in_a_data_frame():
    column = np.array(["fixed", "normal", "é"], object)
    assert as_leaf(column).tolist() == ["fixed", "normal", "é"]
    assert as_leaf(column).dtype.kind == "U"
    rows = Dataset.from_tensor_slices({"kind": column, "age": np.arange(3)})
    assert [str(row["kind"]) for row in rows] == ["fixed", "normal", "é"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [None],
        {1, 2},
        object(),
        [1, "a", None],
        np.array([1, "a"], object),
        np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1, 2], [0, 1]),
        len,
        (x for x in "ab"),
    ],
)
def test_what_is_no_leaf(value):
    with pytest.raises(TypeError):
        as_leaf(value)


@pytest.mark.parametrize(
    "value",
    [2**63, [1, 2**63], -(2**63) - 1, [2**70], 1e300, [0.5, -1e39], [[1], [2, 3]]],
)
def test_what_is_out_of_range_or_shape(value):
    with pytest.raises(ValueError, match=r"int64|float32|rectangular"):
        as_leaf(value)


def test_arrays_in_a_list_are_told_of_tuples():
    with pytest.raises(ValueError, match=r"side by side are a tuple"):
        as_leaf([np.zeros((3, 2)), np.zeros(3)])
    with pytest.raises(ValueError, match="rows of one length: "):
        as_leaf([[1], [2, 3]])


def test_infinity_is_a_number():
    assert np.isinf(as_leaf([float("inf"), 1.0])[0])
    assert np.isnan(as_leaf(float("nan")))


def test_an_array_is_not_copied():
    array = np.zeros(3)
    assert np.shares_memory(as_leaf(array), array)
    swapped = np.zeros(1 << 17, ">f8")
    tracemalloc.start()
    try:
        dataset = Dataset.from_tensor_slices(swapped)
        assert tracemalloc.get_traced_memory()[1] < swapped.nbytes / 2
    finally:
        tracemalloc.stop()
    assert next(iter(dataset)) == 0


def test_what_numpy_can_read_is_an_array():
    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3, dtype=np.int16)

    assert as_leaf(Column()).dtype == np.int16


def test_leaves_without_axes_are_scalars():
    element = as_element({"a": 1, "b": (2.5, [3])})
    assert element["a"] == I4(1)
    assert isinstance(element["a"], I4)
    assert isinstance(element["b"][0], F4)
    assert isinstance(element["b"][1], np.ndarray)
    assert isinstance(as_element(np.array(3)), np.int64)


@given(
    st.recursive(
        st.lists(st.integers(-(2**33), 2**33), min_size=1, max_size=3),
        lambda rows: st.lists(rows, min_size=1, max_size=3),
        max_leaves=9,
    )
)
def test_integers_are_as_wide_as_they_need(value):
    def leaves(item):
        if isinstance(item, int):
            return [item]
        return [leaf for part in item for leaf in leaves(part)]

    try:
        plain = np.array(value)
    except ValueError:
        with pytest.raises(ValueError, match="rectangular"):
            as_leaf(value)
        return
    small = all(-(2**31) <= leaf < 2**31 for leaf in leaves(value))
    found = as_leaf(value)
    assert found.dtype == (I4 if small else I8)
    assert found.tolist() == plain.tolist() == value
