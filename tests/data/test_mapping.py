"""Functions of users: how they are called, and what becomes of what they return."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from steps import Items, numbers, passing

import memcfg as mc

Dataset = mc.data.Dataset
CALLS = [None, 1, 2, mc.data.AUTOTUNE]


class Pair(NamedTuple):
    a: Any
    b: Any


def mapped(node, function, calls=None, deterministic=None):
    with passing(node.dataset.map(function, calls, deterministic)) as found:
        return list(found)


@pytest.mark.parametrize("calls", CALLS)
def test_a_tuple_is_unpacked_and_nothing_else(calls):
    one, two = np.int64(1), np.int64(2)
    assert mapped(Items([(one, two)] * 3), lambda a, b: a + b, calls) == [3, 3, 3]
    assert mapped(Items([Pair(one, two)]), lambda pair: pair.b, calls) == [2]
    assert mapped(Items([{"a": one}]), lambda each: each["a"], calls) == [1]
    assert mapped(Items([((one, two),)]), lambda pair: pair, calls) == [(1, 2)]
    with pytest.raises(TypeError, match="positional argument"):
        mapped(Items([(one, two)]), lambda a: a, calls)


@pytest.mark.parametrize("calls", CALLS)
def test_results_are_converted(calls):
    def function(number):
        return 1, 2.0, True, [number, number], {"a": np.array(3, np.int8)}, range(2)

    (found,) = mapped(numbers(1), function, calls)
    one, two, yes, pair, nested, counted = found
    assert [type(leaf) for leaf in (one, two, yes)] == [np.int32, np.float32, np.bool_]
    assert pair.tolist() == [0, 0]
    assert type(nested["a"]) is np.int8
    assert counted.dtype == np.int32


@pytest.mark.parametrize("calls", CALLS)
def test_a_list_that_is_returned_is_a_tuple(calls):
    assert mapped(numbers(2), lambda n: [n, n], calls) == [(0, 0), (1, 1)]
    data = Dataset.range(4).map(lambda n: [n, n * 2], num_parallel_calls=calls)
    assert [part.tolist() for part in next(iter(data.batch(4)))] == [
        [0, 1, 2, 3],
        [0, 2, 4, 6],
    ]


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [0, 5, 39])
def test_what_it_raises_comes_behind_the_results_before(calls, size, kind, at):
    error = kind("boom")

    def function(number):
        if number == at:
            raise error
        return number

    data = Dataset.range(40).map(function, num_parallel_calls=calls)
    data = data if size is None else data.batch(size)
    found = []
    with iter(data) as elements:
        with pytest.raises(kind) as caught:
            found.extend(map(np.atleast_1d, elements))
        assert caught.value is error
        with pytest.raises(StopIteration):
            next(elements)
    whole = at if size is None else at // size * size
    assert [int(each) for part in found for each in part] == list(range(whole))


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("size", [None, 4])
def test_its_stop_iteration_is_no_end(calls, size):
    def function(number):
        return number if number < 9 else next(iter(()))

    data = Dataset.range(40).map(function, num_parallel_calls=calls)
    data = data if size is None else data.batch(size)
    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        list(data)
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("calls", CALLS)
def test_arrays_that_a_function_keeps_are_never_overwritten(calls):
    kept = {}

    def function(number):
        kept[int(number)] = made = np.full(50, number, float)
        return made

    data = Dataset.range(500).map(function, num_parallel_calls=calls)
    for number, row in enumerate(data.batch(16).prefetch(2).unbatch()):
        assert (row == number).all()
    assert len(kept) == 500
    assert all((array == number).all() for number, array in kept.items())


@pytest.mark.parametrize("calls", CALLS)
def test_one_array_that_is_returned_again_and_again(calls):
    always = np.arange(3.0)
    data = Dataset.range(100).map(lambda _: always, num_parallel_calls=calls)
    for batch in data.batch(8).prefetch(1):
        batch += 1
    assert always.tolist() == [0, 1, 2]


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("size", [None, 16])
def test_the_input_may_be_returned(calls, size):
    x = np.arange(300.0).reshape(100, 3)
    data = Dataset.from_tensor_slices(x).map(lambda row: row, num_parallel_calls=calls)
    data = data if size is None else data.batch(size).unbatch()
    assert (np.array(list(data.prefetch(3))) == x).all()


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("size", [None, 16])
def test_the_input_is_read_only(calls, size):
    def function(row):
        row += 1
        return row

    x = np.zeros((20, 3))
    data = Dataset.from_tensor_slices(x).map(function, num_parallel_calls=calls)
    with pytest.raises(ValueError, match="read-only"):
        list(data if size is None else data.batch(size))
    assert not x.any()


@pytest.mark.parametrize("calls", CALLS)
def test_a_function_may_read_another_dataset(calls):
    inner = Dataset.range(10).map(lambda n: n * 2).batch(4).prefetch(1)

    def function(number):
        return number + sum(int(batch.sum()) for batch in inner)

    data = Dataset.range(30).map(function, num_parallel_calls=calls).batch(8)
    assert np.concatenate(list(data)).tolist() == list(range(90, 120))


@pytest.mark.parametrize("calls", CALLS)
def test_maps_one_behind_the_other(calls):
    data = Dataset.from_tensor_slices(np.arange(50.0))
    for step in (lambda x: (x, 1), lambda x, n: {"x": x + n}, lambda each: each["x"]):
        data = data.map(step, num_parallel_calls=calls)
    assert np.concatenate(list(data.batch(7))).tolist() == list(range(1, 51))


def test_a_sequential_map_is_called_in_order_before_a_parallel_one():
    seen = []

    def first(number):
        seen.append(int(number))
        return number

    data = Dataset.range(200).map(first).map(lambda n: n + 1, num_parallel_calls=4)
    assert np.concatenate(list(data.batch(9))).tolist() == list(range(1, 201))
    assert seen == list(range(200))
    seen.clear()
    assert len(list(Dataset.range(90).map(first).batch(4, num_parallel_calls=3))) == 23
    assert seen == list(range(90))


@pytest.mark.parametrize("calls", CALLS)
def test_nothing_comes_of_nothing(calls):
    def never(_):
        raise AssertionError("it is called")

    data = Dataset.range(0).map(never, num_parallel_calls=calls)
    assert list(data) == []
    assert list(data.batch(3)) == []
    assert data.cardinality() == 0


@pytest.mark.parametrize("calls", CALLS)
def test_what_is_known_of_results(calls):
    data = Dataset.range(4).map(lambda n: (np.zeros(3), n), num_parallel_calls=calls)
    vector, number = data.element_spec
    assert (len(vector.shape), vector.dtype) == (1, np.float64)
    assert (number.shape, number.dtype) == ((), np.int64)
    assert data.cardinality() == 4


def test_arguments():
    data = Dataset.range(3)
    for wrong in (None, 3, "f"):
        with pytest.raises(TypeError, match="map needs a function"):
            data.map(wrong)
    for calls in (0, -2):
        with pytest.raises(ValueError, match="num_parallel_calls"):
            data.map(abs, num_parallel_calls=calls)
    for calls in (2.5, "2", True):
        with pytest.raises(TypeError, match="num_parallel_calls"):
            data.map(abs, num_parallel_calls=calls)
    with pytest.raises(TypeError, match="deterministic"):
        data.map(abs, num_parallel_calls=2, deterministic=1)
    with pytest.warns(UserWarning, match="no effect without num_parallel_calls"):
        data.map(abs, deterministic=True)
    assert list(data.map(abs, num_parallel_calls=np.int32(2))) == [0, 1, 2]
