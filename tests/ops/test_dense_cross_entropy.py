"""Logits in blocks: kernels against their meaning, and graphs that have them."""

from __future__ import annotations

import machine
import numpy as np
import pytest
from family_cases import case
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import leave_out_rewrite
from kernel_cases import check, execute, normal
from kernels import check_on_threads

import memcfg as mc
from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import GraphError, KernelError, MissingDependencyError

nn = mc.nn
KIND = "dense_cross_entropy"
BLOCK = 32 << 20  # bytes of logits at a time


@pytest.fixture(scope="module")
def table():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def made(lead, depth, classes, *, transposed=False, biased=False, seed=0, kind=KIND):
    labels = np.random.default_rng(seed).integers(0, classes, lead).astype(np.int32)
    shape = (classes, depth) if transposed else (depth, classes)
    inputs = [normal(*lead, depth, seed=seed), labels, normal(*shape, seed=seed + 1)]
    inputs += [normal(classes, seed=seed + 2)] if biased else []
    return case(kind, inputs, {"transposed": transposed})


@settings(max_examples=40, deadline=None)
@given(
    lead=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    depth=st.integers(1, 70),
    classes=st.integers(1, 90),
    transposed=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 99),
    kind=st.sampled_from([KIND, "dense_cross_entropy_inference"]),
)
def test_blocks_mean_what_the_whole_does(
    table, lead, depth, classes, transposed, biased, seed, kind
):
    check(
        table,
        made(
            tuple(lead),
            depth,
            classes,
            transposed=transposed,
            biased=biased,
            seed=seed,
            kind=kind,
        ),
    )


@pytest.mark.strength(1)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "classes"),
    [(700, 300, 40), (513, 20, 700), (300, 4, 50_000), (20, 2, 600_000)],
)
def test_several_blocks(table, rows, depth, classes, transposed):
    each = made((rows,), depth, classes, transposed=transposed, biased=True)
    check(table, each)


def test_on_more_threads_the_bits_are_those_of_products(table):
    each = made((600,), 90, 3000, transposed=True, biased=True)
    found = []
    for threads in (1, 2, 3):
        with machine.threads(threads):
            outputs = execute(table, each, 0, 0)
            found.append([np.frombuffer(x, np.float32) for x in outputs])
    for other in found[1:]:
        check_on_threads(other, found[0])


def test_scratch_is_a_block_of_logits(table):
    """Whatever the rows: 256 of them, or those of 32 MiB."""
    for rows, classes in ((300, 5000), (5000, 5000), (2048, 50_000)):
        shapes = [((rows, 64), "float32"), ((rows,), "int32")]
        shapes += [((classes, 64), "float32")]
        specs = [OperandSpec(*each) for each in shapes]
        outs = [((), "float32"), shapes[0], shapes[2]]
        kernel = table.make(
            KIND,
            {"transposed": True},
            specs,
            [OperandSpec(*each) for each in outs],
        )
        block = min(256, BLOCK // (4 * classes) // 16 * 16)
        logits = 4 * block * classes
        assert logits <= kernel.scratch_bytes <= logits + 8 * rows + (1 << 20)


def test_a_label_out_of_range_makes_the_loss_nan(table):
    each = made((6,), 3, 4)
    each.inputs[1][2] = 4
    found = execute(table, each, 0, 0)
    assert np.isnan(np.frombuffer(found[0], np.float32))
    assert np.isfinite(np.frombuffer(found[1], np.float32)).all()


def test_what_does_not_fit_is_refused(table):
    x, y, w, b = (ops.Spec(s, "float32") for s in ((6, 3), (6,), (3, 4), (4,)))
    labels = y._replace(dtype="int32")
    infer, plain = ops.op_type(KIND).infer, {"transposed": False}
    for inputs, message in (
        ([x, labels], "reads x, labels"),
        ([x, labels, b], "cannot multiply"),
        ([x, labels._replace(shape=(5,)), w], r"\(5,\)"),
        ([x, y, w], "int32"),
        ([x, labels, w, y], "no bias of 4"),
    ):
        with pytest.raises(GraphError, match=message):
            infer(inputs, plain)
    with pytest.raises(GraphError, match=r"\(6, 3\)"):
        infer([x, labels, w], {"transposed": True})
    wrong = made((6,), 3, 4)
    wrong.attributes = {"transposed": True}
    with pytest.raises(KernelError, match="do not fit"):
        execute(table, wrong, 0, 0)


# -- in models ---------------------------------------------------------------------

CLASSES, WIDTH, STEPS = 6000, 24, 300


pytestmark = pytest.mark.usefixtures("table", "native_kernels")  # or it skips


def model(*, tied=True, frozen=False, biased=True, dtype=None):
    nn.set_random_seed(3)
    if dtype is not None:
        mc.config.set_dtype_policy(dtype)
    tokens = nn.Input((STEPS,), dtype="int32")
    table = nn.ReversibleEmbedding(CLASSES, WIDTH, name="words")
    x = nn.Dense(WIDTH, activation="tanh")(table(tokens))
    head = nn.Dense(CLASSES, use_bias=biased, name="head")
    found = nn.Model(tokens, table(x, reverse=True) if tied else head(x))
    head.trainable = not frozen
    return found


def data(samples=5):
    random = np.random.default_rng(0)
    x, y = random.integers(0, CLASSES, (2, samples, STEPS))
    return x.astype(np.int32), y.astype(np.int32)


def compiled(made, policy="share", **options):
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = options.pop("optimizer", nn.SGD(0.5, momentum=0.9))
    made.compile(optimizer, loss, memory=policy, **options)
    return made


def kinds(graph):
    return [op.type for op in graph.ops]


def trained(monkeypatch, made, policy="share", *, fuses=True):
    if not fuses:
        leave_out_rewrite(monkeypatch, "fuse_cross_entropy")
    losses = [compiled(made, policy).train_on_batch(*data())]
    losses += [made.train_on_batch(*data()) for _ in range(2)]
    report = made.memory_report(verify=True)
    assert report.measured_peak_bytes == made.memory_plan.peak_bytes
    weights = made.get_weights()
    losses.append(made.test_on_batch(*data()))
    peak = made.memory_plan.peak_bytes
    made.close()
    monkeypatch.undo()
    return losses, weights, peak


OTHERS = {"tied": False}, {"tied": False, "biased": 0}


@pytest.mark.parametrize("options", [{}, *OTHERS])
def test_models_learn_what_they_learn_from_whole_logits(monkeypatch, options):
    losses, weights, peak = trained(monkeypatch, model(**options))
    wanted, others, most = trained(monkeypatch, model(**options), fuses=False)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for found, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-3, atol=1e-6)
    logits = 5 * STEPS * CLASSES * 4
    assert logits > BLOCK
    assert peak < most - logits + 256 * CLASSES * 4 + (4 << 20)
    for policy in ("keep_all", "sqrt_checkpoint", "replay_elementwise"):
        again = trained(monkeypatch, model(**options), policy)
        assert again[0] == losses
        for found, other in zip(weights, again[1], strict=True):
            np.testing.assert_array_equal(found, other)


