"""Limits from the smallest to the peak: bytes do not fall, and time does not grow."""

from __future__ import annotations

import pytest
import torch
from torch_steps import GPT, ResNet, inputs_of, last_step

import memcfg.torch as mt
from memcfg.plan import simulate

pytestmark = pytest.mark.filterwarnings("ignore")

RUNGS = 8


@pytest.mark.parametrize("kind", [ResNet, GPT])
def test_more_memory_is_used_and_is_never_slower(kind):
    torch.manual_seed(3)
    module, x = kind(), inputs_of(kind)
    told = mt.estimate(module, (x,), times="nominal")
    room = told.peak_bytes - told.floor_bytes
    limits = [told.floor_bytes + room * at // (RUNGS - 1) for at in range(RUNGS)]
    peaks, times = [], []
    for limit in limits:
        torch._dynamo.reset()
        run = mt.budget(module, limit, example=(x,), times="nominal")
        step = last_step(run)
        peaks.append(mt.get_budget(run).predicted_peak_bytes)
        times.append(simulate(step.traced.graph, step.plan).seconds)
    assert all(peak <= limit for peak, limit in zip(peaks, limits, strict=True))
    assert peaks[0] == told.floor_bytes
    assert peaks[-1] == told.peak_bytes
    assert peaks == sorted(peaks)
    assert times == sorted(times, reverse=True)
