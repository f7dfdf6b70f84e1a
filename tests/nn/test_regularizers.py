"""Penalties against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import interpret

import memcfg as mc
from memcfg.graph import Builder, gradients
from memcfg.nn.regularizers import get_regularizer

regularizers = mc.nn.regularizers


@pytest.mark.parametrize(
    ("regularizer", "l1", "l2"),
    [
        (regularizers.L1(), 0.01, 0),
        (regularizers.L2(0.3), 0, 0.3),
        (regularizers.L1L2(0.1, 0.2), 0.1, 0.2),
        (get_regularizer("l2"), 0, 0.01),
        (get_regularizer("l1"), 0.01, 0),
        (get_regularizer("l1_l2"), 0, 0),
    ],
)
def test_the_penalty_and_its_gradient(regularizer, l1, l2):
    builder = Builder("penalty")
    w = builder.tensor("w", (3, 4), role="parameter")
    penalty = regularizer.trace(builder, w)
    found = gradients(builder, penalty, [w])
    graph = builder.build([penalty, found[w]])
    value = np.random.default_rng(0).normal(size=(3, 4))
    value[0] = 0
    made = interpret(graph, {"w": value})
    expected = l1 * abs(value).sum() + l2 * (value**2).sum()
    assert made[graph.tensors[penalty].name] == pytest.approx(expected)
    slopes = made[graph.tensors[found[w]].name]
    np.testing.assert_allclose(slopes, l1 * np.sign(value) + 2 * l2 * value)


def test_what_regularizers_are():
    assert get_regularizer(None) is None
    penalty = regularizers.L2(0.1)
    assert get_regularizer(penalty) is penalty
    assert repr(penalty) == "L2(l2=0.1)"
    assert repr(regularizers.L1(0.5)) == "L1(l1=0.5)"
    for make, kind, words in (
        (lambda: get_regularizer("l3"), ValueError, "unknown regularizer 'l3'"),
        (lambda: get_regularizer(0.1), TypeError, "a regularizer is L1"),
        (lambda: regularizers.L2(-1), ValueError, "l2 must be zero or more"),
        (regularizers.OrthogonalRegularizer, ValueError, "not supported: start from"),
    ):
        with pytest.raises(kind, match=words):
            make()
