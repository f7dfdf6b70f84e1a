"""Ops that stand together as a composite does are fused, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from networks import NETWORKS

from memcfg import ops
from memcfg.graph import Builder, drop_dead_ops, fuse_ops, fuse_products, gradients

SHAPE = (4, 5, 5, 3)


def begun():
    builder = Builder("fusion")
    x = builder.tensor("x", SHAPE, role="input")
    gamma, beta = (builder.tensor(n, (3,), role="parameter") for n in ("g", "b"))
    return builder, x, gamma, beta


def normalized(builder, x, gamma, beta):
    mean, variance = builder.apply("batch_moments", (x,), name="moments")
    operands = (x, gamma, beta, mean, variance)
    (y,) = builder.apply("batch_normalization", operands, {"epsilon": 0.1}, name="norm")
    return y, mean, variance


def types(graph):
    return [op.type for op in graph.ops]


def evaluate(graph, seed=0):
    """The values of all tensors, by the meanings of the ops."""
    rng = np.random.default_rng(seed)
    values = {}
    for place, tensor in enumerate(graph.tensors):
        if graph.producer[place] is None:
            values[tensor.name] = rng.normal(size=tensor.shape)
    for op in graph.ops:
        outputs = [np.zeros(graph.tensors[i].shape) for i in op.outputs]
        inputs = [values[graph.tensors[i].name] for i in op.inputs]
        ops.op_type(op.type).numpy(op.attributes, inputs, outputs)
        for i, array in zip(op.outputs, outputs, strict=True):
            values[graph.tensors[i].name] = array
    return values


def test_a_chain_becomes_one_op():
    builder, x, gamma, beta = begun()
    y, mean, variance = normalized(builder, x, gamma, beta)
    (sum_,) = builder.apply("add", (x, y), name="sum")  # either way round
    (out,) = builder.apply("relu", (sum_,), name="out")
    graph = builder.build([out, mean, variance])
    fused = fuse_ops(graph)
    _, op = fused.ops
    assert (op.type, op.name, op.group) == (
        "batch_normalization_add_relu",
        "norm",
        "norm",
    )
    assert [fused.tensors[i].name for i in op.inputs] == [
        *("x", "g", "b", "moments:mean", "moments:variance", "x"),
    ]
    names = [tensor.name for tensor in fused.tensors]
    assert names == ["x", "g", "b", "moments:mean", "moments:variance", "out"]
    assert [fused.tensors[i].role for i in fused.keep] == ["output"] * 3
    assert op.attributes == {"epsilon": 0.1}
    assert op.seconds < sum(each.seconds for each in graph.ops)
    before, after = evaluate(graph), evaluate(fused)
    for name in ("out", "moments:mean", "moments:variance"):
        np.testing.assert_array_equal(before[name], after[name])
    assert fuse_ops(fused) is fused


def test_what_others_read_is_not_fused():
    for keeps in ("y", "reader"):
        builder, x, gamma, beta = begun()
        y, *_ = normalized(builder, x, gamma, beta)
        kept = []
        if keeps == "y":
            kept.append(y)
        if keeps == "reader":
            kept += builder.apply("tanh", (y,))
        (out,) = builder.apply("relu", (y,))
        graph = builder.build([out, *kept])
        assert fuse_ops(graph) is graph


def test_what_is_read_before_a_composite_would_make_it_is_not_fused():
    for early in (False, True):
        builder, x, *_ = begun()
        (dx,) = builder.apply("relu_gradient", (x, x))
        kept = builder.apply("tanh", (dx,)) if early else ()
        (sums,) = builder.apply("bias_gradient", (dx,))
        graph = builder.build([dx, sums, *kept])
        fused = fuse_ops(graph)
        assert ("bias_relu_gradient" in types(fused)) == (not early)
        assert (fused is graph) == early


def test_ops_of_two_phases_are_not_fused():
    builder, x, gamma, beta = begun()
    y, *_ = normalized(builder, x, gamma, beta)
    (out,) = builder.apply("relu", (y,), phase="backward")
    graph = builder.build([out])
    assert fuse_ops(graph) is graph


def test_a_gradient_that_two_read_is_made_once():
    """Of the two normalisations before a sum, one takes the ReLU's gradient along."""
    builder, x, gamma, beta = begun()
    y, *_ = normalized(builder, x, gamma, beta)
    operands = (x, gamma, beta, *builder.apply("batch_moments", (x,)))
    (z,) = builder.apply("batch_normalization", operands, {"epsilon": 0.2})
    (sum_,) = builder.apply("add", (y, z))
    (out,) = builder.apply("relu", (sum_,))
    (loss,) = builder.apply("reduce_mean", (out,), {"axes": (0, 1, 2, 3)})
    found = gradients(builder, loss, [x, gamma, beta])
    graph = drop_dead_ops(builder.build([loss, *found.values()]))
    fused = fuse_ops(graph)
    assert types(fused).count("batch_normalization_add_relu") == 1
    assert types(fused).count("batch_normalization_add_relu_gradient") == 1
    assert types(fused).count("batch_normalization_gradient") == 1
    assert "relu_gradient" not in types(fused)
    before, after = evaluate(graph), evaluate(fused)
    assert after.keys() < before.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@pytest.mark.parametrize("name", NETWORKS)
