"""A network of a thousand layers in little memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import memcfg as mc
from memcfg.units import align_up

nn = mc.nn
PART = 0.15  # of the activations of `keep_all`
BATCH = 4


@dataclass(frozen=True)
class Within:
    """`auto` within a part of what `keep_all` takes beside the state."""

    name: str = "within"

    def __call__(self, graph, limit_bytes=None):
        state = sum(align_up(graph.tensors[t].nbytes) for t in graph.persistent)
        everything = mc.plan.keep_all()(graph).peak_bytes
        limit = state + int(PART * (everything - state))
        plan = mc.plan.auto()(graph, limit)
        assert plan.peak_bytes - state <= PART * (everything - state)
        return replace(plan, limit_bytes=limit_bytes)


def trained(memory):
    nn.set_random_seed(1)
    model = mc.models.resnet(1001)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01), loss, memory=memory)
    chance = np.random.default_rng(0)
    images = chance.standard_normal((BATCH, 32, 32, 3), np.float32)
    losses = [
        float(model.train_on_batch(images, np.arange(BATCH) % 10)) for _ in range(2)
    ]
    plan, report = model.memory_plan, model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes == plan.peak_bytes
    weights = [weight.numpy() for weight in model.weights]
    model.close()
    return plan, losses, weights


@pytest.mark.slow
def test_a_thousand_layers_train_in_15_percent_of_their_activations():
    plan, losses, weights = trained(Within())
    assert plan.method == "repeated_blocks"
    other, same_losses, same_weights = trained("share")
    assert plan.peak_bytes < 0.5 * other.peak_bytes
    assert losses == same_losses
    assert all(map(np.array_equal, weights, same_weights))
