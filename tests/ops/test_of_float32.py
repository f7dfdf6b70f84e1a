"""Products that round a float32 kernel: what they mean, take, and stand for."""

from __future__ import annotations

import numpy as np
import pytest
from bfloat16 import round_to_bfloat16, widen
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import leave_out_rewrite
from kernel_cases import Room, normal

import memcfg as mc
from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, KernelError, MissingDependencyError
from memcfg.graph import Builder, read_wide_kernels

nn = mc.nn
TYPES = ("dense", "dense_bias", "dense_gradient_input")
BIT = 2.0**-8


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def operands(kind, m, k, n):
    """What an op reads, with dtypes, and the shape that it makes."""
    kernel = normal(k, n, seed=1), "float32"
    if kind == "dense_gradient_input":
        return [kernel, (round_to_bfloat16(normal(m, n)), "bfloat16")], (m, k)
    found = [(round_to_bfloat16(normal(m, k)), "bfloat16"), kernel]
    if kind == "dense_bias":
        found.append((normal(n, seed=2), "float32"))
    return found, (m, n)


def run(table, kind, given, shape):
    """Run one op between guards, with garbage in scratch; return its bits and bytes."""
    specs = [OperandSpec(x.shape, dtype) for x, dtype in given]
    made = table.make(f"{kind}_of_float32", {}, specs, [OperandSpec(shape, "bfloat16")])
    found = []
    for garbage in (0xFF, 0x5A):
        rooms = [Room(x.nbytes, garbage, 64) for x, _ in given]
        for room, (x, _) in zip(rooms, given, strict=True):
            room.bytes[:] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        out = Room(2 * int(np.prod(shape)), garbage, 128)
        scratch = Room(made.scratch_bytes, garbage, 192)
        made.run([room.address for room in (*rooms, out)], scratch.address)
        for room in (*rooms, out, scratch):
            room.check_guards()
        for room, (x, _) in zip(rooms, given, strict=True):
            assert room.bytes.tobytes() == x.tobytes()
        found.append(out.bytes.tobytes())
    assert found[0] == found[1]
    return np.frombuffer(found[0], np.uint16).reshape(shape), made.scratch_bytes


def meaning(kind, given, shape):
    """The result in float64, of the rounded kernel."""
    wide = [
        widen(x if dtype == "bfloat16" else round_to_bfloat16(x)).astype(np.float64)
        for x, dtype in given[:2]
    ]
    wide += [x.astype(np.float64) for x, _ in given[2:]]
    result = np.empty(shape)
    ops.op_type(kind).numpy({}, wide, [result])
    return result


def check(table, kind, m, k, n):
    given, shape = operands(kind, m, k, n)
    found, scratch = run(table, kind, given, shape)
    wanted = meaning(kind, given, shape)
    depth = n if kind == "dense_gradient_input" else k
    slack = BIT * np.abs(wanted) + 1e-5 * np.sqrt(depth) + 1e-6
    assert (np.abs(widen(found) - wanted) <= slack).all()
    return scratch


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [  # a block and several, whose last is shorter; few rows and many
        (1, 1, 1),
        (1, 3000, 700),
        (8, 9000, 600),
        (33, 700, 4100),
        (255, 300, 2100),
        (300, 5000, 530),
        (700, 65, 5000),
    ],
)
def test_they_are_products_of_the_rounded_kernel(table, kind, m, k, n):
    scratch = check(table, kind, m, k, n)
    if k * n > 1 << 20:
        assert scratch < (2 * k * n if m < 300 else 8 << 20)


@pytest.mark.parametrize("kind", TYPES)
@given(
    m=st.sampled_from([1, 2, 7, 40, 256, 257]),
    k=st.integers(1, 1500),
    n=st.integers(1, 1500),
)
@settings(max_examples=15, deadline=None)
def test_of_any_shape(table, kind, m, k, n):
    check(table, kind, m, k, n)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38, 1e-40])
def test_what_is_not_finite_arrives_where_it_belongs(table, kind, value):
    """3.4e38 is infinite in bfloat16, as in a cast."""
    given, shape = operands(kind, 5, 900, 1300)
    kernel = given[0 if kind == "dense_gradient_input" else 1][0]
    kernel[433, 277] = value
    found, _ = run(table, kind, given, shape)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = meaning(kind, given, shape)
    column = 433 if kind == "dense_gradient_input" else 277
    np.testing.assert_array_equal(np.isnan(widen(found)), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(widen(found)), np.isinf(wanted))
    others = np.delete(widen(found), column, 1)
    assert np.isfinite(others).all()


