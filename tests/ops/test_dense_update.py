"""Updates in blocks: kernels against their meaning, and graphs that have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import Case, check, execute, f32, normal
from numpy.testing import assert_array_equal

import memcfg as mc
from memcfg import ops
from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, MissingDependencyError
from memcfg.graph import Builder, hoist_updates, tile_updates
from memcfg.ops.dense_update import update_attributes

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
    formula = ops.op_type(name).formula
    place = formula.operands.index("g")
    inputs = [normal(*lead, m, k), normal(*lead, m, n, seed=1)]
    for i, operand in enumerate(formula.operands):
        if operand == "step":
            inputs.append(np.array(3, np.int64))
        elif operand in formula.scalars:
            inputs.append(np.array(0.01, np.float32))
        elif i != place:
            inputs.append(np.abs(normal(k, n, seed=2 + i)))
    attributes = update_attributes(name, SETTINGS[name], place)
    pairs = {
        out: 1 + formula.operands.index(state)  # the gradient is no input, x and dy are
        if formula.operands.index(state) > place
        else 2 + formula.operands.index(state)
        for out, state in enumerate(formula.state)
    }
    outputs = [f32((k, n))] * len(formula.state)
    return Case("dense_update", inputs, outputs, attributes, pairs)


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
    tiled = tile_updates(graph)
    assert [op.type for op in tiled.ops] == ["tanh", "dense_update"]
    op = tiled.ops[-1]
    assert (op.name, op.phase, op.replayable) == ("new", "update", False)
    names = [tiled.tensors[i].name for i in op.inputs]
    assert names == ["x", "dy", "w", "rate"]
    assert [tiled.tensors[o].name for _, o in op.in_place] == ["new:new0"]
    assert "g" not in [tensor.name for tensor in tiled.tensors]
    assert op.seconds > 0


def test_small_gradients_and_those_that_others_read_stay():
    for graph in (step(500), step(1100, also_read=True)):
        assert tile_updates(graph) is graph


def trained(policy, tiles, monkeypatch, **options):
    if not tiles:
        session = mc.nn.training._session
        monkeypatch.setattr(session, "tile_updates", lambda graph: graph)
    nn.set_random_seed(0)
    layers = [nn.Input((1200,)), nn.Dense(1000, "relu"), nn.Dense(4)]
    model = nn.Sequential(layers)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.001, **options), loss, memory=policy)
    x = normal(16, 1200)
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
