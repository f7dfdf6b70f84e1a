"""Nests: leaves in the order of tf.data, and back."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Nests of plain numbers, without the arrays that datasets make of them.
from memcfg.data.elements._structure import (
    call,
    flatten,
    map_structure,
    pack,
    packer,
    same_structure,
)

Pair = namedtuple("Pair", "first second")  # noqa: PYI024

nests = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("cbad"), inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.sampled_from("cbad"), inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=8,
)


@given(nests)
def test_a_nest_is_packed_as_it_was(nest):
    packed = pack(nest, flatten(nest))
    assert packed == nest
    assert type(packed) is type(nest)
    assert packer(nest)(flatten(nest)) == nest


@given(nests)
def test_packing_keeps_the_order_of_keys(nest):
    assert repr(pack(nest, flatten(nest))) == repr(nest)


@given(nests, nests)
def test_equal_structure_is_equal_after_all_leaves_are_zero(first, second):
    def zeros(nest):
        return map_structure(lambda _: 0, nest)

    def plain(nest):  # an ordered dict is a dict
        if isinstance(nest, dict):
            return {key: plain(value) for key, value in nest.items()}
        if isinstance(nest, Pair):
            return ("Pair", *map(plain, nest))
        return tuple(map(plain, nest)) if isinstance(nest, tuple) else nest

    same = plain(zeros(first)) == plain(zeros(second))
    assert same_structure(first, second) == same


def test_leaves_of_a_dict_come_by_sorted_keys():
    assert flatten({"b": 1, "a": (2, {"d": 3, "c": 4})}) == [2, 4, 3, 1]


def test_a_list_is_a_leaf():
    assert flatten(([1, 2], [3])) == [[1, 2], [3]]


def test_several_nests_are_walked_together():
    pairs = map_structure(lambda a, b: (a, b), {"b": 1, "a": 2}, {"a": 3, "b": 4})
    assert pairs == {"b": (1, 4), "a": (2, 3)}
    with pytest.raises(ValueError, match="differ in form"):
        map_structure(max, (1, 2), (1, 2, 3))


def test_a_wrong_number_of_leaves_is_an_error():
    with pytest.raises(ValueError, match="2 leaves can't be made of 3"):
        pack((0, 0), [1, 2, 3])


def test_keys_without_an_order_are_an_error():
    with pytest.raises(TypeError, match="must have an order"):
        flatten({1: 0, "a": 0})


def test_only_a_plain_tuple_becomes_arguments():
    assert call(lambda *parts: parts, (1, (2, 3))) == (1, (2, 3))
    assert call(lambda *parts: parts, Pair(1, 2)) == (Pair(1, 2),)
    assert call(lambda *parts: parts, {"a": 1}) == ({"a": 1},)
    assert call(lambda *parts: parts, 5) == (5,)
    assert call(lambda *parts: parts, ()) == ()