def test_fused_steps_keep_what_they_kept(name):
    graph = NETWORKS[name]()
    fused = fuse_ops(graph)
    for kept in ("keep", "losses"):
        assert [graph.tensors[i].name for i in getattr(graph, kept)] == [
            fused.tensors[i].name for i in getattr(fused, kept)
        ]
    assert [graph.tensors[i].name for i in graph.persistent] == [
        fused.tensors[i].name for i in fused.persistent
    ]
    for kind in ("conv2d", "dense"):  # alone, or with its bias
        names = (kind, f"{kind}_bias")
        counts = [sum(op.type in names for op in g.ops) for g in (graph, fused)]
        assert counts[0] == counts[1]


WINDOW = {
    "strides": (1, 2),
    "padding": ((1, 0), (0, 1)),
    "dilation": (1, 1),
    "groups": 1,
}


def biased(kind, follow=()):
    """A product with a bias, and what follows; the graph keeps the last."""
    builder = Builder("biased")
    x = builder.tensor("x", SHAPE, role="input")
    shape = (3, 4) if kind == "dense" else (2, 2, 3, 4)
    kernel = builder.tensor("kernel", shape, role="parameter")
    bias = builder.tensor("bias", (4,), role="parameter")
    (y,) = builder.apply(
        kind, (x, kernel), {} if kind == "dense" else WINDOW, name="layer"
    )
    (y,) = builder.apply("bias", (y, bias), name="layer/bias_add")
    for each in follow:
        (y,) = builder.apply(each, (y,))
    return builder, builder.build([y]), (x, kernel, bias)


@pytest.mark.parametrize("kind", ["dense", "conv2d"])
@pytest.mark.parametrize("follow", [(), ("tanh",)], ids=str)
def test_a_product_takes_its_bias_along(kind, follow):
    _, graph, inputs = biased(kind, follow)
    fused = fuse_ops(graph)
    assert types(fused) == [f"{kind}_bias", *follow]
    op = fused.ops[0]
    assert (op.name, op.inputs, op.in_place) == ("layer", inputs, ())
    assert op.attributes == graph.ops[0].attributes
    assert op.seconds < sum(each.seconds for each in graph.ops[:2])
    before, after = evaluate(graph), evaluate(fused)
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("kind", ["dense", "conv2d"])
def test_a_relu_takes_the_bias_along_instead(kind):
    """In the one pass that it needs: a ReLU of oneDNN's or cuDNN's would hide NaN."""
    _, graph, _ = biased(kind, ("relu",))
    assert types(fuse_ops(graph)) == [kind, "bias_relu"]


@pytest.mark.parametrize("kind", ["dense", "conv2d"])
def test_where_nothing_trains_the_product_takes_both_along(kind):
    _, graph, inputs = biased(kind, ("relu",))
    fused = fuse_products(graph, lambda name: True)
    assert types(fused) == [f"{kind}_bias_relu"]
    assert (fused.ops[0].name, fused.ops[0].inputs) == ("layer", inputs)
    assert fused.ops[0].attributes == graph.ops[0].attributes
    before, after = evaluate(graph), evaluate(fused)
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name])
    assert fuse_products(graph, lambda name: False) is graph


