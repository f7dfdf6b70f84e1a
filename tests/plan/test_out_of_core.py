"""Swapping and recomputation together: bytes, one clock, and who is faster."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networks import zoo_step
from training_graphs import chain, random_step

from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Algorithm, Graph, Op, Tensor, Tier
from memcfg.plan import (
    POLICIES,
    Compute,
    SwapIn,
    SwapOut,
    auto,
    look_ahead,
    lower_bound,
    meng_swap,
    out_of_core,
    share,
    simulate,
    validate,
    vdnn_all,
    with_updates_in_time,
)
from memcfg.plan.search import Covering, Entry, Request, Trace, least_load


def with_lane(graph, rate, limit=None):
    return replace(graph, tiers=(Tier("host", rate, limit, is_stated=True),))


@pytest.fixture(scope="module")
def resnet():
    return zoo_step("resnet18", 32)


# -- what covers a limit -----------------------------------------------------------


def covering(request, limit, sequence=None):
    order = range(len(request.graph.ops)) if sequence is None else sequence
    entries = [Entry(place, op) for place, op in enumerate(order)]
    return Covering(Trace(request.graph, entries), limit)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 20))
def test_loads_are_those_of_the_simulator(seed, ops):
    graph, _ = with_updates_in_time(random_step(seed, ops))
    request = Request.of(graph, "loads", None)
    sequence = range(len(request.graph.ops))
    layout = request.step.first_fit(sequence, rule=1)
    plan = request.laid_out(sequence, layout)
    told = [nbytes for _, nbytes in simulate(request.graph, plan).timeline]
    assert covering(request, 10**9).loads[1:-1].tolist() == told


def test_a_gap_is_between_two_uses():
    """x2 is made by op 1 and read by op 2 and the gradient of f2 alone."""
    found = covering(Request.of(chain(4), "gaps", None), 0)
    trace = found.trace
    gaps = [gap for gap in found.gaps if trace.tensor(gap) == 2]
    assert [(gap.after, gap.back, trace.size(gap)) for gap in gaps] == [(2, 6, 64)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 7), st.sampled_from([1e2, 1e4, 1e9]))
def test_no_choice_of_gaps_needs_less_or_is_faster(seed, ops, rate):
    """All sets of gaps, tried one by one."""
    graph = with_lane(random_step(seed, ops), rate)
    request = Request.of(graph, "brute", None)
    every = covering(request, 0).gaps[:7]
    left = covering(request, 0).loads
    top = int(left.max())
    for gap in every:
        left[gap.inside] -= covering(request, 0).trace.size(gap)
    floor = int(left.max())
    for limit in {floor, (floor + top) // 2}:
        found = covering(request, limit)
        chosen = found.cover(every)
        assert chosen is not None
        walked = found.swaps(chosen).fastest(limit, request.is_over)
        assert least_load(request, walked.events) <= limit
        fitting = []
        for size in range(len(every) + 1):
            for some in combinations(every, size):
                left = found.loads.copy()
                for gap in some:
                    left[gap.inside] -= found.trace.size(gap)
                if left.max() <= limit:
                    other = found.swaps(some).fastest(limit, request.is_over)
                    fitting.append((other.seconds, some))
        assert min(fitting)[0] <= walked.seconds
        assert set(chosen) in [set(some) for _, some in fitting]
        assert floor == 0 or covering(request, floor - 1).cover(every) is None


# -- the policy -------------------------------------------------------------------


def copies(plan):
    outs = [a.tensor for a in plan.actions if isinstance(a, SwapOut)]
    ins = [a.tensor for a in plan.actions if isinstance(a, SwapIn)]
    return outs, ins


def again(plan):
    ops = [a.op for a in plan.actions if isinstance(a, Compute)]
    return len(ops) - len(set(ops))


def test_nothing_moves_where_share_fits(resnet):
    for limit in (None, share()(resnet).peak_bytes):
        plan = out_of_core()(resnet, limit)
        assert copies(plan) == ([], [])
        assert plan.peak_bytes == share()(resnet).peak_bytes


def test_a_fast_lane_copies_and_a_slow_one_computes_again(resnet):
    limit = share()(resnet).peak_bytes * 6 // 10
    fast = out_of_core()(with_lane(resnet, 1e12), limit)
    slow = out_of_core()(with_lane(resnet, 1e3), limit)
    assert copies(fast)[0]
    assert not again(fast)
    assert fast.predicted.stall_seconds < 1e-6
    assert again(slow)
    assert copies(slow) == ([], [])
    assert slow.peak_bytes <= limit


def test_in_between_it_does_both_and_takes_less_than_either(resnet):
    limit = share()(resnet).peak_bytes * 6 // 10
    for rate in (2e9, 1e9, 5e8, 2e8):
        graph = with_lane(resnet, rate)
        plan = out_of_core()(graph, limit)
        validate(graph, plan)
        alone = look_ahead()(graph, limit)
        if copies(plan)[0] and again(plan):
            assert plan.elapsed_seconds < alone.elapsed_seconds
            break
    else:
        pytest.fail("never both")


def test_what_is_refused_names_a_limit_that_does(resnet):
    with pytest.raises(InfeasiblePlanError) as refused:
        out_of_core()(resnet, 64)
    least = refused.value.smallest_limit_bytes
    assert least >= lower_bound(resnet)
    for other in (meng_swap(), look_ahead()):
        with pytest.raises(InfeasiblePlanError) as more:
            other(resnet, 64)
        assert least <= more.value.smallest_limit_bytes
    plan = out_of_core()(resnet, least)
    validate(resnet, plan)
    assert plan.peak_bytes <= least


def test_a_full_tier_leaves_recomputation(resnet):
    limit = share()(resnet).peak_bytes * 8 // 10
    full = with_lane(resnet, 1e12, 64)
    plan = out_of_core()(full, limit)
    assert plan.peak_bytes <= limit
    assert again(plan)
    assert copies(plan) == ([], [])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 15),
    st.floats(0, 1),
    st.sampled_from([1.0, 100.0, 1e4, 1e9]),
    st.sampled_from([0.0, 0.5]),
)
@example(27, 6, 0.0, 100.0, 0.5)
def test_plans_of_random_steps_are_valid(seed, ops, part, rate, kept):
    graph = with_lane(random_step(seed, ops, kept=kept), rate)
    low, high = lower_bound(graph), share()(graph).peak_bytes
    limit = max(64, int(low + part * (high - low)))
    try:
        plan = out_of_core()(graph, limit)
    except InfeasiblePlanError as error:
        limit = error.smallest_limit_bytes
        plan = out_of_core()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    found = simulate(graph, plan, {"host": rate})
    assert plan.elapsed_seconds == pytest.approx(found.elapsed_seconds)


RIVALS = [  # all that swap, encode, or recompute well
    make
    for name, make in POLICIES.items()
    if (getattr(make(), "swaps", False) or name in ("look_ahead", "rotor"))
    and make().lossless
    and name not in ("vdnn_all", "vdnn_conv")  # of which there is a ladder
]


# -- auto -------------------------------------------------------------------------


def test_auto_swaps_only_where_it_was_said_where_to(resnet):
    limit = share()(resnet).peak_bytes * 6 // 10
    unsaid = replace(resnet, tiers=(Tier("host", 1e12),))
    assert copies(auto()(unsaid, limit)) == ([], [])
    assert again(auto()(unsaid, limit))
    plan = auto()(with_lane(resnet, 1e12), limit)
    assert copies(plan)[0]
    assert plan.summary.chosen_by == "auto"
    assert plan.gap < 1e-6


@pytest.mark.strength(1)
@pytest.mark.parametrize("rate", [2e8, 1e9, 1e10])
@pytest.mark.parametrize("percent", [80, 50])
def test_auto_is_as_fast_as_the_fastest_that_fits(resnet, rate, percent):
    graph = with_lane(resnet, rate)
    limit = share()(graph).peak_bytes * percent // 100
    plan = auto()(graph, limit)
    validate(graph, plan)
    for make in RIVALS:
        try:
            other = make()(graph, limit)
        except InfeasiblePlanError:
            continue
        assert plan.elapsed_seconds <= other.elapsed_seconds * (1 + 1e-9), make


def test_gaps_are_to_each_op_once(resnet):
    """Where tensors may leave, a bound of recomputation alone proves nothing."""
    limit = share()(resnet).peak_bytes * 6 // 10
    graph = with_lane(resnet, 2e8)
    once = sum(op.seconds for op in graph.ops)
    for policy in (auto(), look_ahead(), vdnn_all()):
        plan = policy(graph, None if policy == vdnn_all() else limit)
        assert plan.gap == pytest.approx(plan.elapsed_seconds / once - 1)


def test_lanes_encode_what_has_zeros(resnet):
    limit = share()(resnet).peak_bytes * 55 // 100
    graph = with_lane(resnet, 3e8)
    plain, coded = (each(graph, limit) for each in (out_of_core(), out_of_core("zvc")))
    validate(graph, coded)
    codecs = {a.codec for a in coded.actions if isinstance(a, SwapOut)}
    assert "zvc" in codecs
    assert coded.elapsed_seconds < plain.elapsed_seconds
    fast = with_lane(resnet, 1e12)  # codecs are slower than that
    assert out_of_core("zvc")(fast, limit) == out_of_core()(fast, limit)
    with pytest.raises(ValueError, match="codec must be None or one of"):
        out_of_core("fp16")


def test_an_op_that_does_not_fit_takes_less_scratch():
    """Algorithms of 4096 B, the default, 1024 and 64; each thriftier one is slower."""
    choices = (
        Algorithm("fast", 1.0, 4096),
        Algorithm("middle", 1.5, 1024),
        Algorithm("thrifty", 2.0, 64),
    )
    graph = chain(4)
    ops = [
        replace(op, scratch_bytes=4096, algorithms=choices)
        if op.phase == "forward"
        else op
        for op in graph.ops
    ]
    graph = with_lane(replace(graph, ops=tuple(ops)), 1e9)
    assert out_of_core()(graph, 64 * 7 + 4096).elapsed_seconds == 4 + 1 + 8
    for limit, name in ((64 * 5 + 1024, "middle"), (64 * 5, "thrifty")):
        plan = out_of_core()(graph, limit)
        validate(graph, plan)
        named = {
            a.algorithm for a in plan.actions if isinstance(a, Compute) and a.op < 4
        }
        assert named == {name}


def test_auto_names_algorithms_only_where_nothing_else_fits():
    """A faster one would round otherwise, and one of less scratch does, too."""
    choices = (Algorithm("default", 1.0, 4096), Algorithm("fast", 0.1, 4096))
    thrifty = Algorithm("thrifty", 2.0, 64)
    graph = chain(4)
    ops = [
        replace(op, scratch_bytes=4096, algorithms=(*choices, thrifty))
        if op.phase == "forward"
        else op
        for op in graph.ops
    ]
    graph = with_lane(replace(graph, ops=tuple(ops)), 1e9)
    named = lambda plan: {  # noqa: E731
        a.algorithm for a in plan.actions if isinstance(a, Compute) and a.algorithm
    }
    peak = share()(graph).peak_bytes
    assert not named(auto()(graph, peak - 64))
    assert named(auto()(graph, 1024)) <= {"thrifty"}
    assert named(auto()(graph, 1024))


def test_what_lies_in_the_bytes_of_the_state_stays():
    """An update of v that a later update reads: its value takes over v's buffer."""
    tensors = [
        Tensor("x", 640, "input"),
        Tensor("v", 640, "optimizer_state"),
        Tensor("w", 640, "parameter"),
        Tensor("a", 640, "activation"),
        Tensor("b", 640, "activation"),
        Tensor("g", 640, "gradient"),
        Tensor("v'", 640, "optimizer_state"),
        Tensor("c", 640, "gradient"),
        Tensor("w'", 640, "parameter"),
    ]
    ops = [
        Op("f", "f", "forward", (0, 2), (3,), seconds=1.0),
        Op("h", "h", "forward", (3,), (4,), seconds=1.0),
        Op("dg", "dg", "backward", (4, 3), (5,), seconds=1.0),
        Op("uv", "uv", "update", (1, 5), (6,), seconds=1.0, in_place=((1, 6),)),
        Op("dc", "dc", "backward", (5, 0), (7,), seconds=1.0),
        Op("uw", "uw", "update", (2, 6, 7), (8,), seconds=1.0, in_place=((2, 8),)),
    ]
    graph = Graph("updates", tuple(tensors), tuple(ops), keep=(6, 8))
    graph = with_lane(replace(graph, keep=(8,)), 1e9)
    request = Request.of(graph, "gaps", None)
    found = covering(request, 0)
    assert 6 not in {found.trace.tensor(gap) for gap in found.gaps}
    for policy in (out_of_core(), auto()):
        with pytest.raises(InfeasiblePlanError) as refused:
            policy(graph, 64)
        validate(graph, policy(graph, refused.value.smallest_limit_bytes))


@pytest.mark.parametrize("policy", [out_of_core(), meng_swap(), auto()])
def test_copies_to_a_tier_without_a_rate_take_no_time(policy, resnet):
    limit = share()(resnet).peak_bytes * 6 // 10
    plan = policy(with_lane(resnet, 0.0), limit)
    assert plan.predicted.moved_bytes
    assert plan.predicted.stall_seconds == 0
