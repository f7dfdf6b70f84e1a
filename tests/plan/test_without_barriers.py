"""Methods of vDNN's copies without its barriers: who waits, and for how long.

`layrub_migration` and `vdnn_pp` differ in what leaves and when it is asked for, not in
how it is waited for.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import Row, layer_chain
from networks import NETWORKS

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.graph import Tier
from memcfg.plan import (
    layrub_migration,
    share,
    simulate,
    validate,
    vdnn_all,
    vdnn_conv,
    vdnn_pp,
)

METHODS = [layrub_migration(), vdnn_pp()]
BARRIERS = [  # a method, vDNN's of the copies, and the kinds of layers
    *((layrub_migration(ahead), vdnn_all(), ["tanh"]) for ahead in (2, 3, 4)),
    (vdnn_pp(), vdnn_all(), ["conv2d", "tanh"]),
    (vdnn_pp("conv"), vdnn_conv(), ["conv2d", "tanh"]),
]


def within(policy, graph, limit):
    """Plan within a limit, or the smallest that the method names."""
    try:
        return policy(graph, limit)
    except InfeasiblePlanError as refusal:
        return policy(graph, refusal.smallest_limit_bytes)


@st.composite
def chains(draw, least_bandwidth):
    """A method, vDNN's plan of a chain, and the chain."""
    policy, barriers, kinds = draw(st.sampled_from(BARRIERS))
    row = st.builds(
        Row,
        st.integers(1, 40).map(lambda n: n * 64),
        st.integers(1, 9).map(float),
        st.integers(1, 9).map(float),
        st.sampled_from(kinds),
    )
    rows = draw(st.lists(row, min_size=3, max_size=12))
    graph = layer_chain(rows, float(draw(st.integers(least_bandwidth, 2000))))
    return policy, barriers(graph), graph


@given(chains(1))
@settings(max_examples=150, deadline=None)
def test_no_op_waits_longer_than_at_barriers(drawn):
    """With a look-ahead of 1, which is not among these, some do."""
    policy, barriers, graph = drawn
    plan = policy(graph)
    validate(graph, plan)
    assert plan.elapsed_seconds <= barriers.elapsed_seconds + 1e-9


@given(chains(20))
@settings(max_examples=120, deadline=None)
def test_in_the_memory_of_barriers_there_is_a_plan(drawn):
    """No op of `vdnn_pp` waits longer there; slots that are far ahead may be taken."""
    policy, barriers, graph = drawn
    plan = policy(graph, barriers.peak_bytes)
    validate(graph, plan)
    assert plan.peak_bytes <= barriers.peak_bytes
    if policy.name == "vdnn_pp":
        assert plan.elapsed_seconds <= barriers.elapsed_seconds + 1e-9


@pytest.mark.parametrize("policy", METHODS, ids=lambda policy: policy.name)
def test_where_the_limit_would_not_hold_ops_wait(policy):
    """The fewer bytes, the longer; at least what barriers take, to the byte.

    That is x[n - 1], g[n] and g[n - 1], and the gradient that is kept is one of these.
    """
    graph = layer_chain([Row(640)] * 12, 256.0, input_bytes=640)
    free = policy(graph)
    least = 3 * 640
    assert vdnn_all()(graph).peak_bytes >= least
    assert least < free.peak_bytes
    stalls = []
    for limit in range(least, free.peak_bytes + 1, 640):
        plan = policy(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        stalls.append(plan.predicted.stall_seconds)
    assert stalls == sorted(stalls, reverse=True)
    assert stalls[0] > stalls[-1] == free.predicted.stall_seconds
    for limit in (64, least - 64):
        with pytest.raises(InfeasiblePlanError) as refused:
            policy(graph, limit)
        assert refused.value.smallest_limit_bytes == least


@pytest.mark.parametrize("bandwidth", [256.0, 2560.0])
@pytest.mark.parametrize("policy", METHODS, ids=lambda policy: policy.name)
def test_a_full_tier_is_refused(policy, bandwidth):
    graph = layer_chain([Row(640)] * 12, bandwidth, input_bytes=640)
    needed = simulate(graph, policy(graph)).tier_peak_bytes["host"]
    room = replace(graph, tiers=(Tier("host", bandwidth, needed),))
    validate(room, policy(room))
    less = replace(graph, tiers=(Tier("host", bandwidth, needed - 64),))
    with pytest.raises(PlanError, match="'host', whose limit is"):
        policy(less)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bandwidth", [1e5, 1e7, 1e9, 1e11])
@pytest.mark.parametrize("policy", METHODS, ids=lambda policy: policy.name)
def test_networks_of_all_kinds_wait_no_longer(policy, bandwidth, name):
    """Also not in the memory that vDNN takes."""
    graph = replace(NETWORKS[name](), tiers=(Tier("host", bandwidth),))
    barriers = vdnn_all()(graph)
    for limit in (None, barriers.peak_bytes):
        plan = policy(graph, limit)
        validate(graph, plan)
        assert plan.predicted.stall_seconds <= barriers.predicted.stall_seconds
    peak = share()(graph).peak_bytes
    for limit in (peak - 64, peak * 3 // 4):
        validate(graph, within(policy, graph, limit))
