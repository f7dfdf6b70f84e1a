"""The same programs in TensorFlow's tf.data and in memcfg, element for element.

Values, dtypes, shapes, structure, specs, cardinalities, and whether it fails. What
differs on purpose, and why, is in docs/decisions/0019-datasets-reproduce-tf-data.md.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from data_draws import draw_program
from data_libraries import Memcfg, TensorFlow
from data_programs import differences, nested, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="needs TensorFlow: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.* ended before its data did"),
]


class Chooser:
    """Choices of hypothesis, which makes a program that fails smaller."""

    def __init__(self, data):
        self._data = data

    def pick(self, options):
        return self._data.draw(st.sampled_from(options))

    def number(self, low, high):
        return self._data.draw(st.integers(low, high))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return [
        library(tmp_path_factory.mktemp(library.__name__))
        for library in (TensorFlow, Memcfg)
    ]


@pytest.mark.parametrize("shared", [False, True])
@given(st.data())
@settings(suppress_health_check=list(HealthCheck))  # 40 ms each
def test_drawn_programs(libraries, shared, data):
    program = draw_program(Chooser(data), shared=shared)
    theirs, ours = (outcome(program, library) for library in libraries)
    assert differences(program, theirs, ours) == [], json.dumps(program)


@pytest.mark.parametrize("name", ["arguments", "plain", "shared", "shuffles"])
def test_what_is_written_down_for_machines_without_tensorflow(libraries, name):
    path = Path(__file__).parents[1] / "data" / "golden" / f"{name}.json"
    for case in json.loads(path.read_text(encoding="utf-8"))[::4]:
        assert outcome(case["program"], libraries[0]) == case["outcome"]


@given(
    st.integers(0, 3000),
    st.integers(1, 4000),
    st.integers(-(2**40), 2**40),
    st.booleans(),
    st.integers(1, 4),
)
def test_long_shuffles(libraries, count, size, seed, reshuffle, repeats):
    found = []
    for library in libraries:
        order = library.Dataset.range(count).shuffle(size, seed, reshuffle)
        order = order.repeat(repeats).batch(100_000)
        found.append([nested(one) for one in (*elements(order), *elements(order))])
    assert found[0] == found[1]


def elements(dataset):
    return list(dataset.as_numpy_iterator())


REDUCTIONS = {
    "sum": (np.int64(0), lambda state, x: state + x),
    "count": (np.int32(0), lambda state, x: state + 1),
    "pair": (
        (np.int64(0), np.float32(1)),
        lambda state, x: (state[0] + x, state[1] * 2),
    ),
    "dict": ({"n": np.int64(3)}, lambda state, x: {"n": state["n"] * x}),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_reductions(libraries, name, count):
    initial, function = REDUCTIONS[name]
    theirs, ours = (
        library.Dataset.range(count).reduce(initial, library.function(function))
        for library in libraries
    )
    assert nested(numpy_of(theirs)) == nested(ours)


def numpy_of(nest):
    if isinstance(nest, tuple):
        return tuple(map(numpy_of, nest))
    if isinstance(nest, dict):
        return {key: numpy_of(value) for key, value in nest.items()}
    return nest.numpy()


FORMS = {
    "zip of arguments": lambda D: D.zip(D.range(3), D.range(1, 9)),
    "zip of a nest": lambda D: D.zip((D.range(3), {"a": (D.range(2), D.range(4))})),
    "apply": lambda D: D.range(5).apply(lambda dataset: dataset.skip(2)),
    "batches of batches": lambda D: D.range(10).batch(2).batch(2, drop_remainder=True),
    "slices of text": lambda D: D.from_tensor_slices(["a", "bcd", "ü"]).batch(2),
    "padded text": lambda D: D.from_tensor_slices(["a b", "c"]).padded_batch(
        3, padded_shapes=[]
    ),
    "lists of lists": lambda D: D.from_tensor_slices([[1, 2], [3, 4]]),
    "lists in tuples": lambda D: D.from_tensor_slices(([1, 2], [3.0, 4.0])),
    "scalars": lambda D: D.from_tensors((1, 2.5, "x", True, [1], [[2.0]])),
    "a named dataset": lambda D: (
        D.range(3, name="r").batch(2, name="b").take(1, name="t")
    ),
    "interleaved files": lambda D: D.range(9).interleave(
        lambda x: D.range(3), cycle_length=3, block_length=2
    ),
    "enumerated": lambda D: D.from_tensor_slices([5, 6]).enumerate(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_api(libraries, form):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = (FORMS[form](library.Dataset) for library in libraries)
    assert list(map(nested, elements(theirs))) == list(map(nested, elements(ours)))
    specs = [
        library.spec_words(d)
        for library, d in zip(libraries, (theirs, ours), strict=True)
    ]
    if libraries[1].is_known(ours):
        assert specs[0] == specs[1]
    assert int(theirs.cardinality()) == int(ours.cardinality())


def test_len_and_bool(libraries):
    for make in (
        lambda D: D.range(3),
        lambda D: D.range(0),
        lambda D: D.range(3).repeat(),
        lambda D: D.range(3).filter(lambda x: x > 1),
    ):
        answers = []
        for library in libraries:
            try:
                answers.append(len(make(library.Dataset)))
            except TypeError:
                answers.append("refused")
        assert answers[0] == answers[1]


@given(
    st.lists(st.integers(0, 11), max_size=12),
    st.sampled_from([[4], [2, 7], [3, 5, 12]]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_buckets_of_lengths(libraries, lengths, bounds, size, drop, boundary):
    import tensorflow as tf

    lengths = [n for n in lengths if n < bounds[-1] or not boundary]
    rows = [(np.arange(n), np.int32(n)) for n in lengths]
    found = []
    for library, spec in zip(
        libraries, (tf.TensorSpec, mc.data.TensorSpec), strict=True
    ):
        signature = (spec((None,), "int64"), spec((), "int32"))
        data = library.Dataset.from_generator(
            lambda: iter(rows), output_signature=signature
        ).bucket_by_sequence_length(
            lambda row, length: length,
            bounds,
            [size + k for k in range(len(bounds) + 1)],
            pad_to_bucket_boundary=boundary,
            drop_remainder=drop,
        )
        found.append([nested(one) for one in elements(data)])
    assert found[0] == found[1]