def normalized_convolution(*, bias, end="relu", dtype="float32"):
    builder = Builder("normalized")
    x = builder.tensor("x", SHAPE, dtype, role="input")
    kernel = builder.tensor("kernel", (2, 2, 3, 4), dtype, role="parameter")
    vectors = [
        builder.tensor(name, (4,), role="parameter")
        for name in ("bias", "gamma", "beta", "mean", "variance")
    ]
    (y,) = builder.apply("conv2d", (x, kernel), WINDOW, name="layer")
    if bias:
        (y,) = builder.apply("bias", (y, vectors[0]))
    kind = "batch_normalization_inference"
    (y,) = builder.apply(kind, (y, *vectors[1:]), {"epsilon": 25.0})
    for each in end.split():
        inputs = [y]
        if each == "add":
            inputs.append(builder.tensor("other", builder.shape(y), role="input"))
        (y,) = builder.apply(each, inputs)
    return builder.build([y])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("end", "left"),
    [
        ("", []),
        ("relu", []),
        ("relu6", ["relu6"]),
        ("add", []),
        ("add relu", []),
        ("add tanh", ["tanh"]),
        ("relu add", ["add"]),
        ("tanh", ["tanh"]),
    ],
)
def test_a_convolution_takes_its_normalisation_along(bias, end, left):
    graph = normalized_convolution(bias=bias, end=end)
    fused = fuse_ops(fuse_products(graph, lambda name: True))
    kind = "conv2d_bias" if bias else "conv2d"
    taken = "".join(f"_{each}" for each in end.split()[: len(end.split()) - len(left)])
    assert types(fused) == [f"{kind}_batch_normalization_inference{taken}", *left]
    op = fused.ops[0]
    assert (op.name, op.attributes) == ("layer", {**WINDOW, "epsilon": 25.0})
    before, after = evaluate(graph), evaluate(fused)
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_sum_takes_the_place_of_what_is_added():
    graph = normalized_convolution(bias=False, end="add relu")
    fused = fuse_products(graph, lambda name: True)
    (op,) = fused.ops
    names = [fused.tensors[i].name for i in op.inputs]
    assert names == ["x", "kernel", "gamma", "beta", "mean", "variance", "other"]
    assert op.in_place == ((op.inputs[-1], op.outputs[0]),)
    fused = fuse_products(graph, lambda name: "_add" not in name)
    assert types(fused) == ["conv2d_batch_normalization_inference", "add", "relu"]


def summed(shape=(2, 3), *, kind="dense", other=None, swapped=False):
    """A product with a bias, and what `other(builder, x, y)` says added to it."""
    builder = Builder("summed")
    x = builder.tensor("x", shape, role="input")
    units = shape[-1]
    kernel = (1,) * (len(shape) - 2) * (kind == "conv2d") + (units, units)
    weights = [
        builder.tensor("kernel", kernel, role="parameter"),
        builder.tensor("bias", (units,), role="parameter"),
    ]
    whole = {"strides": (1, 1), "padding": ((0, 0), (0, 0))}
    window = {**WINDOW, **whole} if kind == "conv2d" else {}
    (y,) = builder.apply(kind, (x, weights[0]), window, name="layer")
    (y,) = builder.apply("bias", (y, weights[1]))
    z = (
        builder.tensor("z", shape, role="input")
        if other is None
        else other(builder, x, y)
    )
    (out,) = builder.apply("add", (z, y) if swapped else (y, z), name="sum")
    return builder, y, out


def of_the_result(builder, x, y):
    return builder.apply("tanh", (y,))[0]


@pytest.mark.parametrize("kind", ["dense", "conv2d"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_a_product_takes_a_sum_along(kind, swapped, relu):
    shape = (2, 3) if kind == "dense" else SHAPE
    builder, _, out = summed(shape, kind=kind, swapped=swapped)
    if relu:
        (out,) = builder.apply("relu", (out,))
    graph = builder.build([out])
    fused = fuse_products(graph, lambda name: True)
    assert types(fused) == [f"{kind}_bias_add" + "_relu" * relu]
    before, after = evaluate(graph), evaluate(fused)
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name])


