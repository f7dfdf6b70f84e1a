"""Datasets of values that are there: from_tensors, from_tensor_slices, range."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg.errors import WorkspaceStaleError

Dataset, Spec = mc.data.Dataset, mc.data.TensorSpec
Pair = namedtuple("Pair", "first second")  # noqa: PYI024


def test_one_element():
    dataset = Dataset.from_tensors(([1, 2], {"a": 3.5}))
    [(numbers, rest)] = dataset
    assert numbers.tolist() == [1, 2]
    assert rest == {"a": np.float32(3.5)}
    assert dataset.element_spec == (Spec((2,), "int32"), {"a": Spec(())})
    assert len(dataset) == 1


def test_an_element_is_the_users_memory_and_read_only():
    array = np.zeros(3)
    [element] = Dataset.from_tensors(array)
    assert np.shares_memory(element, array)
    with pytest.raises(ValueError, match="read-only"):
        element[0] = 1
    array[0] = 1  # the user's own stays writable


def test_slices_are_views_and_read_only():
    array = np.arange(6).reshape(3, 2)
    rows = list(Dataset.from_tensor_slices(array))
    assert [row.tolist() for row in rows] == array.tolist()
    assert all(np.shares_memory(row, array) for row in rows)
    assert not any(row.flags.writeable for row in rows)


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        ([1, 2], [1, 2]),
        (([1, 2], [3, 4]), [(1, 3), (2, 4)]),
        (([1, 2],), [(1,), (2,)]),
        ({"b": [1, 2], "a": [3, 4]}, [{"b": 1, "a": 3}, {"b": 2, "a": 4}]),
        (Pair([1], [2]), [Pair(1, 2)]),
        ((np.array([1]), ({"a": [2]}, Pair([3], [4]))), [(1, ({"a": 2}, Pair(3, 4)))]),
        (([1], ()), [(1, ())]),
        (["ab", "c"], ["ab", "c"]),
        ([], []),
        (np.zeros((0, 3)), []),
    ],
)
def test_slices_of_nests(value, elements):
    found = list(Dataset.from_tensor_slices(value))
    assert found == elements
    if isinstance(value, tuple | dict):
        assert list(map(type, found)) == list(map(type, elements))
    assert Dataset.from_tensor_slices(value).cardinality() == len(elements)


def test_a_dict_keeps_its_order_and_class():
    [element] = Dataset.from_tensor_slices(OrderedDict(b=[1], a=[2]))
    assert element == OrderedDict(b=1, a=2)
    assert isinstance(element, OrderedDict)


def test_elements_without_axes_are_numpys_scalars():
    assert isinstance(next(iter(Dataset.from_tensor_slices([1]))), np.int32)
    assert isinstance(next(iter(Dataset.from_tensor_slices(np.ones(1)))), np.float64)
    assert isinstance(next(iter(Dataset.from_tensors(True))), np.bool_)


def test_specs_of_slices():
    dataset = Dataset.from_tensor_slices((np.zeros((4, 2, 3), ">f4"), ["a"] * 4))
    assert dataset.element_spec == (Spec((2, 3)), Spec((), "U1"))


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (3, ValueError, "has none"),
        ((np.zeros(3), 4), ValueError, "has none"),
        ((np.zeros(3), np.zeros((2, 5))), ValueError, r"\(3,\), \(2, 5\)"),
        ((), ValueError, "at least one leaf"),
        ({}, ValueError, "at least one leaf"),
        (None, TypeError, "NoneType"),
        (([1], None), TypeError, "NoneType"),
        ([[1], [2, 3]], ValueError, "rectangular"),
    ],
)
def test_what_has_no_slices(value, error, match):
    with pytest.raises(error, match=match):
        Dataset.from_tensor_slices(value)


@pytest.mark.parametrize("value", [(), {"a": ()}, ((), {})])
def test_an_element_has_a_leaf(value):
    with pytest.raises(ValueError, match="at least one leaf"):
        Dataset.from_tensors(value)


arguments = st.one_of(
    st.tuples(st.integers(-5, 30)),
    st.tuples(st.integers(-5, 30), st.integers(-5, 30)),
    st.tuples(
        st.integers(-5, 30),
        st.integers(-5, 30),
        st.integers(-4, 4).filter(lambda step: step != 0),
    ),
)
DTYPES = ["int64", "int32", "int8", "uint8", "float32", "float16", "complex64"]


@settings(deadline=None)
@given(arguments, st.sampled_from(DTYPES))
def test_a_range_is_pythons(args, dtype):
    dataset = Dataset.range(*args, output_type=dtype)
    numbers = np.array(range(*args), np.int64).astype(dtype)
    found = list(dataset)
    assert found == numbers.tolist()
    assert all(type(number) is np.dtype(dtype).type for number in found)
    assert len(dataset) == len(numbers)
    assert dataset.element_spec == Spec((), dtype)
    [batch] = list(dataset.batch(64)) or [np.zeros(0, dtype)]
    assert batch.dtype == np.dtype(dtype)
    assert batch.tolist() == numbers.tolist()


def test_a_range_wraps_around_as_tfs():
    dataset = Dataset.range(126, 130, output_type="int8")
    assert list(dataset) == [126, 127, -128, -127]
    assert next(iter(dataset.batch(4))).tolist() == [126, 127, -128, -127]


def test_a_long_range_costs_nothing():
    dataset = Dataset.range(-(2**63), -1)
    assert len(dataset) == 2**63 - 1
    assert next(iter(dataset)) == -(2**63)
    assert next(iter(dataset.batch(2))).tolist() == [-(2**63), 1 - 2**63]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), ValueError),
        ((1, 2, 3, 4), ValueError),
        ((1, 2, 0), ValueError),
        ((2**63,), ValueError),
        ((-(2**63), 2**63 - 1), ValueError),
        ((1.5,), TypeError),
        (("a",), TypeError),
        ((None,), TypeError),
    ],
)
def test_what_is_no_range(args, error):
    with pytest.raises(error):
        Dataset.range(*args)


@pytest.mark.parametrize("dtype", ["bool", "U3", "M8[D]", object])
def test_a_range_is_of_numbers(dtype):
    with pytest.raises(TypeError, match="numeric dtype"):
        Dataset.range(3, output_type=dtype)


@pytest.mark.parametrize("make", [Dataset.from_tensors, Dataset.from_tensor_slices])
def test_arrays_of_a_workspace_are_read_while_they_are_valid(make):
    config = mc.WorkspaceConfig(on_escape="invalidate", initial_size=1 << 16)
    with mc.workspace("loop", config) as workspace:
        array = workspace.ones((4, 2))
        dataset = make(array)
        assert next(iter(dataset)).sum() in (2, 8)
        passing = iter(dataset)
    with mc.workspace("loop", config), pytest.raises(WorkspaceStaleError):
        next(passing)
    with mc.workspace("loop", config), pytest.raises(WorkspaceStaleError):
        next(iter(dataset.batch(2)))
    del array, dataset, passing
    mc.destroy_all_workspaces()


def test_lists_that_are_converted_lie_in_no_workspace():
    config = mc.WorkspaceConfig(on_escape="invalidate", initial_size=1 << 16)
    with mc.workspace("loop", config):
        dataset = Dataset.from_tensor_slices([[1.0, 2.0], [3.0, 4.0]])
    with mc.workspace("loop", config) as workspace:
        workspace.zeros(100)
        assert [row.tolist() for row in dataset] == [[1, 2], [3, 4]]
    mc.destroy_all_workspaces()


class Pair(NamedTuple):
    first: object
    second: object


NESTS = st.recursive(
    st.integers(0, 9),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("cbad"), inner, min_size=1, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


@given(NESTS)
def test_a_nest_is_given_back_as_it_was(nest):
    (element,) = Dataset.from_tensors(nest)
    assert repr(Dataset.from_tensors(element).element_spec) == repr(
        Dataset.from_tensors(nest).element_spec
    )
    assert element == nest
    assert type(element) is type(nest) or isinstance(nest, int)


def test_keys_of_a_dict_have_an_order():
    with pytest.raises(TypeError, match="must have an order"):
        Dataset.from_tensors({1: 0, "a": 0})
