"""Windows: datasets of elements that follow one another."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc

Dataset, Spec = mc.data.Dataset, mc.data.TensorSpec


def windows(count, size, shift, stride, drop_remainder):
    """The definition, with a list."""
    found = []
    for start in range(0, count, size if shift is None else shift):
        numbers = list(range(start, start + size * stride, stride))
        inside = [n for n in numbers if n < count]
        if inside and (len(inside) == size or not drop_remainder):
            found.append(inside)
    return found


ARGUMENTS = st.tuples(
    st.integers(1, 6),
    st.none() | st.integers(1, 8),
    st.integers(1, 4),
    st.booleans(),
)


@given(st.integers(0, 20), ARGUMENTS)
def test_windows_are_those_of_the_definition(count, arguments):
    data = Dataset.range(count).window(*arguments)
    found = [[int(n) for n in window] for window in data]
    assert found == windows(count, *arguments)
    assert data.cardinality() == len(found)
    without_rows = Dataset.range(count).map(lambda n: n).window(*arguments)
    assert [[int(n) for n in window] for window in without_rows] == found


def test_flat_map_makes_batches_of_windows():
    data = Dataset.range(7).window(3, shift=2, drop_remainder=True)
    batches = list(data.flat_map(lambda window: window.batch(3)))
    assert [batch.tolist() for batch in batches] == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]


def test_components_are_datasets():
    data = Dataset.from_tensor_slices({"x": np.arange(5.0), "y": [1, 2, 3, 4, 5]})
    data = data.window(2)
    assert data.element_spec == {
        "x": mc.data.DatasetSpec(Spec((), "float64")),
        "y": mc.data.DatasetSpec(Spec((), "int32")),
    }
    first, *_ = data
    assert list(first["x"]) == [0.0, 1.0]
    assert first["y"].cardinality() == 2
    pairs = Dataset.zip(Dataset.range(5), Dataset.range(5, 10)).window(2)
    joined = pairs.flat_map(lambda a, b: Dataset.zip(a.batch(2), b.batch(2)))
    assert [(a.tolist(), b.tolist()) for a, b in joined][1] == ([2, 3], [7, 8])


def test_windows_pass_other_steps():
    data = Dataset.range(8).window(2)

    def total(window):
        return sum(int(n) for n in window)

    assert list(data.map(total)) == [1, 5, 9, 13]
    assert list(data.take(2).map(total)) == [1, 5]
    assert list(data.skip(1).repeat(2).map(total)) == [5, 9, 13] * 2
    assert sorted(data.shuffle(4, seed=1).prefetch(2).map(total)) == [1, 5, 9, 13]
    assert list(data.filter(lambda w: total(w) > 4).map(total)) == [5, 9, 13]
    assert list(data.concatenate(data.take(1)).map(total)) == [1, 5, 9, 13, 1]
    assert data.reduce(0, lambda n, window: n + total(window)) == 28
    assert [(int(n), total(w)) for n, w in data.enumerate()][1] == (1, 5)
    twice = data.window(2).flat_map(lambda outer: outer)
    assert list(twice.map(total)) == [1, 5, 9, 13]


def test_specs_where_functions_must_run():
    data = Dataset.range(4).map(lambda n: np.ones(3)).window(2)
    assert data.element_spec == mc.data.DatasetSpec(Spec((None,), "float64"))
    [first, _] = data
    assert first.element_spec == Spec((None,), "float64")


def test_windows_keep_their_elements(pool):
    data = Dataset.range(6).map(lambda n: np.full(4, n)).window(2)
    kept = list(data)
    assert [[a[0] for a in window] for window in kept] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "step",
    [
        lambda data: data.batch(2),
        lambda data: data.padded_batch(2),
        lambda data: data.cache(),
        lambda data: data.unbatch(),
        lambda data: data.take(1).shuffle(3).batch(2),
    ],
)
def test_steps_of_arrays_refuse_windows(step):
    with pytest.raises(TypeError, match=r"window gives datasets: use flat_map"):
        step(Dataset.range(8).window(2))


def test_a_model_refuses_windows():
    model = mc.nn.Sequential([mc.nn.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="a model takes arrays, but window"):
        model.fit(Dataset.range(8).window(2), verbose=0)


def test_windows_can_be_copied():
    data = pickle.loads(pickle.dumps(Dataset.range(4).window(2)))
    assert [[int(n) for n in window] for window in data] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0,), ValueError),
        ((2, 0), ValueError),
        ((2, 1, 0), ValueError),
        ((2.5,), TypeError),
        ((2, 1, 1, 1), TypeError),
    ],
)
def test_wrong_arguments(arguments, error):
    with pytest.raises(error):
        Dataset.range(5).window(*arguments)
