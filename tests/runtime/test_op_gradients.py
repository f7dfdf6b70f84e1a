"""Each op's gradient on the device against central differences in float64."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import interpret
from networks import CONV, POOL

import memcfg as mc
from memcfg.graph import Builder, gradients
from memcfg.ops import op_types
from memcfg.plan import share
from memcfg.runtime import Executor

SQUARES = (3, 4, 4)
IMAGE, VOLUME = (3, 5, 6, 2), (2, 3, 4, 4, 2)
THREE = {
    "strides": (1, 1, 1),
    "padding": ((1, 0), (1, 1), (0, 1)),
    "dilation": (1, 1, 1),
}
# op type -> cases of (shapes of the operands that get a gradient, attributes)
CASES = {
    "conv2d": [
        ([IMAGE, (3, 3, 2, 4)], CONV),
        (
            [IMAGE, (3, 2, 2, 4)],
            {**CONV, "strides": (2, 1), "padding": ((1, 0), (0, 1))},
        ),
        ([IMAGE, (2, 2, 1, 4)], {**CONV, "groups": 2}),
        ([IMAGE, (2, 2, 2, 3)], {**CONV, "dilation": (2, 2)}),
    ],
    "conv3d": [
        ([VOLUME, (2, 3, 2, 2, 4)], {**CONV, **THREE}),
        ([VOLUME, (2, 2, 1, 1, 4)], {**CONV, **THREE, "groups": 2}),
        ([VOLUME, (2, 2, 2, 2, 3)], {**CONV, **THREE, "strides": (2, 1, 2)}),
        ([VOLUME, (2, 1, 2, 2, 3)], {**CONV, **THREE, "dilation": (1, 1, 2)}),
    ],
    "conv3d_gradient_input": [
        (
            [(2, 2, 2, 2, 4), (2, 2, 2, 3, 4)],
            {
                **CONV,
                **THREE,
                "strides": (2, 2, 1),
                "padding": ((0, 0), (0, 0), (0, 0)),
                "input_shape": (2, 4, 4, 4, 2),
            },
        )
    ],
    "conv2d_gradient_input": [  # dy of (3, 2, 3, 4), from a kernel of 3 rows
        (
            [(3, 2, 2, 4), (3, 2, 3, 4)],
            {
                **CONV,
                "strides": (2, 2),
                "padding": ((1, 1), (0, 0)),
                "input_shape": (3, 4, 6, 2),
            },
        )
    ],
    "cross_entropy_rows": [([(4, 3)], {})],
    "dense": [([(4, 3), (3, 5)], {}), ([(2, 3, 4), (4, 5)], {})],
    "matmul": [
        ([(4, 3), (3, 5)], {}),
        ([(4, 4), (5, 4)], {"transpose_a": True, "transpose_b": True}),
        ([(2, 3, 4, 3), (2, 3, 3, 2)], {}),
        ([(4, 3, 5), (4, 3, 2)], {"transpose_a": True}),
        ([(4, 3, 5), (4, 2, 5)], {"transpose_b": True}),
        ([(4, 3, 5), (4, 2, 3)], {"transpose_a": True, "transpose_b": True}),
        ([(4, 3, 5), (5, 2)], {}),
        ([(4, 3, 5), (2, 5)], {"transpose_b": True}),
    ],
    "scaled_dot_product_attention": [
        ([(2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 3)], {"scale": 0.5}),
        ([(2, 5, 4), (2, 3, 4), (2, 3, 3)], {"scale": 1.0, "causal": True}),
    ],
    "lstm": [([(2, 3, 8), (2, 8), (2, 2), (2, 2)], {})],
    "gru": [([(2, 3, 6), (2, 6), (6,), (2, 2)], {})],
    "simple_rnn": [([(2, 3, 2), (2, 2), (2, 2)], {})],
    "softmax": [
        *(([(4, 3, 5)], {"axis": axis}) for axis in (-1, 1, 0)),
        ([(2, 4, 4)], {"causal": True}),
    ],
    "log_softmax": [([(4, 3, 5)], {"axis": axis}) for axis in (-1, 1, 0)],
    "bias": [([IMAGE, (2,)], {}), ([(4, 3), (3,)], {})],
    "relu": [([IMAGE], {})],
    "add": [([IMAGE, IMAGE], {})],
    "multiply": [([IMAGE, IMAGE], {})],
    "sigmoid": [([IMAGE], {})],
    "concatenate": [
        ([IMAGE, (3, 5, 6, 3), IMAGE], {"axis": -1}),
        ([IMAGE, (3, 2, 6, 2)], {"axis": 1}),
    ],
    "split": [([IMAGE], {"axis": 2, "lengths": (2, 4)})],
    "layer_normalization": [
        ([IMAGE, (2,), (2,)], {"epsilon": 1e-3}),
        ([(4, 7), (7,), (7,)], {"epsilon": 1e-3}),
    ],
    **{
        kind: [([IMAGE], {"axes": axes, "keepdims": kept}) for axes, kept in each]
        for kind in ("reduce_sum", "reduce_mean", "reduce_max")
        for each in [(((1, -2), True), ((3,), False), ((), False))]
    },
    "transpose": [([IMAGE], {"axes": (0, 3, 1, 2)})],
    "slice": [
        ([IMAGE], {"begin": (0, 1, 0, 1), "end": (3, 5, 6, 2)}),
        (
            [IMAGE],
            {"begin": (0, 1, 1, 0), "end": (3, 5, 6, 2), "strides": (1, 2, 3, 1)},
        ),
    ],
    "pad": [
        ([IMAGE], {"before": (0, 1, 0, 1), "after": (0, 2, 1, 0), "value": 1.0}),
        (
            [IMAGE],
            {
                "before": (0, 1, 0, 1),
                "after": (0, 2, 1, 0),
                "value": 0.0,
                "strides": (1, 2, 3, 1),
            },
        ),
    ],
    "reverse": [([IMAGE], {"axes": (1, -1)})],
    "broadcast_to": [
        ([(3, 1, 6, 1)], {"shape": (3, 5, 6, 2)}),
        ([(3, 2)], {"shape": (3, 3, 2)}),
    ],
    **{
        kind: [([IMAGE], {"axis": 2, "factor": 3})]
        for kind in ("interpolate", "interpolate_gradient")
    },
    "cast": [([IMAGE], {"dtype": "float32"})],
    "flatten": [([IMAGE], {})],
    "reshape": [([IMAGE], {"shape": (3, 60)})],
    "max_pool2d": [
        ([IMAGE], POOL),
        (
            [IMAGE],
            {"pool_size": (3, 3), "strides": (2, 1), "padding": ((1, 1), (1, 1))},
        ),
    ],
    "max_pool2d_at": [([IMAGE], POOL)],
    "max_pool2d_gradient": [
        ([(3, 2, 3, 2)], {**POOL, "input_shape": IMAGE}),
        (
            [(3, 3, 6, 2)],
            {
                "pool_size": (3, 3),
                "strides": (2, 1),
                "padding": ((1, 1), (1, 1)),
                "input_shape": IMAGE,
            },
        ),
    ],
    "average_pool2d": [
        ([IMAGE], POOL),
        (
            [IMAGE],
            {"pool_size": (3, 3), "strides": (2, 1), "padding": ((1, 1), (1, 1))},
        ),
    ],
    "global_average_pool2d": [([IMAGE], {})],
    "batch_normalization": [
        ([IMAGE, (2,), (2,)], {"epsilon": 1e-3}),
        ([(8, 3), (3,), (3,)], {"epsilon": 1e-3}),
    ],
    "batch_normalization_inference": [([IMAGE, (2,), (2,)], {"epsilon": 1e-3})],
    "dropout": [([IMAGE], {"rate": 0.3, "key": 12345})],
    "triangle": [([(3, 4, 5)], {"lower": 1, "offset": 1})],
    "solve_triangular": [
        ([SQUARES, (3, 4, 2)], {"lower": lower, "transposed": turned, "unit": 0})
        for lower, turned in ((0, 0), (1, 1))
    ],
    "solve": [([SQUARES, (3, 4, 2)], {"transposed": turned}) for turned in (0, 1)],
    "matrix_inverse": [([SQUARES], {})],
    "determinant": [([(3, 2, 4, 4)], {})],
    "qr": [([SQUARES], {"complete": 1}), ([(3, 5, 2)], {"complete": 0})],
    "svd": [([SQUARES], {}), ([(3, 2, 5)], {})],
    "pseudo_inverse": [([(3, 5, 2)], {"rcond": 1e-6})],
    "fourier": [([(3, 8), (3, 8)], {"inverse": 0}), ([(3, 5), (3, 5)], {"inverse": 1})],
    "frames": [([(3, 9)], {"length": 3, "step": 2, "dilation": 2})],
    "overlap_add": [([(3, 4, 3)], {"size": 6, "step": 1, "dilation": 1})],
    "softmax_cross_entropy": [([(4, 3)], {})],
}


def test_every_op_with_a_gradient_has_a_case():
    """Those of element-wise ops are tested with their expressions."""
    wanted = {t.name for t in op_types() if t.gradient is not None and not t.formula}
    # tests/ops/test_gather.py, test_ordering.py, test_alignment.py and test_bits.py
    of_indices = {"gather", "scatter_add", "one_hot", "order", "ctc_loss"}
    of_indices |= {"take_along", "put_along", "next_after", "left_shift", "right_shift"}
    of_indices |= {"bitwise_and", "bitwise_or", "bitwise_xor"}
    of_indices |= {"greatest_common_divisor", "least_common_multiple"}
    of_indices |= {each for each in wanted if each.startswith("integer_")}
    # tests/compression/test_quantization.py
    of_indices |= {"dequantize"}
    # tests/ops/test_linear_algebra.py: of symmetric matrices, of a second output
    of_matrices = {"cholesky", "eigh", "slogdet"}
    # tests/ops/test_second_gradients.py
    of_gradients = {"average_pool2d_gradient", "global_average_pool2d_gradient"}
    of_gradients |= {"conv2d_gradient_kernel", "conv3d_gradient_kernel"}
    of_gradients |= {"dense_gradient_kernel", "dense_gradient_input"}
    of_gradients |= {"bias_gradient", "reduce_max_gradient"}
    assert wanted - of_indices - of_matrices - of_gradients <= set(CASES)


def build(type_, shapes, attributes):
    """Operands -> op -> flatten -> dense -> loss, and the operands' gradients."""
    b = Builder(type_)
    wrt = [b.tensor(f"p{i}", s, role="parameter") for i, s in enumerate(shapes)]
    labels = b.tensor("labels", (shapes[0][0],), "int32", role="input")
    operands = list(wrt)
    if type_ == "softmax_cross_entropy":
        (logits,) = operands
    else:
        if type_ in ("max_pool2d_at", "max_pool2d_gradient"):  # at places of others
            over = attributes.get("input_shape", shapes[0])
            source = b.tensor("source", over, role="parameter")
            operands.insert(0, b.apply("max_pool2d", (source,), attributes)[1])
        if type_ == "dropout":
            operands.append(b.tensor("step", (), "int64", role="input"))
        if type_ == "cross_entropy_rows":
            operands.append(labels)
        if type_ == "batch_normalization_inference":  # frozen averages
            one = {"shape": shapes[1], "value": 0.7, "dtype": "float32"}
            operands += [b.apply("fill", (), one)[0] for _ in range(2)]
        if type_ == "batch_normalization":
            operands += b.apply("batch_moments", operands[:1])
        (y, *_) = b.apply(type_, operands, attributes)
        (y,) = b.apply("flatten", (y,))
        head = b.tensor("head", (b.shape(y)[1], 3), role="parameter")
        (logits,) = b.apply("dense", (y, head))
    loss, _ = b.apply("softmax_cross_entropy", (logits, labels), name="loss")
    found = gradients(b, loss, wrt)
    assert list(found) == wrt
    return b.build([loss, *found.values()]), [found[w] for w in wrt]


