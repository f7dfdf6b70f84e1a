"""Backward finds masks and concatenated parts elsewhere, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import CONV, NETWORKS, POOL

from memcfg import ops
from memcfg.graph import (
    Builder,
    drop_dead_ops,
    fuse_ops,
    gradients,
    read_concatenations,
    spare_activations,
    split_convolution_gradients,
)

PASSES = (
    spare_activations,
    split_convolution_gradients,
    fuse_ops,
    read_concatenations,
)


def evaluate(graph, seed=0):
    """What is kept, by the meanings of the ops, in float32."""
    rng = np.random.default_rng(seed)
    values = {}
    for place, tensor in enumerate(graph.tensors):
        if graph.producer[place] is None:
            values[place] = rng.normal(size=tensor.shape).astype(np.float32)
            if tensor.dtype.startswith("int"):
                values[place] = rng.integers(0, 2, tensor.shape).astype(tensor.dtype)
    for op in graph.ops:
        made = [graph.tensors[i] for i in op.outputs]
        outputs = [np.zeros(tensor.shape, tensor.dtype) for tensor in made]
        inputs = [values[i] for i in op.inputs]
        ops.op_type(op.type).numpy(op.attributes, inputs, outputs)
        values.update(zip(op.outputs, outputs, strict=True))
    return [values[tensor] for tensor in graph.keep]


def read_later(graph):
    """The names of what backward reads of the forward phase."""
    return {
        graph.tensors[tensor].name
        for op in graph.ops
        if op.phase != "forward"
        for tensor in op.inputs
        if (maker := graph.producer[tensor]) is not None
        and graph.ops[maker].phase == "forward"
    }


class Net:
    """A builder with a few layers of images."""

    def __init__(self, channels=4, size=8):
        self.builder = Builder("net")
        self.builder.training = True
        self.x = self.builder.tensor("x", (2, size, size, channels), role="input")
        self.weights = []

    def weight(self, *shape):
        name = f"w{len(self.weights)}"
        self.weights.append(self.builder.tensor(name, shape, role="parameter"))
        return self.weights[-1]

    def op(self, kind, *inputs, name="", **attributes):
        return self.builder.apply(kind, inputs, attributes, name=name)[0]

    def conv(self, x, filters, name):
        kernel = self.weight(3, 3, self.builder.shape(x)[-1], filters)
        return self.op("conv2d", x, kernel, name=f"{name}/conv", **CONV)

    def biased(self, x, filters, name):
        y = self.op("bias", self.conv(x, filters, name), self.weight(filters))
        return self.op("relu", y, name=name)

    def normalized(self, x, name, activation="relu"):
        channels = self.builder.shape(x)[-1]
        return self.op(activation, self.standardized(x, channels, 1e-3), name=name)

    def standardized(self, x, channels, epsilon):
        operands = x, self.weight(channels), self.weight(channels)
        found = self.builder.apply("batch_moments", (x,))
        return self.op("batch_normalization", *operands, *found, epsilon=epsilon)

    def pool(self, x, name="pool", **changes):
        return self.op("max_pool2d", x, name=name, **{**POOL, **changes})

    def finish(self, *outputs):
        axes = {"axes": (0, 1, 2, 3)}
        total = self.op(
            "reduce_mean", self.op("multiply", outputs[0], outputs[0]), **axes
        )
        for each in outputs[1:]:
            term = self.op("reduce_mean", self.op("multiply", each, each), **axes)
            total = self.op("add", total, term)
        found = gradients(self.builder, total, self.weights)
        return drop_dead_ops(self.builder.build([total, *found.values()]))


def check(graph, *, exact=True):
    """Every pass keeps what is kept."""
    wanted = evaluate(graph)
    for each in PASSES:
        graph = each(graph)
        found = evaluate(graph)
        for a, b in zip(found, wanted, strict=True):
            if exact:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    return graph


def test_maxima_mask_the_gradient_of_a_pooled_rectifier():
    for changes in ({}, {"pool_size": (3, 3), "padding": ((1, 1), (1, 1))}):
        net = Net()
        y = net.biased(net.x, 5, "y")
        graph = net.finish(net.biased(net.pool(y, **changes), 3, "z"))
        assert "y" in read_later(graph)
        graph = check(graph)
        assert "y" not in read_later(graph)
        (mask,) = [op for op in graph.ops if op.type == "relu_gradient"]
        assert graph.tensors[mask.inputs[0]].name == "pool"
        assert graph.tensors[mask.outputs[0]].shape == (2, 4, 4, 5)


@pytest.mark.parametrize("sizes", [(3,), (3, 5)])
@pytest.mark.parametrize("skipped", [False, True])
def test_maxima_are_not_kept_that_take_more_bytes(sizes, skipped):
    """Each is as large as what is pooled, with which it is concatenated or not."""
    net = Net()
    y = net.biased(net.x, 5, "y")
    parts = [
        net.pool(y, pool_size=(n, n), strides=(1, 1), padding=((n // 2,) * 2,) * 2)
        for n in sizes
    ]
    whole = net.op("concatenate", *[y] * skipped, *parts, net.x, axis=-1)
    graph = net.finish(net.biased(whole, 3, "z"))
    before = read_later(graph)
    after = read_later(spare_activations(graph))
    kept = {tensor.name: tensor.nbytes for tensor in graph.tensors}
    assert sum(map(kept.get, after)) <= sum(map(kept.get, before))
    check(graph, exact=False)


@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_a_normalisation_sees_what_is_let_through_in_its_input(activation):
    net = Net()
    y = net.normalized(net.conv(net.x, 5, "a"), "y", activation)
    z = net.op("concatenate", y, net.biased(net.x, 3, "b"), axis=-1)
    graph = net.finish(net.op("tanh", z))
    assert "y" in read_later(graph)
    graph = check(graph)
    assert "y" not in read_later(graph)
    (op,) = [o for o in graph.ops if o.type.startswith("batch_normalization_rel")][1:]
    assert op.type == f"batch_normalization_{activation}_gradient"
    assert op.attributes == {"epsilon": 1e-3}


def test_a_residual_sum_keeps_its_mask():
    """What is added needs the masked gradient as well."""
    net = Net(channels=5)
    y = net.standardized(net.x, 5, 0.1)
    y = net.op("relu", net.op("add", y, net.conv(net.x, 5, "a")), name="y")
    graph = check(net.finish(net.op("tanh", y)))
    assert "y" in read_later(graph)


def test_what_is_concatenated_is_read_in_the_whole():
    """As in U-Net: skipped ahead, pooled, and both gradients are added."""
    net = Net(size=16)
    y = net.biased(net.x, 6, "y")
    low = net.biased(net.pool(y), 7, "low")
    other = net.biased(net.x, 3, "other")
    whole = net.op("concatenate", y, other, axis=-1, name="whole")
    graph = net.finish(net.biased(whole, 4, "merged"), low)
    assert {"y", "other"} <= read_later(graph)
    graph = check(graph, exact=False)
    assert "y" not in read_later(graph)
    kinds = [op.type for op in graph.ops]
    assert "split" not in kinds
    assert kinds.count("relu_gradient_at") == 1
    (op,) = [op for op in graph.ops if op.type == "relu_gradient_at"]
    assert graph.tensors[op.inputs[0]].name == "whole"
    assert op.attributes["first"] == 0


def test_dense_blocks_keep_one_concatenation():
    """As in DenseNet: all but the last are read as its first channels."""
    net = Net(channels=4)
    x = net.conv(net.x, 6, "begin")
    for i in range(4):
        y = net.conv(net.normalized(x, f"y{i}"), 3, f"layer{i}")
        x = net.op("concatenate", x, y, axis=-1, name=f"whole{i}")
    graph = net.finish(net.conv(net.normalized(x, "end"), 2, "last"))
    before = {name for name in read_later(graph) if name.startswith("whole")}
    assert before == {f"whole{i}" for i in range(4)}
    graph = check(graph, exact=False)
    after = {name for name in read_later(graph) if name.startswith("whole")}
    assert after == {"whole3"}
    assert "begin/conv" not in read_later(graph)


def test_gradients_that_others_read_are_left():
    """Of grouped convolutions, and along other axes."""
    net = Net()
    a, b = net.biased(net.x, 4, "a"), net.biased(net.x, 4, "b")
    rows = net.op("concatenate", a, b, axis=1)
    both = net.op("concatenate", net.conv(net.x, 4, "c"), a, axis=-1)
    kernel = net.weight(3, 3, 4, 4)
    y = net.op("conv2d", both, kernel, **{**CONV, "groups": 2})
    graph = check(net.finish(net.conv(rows, 2, "rows"), y))
    assert [op.type for op in graph.ops].count("split") == 2
    assert "b" in read_later(graph)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_network_of_these_layers_keeps_its_gradients(data):
    net = Net(channels=data.draw(st.integers(1, 5)))
    made = [net.x]
    for i in range(data.draw(st.integers(2, 7))):
        x = data.draw(st.sampled_from(made))
        kind = data.draw(
            st.sampled_from(["biased", "normalized", "pool", "concatenate", "add"])
        )
        alike = [
            y for y in made if net.builder.shape(y)[:3] == net.builder.shape(x)[:3]
        ]
        if kind == "biased":
            made.append(net.biased(x, data.draw(st.integers(1, 4)), f"y{i}"))
        elif kind == "normalized":
            made.append(net.normalized(net.conv(x, 3, f"y{i}"), f"z{i}"))
        elif kind == "pool" and net.builder.shape(x)[1] > 2:
            made.append(net.pool(x, f"y{i}"))
        elif kind == "concatenate":
            parts = [x, *data.draw(st.lists(st.sampled_from(alike), min_size=1))][:4]
            made.append(net.op("concatenate", *parts, axis=3, name=f"y{i}"))
        elif kind == "add":
            same = [y for y in alike if net.builder.shape(y) == net.builder.shape(x)]
            made.append(net.op("add", x, data.draw(st.sampled_from(same))))
    outputs = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=2))
    graph = net.finish(net.biased(outputs[0], 2, "last"), *outputs[1:])
    check(graph, exact=False)


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_keep_what_they_kept(name):
    graph = NETWORKS[name]()
    for each in PASSES[:2]:
        made = each(graph)
        assert [made.tensors[i].name for i in made.keep] == [
            graph.tensors[i].name for i in graph.keep
        ]
        assert len(made.persistent) == len(graph.persistent)
