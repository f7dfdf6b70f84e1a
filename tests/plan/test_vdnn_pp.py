"""vDNN without barriers: bytes that are free in time, and who waits for what."""

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
from memcfg.graph import Tier
from memcfg.plan import (
    share,
    simulate,
    validate,
    vdnn_all,
    vdnn_conv,
    vdnn_pp,
)

rows = st.builds(
    Row,
    st.integers(1, 40).map(lambda n: n * 64),
    st.integers(1, 9).map(float),
    st.integers(1, 9).map(float),
    st.sampled_from(["conv2d", "tanh"]),
)


@given(layers=st.lists(rows, min_size=3, max_size=12), bandwidth=st.integers(1, 2000))
@settings(max_examples=80, deadline=None)
def test_no_op_waits_longer_than_at_barriers(layers, bandwidth):
    graph = layer_chain(layers, float(bandwidth))
    for barriers, without in ((vdnn_all(), vdnn_pp()), (vdnn_conv(), vdnn_pp("conv"))):
        plan = without(graph)
        validate(graph, plan)
        assert plan.elapsed_seconds <= barriers(graph).elapsed_seconds + 1e-9


@given(layers=st.lists(rows, min_size=3, max_size=12), bandwidth=st.integers(20, 2000))
@settings(max_examples=60, deadline=None)
def test_in_the_memory_of_barriers_no_op_waits_longer_either(layers, bandwidth):
    graph = layer_chain(layers, float(bandwidth))
    barriers = vdnn_all()(graph)
    try:
        plan = vdnn_pp()(graph, barriers.peak_bytes)
    except InfeasiblePlanError:  # placed a little higher
        return
    validate(graph, plan)
    assert plan.elapsed_seconds <= barriers.elapsed_seconds + 1e-9


def test_cheap_and_dear_layers_in_turns_hide_copies_of_two():
    """A copy takes 4 s. Barriers stall 3 s in each cheap layer, forward and back.

    Without, the first copies back are waited for only.
    """
    layers = [Row(640, [1.0, 7.0][n % 2], [1.0, 7.0][n % 2]) for n in range(8)]
    graph = layer_chain(layers, 160.0, input_bytes=640)
    with_barriers, without = vdnn_all()(graph), vdnn_pp()(graph)
    busy = sum(op.seconds for op in graph.ops)
    # The input of the last layer stays; so 4 cheap layers forward, 3 backward.
    assert with_barriers.elapsed_seconds == pytest.approx(busy + 7 * 3.0)
    assert without.predicted.stall_seconds < with_barriers.predicted.stall_seconds / 2


def test_bytes_are_free_when_the_copy_has_ended():
    """A copy takes 2.5 layers forward, 1.25 backward, and copies queue."""
    graph = layer_chain([Row(640)] * 12, 256.0, input_bytes=640)
    plan = vdnn_pp()(graph)
    found = Copies.of(plan)
    # That of tensor n ends 2.5 (n + 1) s after the start.
    left = [
        sum(place < found.waits[found.out[n]] for (place,) in found.ops.values())
        for n in range(4)
    ]
    assert left == [3, 5, 8, 10]
    # What has not left by then stays; a layer waits for the rest of its own copy.
    assert plan.predicted.moved_bytes == 2 * 640 * len(found.out)
    assert plan.predicted.stall_seconds == pytest.approx(0.5 * len(found.out))


def test_what_has_not_left_in_time_stays():
    graph = layer_chain([Row(640)] * 12, 1.0, input_bytes=640)
    plan = vdnn_pp()(graph)
    validate(graph, plan)
    assert not plan.predicted.moved_bytes
    assert plan.predicted.stall_seconds == 0
    assert vdnn_all()(graph).predicted.stall_seconds > 0


def test_where_the_limit_would_not_hold_ops_wait():
    """The fewer bytes, the longer; at least what barriers take, to the byte."""
    graph = layer_chain([Row(640)] * 12, 256.0, input_bytes=640)
    free = vdnn_pp()(graph)
    least = vdnn_all()(graph).peak_bytes
    assert least < free.peak_bytes
    stalls = []
    for limit in range(least, free.peak_bytes + 1, 640):
        plan = vdnn_pp()(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        stalls.append(plan.predicted.stall_seconds)
    assert stalls == sorted(stalls, reverse=True)
    assert stalls[0] > stalls[-1] == free.predicted.stall_seconds


def test_the_smallest_limit_is_named_and_holds():
    graph = layer_chain([Row(640)] * 12, 256.0, input_bytes=640)
    with pytest.raises(InfeasiblePlanError) as refused:
        vdnn_pp()(graph, 64)
    least = refused.value.smallest_limit_bytes
    # x[n - 1], g[n] and g[n - 1], and the gradient that is kept is the last of these
    assert least == 3 * 640
    assert vdnn_pp()(graph, least).peak_bytes == least
    with pytest.raises(InfeasiblePlanError):
        vdnn_pp()(graph, least - 64)


def test_a_full_tier_is_refused():
    graph = layer_chain([Row(640)] * 12, 256.0, input_bytes=640)
    needed = simulate(graph, vdnn_pp()(graph)).tier_peak_bytes["host"]
    validate(graph, vdnn_pp()(replace(graph, tiers=(Tier("host", 256.0, needed),))))
    less = replace(graph, tiers=(Tier("host", 256.0, needed - 64),))
    with pytest.raises(PlanError, match="'host', whose limit is"):
        vdnn_pp()(less)


@pytest.mark.parametrize("part", [1.0, 0.6])
def test_weights_have_the_bits_of_share(part):
    plans = []
    found = weights_after(network, at_a_limit(vdnn_pp(), part, plans), IMAGES)
    assert plans[0].predicted.moved_bytes > 0
    assert found == weights_after(network, share(), IMAGES)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bandwidth", [1e6, 1e8, 1e10])
def test_networks_of_all_kinds_wait_no_longer(name, bandwidth):
    graph = replace(NETWORKS[name](), tiers=(Tier("host", bandwidth),))
    plan = vdnn_pp()(graph)
    validate(graph, plan)
    assert plan.predicted.stall_seconds <= vdnn_all()(graph).predicted.stall_seconds


def test_values():
    assert vdnn_pp() == vdnn_pp("all") != vdnn_pp("conv")
    with pytest.raises(ValueError, match="'all' or 'conv', not 'none'"):
        vdnn_pp("none")


@given(seed=st.integers(0, 10_000), ops=st.integers(2, 25), part=st.integers(30, 110))
@settings(max_examples=80, deadline=None)
def test_plans_of_random_steps_are_valid(seed, ops, part):
    graph = replace(random_step(seed, ops), tiers=(Tier("host", 500.0),))
    limit = max(share()(graph).peak_bytes * part // 100, 64)
    for policy in (vdnn_pp(), vdnn_pp("conv")):
        validate(graph, policy(graph))
        try:
            plan = policy(graph, limit)
        except InfeasiblePlanError as refusal:
            plan = policy(graph, refusal.smallest_limit_bytes)
        validate(graph, plan)
