"""Updates in blocks: kernels against their meaning, and graphs that have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import leave_out_rewrite
from kernel_cases import Case, check, convolutions, execute, f32, normal
from numpy.testing import assert_array_equal
from training_graphs import plan_in_order

import memcfg as mc
from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, KernelError, MissingDependencyError
from memcfg.graph import Builder, hoist_updates, tile_updates
from memcfg.ops.tiled_update import update_attributes

nn = mc.nn
SETTINGS = {
    "sgd": {},
    "sgd_momentum": {"momentum": 0.9, "nesterov": True},
    "adam": {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-3, "weight_decay": 0.1},
    "rmsprop": {"rho": 0.9, "epsilon": 1e-3},
    "sgd_momentum_accumulated": {"momentum": 0.9, "steps": 2, "divisor": 2.0},
}


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def update_case(name, m, k, n, lead=()):
    product = [normal(*lead, m, k), normal(*lead, m, n, seed=1)]
    return case_of("dense_update", name, product, (k, n), {})


def convolution_case(name, a, x, kernel, y):
    product = [normal(*x), normal(*y, seed=1)]
    a = {**a, "kernel_shape": kernel}
    return case_of("conv2d_update", name, product, kernel, a)


def case_of(kind, name, product, shape, attributes):
    formula = ops.op_type(name).formula
    place = formula.operands.index("g")
    inputs = list(product)
    for i, operand in enumerate(formula.operands):
        if operand == "step":
            inputs.append(np.array(3, np.int64))
        elif operand in formula.scalars:
            inputs.append(np.array(0.01, np.float32))
        elif i != place:
            inputs.append(np.abs(normal(*shape, seed=2 + i)))
    attributes = {**attributes, **update_attributes(name, SETTINGS[name], place)}
    pairs = {
        out: 1 + formula.operands.index(state)  # the gradient is no input, x and dy are
        if formula.operands.index(state) > place
        else 2 + formula.operands.index(state)
        for out, state in enumerate(formula.state)
    }
    outputs = [f32(shape)] * len(formula.state)
    return Case(kind, inputs, outputs, attributes, pairs)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 300, 40), (3, 5, 70_000)], ids=str)
def test_updates_of_every_optimizer(table, name, shape):
    made = update_case(name, *shape)
    check(table, made)  # in place
    made.pairs = {}
    check(table, made)


@given(
    m=st.integers(1, 20), k=st.integers(1, 600), n=st.sampled_from([1, 7, 130, 3000])
)
@settings(max_examples=15, deadline=None)
def test_updates_of_any_shape(table, m, k, n):
    check(table, update_case("sgd_momentum", m, k, n))


WINDOW = {"strides": (1, 1), "dilation": (1, 1), "groups": 1}


def window(x, kernel, padding=1):
    """A convolution of windows with that padding on each side."""
    a = {**WINDOW, "padding": ((padding, padding),) * 2}
    y = (
        x[0],
        *(n + 2 * padding - k + 1 for n, k in zip(x[1:3], kernel[:2], strict=True)),
        kernel[3],
    )
    return a, x, kernel, y


LARGE = [  # several blocks of channels; the last of some is shorter
    window((2, 5, 4, 200), (5, 5, 200, 150), 2),
    window((1, 3, 3, 333), (1, 1, 333, 2100), 0),
    window((1, 2, 2, 17), (3, 3, 17, 8000)),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_updates_of_convolutions(table, name):
    for drawn in (window((2, 6, 5, 3), (3, 3, 3, 9)), LARGE[0]):
        made = convolution_case(name, *drawn)
        check(table, made)  # in place
        made.pairs = {}
        check(table, made)


@pytest.mark.parametrize("drawn", LARGE, ids=lambda drawn: str(drawn[2]))
def test_updates_of_convolutions_in_blocks(table, drawn):
    made = convolution_case("sgd_momentum", *drawn)
    check(table, made)
    specs = [OperandSpec(x.shape, x.dtype.name) for x in made.inputs]
    outputs = [OperandSpec(*each) for each in made.outputs]
    for algorithm, scratch, _ in table.algorithms(
        "conv2d_update", made.attributes, specs, outputs
    ):
        kernel = table.make("conv2d_update", made.attributes, specs, outputs, algorithm)
        assert (kernel.algorithm, kernel.scratch_bytes) == (algorithm, scratch)


@given(drawn=convolutions().filter(lambda drawn: drawn[0]["groups"] == 1))
@settings(max_examples=25, deadline=None)
def test_updates_of_any_convolution(table, drawn):
    check(table, convolution_case("sgd_momentum", *drawn))


def test_groups_are_refused(table):
    a, x, _, y = window((2, 5, 4, 6), (3, 3, 6, 8))
    made = convolution_case("sgd", {**a, "groups": 2}, x, (3, 3, 3, 8), y)
    with pytest.raises(KernelError, match="one group"):
        execute(table, made, 0xFF, 64)


def test_rows_may_lie_in_several_axes(table):
    check(table, update_case("sgd", 4, 30, 9, lead=(2, 3)))


def test_blocks_are_the_product_and_the_update_one_by_one(table):
    """Of the native kernels; the product's sums may come in another order."""
    made = update_case("adam", 16, 700, 520)
    made.pairs = {}
    x, dy, *others = made.inputs
    (whole,) = execute(
        table, Case("dense_gradient_kernel", [x, dy], [f32((700, 520))]), 0xFF, 64
    )
    gradient = np.frombuffer(whole, np.float32).reshape(700, 520)
    others.insert(made.attributes["gradient"], gradient)
    alone = Case("adam", others, made.outputs, SETTINGS["adam"])
    for found, wanted in zip(
        execute(table, made, 0xFF, 64), execute(table, alone, 0xFF, 64), strict=True
    ):
        np.testing.assert_allclose(
            np.frombuffer(found, np.float32),
            np.frombuffer(wanted, np.float32),
            rtol=1e-5,
            atol=1e-6,
        )


