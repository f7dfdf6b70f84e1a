"""Residual sums in inference: one op with the product, the same bits in every plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from internals import graph_of_predict, keep_sums_apart
from kernels import onednn

import memcfg as mc
from memcfg.plan import Alias

nn, plan = mc.nn, mc.plan
SIZES = {"small": (3, 8, 16), "large": (6, 40, 128)}  # batch, image, channels
STAGES = {
    "in place": lambda: plan.chain(plan.order(), plan.in_place(), plan.place()),
    "apart": lambda: plan.chain(plan.order(), plan.place()),
}
POLICIES = {
    **STAGES,
    **{name: getattr(plan, name) for name in ("auto", "share", "keep_all", "mxnet")},
}


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    onednn()
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")


def block(x, filters, *, projected=False, relu=True):
    y = nn.ReLU()(nn.BatchNormalization()(nn.Conv2D(8, 1, use_bias=False)(x)))
    y = nn.BatchNormalization()(nn.Conv2D(filters, 3, padding="same")(y))
    if projected:
        x = nn.BatchNormalization()(nn.Conv2D(filters, 1, use_bias=False)(x))
    y = nn.Add()([x, y])
    return nn.ReLU()(y) if relu else y


def network(size):
    """Blocks with what they add projected or not, read again or not; a dense one."""
    nn.set_random_seed(7)
    _, image, channels = SIZES[size]
    x = nn.Input((image, image, 3))
    y = block(x, channels, projected=True)
    y = kept = block(y, channels)
    y = block(y, channels, relu=False)
    y = nn.Add()([block(y, channels), kept])
    y = nn.GlobalAveragePooling2D()(y)
    y = nn.ReLU()(nn.Add()([y, nn.Dense(channels)(y)]))  # of what the product reads
    model = nn.Model(x, nn.Add()([nn.Dense(channels)(nn.Dense(4)(y)), y]))
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.1, 0.9, w.shape) for w in model.get_weights()])
    return model


def batch(size):
    images, image, _ = SIZES[size]
    rng = np.random.default_rng(1)
    return rng.standard_normal((images, image, image, 3)).astype(np.float32)


def predicted(size, policy):
    """What a policy's program gives, with its graph and its plan."""
    model = network(size)
    model.compile("sgd", "mse", memory=POLICIES[policy]())
    x = batch(size)
    found = model.predict_on_batch(x)
    np.testing.assert_array_equal(model.predict_on_batch(x), found)
    executor = model._built_session().executor
    (label,) = executor.graphs
    return found, executor.graphs[label], executor.plans[label]


CONVOLUTION = "conv2d_bias_batch_normalization_inference"
SUMS = [  # in order, and whether they may take the place of what they add
    (f"{CONVOLUTION}_add_relu", True),
    (f"{CONVOLUTION}_add_relu", True),
    (f"{CONVOLUTION}_add", False),  # which is read again
    (f"{CONVOLUTION}_add_relu", True),
    ("dense_bias_add_relu", False),  # which the product reads
    ("dense_bias_add", True),
]


def sums(graph):
    return [op for op in graph.ops if "_add" in op.type]


def in_place(graph, made):
    """Whether each sum takes the place of what it adds."""
    taken = {(a.input, a.output) for a in made.actions if isinstance(a, Alias)}
    return [bool(taken & set(op.in_place)) for op in sums(graph)]


@pytest.mark.parametrize("size", SIZES)
def test_every_policy_gives_the_same_bits(size):
    wanted, graph, made = predicted(size, "in place")
    assert np.isfinite(wanted).all()
    assert [op.type for op in sums(graph)] == [kind for kind, _ in SUMS]
    assert in_place(graph, made) == [may for _, may in SUMS]
    for policy in POLICIES:
        found, graph, made = predicted(size, policy)
        if policy == "apart":
            assert not any(in_place(graph, made))
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def apart(monkeypatch):
    """Leave sums ops of their own from now on."""
    return lambda: keep_sums_apart(monkeypatch)


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_their_own_give_the_same(size, apart):
    wanted, *_ = predicted(size, "auto")
    apart()
    found, graph, _ = predicted(size, "auto")
    assert not sums(graph)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * scale)


def test_a_sum_takes_no_buffer_of_its_own(apart):
    """Beside what its product reads, and what it adds; scratch left out of account."""

    def peak():
        x = nn.Input((8, 8, 2))
        y = nn.Conv2D(16, 1)(x)
        y = nn.Add()([y, nn.Conv2D(16, 1)(nn.Conv2D(4, 1)(y))])
        model = nn.Model(x, nn.GlobalAveragePooling2D()(y))
        graph = graph_of_predict(model, 2)
        ops = tuple(replace(op, scratch_bytes=0, algorithms=()) for op in graph.ops)
        graph = replace(graph, ops=ops)
        state = sum(-(-graph.tensors[i].nbytes // 64) * 64 for i in graph.persistent)
        return plan.share()(graph).predicted.peak_bytes - state

    pixels = 2 * 8 * 8 * 4  # bytes of a channel
    assert peak() == (16 + 4) * pixels
    apart()
    assert peak() == (16 + 4 + 16) * pixels


@pytest.mark.parametrize("size", SIZES)
def test_peaks_are_those_predicted_and_training_is_as_it_was(size):
    model = network(size)
    model.compile("sgd", "mse", memory="auto")
    x = batch(size)
    model.predict_on_batch(x)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    model.train_on_batch(x, np.zeros((len(x), SIZES[size][2]), np.float32))
    executor = model._built_session().executor
    (train,) = (name for name in executor.graphs if name.startswith("train"))
    assert {op.type for op in sums(executor.graphs[train])} <= {
        "batch_normalization_add",
        "batch_normalization_add_relu",
        "batch_normalization_add_relu_gradient",
    }
