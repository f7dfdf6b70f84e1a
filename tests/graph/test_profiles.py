"""Times of devices that are not here."""

from __future__ import annotations

import pytest

from memcfg import models, nn
from memcfg.graph import PROFILES, with_profile


@pytest.fixture
def graph():
    model = models.lenet5()
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    return model.graph(64)


def test_an_op_takes_its_flops_or_its_bytes_whichever_takes_longer(graph):
    fast = with_profile(graph, PROFILES["h100"])
    assert [op.name for op in fast.ops] == [op.name for op in graph.ops]
    assert fast.tensors == graph.tensors
    least = PROFILES["h100"].seconds_per_op
    for op, slow in zip(fast.ops, graph.ops, strict=True):
        if not slow.seconds:
            assert not op.seconds
            continue
        nbytes = sum(graph.tensors[i].nbytes for i in (*op.inputs, *op.outputs))
        assert op.seconds >= 0.99 * min(least, slow.seconds)
        compute = slow.seconds * 100e9 / 67e12
        assert op.seconds <= 1.01 * (least + nbytes / 3350e9 + compute)


def test_a_faster_device_takes_less_time(graph):
    seconds = [
        sum(op.seconds for op in with_profile(graph, PROFILES[name]).ops)
        for name in ("cpu", "t4", "a100", "h100")
    ]
    assert seconds == sorted(seconds, reverse=True)
    usual = sum(op.seconds for op in graph.ops)
    assert seconds[0] == pytest.approx(usual, rel=0.3)
