"""What a model is traced into."""

from __future__ import annotations

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


def test_inference_keeps_nothing_for_backward():
    assert types(traced(network(), "predict", SHAPE)) == [
        *("conv2d", "batch_normalization_inference", "relu", "max_pool2d_inference"),
        *("flatten", "dense", "bias"),
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
