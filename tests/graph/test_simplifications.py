"""Duplicates are merged and constants folded; values stay as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import NETWORKS

from memcfg import ops
from memcfg.graph import Builder, drop_dead_ops, fold_constants, merge_duplicates

UNARY = ("tanh", "sigmoid", "relu")


def evaluate(graph):
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
    return [values[tensor].tobytes() for tensor in graph.keep]


def types(graph):
    return [op.type for op in graph.ops]


def begun():
    builder = Builder("simple")
    return builder, builder.tensor("x", (2, 3), role="input")


def fill(builder, value, name=""):
    attributes = {"shape": (2, 3), "value": value, "dtype": "float32"}
    return builder.apply("fill", (), attributes, name=name)[0]


def test_what_is_computed_twice_is_computed_once():
    builder, x = begun()
    pairs = []
    for _ in range(2):  # the second chain is the first one
        (a,) = builder.apply("tanh", (x,))
        pairs += builder.apply("add", (a, x))
    (c,) = builder.apply("multiply", pairs, name="c")
    graph = builder.build([c])
    merged = merge_duplicates(graph)
    assert types(merged) == ["tanh", "add", "multiply"]
    assert evaluate(merged) == evaluate(graph)
    assert merge_duplicates(merged) is merged


def test_what_differs_or_is_kept_stays():
    builder, x = begun()
    kept = [builder.apply("tanh", (x,))[0] for _ in range(2)]  # both are outputs
    for slope in (0.1, 0.2):
        kept += builder.apply("leaky_relu", (x,), {"negative_slope": slope})
    kept += builder.apply("sigmoid", (x,))
    kept += builder.apply("sigmoid", (x,), phase="backward")
    graph = builder.build(kept)
    assert merge_duplicates(graph) is graph


def test_noise_of_one_key_is_the_same_noise():
    builder, x = begun()
    step = builder.tensor("step", (), "int64", role="input")
    noisy = [
        builder.apply("dropout", (x, step), {"rate": 0.5, "key": key})[0]
        for key in (1, 1, 2)
    ]
    (a,) = builder.apply("add", noisy[:2])
    (b,) = builder.apply("add", (a, noisy[2]))
    graph = builder.build([b])
    assert types(merge_duplicates(graph)).count("dropout") == 2


def test_what_depends_on_nothing_is_a_constant():
    builder, x = begun()
    two, three = fill(builder, 2.0), fill(builder, 3.0)
    (five,) = builder.apply("add", (two, three))
    (root,) = builder.apply("tanh", (five,), name="root")
    (y,) = builder.apply("multiply", (root, x), name="y")
    graph = builder.build([y])
    folded = fold_constants(graph)
    assert types(folded) == ["constant", "multiply"]
    assert [tensor.name for tensor in folded.tensors] == ["x", "root", "y"]
    assert evaluate(folded) == evaluate(graph)
    assert fold_constants(folded) is folded


def test_large_constants_and_other_types_stay_ops():
    builder = Builder("large")
    attributes = {"shape": (33, 32), "value": 1.0, "dtype": "float32"}
    (a,) = builder.apply("fill", (), attributes)
    (b,) = builder.apply("tanh", (a,))
    wide = {"shape": (2,), "value": 1.0, "dtype": "float64"}
    (c,) = builder.apply("tanh", builder.apply("fill", (), wide))
    graph = builder.build([b, c])
    assert fold_constants(graph) is graph


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_values_of_random_graphs_stay(data):
    builder, x = begun()
    made = [x, fill(builder, 0.5), fill(builder, 0.5), fill(builder, -2.0)]
    for _ in range(data.draw(st.integers(1, 12))):
        a, b = (data.draw(st.sampled_from(made)) for _ in range(2))
        if data.draw(st.booleans()):
            made += builder.apply(data.draw(st.sampled_from(UNARY)), (a,))
        else:
            made += builder.apply("add", (a, b))
    keep = data.draw(st.lists(st.sampled_from(made[4:]), unique=True))
    graph = drop_dead_ops(builder.build(keep))
    small = fold_constants(merge_duplicates(graph))
    assert len(small.ops) <= len(graph.ops)
    assert evaluate(small) == evaluate(graph)


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_keep_what_they_kept(name):
    graph = NETWORKS[name]()
    small = fold_constants(merge_duplicates(graph))
    for kept in ("keep", "losses"):
        assert [graph.tensors[i].name for i in getattr(graph, kept)] == [
            small.tensors[i].name for i in getattr(small, kept)
        ]
