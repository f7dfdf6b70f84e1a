"""Gradients of gradients, of single ops and of functions, by finite differences."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from elementwise_cases import ATTRIBUTES
from kernels import run_kernel
from slopes import check_gradient

import memcfg as mc
from memcfg import nn, ops
from memcfg.errors import GraphError
from memcfg.graph import Graph

GRADIENTS = [
    kind
    for kind in ops.op_types()
    if kind.formula is not None
    and kind.gradient is not None
    and kind.name.rpartition("_gradient")[0] in {each.name for each in ops.op_types()}
]
# Their values jump, or have no second derivative, within the step of a difference.
JUMPS = ("remainder", "truncated_remainder", "floor_divide", "heaviside")


def attributes_of(kind):
    return {
        name: ATTRIBUTES[name] for name in kind.formula.defaults if name in ATTRIBUTES
    }


@pytest.mark.parametrize("kind", GRADIENTS, ids=lambda kind: kind.name)
def test_of_an_element_wise_gradient(kind):
    if kind.name.startswith(JUMPS):
        pytest.skip("a remainder jumps")
    generator = np.random.default_rng(3)
    arrays = [
        np.array(0.3)
        if name in kind.formula.scalars
        else generator.uniform(0.1, 0.45, 12)
        for name in kind.formula.operands
    ]
    wrt = [
        place for place, row in enumerate(kind.formula.derive().rows) if row is not None
    ]
    if kind.name.startswith(("arccosh", "logarithm", "root")):
        arrays = [1.5 + each for each in arrays]  # above the least value of a logarithm
    for place in wrt:
        check_gradient(kind.name, arrays, attributes_of(kind), [place], rtol=1e-5)


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


_MOST = normal(2, 3, 4), normal(1, 3, 1)


WINDOW = {"strides": (2, 2), "padding": ((1, 1), (0, 1)), "dilation": (1, 1)}
PLAIN = {
    "strides": (1,) * 3,
    "padding": ((0, 0),) * 3,
    "dilation": (1,) * 3,
    "groups": 1,
}
OTHERS = {
    "dense_gradient_kernel": ((normal(2, 3, 4), normal(2, 3, 5)), {}),
    "dense_gradient_input": ((normal(4, 5), normal(2, 3, 5)), {}),
    "bias_gradient": ((normal(2, 3, 4),), {}),
    "conv2d_gradient_kernel": (
        (normal(2, 6, 5, 4), normal(2, 3, 2, 6)),
        {**WINDOW, "groups": 2, "kernel_shape": (3, 3, 2, 6)},
    ),
    "conv3d_gradient_kernel": (
        (normal(1, 3, 4, 3, 2), normal(1, 2, 3, 2, 2)),
        {
            **PLAIN,
            "kernel_shape": (2, 2, 2, 2, 2),
        },
    ),
    "average_pool2d_gradient": (
        (normal(2, 3, 2, 3),),
        {
            "pool_size": (2, 2),
            "strides": (2, 2),
            "padding": ((0, 0), (0, 0)),
            "input_shape": (2, 6, 4, 3),
        },
    ),
    "global_average_pool2d_gradient": ((normal(2, 3),), {"input_shape": (2, 5, 4, 3)}),
    "reduce_max_gradient": (
        (_MOST[0], _MOST[0].max((0, 2), keepdims=True), _MOST[1]),
        {"axes": (0, 2)},
    ),
    "softmax_gradient": ((normal(2, 3, 4) ** 2, normal(2, 3, 4)), {"axis": 1}),
    "log_softmax_gradient": ((-(normal(2, 3, 4) ** 2), normal(2, 3, 4)), {"axis": -1}),
    "softmax_cross_entropy_gradient": (
        (normal(3, 4) ** 2, np.array([1, 0, 3], np.int32)),
        {},
    ),
    "cross_entropy_rows_gradient": (
        (normal(2, 3, 4) ** 2, np.array([[1, 0, 3]] * 2, np.int32), normal(2, 3)),
        {},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_of_another_gradient(name):
    arrays, attributes = OTHERS[name]
    places = [i for i, each in enumerate(arrays) if each.dtype.kind == "f"]
    if name == "reduce_max_gradient":  # the largest stay where they are
        places = [2]
    check_gradient(name, arrays, attributes, places)


def differences(function, x, direction, step=1e-2):
    """Return how gradients change along a direction, by central differences."""
    ends = [
        function(x + sign * step * direction).astype(np.float64) for sign in (1, -1)
    ]
    return (ends[0] - ends[1]) / (2 * step)


def layers():
    attributes = {"kernel_initializer": "he_normal"}
    yield nn.Dense(4, activation="tanh"), (3, 5)
    yield nn.layers.LayerNormalization(), (3, 5)
    yield nn.Conv2D(3, 3, padding="same", activation="gelu", **attributes), (2, 5, 4, 2)
    yield nn.layers.DepthwiseConv2D(2, activation="softplus"), (2, 5, 4, 2)
    yield nn.layers.Conv2DTranspose(2, 3, strides=2, activation="silu"), (2, 3, 3, 2)
    yield nn.layers.AveragePooling2D(2), (2, 6, 4, 2)
    yield nn.layers.GlobalAveragePooling2D(), (2, 6, 4, 2)
    yield nn.layers.Softmax(), (3, 5)
    yield nn.layers.UnitNormalization(), (3, 5)


@pytest.mark.parametrize(
    ("layer", "shape"), list(layers()), ids=lambda each: type(each).__name__
)
def test_of_layers_by_differences(layer, shape):
    generator = np.random.default_rng(1)
    x, direction, weights = generator.normal(size=(3, *shape)).astype(np.float32)
    slope = mc.grad(lambda x: nn.ops.sum(nn.ops.sin(layer(x))))
    second = mc.grad(lambda x: nn.ops.sum(slope(x) * weights))
    layer(x)
    expected = (differences(slope, x, direction) * weights).sum()
    found = (second(x) * direction).sum(dtype=np.float64)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)


def test_a_penalty_on_gradients_trains_the_weights():
    """As in WGAN-GP (Gulrajani et al. 2017)."""
    nn.set_random_seed(2)
    critic = nn.Sequential(
        [
            nn.Input((6, 6, 2)),
            nn.Conv2D(4, 3, activation="leaky_relu"),
            nn.Flatten(),
            nn.Dense(8, activation="tanh"),
            nn.Dense(1),
        ]
    )
    x = np.random.default_rng(0).normal(size=(4, 6, 6, 2)).astype(np.float32)
    optimizer = nn.Adam(0.01)

    def loss_of(x):
        with mc.GradientTape() as tape:
            score = critic(x)
        slope = tape.gradient(score, x)
        norm = nn.ops.sqrt(nn.ops.sum(nn.ops.square(slope), axis=(1, 2, 3)))
        return nn.ops.mean(nn.ops.square(norm - 1))

    @mc.function
    def step(x):
        with mc.GradientTape() as tape:
            loss = loss_of(x)
        weights = critic.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    first = step(x)
    losses = [step(x) for _ in range(60)]
    assert losses[-1] < first / 10
    report = step.memory_report(x)
    assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_half_the_memory_gives_the_same_bits():
    x = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    wide = [nn.Dense(256, activation=name) for name in ("tanh", "gelu", "softplus")]

    def tall(x):
        for layer in wide:
            x = layer(x)
        return nn.ops.sum(x)

    def second(x):
        return mc.grad(lambda x: nn.ops.sum(nn.ops.square(mc.grad(tall)(x))))(x)

    function = mc.function(second)
    expected = function(x)
    peak = function.plan(x).peak_bytes
    function.close()
    weights = sum(4 * weight.size for layer in wide for weight in layer.get_weights())
    mc.config.set_memory_limit("CPU:0", weights + (peak - weights) * 3 // 4)
    assert function(x).tobytes() == expected.tobytes()
    assert function.memory_report(x).measured_peak_bytes < peak
    function.close()
    mc.config.set_memory_limit("CPU:0", None)


def test_a_third_gradient():
    cube = mc.grad(mc.grad(mc.grad(lambda x: nn.ops.exp(2.0 * x))))
    assert cube(np.float32(0.5)).item() == pytest.approx(8 * np.e, rel=1e-5)


@pytest.mark.parametrize("name", ["tanh", "gelu", "sigmoid", "divide"])
def test_kernels_compute_what_numpy_means(name):
    kind = ops.op_type(name)
    for first in kind.formula.gradients:
        ops.op_type(first).formula.derive()
        for each in ops.op_type(first).formula.gradients:
            made = ops.op_type(each)
            generator = np.random.default_rng(9)
            inputs = [
                generator.uniform(0.2, 2, 1000).astype(np.float32)
                for _ in made.formula.operands
            ]
            (found,) = run_kernel(each, inputs, [(1000,)], attributes_of(made))
            expected = np.empty(1000, np.float32)
            made.numpy(attributes_of(made), inputs, [expected])
            np.testing.assert_allclose(found, expected, rtol=3e-5, atol=1e-6)


def test_op_types_are_known_in_a_process_that_has_not_made_them():
    name = "mish_gradient_gradient_x"
    program = f"from memcfg import ops; print(ops.op_type({name!r}).arity)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == ops.op_type(name).arity
    assert pickle.loads(pickle.dumps(ops.op_type(name))) is ops.op_type(name)
    for unknown in (
        "tanh_gradient_z",
        "relu_gradient_gradient_q",
        "_gradient",
        "adam_gradient",
    ):
        with pytest.raises(GraphError, match="unknown op type"):
            ops.op_type(unknown)


def test_threads_make_op_types_once():
    kind = ops.elementwise("bent", lambda x: x / (1 + abs(x)))
    (first,) = kind.formula.gradients
    with ThreadPoolExecutor(8) as pool:
        rules = list(pool.map(lambda _: ops.op_type(first).formula.derive(), range(64)))
    assert all(rule is rules[0] for rule in rules)
    names = ops.op_type(first).formula.gradients
    ops.unregister("bent")
    for each in (first, *names):
        with pytest.raises(GraphError, match="unknown op type"):
            ops.op_type(each)


def test_a_graph_with_second_gradients_can_be_written_and_read():
    slope = mc.function(
        mc.grad(lambda x: nn.ops.sum(mc.grad(lambda x: nn.ops.sum(nn.ops.tanh(x)))(x)))
    )
    graph = slope.graph(np.ones(3, np.float32))
    again = Graph.from_json(graph.to_json())
    assert [op.type for op in again.ops] == [op.type for op in graph.ops]


def test_an_op_without_one_says_so():
    layer = nn.LSTM(3)
    x = np.ones((2, 4, 3), np.float32)
    layer(x)
    slope = mc.grad(lambda x: nn.ops.sum(layer(x)))
    with pytest.raises(GraphError, match="of type 'lstm_gradient' has no gradient"):
        mc.grad(lambda x: nn.ops.sum(slope(x)))(x)
