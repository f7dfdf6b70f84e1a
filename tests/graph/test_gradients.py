"""Gradients as graph ops against central differences in float64."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import interpret, random_values
from networks import NETWORKS

from memcfg import ops
from memcfg.errors import GraphError
from memcfg.graph import Builder, gradients


def forward_loss(graph, values):
    forward = [op for op in graph.ops if op.phase == "forward"]
    return float(interpret(graph, values, ops=forward)["loss"])


def gradient_of(graph, name):
    """Name of the tensor that updates the weight `name`."""
    weight = graph.find(name)
    update = next(
        op for op in graph.ops if op.phase == "update" and op.inputs[0] == weight
    )
    return graph.tensors[update.inputs[1]].name


@pytest.mark.parametrize("network", NETWORKS)
def test_every_weight_gradient_is_the_derivative_of_the_loss(network):
    graph = NETWORKS[network]()
    values = {
        k: v.astype("f8") if v.dtype == "f4" else v
        for k, v in random_values(graph).items()
    }
    made = interpret(graph, values)
    rng = np.random.default_rng(1)
    weights = [
        graph.tensors[op.inputs[0]].name
        for op in graph.ops
        if op.type == "sgd_momentum"
    ]
    assert len(weights) >= 4
    for name in weights:
        gradient = made[gradient_of(graph, name)]
        direction = rng.normal(size=gradient.shape)
        expected = directional(graph, values, name, direction)
        got = float((gradient * direction).sum())
        assert got == pytest.approx(expected, rel=2e-5, abs=1e-9), name


def directional(graph, values, name, direction, h=1e-6):
    up = {**values, name: values[name] + h * direction}
    down = {**values, name: values[name] - h * direction}
    return (forward_loss(graph, up) - forward_loss(graph, down)) / (2 * h)


def test_a_shared_parameter_gets_the_sum_of_its_gradients():
    b = Builder("shared")
    w = b.tensor("w", (3, 3), role="parameter")
    x = b.tensor("x", (2, 3), role="input")
    y = b.tensor("labels", (2,), "int32", role="input")
    (h,) = b.apply("dense", (x, w))
    (h,) = b.apply("relu", (h,))
    (h,) = b.apply("dense", (h, w))
    loss, _ = b.apply("softmax_cross_entropy", (h, y), name="loss")
    found = gradients(b, loss, [w])
    graph = b.build([loss, found[w]])
    assert graph.tensors[found[w]].role == "gradient"
    rng = np.random.default_rng(3)
    values = {
        "w": rng.normal(size=(3, 3)),
        "x": rng.normal(size=(2, 3)),
        "labels": np.array([0, 2], np.int32),
    }
    made = interpret(graph, values)[graph.tensors[found[w]].name]
    direction = rng.normal(size=(3, 3))
    expected = directional(graph, values, "w", direction)
    assert float((made * direction).sum()) == pytest.approx(expected, rel=1e-6)


def test_inputs_that_need_no_gradient_get_none():
    graph = NETWORKS["chain"]()
    x = graph.find("x")
    readers = {graph.ops[i].type for i in graph.consumers[x]}
    assert readers == {"conv2d", "conv2d_gradient_kernel"}


def test_the_loss_must_be_a_scalar_made_by_an_op():
    b = Builder("bad")
    x = b.tensor("x", (2, 3), role="input")
    (y,) = b.apply("relu", (x,))
    with pytest.raises(GraphError, match="a scalar"):
        gradients(b, y, [x])
    with pytest.raises(GraphError, match="a scalar"):
        gradients(b, b.tensor("s", (), role="input"), [x])


def test_an_op_without_gradient_on_the_way_is_refused():
    b = Builder("bad")
    w = b.tensor("w", (2, 3), role="parameter")
    y = b.tensor("labels", (2,), "int32", role="input")
    ops.register(ops.OpType("opaque", 1, lambda inputs, _: inputs, np.copyto))
    (h,) = b.apply("opaque", (w,))
    loss, _ = b.apply("softmax_cross_entropy", (h, y))
    with pytest.raises(GraphError, match="no gradient"):
        gradients(b, loss, [w])
    ops.unregister("opaque")


def test_another_output_of_the_loss_op_has_no_gradient():
    b = Builder("bad")
    w = b.tensor("w", (1, 1), role="parameter")
    gamma = b.tensor("gamma", (1,), role="parameter")
    operands, epsilon = (w, gamma, gamma), {"epsilon": 1e-3}
    _, mean, _ = b.apply("layer_normalization", operands, epsilon)
    (two,) = b.apply("reshape", (mean,), {"shape": ()})
    with pytest.raises(GraphError, match="another output than the first"):
        gradients(b, two, [w])