MIXED = "mixed_bfloat16"


@pytest.mark.parametrize(
    "options",
    [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)],
)
def test_models_in_bfloat16_learn_so_too(monkeypatch, options):
    """As from whole logits, and as in float32, within bfloat16's digits."""
    options["dtype"] = MIXED
    made = compiled(model(**options))
    graph = made.graph(5)
    assert KIND in kinds(graph)
    sizes = [tensor.nbytes for tensor in graph.tensors]
    assert max(sizes) < 5 * STEPS * CLASSES * 2
    assert [op.phase for op in graph.ops if "__scores" in op.name] in ([], ["forward"])
    made.close()
    losses, weights, _ = trained(monkeypatch, model(**options))
    for fuses, dtype in ((False, MIXED), (True, "float32")):
        options["dtype"] = dtype
        again = trained(monkeypatch, model(**options), fuses=fuses)
        np.testing.assert_allclose(losses, again[0], rtol=2e-3)
        start = model(**options).get_weights()
        for found, other, first in zip(weights, again[1], start, strict=True):
            size = np.abs(other - first).max()
            assert np.abs(found - other).max() <= 0.05 * size + 1e-6
    options["dtype"] = MIXED
    for policy in ("keep_all", "sqrt_checkpoint", "replay_elementwise"):
        again = trained(monkeypatch, model(**options), policy)
        assert again[0] == losses
        for found, other in zip(weights, again[1], strict=True):
            np.testing.assert_array_equal(found, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda: compiled(model(dtype=MIXED), metrics=["accuracy"]),
        lambda: compiled(model(tied=False, frozen=True, dtype=MIXED)),
        lambda: compiled(model(dtype=MIXED), loss_weights=[0.5]),
    ],
    ids=["metric", "frozen", "scaled"],
)
def test_what_else_reads_logits_of_bfloat16_keeps_them(change):
    assert KIND not in kinds(change().graph(5))


def test_the_logits_of_a_gpt_never_exist():
    """2,048 words of 50,000: 391 MiB of logits, of which 31 are there at a time."""
    gpt = mc.models.gpt(
        1, 64, 2, vocabulary_size=50_000, sequence_length=256, dropout=0.0
    )
    graph = compiled(gpt).graph(8)
    assert max(tensor.nbytes for tensor in graph.tensors) == 50_000 * 64 * 4
    (op,) = [op for op in graph.ops if op.type == KIND]
    block = 160 * 50_000 * 4
    assert block <= op.scratch_bytes <= block + (1 << 20)
    state = 8 * gpt.count_params()
    plan = mc.plan.share()(graph)
    assert plan.peak_bytes < state + block + 50_000 * 64 * 4 + (40 << 20)


@pytest.mark.parametrize(
    "change",
    [
        lambda: compiled(model(), metrics=["accuracy"]),
        lambda: compiled(model(tied=False, frozen=True)),
        lambda: compiled(model(), loss_weights=[0.5]),
    ],
    ids=["metric", "frozen", "scaled"],
)
def test_what_else_reads_logits_keeps_them(change):
    graph = change().graph(5)
    assert KIND not in kinds(graph)
    assert any(tensor.nbytes == 5 * STEPS * CLASSES * 4 for tensor in graph.tensors)


def test_small_logits_stay_whole():
    assert KIND not in kinds(compiled(model()).graph(4))
    assert KIND in kinds(compiled(model()).graph(5))


def test_clipping_reads_the_gradients(monkeypatch):
    clipped = nn.SGD(0.1, global_clipnorm=0.1)
    found = compiled(model(), optimizer=clipped)
    assert KIND in kinds(found.graph(5))
    assert np.isfinite(found.train_on_batch(*data()))


def test_evaluation_has_no_logits_either():
    found = compiled(model())
    found.test_on_batch(*data())
    plan = found.memory_plan
    assert plan.peak_bytes < 5 * STEPS * CLASSES * 4
    assert found.memory_report(verify=True).measured_peak_bytes == plan.peak_bytes
    found.close()