def test_what_does_not_fit_is_refused():
    kind = ops.op_type("dense_update")
    attributes = update_attributes("sgd", {}, 1)
    x, dy, w = (ops.Spec(shape, "float32") for shape in ((4, 3), (4, 5), (3, 5)))
    rate = ops.Spec((), "float32")
    assert [s.shape for s in kind.infer([x, dy, w, rate], attributes)] == [(3, 5)]
    with pytest.raises(GraphError, match="cannot multiply"):
        kind.infer([x, w, w, rate], attributes)
    with pytest.raises(GraphError, match="a gradient of"):
        kind.infer([x, dy, dy, rate], attributes)
    with pytest.raises(GraphError, match="reads x, dy"):
        kind.infer([x, dy], attributes)


def everywhere(_):
    """As `has` of a device that has all kernels."""
    return True


def step(units, *, also_read=False, update="sgd"):
    builder = Builder("step")
    x, dy = (builder.tensor(n, (4, units), role="input") for n in ("x", "dy"))
    w = builder.tensor("w", (units, units), role="parameter")
    rate = builder.tensor("rate", (), role="input")
    builder.apply("tanh", (x,))
    (g,) = builder.apply("dense_gradient_kernel", (x, dy), name="g", phase="backward")
    keep = list(builder.apply(update, (w, g, rate), name="new", phase="update"))
    if also_read:
        keep += builder.apply("norm", (g,), name="norm", phase="backward")
    return hoist_updates(builder.build(keep))


def test_a_large_gradient_of_one_update_is_gone():
    graph = step(1100)
    tiled = tile_updates(graph, everywhere)
    assert [op.type for op in tiled.ops] == ["tanh", "dense_update"]
    op = tiled.ops[-1]
    assert (op.name, op.phase, op.replayable) == ("new", "update", False)
    names = [tiled.tensors[i].name for i in op.inputs]
    assert names == ["x", "dy", "w", "rate"]
    assert [tiled.tensors[o].name for _, o in op.in_place] == ["new:new0"]
    assert "g" not in [tensor.name for tensor in tiled.tensors]
    assert op.seconds > 0


def convolution_step(groups=1):
    builder = Builder("step")
    channels, units = 256, 512 * groups
    x = builder.tensor("x", (2, 5, 5, channels), role="input")
    dy = builder.tensor("dy", (2, 5, 5, units), role="input")
    shape = (3, 3, channels // groups, units)
    w = builder.tensor("w", shape, role="parameter")
    rate = builder.tensor("rate", (), role="input")
    builder.apply("tanh", (x,))
    a = {**window(x=(1, 1, 1, 1), kernel=shape)[0], "groups": groups}
    (g,) = builder.apply(
        "conv2d_gradient_kernel",
        (x, dy),
        {**a, "kernel_shape": shape},
        name="g",
        phase="backward",
    )
    new = builder.apply("sgd", (w, g, rate), name="new", phase="update")
    return hoist_updates(builder.build(list(new)))


def test_a_large_gradient_of_a_convolution_is_gone():
    graph = convolution_step()
    tiled = tile_updates(graph, everywhere)
    op = tiled.ops[-1]
    assert [each.type for each in tiled.ops] == ["tanh", "conv2d_update"]
    assert [tiled.tensors[i].name for i in op.inputs] == ["x", "dy", "w", "rate"]
    flops = ops.op_type("conv2d_update").flops
    specs = [ops.Spec(tiled.tensors[i].shape, "float32") for i in op.inputs]
    outputs = [ops.Spec(tiled.tensors[i].shape, "float32") for i in op.outputs]
    a_product = 2 * 2 * 5 * 5 * 9 * 256 * 512
    found = flops(specs, outputs, op.attributes)
    assert a_product < found <= a_product + 8 * 9 * 256 * 512
    assert ops.op_type("conv2d_update").infer(specs, op.attributes)[0].shape == (
        *(3, 3, 256, 512),
    )


def test_gradients_of_groups_and_without_a_kernel_stay():
    for graph, has in (
        (convolution_step(groups=2), everywhere),
        (convolution_step(), "dense_update".__eq__),
    ):
        assert tile_updates(graph, has) is graph


def test_small_gradients_and_those_that_others_read_stay():
    for graph in (step(500), step(1100, also_read=True)):
        assert tile_updates(graph, everywhere) is graph


def layers_of(kind):
    """A network whose large kernel has so many elements, and an input of it."""
    if kind == "dense":
        layers = [nn.Input((1200,)), nn.Dense(1000, "relu"), nn.Dense(4)]
        return layers, (1200,)
    layers = [
        nn.Input((6, 6, 256)),
        nn.Conv2D(512, 3, padding="same"),
        nn.BatchNormalization(),
        nn.ReLU(),
        nn.Conv2D(256, 3, padding="same", activation="relu"),
        nn.GlobalAveragePooling2D(),
        nn.Dense(4),
    ]
    return layers, (6, 6, 256)


def trained(policy, tiles, monkeypatch, kind="dense", **options):
    if not tiles:
        leave_out_rewrite(monkeypatch, "tile_updates")
    nn.set_random_seed(0)
    layers, shape = layers_of(kind)
    model = nn.Sequential(layers)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.001, **options), loss, memory=policy)
    x = normal(16, *shape)
    losses = [model.train_on_batch(x, np.arange(16) % 4) for _ in range(3)]
    types = [op.type for op in model.graph(16).ops]
    report = model.memory_report()
    peak = report.measured_peak_bytes, report.predicted_peak_bytes
    weights = model.get_weights()
    model.close()
    return losses, weights, types, peak


