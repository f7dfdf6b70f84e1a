"""Constraints beside Keras 3: weights after ten steps."""

from __future__ import annotations

import pytest
from beside_keras import MARKS, OURS, check, keras, sequences

import memcfg as mc

pytestmark = MARKS
CASES = {
    "max": lambda c: c.MaxNorm(0.8),
    "max along two": lambda c: c.MaxNorm(0.8, axis=[0, 1]),
    "positive": lambda c: c.NonNeg(),
    "unit": lambda c: c.UnitNorm(),
    "between": lambda c: c.MinMaxNorm(0.5, 0.9, rate=0.4),
}


def room(k):
    return mc.nn.constraints if k is OURS else keras.constraints


@pytest.mark.parametrize("case", CASES)
def test_kernels(case):
    def make(k):
        x = k.Input((5, 3))
        h = k.layers.Dense(4, kernel_constraint=CASES[case](room(k)))(x)
        one = {"kernel_constraint": CASES[case](room(k))}
        return x, k.layers.Conv1D(3, 2, bias_constraint="non_neg", **one)(h)

    check(make, sequences((5, 3), False))


def test_of_ones_own():
    def make(k):
        class Bounded(room(k).Constraint):
            def __call__(self, w):
                return (mc.nn.ops if k is OURS else keras.ops).clip(w, -0.2, 0.2)

        x = k.Input((5, 3))
        options = {"recurrent_constraint": Bounded(), "kernel_constraint": "max_norm"}
        return x, k.layers.SimpleRNN(4, **options)(x)

    check(make, sequences((5, 3), False))
