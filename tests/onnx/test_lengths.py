"""Lengths that depend on the batch are solved for from traces at several sizes."""

from __future__ import annotations

from itertools import combinations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg.errors import GraphError
from memcfg.onnx import Length, fit

SETTINGS = [
    {"batch": 5, "length": 96},
    {"batch": 7, "length": 96},
    {"batch": 5, "length": 160},
    {"batch": 7, "length": 160},
]
SYMBOLS = [(), *combinations(SETTINGS[0], 1), *combinations(SETTINGS[0], 2)]


@given(st.integers(1, 50), st.sampled_from(SYMBOLS), st.integers(-4, 100))
def test_a_length_is_found_again(factor, symbols, term):
    values = [factor * prod(s[name] for name in symbols) + term for s in SETTINGS]
    found = fit([(value, "x") for value in values], SETTINGS)[0]
    if symbols:
        assert found == Length(factor, symbols, term)
    else:
        assert found == values[0]


@pytest.mark.parametrize(
    "values",
    [
        (1, 2, 3, 9),
        ("a", "b", "a", "b"),
        (1.5, 2.5, 1.5, 2.5),
        ((1, 2), (1,), (1, 2), (1,)),
        (True, False, True, False),
    ],
)
def test_what_is_no_length_is_refused(values):
    with pytest.raises(GraphError, match="'batch': 5"):
        fit(values, SETTINGS)
