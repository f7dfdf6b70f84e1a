"""Gradients of slices are concatenated, and slices are taken again for backward."""

from __future__ import annotations

import numpy as np
import pytest

from memcfg import ops
from memcfg.graph import Builder, gradients, join_padded, slice_again

ROWS, LENGTH, WIDTH = 2, 7, 3


def values_of(graph):
    """What is kept, by the meanings of the ops, in float32."""
    rng = np.random.default_rng(0)
    values = {}
    for place, tensor in enumerate(graph.tensors):
        if graph.producer[place] is None:
            values[place] = rng.normal(size=tensor.shape).astype(np.float32)
    for op in graph.ops:
        outputs = [np.zeros(graph.tensors[i].shape, np.float32) for i in op.outputs]
        inputs = [values[i] for i in op.inputs]
        ops.op_type(op.type).numpy(op.attributes, inputs, outputs)
        values.update(zip(op.outputs, outputs, strict=True))
    return [values[tensor] for tensor in graph.keep]


def of_slices(places, *, axis=1, whole=False):
    """A loss that reads parts of tanh(x), squared, and the gradient of x."""
    builder = Builder("slices")
    shape = [ROWS, WIDTH]
    shape.insert(axis, LENGTH)
    x = builder.tensor("x", shape, role="input")
    (y,) = builder.apply("tanh", (x,))
    parts = [y] if whole else []
    for first, last in places:
        begin, end = [0, 0, 0], list(shape)
        begin[axis], end[axis] = first, last
        ends = {"begin": tuple(begin), "end": tuple(end)}
        parts += builder.apply("slice", (y,), ends)
    total = None
    for part in parts:
        (square,) = builder.apply("multiply", (part, part))
        axes = {"axes": (0, 1, 2), "keepdims": False}
        (term,) = builder.apply("reduce_sum", (square,), axes)
        total = term if total is None else builder.apply("add", (total, term))[0]
    found = gradients(builder, total, [x])
    return builder.build([total, found[x]])


def count(graph, kind):
    return sum(op.type == kind and op.phase == "backward" for op in graph.ops)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("places", "pads"),
    [
        ([(t, t + 1) for t in range(LENGTH)], 0),
        ([(4, 7), (0, 4)], 0),
        ([(0, 2), (5, 7)], 0),  # zeros between
        ([(1, 2), (2, 4)], 1),  # zeros around
        ([(5, 6), (1, 3)], 1),
    ],
)
def test_gradients_of_slices_are_put_beside_each_other(places, pads, axis, whole):
    graph = of_slices(places, axis=axis, whole=whole)
    joined = join_padded(graph)
    assert count(graph, "pad") == len(places)
    assert count(joined, "pad") == pads
    assert count(joined, "concatenate") == 1
    sums = count(graph, "add") - count(joined, "add")
    assert sums == len(places) - 1
    for one, two in zip(values_of(graph), values_of(joined), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("places", [[(0, 3), (2, 7)], [(0, 7)], [(2, 4)]])
def test_others_are_left_alone(places):
    """Slices that overlap, and a single one."""
    graph = of_slices(places)
    assert join_padded(graph) is graph


def of_factors(places):
    """Parts of an input times weights: backward reads the parts, and not the whole."""
    builder = Builder("factors")
    x = builder.tensor("x", (ROWS, LENGTH, WIDTH), role="input")
    total, weights = None, []
    for first, last in places:
        ends = {"begin": (0, first, 0), "end": (ROWS, last, WIDTH)}
        (part,) = builder.apply("slice", (x,), ends)
        shape = builder.shape(part)
        weights.append(builder.tensor(f"w{first}", shape, role="parameter"))
        (made,) = builder.apply("multiply", (part, weights[-1]))
        axes = {"axes": (0, 1, 2), "keepdims": False}
        (term,) = builder.apply("reduce_sum", (made,), axes)
        total = term if total is None else builder.apply("add", (total, term))[0]
    found = gradients(builder, total, weights)
    return builder.build([total, *found.values()])


@pytest.mark.parametrize(
    ("places", "again"),
    [
        ([(t, t + 1) for t in range(LENGTH)], LENGTH),
        ([(0, 4), (2, 7)], 2),  # more bytes than the whole
        ([(0, 2), (5, 7)], 0),  # fewer
    ],
)
def test_slices_are_taken_again_where_the_whole_is_no_larger(places, again):
    graph = of_factors(places)
    found = slice_again(graph)
    assert count(found, "slice") == again
    assert (found is graph) == (again == 0)
    forward = {
        op.outputs[0]
        for op in found.ops
        if op.type == "slice" and op.phase == "forward"
    }
    read = {t for op in found.ops if op.phase == "backward" for t in op.inputs}
    assert read.isdisjoint(forward) == (again > 0)
    for one, two in zip(values_of(graph), values_of(found), strict=True):
        np.testing.assert_array_equal(one, two)


def test_slices_of_what_is_kept_anyway_are_taken_again():
    """Backward reads tanh(x) for its own gradient."""
    graph = join_padded(of_slices([(0, 2), (5, 7)]))
    found = slice_again(graph)
    assert count(found, "slice") == 2
    for one, two in zip(values_of(graph), values_of(found), strict=True):
        np.testing.assert_array_equal(one, two)