def well_conditioned(graph, seed=0):
    """Values whose order and sign survive a small change: a shuffled grid."""
    rng = np.random.default_rng(seed)
    values = {"labels": rng.integers(0, 3, graph.tensors[graph.find("labels")].shape)}
    values["labels"] = values["labels"].astype(np.int32)
    for i in graph.persistent:
        tensor = graph.tensors[i]
        size = int(np.prod(tensor.shape))
        grid = (np.arange(size) - size / 2 + 0.5) * 2.5 / size
        values[tensor.name] = rng.permutation(grid).reshape(tensor.shape).astype("f4")
    if any(t.name == "step" for t in graph.tensors):
        values["step"] = np.int64(3)
    return values


def central_differences(graph, values, name, h=1e-6):
    forward = [op for op in graph.ops if op.phase == "forward"]

    def loss(flat):
        value = flat.reshape(values[name].shape)
        return float(interpret(graph, {**values, name: value}, ops=forward)["loss"])

    center = values[name].astype("f8").ravel()
    result = np.empty_like(center)
    for i in range(center.size):
        step = np.zeros_like(center)
        step[i] = h
        result[i] = (loss(center + step) - loss(center - step)) / (2 * h)
    return result.reshape(values[name].shape)


@pytest.mark.parametrize(
    ("type_", "shapes", "attributes"),
    [(t, s, a) for t, cases in CASES.items() for s, a in cases],
)
def test_gradients_agree_with_central_differences(type_, shapes, attributes):
    graph, found = build(type_, shapes, attributes)
    values = well_conditioned(graph)
    executor = Executor(mc.config.logical_device(), name=type_)
    executor.load({"step": graph}, share(), values)
    for key in ("labels", "step"):
        if key in values:
            executor.feed("step", key)[...] = values[key]
    executor.run("step")
    for i, gradient in enumerate(found):
        got = executor.fetch("step", graph.tensors[gradient].name).copy()
        want = central_differences(graph, values, f"p{i}")
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error < 1e-3, f"operand {i}"
    executor.close()