def test_numpy_means_the_same():
    for kind in TYPES:
        given, shape = operands(kind, 3, 40, 30)
        arrays = [widen(x) if dtype == "bfloat16" else x for x, dtype in given]
        result = np.empty(shape, np.float32)
        ops.op_type(f"{kind}_of_float32").numpy({}, arrays, [result])
        wanted = meaning(kind, given, shape)
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def test_other_operands_are_refused(table):
    builder = Builder("refused")
    x = builder.tensor("x", (2, 3), "bfloat16", role="input")
    w = builder.tensor("w", (3, 4), "bfloat16", role="parameter")
    with pytest.raises(GraphError, match="the kernel is float32 and the rest bfloat16"):
        builder.apply("dense_of_float32", (x, w))
    specs = [OperandSpec((2, 3), "bfloat16"), OperandSpec((3, 5), "float32")]
    with pytest.raises(KernelError, match="has a kernel of another size"):
        table.make("dense_of_float32", {}, specs, [OperandSpec((2, 4), "bfloat16")])


def graph_of(side, extra=lambda builder, copy: ()):
    builder = Builder("wide")
    builder.compute_dtype = "bfloat16"
    x = builder.tensor("x", (2, side), "bfloat16", role="input")
    w = builder.tensor("w", (side, side), role="parameter")
    (y,) = builder.apply("dense", (x, w), name="y")
    more = extra(builder, builder.cast(w, "bfloat16"))
    return builder.build([y, *more])


def test_large_kernels_that_products_alone_read_are_not_copied():
    graph = graph_of(1500)
    found = read_wide_kernels(graph, lambda _: True)
    assert [op.type for op in found.ops] == ["dense_of_float32"]
    assert len(found.tensors) == len(graph.tensors) - 1
    for other in (
        graph_of(1400),  # 3.7 MiB
        graph_of(1500, lambda _, copy: [copy]),  # which is kept
        graph_of(1500, lambda builder, copy: builder.apply("tanh", (copy,))),
        graph_of(1500, lambda builder, copy: builder.apply("dense", (copy, copy))),
    ):
        assert read_wide_kernels(other, lambda _: True) is other
    assert read_wide_kernels(graph, lambda _: False) is graph


def trained(policy="share"):
    nn.set_random_seed(1)
    x = nn.Input((2200,))
    y = nn.Dense(1300, activation="tanh")(x)
    y = nn.Dense(2100)(y)
    model = nn.Model(x, nn.Dense(3)(nn.ReLU()(y)), dtype="mixed_bfloat16")
    model.compile(nn.SGD(0.01, momentum=0.9), "mse", memory=policy)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((6, 2200)).astype(np.float32)
    target = rng.standard_normal((6, 3)).astype(np.float32)
    losses = [model.train_on_batch(data, target) for _ in range(4)]
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    found = model.predict_on_batch(data)
    weights = model.get_weights()
    graph = model.graph(6)
    model.close()
    return losses, weights, found, graph


def test_models_train_as_with_copies_in_less_memory(table, monkeypatch):
    del table
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    losses, weights, outputs, graph = trained()
    kinds = {op.type for op in graph.ops if op.type.endswith("_of_float32")}
    assert kinds >= {"dense_bias_of_float32", "dense_gradient_input_of_float32"}
    for policy in ("keep_all", "sqrt_checkpoint"):
        again = trained(policy)
        assert again[0] == losses
        for first, second in zip(weights, again[1], strict=True):
            np.testing.assert_array_equal(first, second)
    leave_out_rewrite(monkeypatch, "read_wide_kernels")
    other = trained()
    np.testing.assert_allclose(losses, other[0], rtol=0.02)
    np.testing.assert_allclose(outputs, other[2], rtol=0.05, atol=0.02)
    peaks = [mc.plan.share()(each).peak_bytes for each in (graph, other[3])]
    copies = 2 * 2200 * 1300
    assert peaks[0] <= peaks[1] - copies // 2


def test_gradients_are_those_of_the_weights_before_the_step(table, monkeypatch):
    """An update comes behind the products that read the kernel now."""
    del table
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")

    def moved(rate=30.0):
        nn.set_random_seed(1)
        x = nn.Input((40,))
        y = nn.Dense(2100)(nn.Dense(1300, activation="tanh")(x))
        model = nn.Model(x, nn.Dense(3)(nn.ReLU()(y)), dtype="mixed_bfloat16")
        model.compile(nn.SGD(rate), "mse", memory="share")
        rng = np.random.default_rng(0)
        data = rng.standard_normal((6, 40)).astype(np.float32)
        before = model.get_weights()
        model.train_on_batch(data, rng.standard_normal((6, 3)).astype(np.float32))
        found = [a - b for a, b in zip(model.get_weights(), before, strict=True)]
        graph = model.graph(6)
        model.close()
        return found, graph

    found, graph = moved()
    for index, op in enumerate(graph.ops):
        for tensor, _ in op.in_place if op.phase == "update" else ():
            assert max(graph.consumers[tensor]) == index
    leave_out_rewrite(monkeypatch, "read_wide_kernels")
    for first, second in zip(found, moved()[0], strict=True):
        scale = np.abs(second).max()
        np.testing.assert_allclose(first, second, rtol=0, atol=0.02 * scale)