def test_training_is_the_same_in_less_memory(table, monkeypatch):
    found = [trained(mc.plan.share(), True, monkeypatch)]
    found.append(trained(mc.plan.sqrt_checkpoint(), True, monkeypatch))
    with monkeypatch.context() as patched:
        whole = trained(mc.plan.share(), False, patched)
    for losses, weights, types, (measured, predicted) in found:
        assert "dense_update" in types
        assert measured == predicted
        np.testing.assert_allclose(losses, whole[0], rtol=1e-5)
        for a, b in zip(weights, whole[1], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        assert_array_equal(a, b)
    assert "dense_update" not in whole[2]
    assert whole[3][1] - found[0][3][1] > 1200 * 1000 * 4 - (3 << 20)


@pytest.mark.filterwarnings("ignore:this processor has no instructions")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_convolutions_train_the_same_in_less_memory(table, monkeypatch, dtype):
    mc.config.set_dtype_policy(dtype)
    try:
        policies = mc.plan.share(), mc.plan.replay_elementwise()
        found = [trained(each, True, monkeypatch, "conv2d") for each in policies]
        with monkeypatch.context() as patched:
            whole = trained(mc.plan.share(), False, patched, "conv2d")
    finally:
        mc.config.set_dtype_policy("float32")
    for losses, weights, types, (measured, predicted) in found:
        assert types.count("conv2d_update") == 2
        assert measured == predicted
        np.testing.assert_allclose(losses, whole[0], rtol=1e-3)
        for a, b in zip(weights, whole[1], strict=True):
            np.testing.assert_allclose(a, b, atol=4e-3)  # Adam's steps have a size
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        assert_array_equal(a, b)
    assert "conv2d_update" not in whole[2]
    if dtype == "float32":  # else a processor may take copies in float32
        assert whole[3][1] - found[0][3][1] > 3 << 20


def planned(tiles, monkeypatch, build, batch, policy):
    with monkeypatch.context() as patched:
        if not tiles:
            leave_out_rewrite(patched, "tile_updates")
        model = build()
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(nn.SGD(0.01), loss, memory=policy)
        return model.plan(batch).peak_bytes


def test_a_network_of_one_large_kernel_is_planned_without_its_gradient(
    table, monkeypatch
):
    peaks = [
        planned(tiles, monkeypatch, mc.models.fcn8, 1, plan_in_order)
        for tiles in (False, True)
    ]
    assert peaks[0] - peaks[1] == 7 * 7 * 512 * 4096 * 4  # of fc6


def test_what_an_update_in_blocks_reads_is_computed_again(table, monkeypatch):
    policy = mc.plan.replay_elementwise()
    peaks = [
        planned(tiles, monkeypatch, mc.models.unet, 1, policy)
        for tiles in (False, True)
    ]
    assert peaks[1] <= peaks[0]


def test_clipping_by_the_norm_of_all_keeps_gradients_whole(table, monkeypatch):
    types = trained(mc.plan.share(), True, monkeypatch, global_clipnorm=1.0)[2]
    assert "dense_update" not in types
    assert types.count("dense_gradient_kernel") == 2


def test_windows_sum_up_gradients_in_blocks(table, monkeypatch):
    """What adds a gradient to the sum of a window is an update, too."""
    options = {"gradient_accumulation_steps": 2}
    losses, weights, types, _ = trained(mc.plan.share(), True, monkeypatch, **options)
    assert types.count("dense_gradient_kernel") == 1  # of the small layer
    assert types.count("dense_update") == 1
    whole = trained(mc.plan.share(), False, monkeypatch, **options)
    assert "dense_update" not in whole[2]
    np.testing.assert_allclose(losses, whole[0], rtol=1e-5)
    for a, b in zip(weights, whole[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
