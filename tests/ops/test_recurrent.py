"""Recurrent kernels against what they mean in NumPy, in float64."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import check_on_threads, run_kernel

from memcfg import ops
from memcfg.errors import GraphError
from memcfg.graph import Builder

WIDTHS = {"lstm": 4, "gru": 3, "simple_rnn": 1}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def operands(kind, batch, steps, units, masked):
    width = WIDTHS[kind] * units
    found = [normal(batch, steps, width), normal(units, width, seed=1) * 0.4]
    if kind == "gru":
        found.append(normal(width, seed=2))
    found += [normal(batch, units, seed=3) for _ in range(1 + (kind == "lstm"))]
    if masked:
        found.append((normal(batch, steps, seed=4) > -0.3).astype(np.float32))
    return found


def shapes_of(kind, inputs, attributes):
    specs = [ops.Spec(each.shape, each.dtype.name) for each in inputs]
    return [spec.shape for spec in ops.op_type(kind).infer(specs, attributes)]


def both(kind, inputs, attributes):
    """The kernel's outputs, and the meaning's."""
    shapes = shapes_of(kind, inputs, attributes)
    wanted = [np.full(shape, np.nan) for shape in shapes]
    wide = [np.asarray(each, np.float64) for each in inputs]
    ops.op_type(kind).numpy(attributes, wide, wanted)
    return run_kernel(kind, inputs, shapes, attributes), wanted


def backward(kind, inputs, outputs, masked, cells):
    """The operands of the gradient's op, and its attributes."""
    states = 1 + (kind == "lstm")
    rest = inputs[2 + (kind == "gru") :]
    dys = [normal(*outputs[0].shape, seed=7 + i) for i in range(1 + cells)]
    kept = outputs[states:]
    found = [inputs[1], *kept, *outputs[:states], *rest[:states], *dys, *rest[states:]]
    return found, {"masked": masked, "cells": cells}


@pytest.mark.parametrize("kind", WIDTHS)
@given(
    batch=st.integers(1, 5),
    steps=st.integers(1, 6),
    units=st.sampled_from([1, 3, 8, 21]),
    masked=st.booleans(),
    cells=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_sequence_and_its_gradient(kind, batch, steps, units, masked, cells):
    cells = cells and kind == "lstm"
    inputs, attributes = operands(kind, batch, steps, units, masked), {"masked": masked}
    found, wanted = both(kind, inputs, attributes)
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    given_, attributes = backward(kind, inputs, found, masked, cells)
    slopes, wanted = both(f"{kind}_gradient", given_, attributes)
    for got, expected in zip(slopes, wanted, strict=True):
        scale = max(np.abs(expected).max(), 1.0)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * scale)


def test_in_place_and_on_any_number_of_threads():
    inputs = operands("lstm", 40, 7, 33, True)
    attributes = {"masked": True}
    shapes = shapes_of("lstm", inputs, attributes)
    found = run_kernel("lstm", inputs, shapes, attributes)
    given_, names = backward("lstm", inputs, found, True, True)
    backs = shapes_of("lstm_gradient", given_, names)
    slopes = run_kernel("lstm_gradient", given_, backs, names)
    for threads in (1, 2, 3):
        with machine.threads(threads):
            again = run_kernel("lstm", inputs, shapes, attributes, {0: 2})
            check_on_threads(again, found)
            again = run_kernel("lstm_gradient", given_, backs, names, {1: 0})
            check_on_threads(again, slopes)


def test_operands_that_do_not_fit():
    builder = Builder("recurrent")
    z, kernel = builder.tensor("z", (2, 3, 8)), builder.tensor("kernel", (2, 8))
    h, wrong = builder.tensor("h", (2, 2)), builder.tensor("wrong", (3, 2))
    assert builder.shape(builder.apply("lstm", (z, kernel, h, h))[0]) == (2, 3, 2)
    for inputs, words in (
        ((z, kernel, h), "4 inputs"),
        ((z, h, h, h), "recurrent kernel"),
        ((z, kernel, h, wrong), "instead of"),
    ):
        with pytest.raises(GraphError, match=words):
            builder.apply("lstm", inputs)
