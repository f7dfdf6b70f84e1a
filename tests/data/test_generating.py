"""Datasets of what a user's generator yields."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

Dataset, Spec = mc.data.Dataset, mc.data.TensorSpec
INT, FLOAT = Spec((), "int32"), Spec(())
Pair = namedtuple("Pair", "first second")  # noqa: PYI024


def yielded(values, signature=None):
    return Dataset.from_generator(lambda: iter(values), output_signature=signature)


@pytest.mark.parametrize(
    ("value", "signature", "found"),
    [
        (1, INT, np.int32(1)),
        (1, FLOAT, np.float32(1)),
        (True, INT, np.int32(1)),
        (np.float64(1.5), FLOAT, np.float32(1.5)),
        (1e300, Spec((), "float64"), np.float64(1e300)),
        (np.int64(5), Spec((), "uint8"), np.uint8(5)),
        ([], Spec((None,), "int64"), np.zeros(0, np.int64)),
        ([1, 2], Spec((2,), "int16"), np.array([1, 2], np.int16)),
        ((1, 2), Spec((2,), "int32"), np.array([1, 2], np.int32)),
        ([[1], [2]], Spec(None, "int32"), np.array([[1], [2]], np.int32)),
        ("abc", Spec((), str), np.str_("abc")),
        (np.datetime64(3, "D"), Spec((), "M8[D]"), np.datetime64(3, "D")),
    ],
)
def test_elements_are_as_the_signature_says(value, signature, found):
    dataset = yielded([value], signature)
    [element] = dataset
    assert type(element) is type(found)
    assert element.dtype == found.dtype
    assert np.array_equal(element, found)
    assert dataset.element_spec == signature


@pytest.mark.parametrize(
    ("value", "signature", "error", "match"),
    [
        (1.5, INT, TypeError, "float64.*int32"),
        (2, Spec((), "bool"), TypeError, "int64.*bool"),
        ("a", INT, TypeError, "int32"),
        (1, Spec((), str), TypeError, "<U"),
        (1j, FLOAT, TypeError, "complex"),
        (None, INT, TypeError, "NoneType"),
        (2**40, INT, ValueError, "can't hold"),
        (-1, Spec((), "uint8"), ValueError, "can't hold"),
        (np.int64(300), Spec((), "int8"), ValueError, "can't hold"),
        ([1, 2], Spec((3,), "int32"), ValueError, r"\(2,\).*\(3,\)"),
        ([1, 2], INT, ValueError, r"\(2,\).*\(\)"),
        ([1, 2], (INT, INT), TypeError, "structure"),
        ((1, 2, 3), (INT, INT), TypeError, "structure"),
        ({"a": 1}, {"a": INT, "b": INT}, TypeError, "structure"),
        ((1, 2), Pair(INT, INT), TypeError, "structure"),
        (1, (INT,), TypeError, "structure"),
        ([[1], [2, 3]], Spec(None, "int32"), ValueError, "rectangular"),
    ],
)
def test_an_element_of_another_kind_is_an_error(value, signature, error, match):
    elements = iter(yielded([value], signature))
    with pytest.raises(error, match=match):
        next(elements)
    with pytest.raises(StopIteration):
        next(elements)


def test_good_elements_come_before_the_error():
    elements = iter(yielded([1, 2, "a", 4], INT))
    assert [next(elements), next(elements)] == [1, 2]
    with pytest.raises(TypeError):
        next(elements)


def test_nests():
    signature = {"b": INT, "a": (FLOAT, Spec((None,), "int8"))}
    [element] = yielded([{"a": (1, [2, 3]), "b": 4}], signature)
    assert list(element) == ["b", "a"]
    assert element["b"] == 4
    assert element["a"][0] == 1
    assert element["a"][1].tolist() == [2, 3]
    assert list(yielded([Pair(1, 2)], Pair(INT, INT))) == [Pair(1, 2)]


def test_without_a_signature_elements_are_as_they_come():
    dataset = yielded([(1, {"a": [1.5, 2]}), (2, {"a": [3.5]})])
    first, second = dataset
    assert first[0] == np.int32(1)
    assert first[1]["a"].dtype == np.float32
    assert second[1]["a"].tolist() == [3.5]
    assert dataset.element_spec == (Spec((), "int32"), {"a": Spec((None,))})


def test_no_element_tells_no_spec():
    with pytest.raises(ValueError, match="output_signature"):
        yielded([]).element_spec  # noqa: B018


def test_the_older_way_to_say_what_is_yielded():
    def make(types, shapes=None):
        return Dataset.from_generator(lambda: [(1, [2, 3])], types, shapes)

    assert make(("int32", np.int64)).element_spec == (
        Spec(None, "i4"),
        Spec(None, "i8"),
    )
    dataset = make(("int32", np.int64), ((), (None,)))
    assert dataset.element_spec == (Spec((), "i4"), Spec((None,), "i8"))
    [(one, two)] = dataset
    assert (one.dtype, two.dtype, two.tolist()) == ("i4", "i8", [2, 3])
    nested = Dataset.from_generator(
        list, {"b": "i4", "a": ("f4",)}, {"a": ((2,),), "b": ()}
    )
    assert nested.element_spec == {"b": Spec((), "i4"), "a": (Spec((2,)),)}
    alone = Dataset.from_generator(list, "int32", (2, None))
    assert alone.element_spec == Spec((2, None), "int32")


@pytest.mark.parametrize(
    "arguments",
    [
        {"output_types": "int32", "output_signature": INT},
        {"output_shapes": ()},
        {"output_signature": np.int32},
        {"output_types": ("i4", "i4"), "output_shapes": ((),)},
        {"output_types": ("i4",), "output_shapes": 3},
        {"output_types": {"a": "i4"}, "output_shapes": {"b": ()}},
        {"output_types": object},
        {"args": 3},
        {"args": "ab"},
    ],
)
def test_arguments_that_say_nothing(arguments):
    with pytest.raises(TypeError):
        Dataset.from_generator(list, **arguments)


def test_what_is_no_generator():
    with pytest.raises(TypeError, match="callable"):
        Dataset.from_generator([1, 2])
    with pytest.raises(TypeError, match="not iterable"):
        next(iter(Dataset.from_generator(lambda: 3)))


def test_arguments_are_converted():
    def make(*args):
        yield [type(arg).__name__ for arg in args]

    [names] = Dataset.from_generator(make, args=(1, [2, 3], np.float64(3)))
    assert names.tolist() == ["int32", "ndarray", "float64"]
    assert list(Dataset.from_generator(lambda *args: args, args=[3, 4])) == [3, 4]


def test_elements_are_copies():
    buffer = np.zeros(2, np.int32)

    def make():
        for number in range(5):
            buffer[:] = number
            yield buffer

    for signature in (None, Spec((2,), "int32")):
        dataset = Dataset.from_generator(make, output_signature=signature)
        elements = list(dataset)
        assert [element.tolist() for element in elements] == [[n, n] for n in range(5)]
        assert all(element.flags.writeable for element in elements)
        assert not any(np.shares_memory(element, buffer) for element in elements)
        batches = list(dataset.shuffle(5, seed=1).batch(5))
        assert sorted(batches[0][:, 0].tolist()) == [0, 1, 2, 3, 4]


def test_an_array_of_another_byte_order_is_given_in_the_machines():
    [element] = yielded([np.arange(3, dtype=">i4")])
    assert element.dtype.isnative
    assert element.tolist() == [0, 1, 2]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6))
def test_rows_of_any_length(rows):
    dataset = yielded(rows, Spec((None,), "int8"))
    assert [row.tolist() for row in dataset] == rows
    assert dataset.cardinality() == mc.data.UNKNOWN_CARDINALITY
