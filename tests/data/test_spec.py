"""What an element is said to be."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc

Spec, Dataset = mc.data.TensorSpec, mc.data.Dataset
shapes = st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3)


def of(spec):
    """Make a dataset that is said to have such elements."""
    return Dataset.from_generator(tuple, output_signature=spec)


def merge(one, other):
    """Describe what is of one of two kinds."""
    return of(one).concatenate(of(other)).element_spec


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((), ()),
        ([2, None], (2, None)),
        (np.zeros((3, 4)).shape, (3, 4)),
        ((np.int32(3),), (3,)),
        (3, (3,)),
        (None, None),
    ],
)
def test_shapes(shape, found):
    spec = Spec(shape, "int32", "x")
    assert (spec.shape, spec.dtype, spec.name) == (found, np.dtype("int32"), "x")
    assert spec.rank == (None if found is None else len(found))


@pytest.mark.parametrize(
    ("shape", "error"),
    [("ab", TypeError), ((1.5,), TypeError), ((-1,), ValueError), ((True,), TypeError)],
)
def test_what_is_no_shape(shape, error):
    with pytest.raises(error):
        Spec(shape, "int32")


@pytest.mark.parametrize("dtype", [object, [("a", "i4")], None, "no dtype"])
def test_what_is_no_dtype(dtype):
    with pytest.raises(TypeError):
        Spec((), dtype)


def test_a_spec_is_a_value():
    assert Spec((1,)) == Spec([1], np.float32)
    assert Spec((1,)) != Spec((1,), name="x")
    assert len({Spec((1,)), Spec((1,)), Spec((2,))}) == 2
    assert pickle.loads(pickle.dumps(Spec((1, None)))) == Spec((1, None))
    with pytest.raises(AttributeError):
        Spec(()).shape = (1,)


def test_the_byte_order_is_the_machines():
    assert Spec((), ">f4") == Spec((), "<f4")


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [
        (Spec((2, 3), "int16"), 12),
        (Spec(()), 4),
        (Spec((0, 3)), 0),
        (Spec((2, None)), None),
        (Spec(None), None),
        (Spec((2,), str), None),
    ],
)
def test_bytes(spec, nbytes):
    assert spec.nbytes == nbytes


@given(shapes, st.lists(st.integers(0, 3), max_size=3))
def test_an_array_fits_if_no_known_size_differs(shape, sizes):
    fits = shape is None or (
        len(shape) == len(sizes)
        and all(known in (None, size) for known, size in zip(shape, sizes, strict=True))
    )
    array = np.zeros(sizes, np.float32)
    assert Spec(shape).is_compatible_with(array) == fits
    assert Spec(shape).is_compatible_with(Spec(sizes)) == fits
    assert not Spec(shape, "int32").is_compatible_with(array)
    assert not Spec(shape).is_compatible_with(sizes)


@given(shapes, shapes)
def test_both_fit_what_they_have_in_common(first, second):
    one, other = Spec(first), Spec(second)
    common = merge(one, other)
    assert common == merge(other, one)
    assert common.is_compatible_with(one)
    assert common.is_compatible_with(other)
    assert merge(one, one) == one


def test_nests_and_dtypes_must_be_equal_to_merge():
    with pytest.raises(TypeError, match="structure"):
        merge((Spec(()),), Spec(()))
    with pytest.raises(TypeError, match="dtype"):
        merge({"a": Spec((), "int32")}, {"a": Spec((), "int64")})


def test_text_of_any_length_is_one_dtype():
    assert merge(Spec((), "U3"), Spec((), "U5")) == Spec((), "U5")
    assert merge(Spec((), "U3"), Spec((), str)) == Spec((), str)
    assert Spec((), str).is_compatible_with(np.str_("abc"))
    assert not Spec((), str).is_compatible_with(np.bytes_(b"abc"))


def test_specs_of_elements():
    element = {"b": np.zeros((2, 3)), "a": (np.int8(1), np.str_("ab"))}
    spec = {"b": Spec((2, 3), "f8"), "a": (Spec((), "i1"), Spec((), "U2"))}
    dataset = Dataset.from_tensors(element)
    assert dataset.element_spec == spec
    assert of(spec).batch(4, drop_remainder=True).element_spec["b"] == Spec(
        (4, 2, 3), "f8"
    )
    assert of(Spec(None)).batch(4).element_spec == Spec(None)
    assert dataset.map(lambda each: each).element_spec == {
        "b": Spec((None, None), "f8"),
        "a": (Spec((), "i1"), Spec((), str)),
    }


def test_an_attribute_error_of_a_users_function_is_shown():
    broken = Dataset.range(3).map(lambda x: np.no_such_function(x))
    with pytest.raises(AttributeError, match="no_such_function"):
        broken.element_spec  # noqa: B018
