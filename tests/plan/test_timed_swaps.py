"""Swaps by the clock: the bytes of a walk, and steps that train within hard limits."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import weights_after
from training_graphs import random_step

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Tier
from memcfg.plan import (
    layrub_migration,
    share,
    superneurons,
    superneurons_cache,
    validate,
    vdnn_pp,
)
from memcfg.plan.methods._swapping import Away, plan_swaps
from memcfg.plan.methods._timed_swaps import TimedSwaps
from memcfg.plan.search import Request, clock, least_load
from memcfg.units import align_up

nn = mc.nn
METHODS = (layrub_migration(), superneurons(), superneurons_cache(), vdnn_pp())


def some_away(graph, chance):
    """Gaps between two uses of tensors, each maybe begun, left and asked late."""
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    for tensor, readers in enumerate(graph.consumers):
        maker = graph.producer[tensor]
        uses = [-1 if maker is None else maker, *readers]
        gaps = [(a, b) for a, b in pairwise(uses) if b - a > 1]
        if tensor in fixed or not gaps or chance.random() < 0.3:
            continue
        last, back = chance.choice(gaps)
        leave = chance.randint(last + 1, back - 1)
        begin = chance.randint(last + 1, leave)
        yield Away(tensor, begin, leave, chance.randint(last + 1, back), back)


def a_case(seed, ops, bandwidth):
    """A random step; outputs go in the place of inputs of their size alone.

    Half of them have a second tier.
    """
    tiers = (Tier("host", float(bandwidth)),)
    if seed % 2:
        tiers = (replace(tiers[0], limit_bytes=960), Tier("file", bandwidth / 4))
    graph = replace(random_step(seed, ops), tiers=tiers)
    size = [tensor.nbytes for tensor in graph.tensors]
    kept = []
    for op in graph.ops:
        pairs = tuple((a, b) for a, b in op.in_place if size[a] == size[b])
        kept.append(replace(op, in_place=pairs))
    graph = replace(graph, ops=tuple(kept))
    request = Request.of(graph, "timed", None)
    return request, [*some_away(request.graph, random.Random(seed))]


CASES = {
    "seed": st.integers(0, 10**6),
    "ops": st.integers(2, 16),
    "bandwidth": st.sampled_from([20, 200, 2000, 10**6]),
}


@given(part=st.integers(0, 120), **CASES)
@settings(max_examples=80, deadline=None)
def test_a_walk_is_within_its_goal_or_has_the_least(seed, ops, bandwidth, part):
    request, away = a_case(seed, ops, bandwidth)
    swaps = TimedSwaps(request, range(len(request.graph.ops)), away)
    most = share()(request.graph).peak_bytes
    events, load = swaps._walked(most * part // 100)
    assert swaps.least <= load <= max(swaps.least, most * part // 100)
    graph = request.graph
    inputs = [t for t, maker in enumerate(graph.producer) if maker is None]
    start = sum(align_up(graph.tensors[t].nbytes) for t in inputs)
    assert least_load(request, events) == max(load, start)
    plan = swaps.planned(most * part // 100)
    validate(request.graph, plan)


@given(**CASES)
@settings(max_examples=80, deadline=None)
def test_without_a_limit_no_wait_is_longer_than_with_barriers(seed, ops, bandwidth):
    request, away = a_case(seed, ops, bandwidth)
    sequence = range(len(request.graph.ops))
    timed = TimedSwaps(request, sequence, [a for a in away if a.begin < a.leave])
    events, _ = timed._walked(float("inf"))
    barriers = plan_swaps(request, sequence, timed.away)
    waited = barriers.elapsed_seconds
    assert clock(request.graph, events).elapsed_seconds <= waited + 1e-9


def recurrent():
    """Cells one by one."""
    nn.set_random_seed(2)
    x = nn.Input((12, 8))
    return nn.Model(x, nn.Dense(3)(nn.LSTM(16, unroll=True)(x)))


def attending():
    """Two blocks of attention with residual connections and normalisation."""
    nn.set_random_seed(2)
    x = y = nn.Input((12, 8))
    for _ in range(2):
        y = nn.LayerNormalization()(nn.Add()([y, nn.MultiHeadAttention(2, 4)(y, y)]))
        y = nn.Add()([y, nn.Dense(8)(nn.Dense(32, "gelu")(y))])
    return nn.Model(x, nn.Dense(3)(nn.GlobalAveragePooling1D()(y)))


@pytest.mark.parametrize("policy", METHODS, ids=lambda policy: policy.name)
@pytest.mark.parametrize("make", [recurrent, attending])
def test_weights_have_the_bits_of_share_within_a_hard_limit(policy, make):
    x = np.random.default_rng(1).standard_normal((8, 12, 8)).astype(np.float32)
    expected = weights_after(make, share(), x)
    model = make()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy)
    graph = model.graph(8)
    model.close()
    with pytest.raises(InfeasiblePlanError) as refused:
        policy(graph, 64)
    limit = refused.value.smallest_limit_bytes
    assert limit < share()(graph).peak_bytes
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    device = mc.config.LogicalDeviceConfiguration(
        memory_limit=f"{limit}B", spill_to="host"
    )
    mc.config.set_logical_device_configuration(cpu, [device])
    found = weights_after(make, policy, x)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    mc.config.reset()
    assert found == expected
