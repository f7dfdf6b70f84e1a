"""The bound on time against the least time of any schedule, found by brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_search import least_time
from tiny_graphs import tiny_graph
from training_graphs import chain, random_step

from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.graph import Algorithm, Graph, Op, Tensor
from memcfg.plan import (
    Policy,
    auto,
    keep_all,
    lower_bound,
    plan_within,
    replay_elementwise,
    share,
    sqrt_checkpoint,
    time_lower_bound,
)


def once(graph: Graph) -> float:
    return sum(op.seconds for op in graph.ops)


def check(seed: int) -> tuple[int, int, int]:
    """Compare at every limit; count those that slow down, are met, are ruled out."""
    graph = tiny_graph(seed)
    if not any(op.seconds for op in graph.ops):
        return 0, 0, 0
    fastest = least_time(graph, 2**40)
    slower = met = ruled_out = 0
    limit = max(64, lower_bound(graph) - 64)
    while fastest < math.inf:  # else there is no order that the rules allow
        least = least_time(graph, limit)
        bound = time_lower_bound(graph, limit)
        assert once(graph) <= bound <= least * (1 + 1e-12)
        ruled_out += bound == math.inf
        if least == fastest:
            break
        slower += least < math.inf
        met += bound >= least * (1 - 1e-9) and least < math.inf
        limit += 64
    return slower, met, ruled_out


def test_no_schedule_is_faster():
    counts = [sum(each) for each in zip(*map(check, range(300)), strict=True)]
    slower, met, ruled_out = counts
    assert slower > 60  # or nothing was shown
    assert met > slower / 8
    assert ruled_out > 250


@given(st.integers(min_value=10**6, max_value=10**9))
def test_no_schedule_of_any_graph_is_faster(seed):
    check(seed)


def test_a_chain_is_computed_again_as_much_as_its_boundary_asks():
    """Of tensors of one size each that does not fit costs an op, of a second."""
    graph = chain(10)
    peak = share()(graph).peak_bytes
    bounds = [time_lower_bound(graph, peak - 64 * k) for k in range(6)]
    assert bounds == pytest.approx([once(graph) + k for k in range(6)])


def test_what_cannot_be_replayed_is_kept():
    graph = chain(4)
    limit = lower_bound(graph) + 64
    assert once(graph) < time_lower_bound(graph, limit) < math.inf
    ops = tuple(replace(op, replayable=False) for op in graph.ops)
    assert time_lower_bound(replace(graph, ops=ops), limit) == math.inf


def test_an_op_is_replayed_with_all_that_it_reads():
    """The cheap one has overwritten what it read, so the dear one runs again, too."""
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("middle", 640, "activation"),
        Tensor("wanted", 640, "activation"),
        Tensor("other", 64, "activation"),
        Tensor("wide", 640, "activation"),
        Tensor("end", 64, "activation"),
        Tensor("last", 64, "activation"),
    )
    ops = (
        Op("dear", "f", "forward", (0,), (1,), seconds=9.0),
        Op("cheap", "f", "forward", (1,), (2,), seconds=1.0, in_place=((1, 2),)),
        Op("small", "f", "forward", (2,), (3,), seconds=1.0),
        Op("work", "f", "forward", (3,), (4,), seconds=1.0, scratch_bytes=640),
        Op("close", "f", "forward", (4,), (5,), seconds=1.0),
        Op("back", "f", "backward", (2, 5), (6,), seconds=1.0),
    )
    graph = Graph("pair", tensors, ops, (6,))
    limit = 64 * 22
    assert least_time(graph, limit) == 24.0
    assert time_lower_bound(graph, limit) == pytest.approx(24.0)
    assert time_lower_bound(graph, 64 * 33) == 14.0


def test_no_plan_is_faster(tenths):
    policies: list[Policy] = [sqrt_checkpoint(), replay_elementwise(), auto()]
    recomputed = 0
    seeds = range(60 if tenths == 10 else 20)
    for seed in seeds:
        graph = random_step(seed)
        peak = share()(graph).peak_bytes
        for policy in policies:
            for limit in (peak, peak * 9 // 10, peak * 3 // 4, peak // 2):
                try:
                    plan = policy(graph, limit)
                except InfeasiblePlanError:
                    continue
                bound = time_lower_bound(graph, limit)
                assert bound <= plan.predicted.seconds * (1 + 1e-12)
                assert plan.gap == pytest.approx(
                    plan.predicted.seconds / bound - 1, abs=1e-12
                )
                recomputed += plan.predicted.recompute_seconds > 0
    assert recomputed > len(seeds) // 4


def test_where_nothing_is_computed_again_nothing_is_faster():
    for policy in (keep_all(), share(), auto()):
        plan = policy(chain(12))
        assert plan.gap == plan.predicted.optimality_gap == 0.0
        assert "no plan that fits takes less time" in str(plan)


def test_the_gap_is_told():
    graph = chain(30)
    plan = sqrt_checkpoint()(graph)  # for the least peak, without a limit
    share_of = plan.predicted.recompute_seconds / once(graph)
    assert plan.gap == pytest.approx(share_of)
    assert f"{share_of:.1%}  above the least possible time, at most" in str(plan)
    limited = sqrt_checkpoint()(graph, share()(graph).peak_bytes - 64)
    assert limited.gap == pytest.approx(0.0)
    assert limited.predicted.recompute_seconds > 0


def test_of_ops_without_times_each_counts_one():
    graph = chain(10)
    blank = replace(graph, ops=tuple(replace(op, seconds=0.0) for op in graph.ops))
    limit = share()(graph).peak_bytes - 64
    assert time_lower_bound(blank, limit) == pytest.approx(len(graph.ops) + 1)
    plan = auto()(blank, limit)
    assert plan.predicted.seconds == 0.0
    assert plan.gap == pytest.approx(0.0)


def test_nothing_is_known_of_plans_with_other_algorithms():
    graph = chain(6)
    small = Algorithm("small", 9.0, 0)
    ops = tuple(
        replace(op, scratch_bytes=640, algorithms=(Algorithm("fast", 1.0, 640), small))
        for op in graph.ops
    )
    graph = replace(graph, ops=ops)
    peak = share()(graph).peak_bytes
    assert plan_within(share(), graph, peak).gap == 0.0
    assert plan_within(share(), graph, peak - 640).gap is None


def test_it_rises_as_the_limit_falls():
    graph = random_step(3, 40)
    peak = share()(graph).peak_bytes
    bounds = [time_lower_bound(graph, peak * k // 20) for k in range(20, 0, -1)]
    assert bounds[0] == once(graph)
    assert bounds[-1] == math.inf
    for higher, lower in pairwise(bounds):
        assert lower >= higher * 0.999  # as far as the search went


def test_the_same_arguments_give_the_same_bound():
    graph = random_step(7, 60)
    limit = share()(graph).peak_bytes * 3 // 4
    assert time_lower_bound(graph, limit) == time_lower_bound(graph, limit)


def test_limits_and_sizes_are_checked():
    graph = chain(3)
    assert time_lower_bound(graph, None) == once(graph)
    with pytest.raises(TypeError, match="a limit must be a number of bytes or None"):
        time_lower_bound(graph, True)
    with pytest.raises(ValueError, match="must be positive"):
        time_lower_bound(graph, 0)
    with pytest.raises(ValueError, match=r"below 2\*\*63"):
        time_lower_bound(graph, 2**63)
    huge = Graph("huge", (Tensor("x", 2**62, "input"),), ())
    with pytest.raises(GraphError, match=r"beyond 2\*\*62 bytes"):
        time_lower_bound(huge, 64)