def test_what_the_product_reads_keeps_its_place():
    """Its bytes are read until the last of the result is made."""
    builder, _, out = summed(other=lambda builder, x, y: x)
    (op,) = fuse_products(builder.build([out]), lambda name: True).ops
    assert (op.type, op.in_place) == ("dense_bias_add", ())
    assert op.inputs[0] == op.inputs[-1]


@pytest.mark.parametrize(
    "other", [of_the_result, lambda builder, x, y: y], ids=["of it", "itself"]
)
def test_sums_of_other_arrays_stay_apart(other):
    builder, _, out = summed(other=other)
    graph = builder.build([out])
    fused = fuse_products(graph, lambda name: True)
    assert "dense_bias_add" not in types(fused)
    assert fused is graph


@pytest.mark.parametrize("reads", [False, True])
def test_a_product_that_others_read_is_not_summed(reads):
    builder, y, out = summed()
    more = builder.apply("tanh", (y,))[0] if reads else y
    graph = builder.build([out, more])
    assert fuse_products(graph, lambda name: True) is graph


def test_a_sum_that_is_kept_has_its_relu_apart():
    builder, _, out = summed()
    (last,) = builder.apply("relu", (out,))
    fused = fuse_products(builder.build([out, last]), lambda name: True)
    assert types(fused) == ["dense_bias_add", "relu"]


@pytest.mark.parametrize(
    ("shape", "taken"),
    [
        ((1, 1024, 1024, 1), True),  # 4 MiB
        ((1, 1025, 1024, 1), False),
        ((2, 1024, 1024, 1), True),
        ((2, 1025, 1024, 1), False),  # an image is more
        ((37, 32, 1024, 1), False),  # 128 KiB each, and 37 is prime
        ((37, 256, 1024, 1), True),  # 1 MiB each
        ((36, 32, 1024, 1), True),  # 9 images
        ((38, 32, 1024, 1), True),  # 19 images
    ],
)
def test_large_sums_are_taken_along_where_parts_of_them_fit(shape, taken):
    builder, _, out = summed(shape, kind="conv2d")
    fused = fuse_products(builder.build([out]), lambda name: True)
    assert types(fused) == (["conv2d_bias_add"] if taken else ["conv2d", "bias", "add"])


def test_rows_are_summed_in_parts_of_any_number():
    builder, _, out = summed((4099, 1024))
    fused = fuse_products(builder.build([out]), lambda name: True)
    assert types(fused) == ["dense_bias_add"]


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_products_the_one_that_reads_less_takes_the_sum(swapped):
    """What it reads has to wait until the other is made."""

    def wide(builder, x, y):
        wide = builder.tensor("wide", (2, 5), role="input")
        kernel = builder.tensor("wide kernel", (5, 3), role="parameter")
        bias = builder.tensor("wide bias", (3,), role="parameter")
        (made,) = builder.apply("dense", (wide, kernel), name="wide layer")
        return builder.apply("bias", (made, bias))[0]

    builder, _, out = summed(other=wide, swapped=swapped)
    graph = builder.build([out])
    fused = fuse_ops(fuse_products(graph, lambda name: True))
    assert [(op.type, op.name) for op in fused.ops] == [
        ("dense_bias", "wide layer"),
        ("dense_bias_add", "layer"),
    ]


def test_kernels_in_bfloat16_are_not_scaled():
    graph = normalized_convolution(bias=True, dtype="bfloat16")
    assert fuse_products(graph, lambda name: True) is graph


def test_a_product_that_others_read_keeps_its_bias_apart():
    for reads in (False, True):
        builder, graph, _ = biased("dense")
        (y,) = graph.ops[0].outputs
        kept = [*graph.keep, *(builder.apply("tanh", (y,)) if reads else (y,))]
        graph = builder.build(kept)
        assert fuse_ops(graph) is graph
