"""What a model is traced into."""

from __future__ import annotations

import numpy as np
import pytest
from traces import traced

import memcfg as mc

nn = mc.nn
SHAPE = (2, 8, 8, 3)


def network():
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(x)
    h = nn.MaxPool2D()(nn.Dropout(0.5)(nn.ReLU()(nn.BatchNormalization(name="bn")(h))))
    return nn.Model(x, nn.Dense(5, name="head")(nn.Flatten()(h)))


def names(graph, ids):
    return [graph.tensors[i].name for i in ids]


def types(graph):
    return [op.type for op in graph.ops]


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (nn.SGD(), []),
        (nn.SGD(momentum=0.9), ["sgd/{}/momentum"]),
        (nn.Adam(), ["adam/{}/m", "adam/{}/v"]),
    ],
)
def test_all_programs_list_the_same_state_first(optimizer, slots):
    weights = ["conv/kernel", "bn/gamma", "bn/beta"]
    moving = ["bn/moving_mean", "bn/moving_variance"]
    head = ["head/kernel", "head/bias"]
    state = [slot.format(w) for w in [*weights, *head] for slot in slots]
    graph = traced(network(), "train", SHAPE, optimizer)
    assert graph.persistent == tuple(range(len(graph.persistent)))
    assert names(graph, graph.persistent) == [*weights, *moving, *head, *state]
    for kind in ("evaluate", "predict"):  # before any training
        bare = traced(network(), kind, SHAPE, type(optimizer)())
        assert names(bare, bare.persistent) == [*weights, *moving, *head]


def test_inputs_are_those_that_are_used():
    def inputs(kind):
        graph = traced(network(), kind, SHAPE)
        found = [t for t in graph.tensors if t.role == "input"]
        return {t.name: (t.shape, t.dtype) for t in found}

    x, y = ((2, 8, 8, 3), "float32"), ((2,), "int32")
    rate, step = ((), "float32"), ((), "int64")
    assert inputs("predict") == {"x": x}
    assert inputs("evaluate") == {"x": x, "y": y}
    expected = {"x": x, "y": y, "learning_rate": rate, "step": step}
    assert inputs("train") == expected  # dropout reads the step
    dry = nn.Input((4,))
    simple = nn.Model(dry, nn.Dense(3)(dry))
    graph = traced(simple, "train", (2, 4), "sgd")
    assert "step" not in names(graph, range(len(graph.tensors)))


def has_kernel(kind):
    return mc.config.logical_device().kernels.has(kind)


def test_inference_keeps_nothing_for_backward():
    whole = "conv2d_batch_normalization_inference_relu"
    parts = [whole] if has_kernel(whole) else ["conv2d", whole.removeprefix("conv2d_")]
    assert types(traced(network(), "predict", SHAPE)) == [
        *(*parts, "max_pool2d_inference"),
        *("flatten", "dense_bias"),
    ]
    assert types(traced(network(), "evaluate", SHAPE, metrics=["accuracy"]))[-3:] == [
        "correct_count",
        "fill",
        "softmax_cross_entropy_inference",
    ]


def test_updates_stand_behind_the_loss():
    graph = traced(network(), "train", SHAPE, nn.SGD(momentum=0.9), ["accuracy"])
    loss = next(i for i, op in enumerate(graph.ops) if op.name == "loss")
    updates = [i for i, op in enumerate(graph.ops) if op.phase == "update"]
    assert min(updates) > loss
    assert types(graph).count("moving_average") == 2
    assert types(graph).count("sgd_momentum") == 5
    kept = names(graph, graph.keep)
    assert kept[:2] == ["loss", "correct_count"]
    assert kept[2] == "sample_count"
    assert len(kept) == 3 + 2 + 2 * 5
    # hoisted: not all of them wait for the end of the backward phase
    assert graph.ops[updates[2]].phase == "update"
    assert any(op.phase == "backward" for op in graph.ops[updates[2] :])


def test_counting_is_left_out_without_metrics():
    for kind in ("train", "evaluate"):
        graph = traced(network(), kind, SHAPE)
        assert "correct_count" not in types(graph)


def test_what_nobody_reads_is_not_computed():
    """The softmax that a loss computes inside itself; an output without a loss."""

    def classifier(activation):
        model = nn.Sequential([nn.Input((8,)), nn.Dense(10_000, activation=activation)])
        loss = nn.SparseCategoricalCrossentropy(from_logits=activation is None)
        model.compile("sgd", loss, memory="keep_all")
        return model

    fused, plain = classifier("softmax"), classifier(None)
    graphs = [each.graph(32) for each in (fused, plain)]
    types = [[op.type for op in graph.ops] for graph in graphs]
    assert types[0] == types[1]
    sizes = [sum(tensor.nbytes for tensor in graph.tensors) for graph in graphs]
    assert sizes[0] == sizes[1]
    assert fused.plan(32).peak_bytes == plain.plan(32).peak_bytes
    probabilities = 32 * 10_000 * 4
    fused.compile("sgd", fused_loss(), metrics=["accuracy"], memory="keep_all")
    assert fused.plan(32).peak_bytes >= plain.plan(32).peak_bytes + probabilities

    left, right = nn.Input((4,)), nn.Input((4,))
    h = nn.Dense(3, name="unread", trainable=False)(right)
    model = nn.Model([left, right], [nn.Dense(2, name="read")(left), h])
    model.compile("sgd", {"read": "mse", "unread": None})
    assert not [op for op in model.graph(6).ops if op.name.startswith("unread")]
    x = [np.ones((6, 4), np.float32)] * 2
    y = np.ones((6, 2), np.float32)
    assert model.fit(x, [y, None], verbose=0).history["loss"][0] > 0
    assert model.evaluate(x, [y, None], verbose=0) > 0
    np.testing.assert_allclose(model.predict(x, verbose=0)[1][0, 0], h_of(model))


def fused_loss():
    return nn.SparseCategoricalCrossentropy()


def h_of(model):
    kernel, bias = model.get_layer("unread").get_weights()
    return kernel[:, 0].sum() + bias[0]
