"""SuperNeurons' tensor cache, beside caches written for these tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import Row, layer_chain
from networks import NETWORKS
from training_graphs import attended, random_step

from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Tier
from memcfg.plan import (
    Alloc,
    Compute,
    Free,
    SwapIn,
    SwapOut,
    Wait,
    lower_bound,
    share,
    simulate,
    superneurons_cache,
    validate,
)


@given(seed=st.integers(0, 10_000), ops=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_more_memory_never_moves_more(seed, ops):
    graph = random_step(seed, ops)
    peak = share()(graph).peak_bytes
    with pytest.raises(InfeasiblePlanError) as refused:
        superneurons_cache()(graph, 1)
    least = refused.value.smallest_limit_bytes
    moved = []
    for step in range(9):
        plan = superneurons_cache()(
            graph, least + (max(peak, least) - least) * step // 8
        )
        validate(graph, plan)
        moved.append(plan.predicted.moved_bytes)
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] == 0 or peak < least


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_move_nothing_from_the_peak_on_and_less_with_more(name):
    graph = NETWORKS[name]()
    peak = share()(graph).peak_bytes
    for limit in (None, peak, 2 * peak):
        assert superneurons_cache()(graph, limit).predicted.moved_bytes == 0
    with pytest.raises(InfeasiblePlanError) as refused:
        superneurons_cache()(graph, 64)
    least = refused.value.smallest_limit_bytes
    assert least < peak
    moved = []
    for limit in (least, *range(least + 1, peak, (peak - least) // 7), peak - 1):
        plan = superneurons_cache()(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        moved.append(plan.predicted.moved_bytes)
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] > 0


def test_the_smallest_limit_of_a_chain_is_its_busiest_op():
    graph = layer_chain([Row(640)] * 12, 1e6)
    with pytest.raises(InfeasiblePlanError) as refused:
        superneurons_cache()(graph, 64)
    assert refused.value.smallest_limit_bytes == 3 * 640 == lower_bound(graph)


@pytest.mark.parametrize("part", [60, 70, 80, 90])
def test_operands_stay_and_clean_copies_are_not_made_again(part):
    graph = NETWORKS["residual"]()
    plan = superneurons_cache()(graph, share()(graph).peak_bytes * part // 100)
    there, away, outs, ins = set(), set(), [], []
    for action in plan.actions:
        match action:
            case Alloc(tensor):
                there.add(tensor)
            case Free(tensor):
                there.discard(tensor)
            case SwapOut(tensor):
                outs.append(tensor)
            case SwapIn(tensor):
                ins.append(tensor)
                away.discard(tensor)
            case Wait(copy) if isinstance(plan.actions[copy], SwapOut):
                away.add(plan.actions[copy].tensor)
            case Compute(op):
                assert away.isdisjoint(graph.ops[op].inputs)
    assert outs
    assert len(set(outs)) == len(outs)
    assert set(ins) == set(outs)


def test_what_left_once_comes_back_as_often_as_needed():
    graph = attended(12, every=4)
    plan = superneurons_cache()(graph, 4 * 640)
    backs = Counter(a.tensor for a in plan.actions if isinstance(a, SwapIn))
    outs = Counter(a.tensor for a in plan.actions if isinstance(a, SwapOut))
    assert outs[0] == 1
    assert backs[0] == 3
    assert max(outs.values()) == 1
    validate(graph, plan)


def test_copies_out_start_behind_the_last_use():
    """So they are done when their bytes are asked for, on a lane as fast as layers."""
    graph = layer_chain([Row(640)] * 12, 640.0, input_bytes=640)
    plan = superneurons_cache()(graph, 6 * 640)
    forward = list(plan.actions[: plan.actions.index(Compute(11))])
    outs = [place for place, a in enumerate(forward) if isinstance(a, SwapOut)]
    waits = {a.action: place for place, a in enumerate(forward) if isinstance(a, Wait)}
    between = [
        sum(isinstance(a, Compute) for a in forward[out : waits[out]])
        for out in outs
        if out in waits
    ]
    assert between
    assert min(between) >= 3


def test_ops_wait_for_each_copy_back_and_no_other():
    """A copy takes a tenth of a layer, and what leaves was used a layer ago or more."""
    graph = layer_chain([Row(640)] * 12, 6400.0, input_bytes=640)
    for tensors in (4, 6, 8):
        plan = superneurons_cache()(graph, tensors * 640)
        backs = sum(isinstance(action, SwapIn) for action in plan.actions)
        assert backs
        assert plan.predicted.stall_seconds == pytest.approx(0.1 * backs)


def test_a_full_tier_is_refused_with_a_limit_that_moves_nothing():
    graph = layer_chain([Row(640)] * 12, 1e6)
    plan = superneurons_cache()(graph, 6 * 640)
    needed = simulate(graph, plan).tier_peak_bytes["host"]
    room = replace(graph, tiers=(Tier("host", 1e6, needed),))
    validate(room, superneurons_cache()(room, 6 * 640))
    less = replace(graph, tiers=(Tier("host", 1e6, 64),))
    with pytest.raises(InfeasiblePlanError, match="'host', whose limit is") as refused:
        superneurons_cache()(less, 6 * 640)
    enough = refused.value.smallest_limit_bytes
    assert superneurons_cache()(less, enough).predicted.moved_bytes == 0
