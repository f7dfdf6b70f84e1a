"""Gradients of one op, by its rule and by finite differences, both in float64."""

from __future__ import annotations

from math import prod

import numpy as np
from interpreter import interpret

from memcfg.graph import Builder, gradients


def check_gradient(kind, arrays, attributes=(), wrt=(0,), rtol=1e-6, atol=1e-7):
    """Compare the gradient of ``sum(y * weights)`` with central differences.

    `arrays` are the op's inputs, those of floats in float64; `wrt` says for which of
    them.
    """
    builder = Builder("slopes")
    inputs = [
        builder.tensor(
            f"input {i}",
            x.shape,
            "float32" if x.dtype.kind == "f" else x.dtype.name,
            role="parameter",
        )
        for i, x in enumerate(arrays)
    ]
    y, *_ = builder.apply(kind, inputs, dict(attributes))
    shape = builder.shape(y)
    weights = builder.tensor("weights", shape, role="input")
    (product,) = builder.apply("multiply", (y, weights))
    axes = tuple(range(len(shape)))
    (loss,) = builder.apply("reduce_sum", (product,), {"axes": axes}, name="loss")
    found = gradients(builder, loss, [inputs[i] for i in wrt])
    graph = builder.build([loss, *found.values()])
    values = {f"input {i}": x for i, x in enumerate(arrays)}
    values["weights"] = np.random.default_rng(1).normal(size=shape)
    results = interpret(graph, values)
    forward = [op for op in graph.ops if op.phase == "forward"]
    for i in wrt:
        slopes = results[graph.tensors[found[inputs[i]]].name]
        assert slopes.shape == arrays[i].shape
        for place in np.random.default_rng(2).permutation(prod(arrays[i].shape))[:12]:
            ends = []
            for step in (-1e-4, 1e-4):
                moved = np.array(arrays[i], np.float64)
                moved.flat[place] += step
                changed = {**values, f"input {i}": moved}
                ends.append(interpret(graph, changed, ops=forward)["loss"])
            slope = (ends[1] - ends[0]) / 2e-4
            np.testing.assert_allclose(
                slopes.flat[place], slope, rtol=rtol, atol=atol * max(1, abs(slope))
            )
