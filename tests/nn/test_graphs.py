"""What a model is traced into."""

from __future__ import annotations

import pytest

import memcfg as mc
from memcfg.nn._network import Network
from memcfg.nn.training._tracing import Program, Recipe, trace

nn = mc.nn
STATE = ("parameter", "optimizer_state")


@pytest.fixture
def network():
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(x)
    h = nn.MaxPool2D()(nn.Dropout(0.5)(nn.ReLU()(nn.BatchNormalization(name="bn")(h))))
    return Network(x, nn.Dense(5, name="head")(nn.Flatten()(h)))


def traced(network, kind, optimizer=None, counting=True):
    return trace(Recipe("net", network, optimizer, counting), Program(kind, 2))


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
def test_all_programs_list_the_same_state_first(network, optimizer, slots):
    weights = ["conv/kernel", "bn/gamma", "bn/beta"]
    moving = ["bn/moving_mean", "bn/moving_variance"]
    head = ["head/kernel", "head/bias"]
    state = [slot.format(w) for w in [*weights, *head] for slot in slots]
    for kind in ("train", "evaluate", "predict"):
        graph = traced(network, kind, optimizer)
        assert graph.persistent == tuple(range(len(graph.persistent)))
        assert names(graph, graph.persistent) == [*weights, *moving, *head, *state]
    bare = traced(network, "predict")
    assert names(bare, bare.persistent) == [*weights, *moving, *head]


def test_inputs_are_those_that_are_used(network):
    def inputs(kind, optimizer):
        graph = traced(network, kind, optimizer)
        found = [t for t in graph.tensors if t.role == "input"]
        return {t.name: (t.shape, t.dtype) for t in found}

    x, y = ((2, 8, 8, 3), "float32"), ((2,), "int32")
    rate, step = ((), "float32"), ((), "int64")
    assert inputs("predict", None) == {"x": x}
    assert inputs("evaluate", None) == {"x": x, "y": y}
    expected = {"x": x, "y": y, "learning_rate": rate, "step": step}
    assert inputs("train", nn.SGD()) == expected  # dropout reads the step
    dry = nn.Input((4,))
    simple = Network(dry, nn.Dense(3)(dry))
    graph = traced(simple, "train", nn.SGD())
    assert "step" not in names(graph, range(len(graph.tensors)))


def test_inference_keeps_nothing_for_backward(network):
    assert types(traced(network, "predict")) == [
        *("conv2d", "batch_normalization_inference", "relu", "max_pool2d_inference"),
        *("flatten", "dense", "bias"),
    ]
    assert types(traced(network, "evaluate"))[-2:] == [
        "correct_count",
        "softmax_cross_entropy_inference",
    ]


def test_updates_stand_behind_the_loss(network):
    graph = traced(network, "train", nn.SGD(momentum=0.9))
    loss = next(i for i, op in enumerate(graph.ops) if op.name == "loss")
    updates = [i for i, op in enumerate(graph.ops) if op.phase == "update"]
    assert min(updates) > loss
    assert types(graph).count("moving_average") == 2
    assert types(graph).count("sgd_momentum") == 5
    kept = names(graph, graph.keep)
    assert kept[:2] == ["loss", "correct_count"]
    assert len(kept) == 2 + 2 + 2 * 5
    # hoisted: not all of them wait for the end of the backward phase
    assert graph.ops[updates[2]].phase == "update"
    assert any(op.phase == "backward" for op in graph.ops[updates[2] :])


def test_counting_is_left_out_without_metrics(network):
    for kind in ("train", "evaluate"):
        graph = traced(network, kind, nn.SGD(), counting=False)
        assert "correct_count" not in types(graph)
