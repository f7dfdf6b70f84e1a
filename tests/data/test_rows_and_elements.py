"""The two forms of a pass give the same: row numbers, and element after element.

A pipeline of any steps over rows is run over its rows, and over elements with the rows
hidden; its batches are compared with its elements.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Items

import memcfg as mc

Dataset = mc.data.Dataset


def hidden(dataset):
    """Make a dataset of the same elements that has no rows."""
    items = Items(list(dataset))
    items.element_spec = dataset.element_spec
    return Dataset(items)


def arrays(length):
    x = np.arange(length * 3, dtype=np.float32).reshape(length, 3)
    return {"x": x, "y": (np.arange(length), np.arange(length).astype(str))}


seeds = st.integers(0, 99)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(-1, 30)),
        st.tuples(st.just("skip"), st.integers(-1, 10)),
        st.tuples(st.just("shard"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("repeat"), st.integers(0, 3)),
        st.tuples(st.just("shuffle"), st.integers(1, 30), seeds, st.booleans()),
        st.tuples(st.just("enumerate"), st.integers(-3, 3)),
    ),
    max_size=5,
)


def piped(dataset, chain):
    for name, *args in chain:
        dataset = getattr(dataset, name)(*args)
    return dataset


def plain(nest):
    """Make lists of arrays, so that ``==`` compares all."""
    if isinstance(nest, dict):
        return {key: plain(value) for key, value in nest.items()}
    if isinstance(nest, tuple):
        return tuple(map(plain, nest))
    return (nest.dtype.kind, nest.tolist())  # a text has its own length for a dtype


@settings(deadline=None)
@given(st.integers(0, 20), steps, st.integers(1, 9), st.booleans())
def test_rows_and_elements_give_the_same(length, chain, size, drop):
    source = Dataset.from_tensor_slices(arrays(length))
    elements_only = hidden(source)
    over_rows, over_elements = piped(source, chain), piped(elements_only, chain)
    assert len(over_rows) == len(over_elements)
    assert over_rows.element_spec == over_elements.element_spec
    elements = list(map(plain, over_elements))
    assert list(map(plain, piped(source, chain))) == elements
    assert len(elements) == len(over_rows)
    batches = [
        list(map(plain, piped(dataset, chain).batch(size, drop)))
        for dataset in (source, elements_only)
    ]
    assert batches[0] == batches[1]


@settings(deadline=None)
@given(st.integers(0, 20), steps, st.integers(1, 9))
def test_batches_are_the_elements(length, chain, size):
    chain = [step for step in chain if step[0] != "enumerate"]
    source = Dataset.from_tensor_slices(arrays(length))
    wanted = [element["y"][0] for element in piped(source, chain)]
    numbers, rows, texts = [], [], []
    for batch in piped(source, chain).batch(size):
        numbers += batch["y"][0].tolist()
        texts += batch["y"][1].tolist()
        rows += batch["x"].tolist()
    assert numbers == wanted
    assert texts == [str(number) for number in wanted]
    assert rows == [[3 * n, 3 * n + 1, 3 * n + 2] for n in wanted]
