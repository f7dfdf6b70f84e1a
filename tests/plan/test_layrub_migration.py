"""Layrub's migration: what leaves behind which layer, and comes back to which slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import (
    IMAGES,
    Copies,
    Row,
    at_a_limit,
    layer_chain,
    network,
    weights_after,
)
from networks import NETWORKS
from training_graphs import random_step

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.graph import Graph, Op, Tensor, Tier
from memcfg.plan import (
    layrub_migration,
    share,
    simulate,
    validate,
    vdnn_all,
)

rows = st.builds(
    Row,
    st.integers(1, 40).map(lambda n: n * 64),
    st.integers(1, 9).map(float),
    st.integers(1, 9).map(float),
    st.just("tanh"),
)


@given(
    layers=st.lists(rows, min_size=3, max_size=12),
    bandwidth=st.integers(1, 2000),
    look_ahead=st.integers(1, 4),
)
@settings(max_examples=80, deadline=None)
def test_no_op_waits_longer_than_at_the_barriers_of_vdnn(layers, bandwidth, look_ahead):
    graph = layer_chain(layers, float(bandwidth))
    plan = layrub_migration(look_ahead)(graph)
    validate(graph, plan)
    assert plan.elapsed_seconds <= vdnn_all()(graph).elapsed_seconds + 1e-9


def test_a_dear_layer_hides_the_copies_of_cheap_ones():
    """A copy takes 4 s, as long as a layer on average.

    At vDNN's barriers each cheap layer waits 3 s. Here copies out hide all, and copies
    back but for the last layer's.
    """
    layers = [Row(640, *[[1.0] * 2, [7.0] * 2][n % 2], "tanh") for n in range(12)]
    graph = layer_chain(layers, 160.0, input_bytes=640)
    barriers, slots = vdnn_all()(graph), layrub_migration()(graph)
    assert barriers.predicted.stall_seconds == pytest.approx(11 * 3.0)
    assert slots.predicted.stall_seconds < 0.2 * barriers.predicted.stall_seconds
    one = layrub_migration(1)(graph)
    assert slots.predicted.stall_seconds <= one.predicted.stall_seconds


def branch():
    """A tensor that the next layer reads, and one three layers on."""
    names = ("x", "a", "b", "c", "d", "gd", "gc", "gb", "ga")
    tensors = tuple(
        Tensor(name, 640, "activation_gradient" if name[0] == "g" else "activation")
        for name in names
    )
    reads = [(0,), (1,), (2,), (3, 1)]  # d is of c and a
    ops = [
        Op(f"f{n}", "f", "forward", inputs, (n + 1,), seconds=1.0)
        for n, inputs in enumerate(reads)
    ]
    backward = [((4,), 5), ((5, 3), 6), ((6, 2), 7), ((7, 1), 8)]
    ops += [
        Op(f"b{n}", "b", "backward", inputs, (made,), seconds=1.0)
        for n, (inputs, made) in enumerate(backward)
    ]
    return Graph("branch", tensors, tuple(ops), (8,), tiers=(Tier("host", 640.0),))


def test_what_two_layers_read_leaves_behind_the_second():
    found = Copies.of(layrub_migration()(branch()))
    assert found.out[1] > found.ops[3][0]
    assert found.ops[2][0] < found.out[2] < found.ops[3][0]


@pytest.mark.parametrize("look_ahead", [1, 2, 4])
def test_so_many_are_on_their_way_and_no_more(look_ahead):
    graph = layer_chain([Row(640)] * 12, 6400.0, input_bytes=640)
    plan = layrub_migration(look_ahead)(graph)
    found = Copies.of(plan)
    b = {n: found.ops[25 - n][0] for n in range(1, 13)}  # the backward of layer n
    # It reads tensor n - 1. Those before it, from when so many layers are left to it.
    for n in range(1, 12 - look_ahead):
        assert b[n + look_ahead + 1] < found.back[n - 1] < b[n + look_ahead]
    order = sorted(found.back, key=found.back.__getitem__)
    assert order == sorted(found.back, reverse=True)
    # What the backward reads, both gradients, and what is on its way.
    assert plan.peak_bytes == (3 + look_ahead) * 640


def test_slots_of_a_limit_are_waited_for():
    graph = layer_chain([Row(640)] * 12, 256.0, input_bytes=640)
    free = layrub_migration()(graph)
    stalls = []
    for slots in range(3, free.peak_bytes // 640 + 1):
        plan = layrub_migration()(graph, slots * 640)
        validate(graph, plan)
        assert plan.peak_bytes <= slots * 640
        stalls.append(plan.predicted.stall_seconds)
    assert stalls == sorted(stalls, reverse=True)
    assert stalls[0] > stalls[-1] == free.predicted.stall_seconds
    with pytest.raises(InfeasiblePlanError) as refused:
        layrub_migration()(graph, 3 * 640 - 64)
    assert refused.value.smallest_limit_bytes == 3 * 640


@pytest.mark.parametrize("bandwidth", [640.0, 100.0])
def test_a_thousand_cheap_layers_in_a_twentieth(bandwidth):
    """They wait for slots where a copy takes longer than a layer, else for nothing."""
    graph = layer_chain([Row(640, kind="tanh")] * 1000, bandwidth)
    limit = share()(graph).peak_bytes // 20
    plan = layrub_migration()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    assert (plan.predicted.stall_seconds > 0) == (bandwidth < 640)
    assert plan.predicted.stall_seconds <= vdnn_all()(graph).predicted.stall_seconds


def test_the_peak_does_not_grow_with_the_depth():
    peaks = {
        layrub_migration()(layer_chain([Row(640)] * depth, 6400.0)).peak_bytes
        for depth in (20, 50, 200)
    }
    assert len(peaks) == 1


def test_a_full_tier_is_refused():
    graph = layer_chain([Row(640)] * 12, 2560.0, input_bytes=640)
    needed = simulate(graph, layrub_migration()(graph)).tier_peak_bytes["host"]
    room = replace(graph, tiers=(Tier("host", 2560.0, needed),))
    validate(room, layrub_migration()(room))
    less = replace(graph, tiers=(Tier("host", 2560.0, needed - 64),))
    with pytest.raises(PlanError, match="'host', whose limit is"):
        layrub_migration()(less)


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_weights_have_the_bits_of_share(part):
    plans = []
    found = weights_after(network, at_a_limit(layrub_migration(), part, plans), IMAGES)
    assert plans[0].predicted.moved_bytes > 0
    assert found == weights_after(network, share(), IMAGES)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bandwidth", [1e5, 1e7, 1e9, 1e11])
def test_networks_of_all_kinds(name, bandwidth):
    """None waits longer than by vDNN, also not in the memory that vDNN takes."""
    graph = replace(NETWORKS[name](), tiers=(Tier("host", bandwidth),))
    peak = share()(graph).peak_bytes
    barriers = vdnn_all()(graph)
    for limit in (None, barriers.peak_bytes):
        plan = layrub_migration()(graph, limit)
        validate(graph, plan)
        assert plan.predicted.stall_seconds <= barriers.predicted.stall_seconds
    for limit in (peak - 64, peak * 3 // 4):
        try:
            plan = layrub_migration()(graph, limit)
        except InfeasiblePlanError as refusal:
            plan = layrub_migration()(graph, refusal.smallest_limit_bytes)
        validate(graph, plan)


def test_values():
    assert layrub_migration() == layrub_migration(2) != layrub_migration(3)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        layrub_migration(0)


@given(
    seed=st.integers(0, 10_000),
    ops=st.integers(2, 25),
    part=st.integers(30, 110),
    look_ahead=st.integers(1, 3),
)
@settings(max_examples=80, deadline=None)
def test_plans_of_random_steps_are_valid(seed, ops, part, look_ahead):
    graph = replace(random_step(seed, ops), tiers=(Tier("host", 500.0),))
    limit = max(share()(graph).peak_bytes * part // 100, 64)
    policy = layrub_migration(look_ahead)
    validate(graph, policy(graph))
    try:
        plan = policy(graph, limit)
    except InfeasiblePlanError as refusal:
        plan = policy(graph, refusal.smallest_limit_bytes)
    validate(graph, plan)
