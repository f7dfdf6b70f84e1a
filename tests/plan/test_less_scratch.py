"""Plans with algorithms of less scratch, judged on the graph that they are for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import random_step

from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Algorithm
from memcfg.plan import (
    Compute,
    auto,
    keep_all,
    plan_within,
    share,
    sqrt_checkpoint,
    validate,
)

POLICIES = [keep_all(), share(), sqrt_checkpoint(), auto()]
by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


def with_algorithms(graph, seed):
    """Give ops up to four algorithms, the default first; some have none."""
    chance = random.Random(seed)

    def extended(op):
        count = chance.randrange(5)
        if not count:
            return op
        sizes = [64 * chance.randrange(200) for _ in range(count)]
        rows = [
            Algorithm(f"a{i}", chance.choice((0.5, 1.0, 2.0)), size)
            for i, size in enumerate(sizes)
        ]
        return replace(op, algorithms=tuple(rows), scratch_bytes=sizes[0])

    return replace(graph, ops=tuple(map(extended, graph.ops)))


def least(graph):
    """The same with the smallest scratch of each op as its default: an oracle."""

    def smallest(op):
        less = [
            (a.scratch_bytes, a.seconds)
            for a in op.algorithms
            if a.scratch_bytes < op.scratch_bytes
        ]
        nbytes, seconds = min(less, default=(op.scratch_bytes, op.seconds))
        return replace(op, scratch_bytes=nbytes, seconds=seconds)

    return replace(graph, ops=tuple(map(smallest, graph.ops)))


def peak(policy, graph):
    """The smallest limit that a policy plans a graph within, as it is."""
    try:
        return policy(graph, 1).peak_bytes
    except InfeasiblePlanError as error:
        return error.smallest_limit_bytes


def named(plan):
    return {
        a.op: a.algorithm
        for a in plan.actions
        if isinstance(a, Compute) and a.algorithm is not None
    }


def scratch(graph, plan):
    """The scratch of each op in a plan, by the judge's reading of the graph."""
    names = named(plan)
    return [
        next(
            (a.scratch_bytes for a in op.algorithms if a.name == names.get(index)),
            op.scratch_bytes,
        )
        for index, op in enumerate(graph.ops)
    ]


@by_name
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), share_of=st.floats(0, 1))
def test_what_fits_with_least_scratch_is_planned(policy, seed, share_of):
    graph = with_algorithms(random_step(seed, 2 + seed % 12), seed)
    lowest, highest = sorted((peak(policy, least(graph)), peak(policy, graph)))
    limit = lowest + round((highest - lowest) * share_of)
    plan = plan_within(policy, graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit == plan.limit_bytes
    try:
        assert policy(graph, limit) == plan  # the defaults, wherever they do
        assert not named(plan)
    except InfeasiblePlanError:
        used = scratch(graph, plan)
        assert named(plan)
        for op, nbytes in zip(graph.ops, used, strict=True):
            assert nbytes <= op.scratch_bytes


@by_name
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_smallest_limit_is_that_of_the_least_scratch(policy, seed):
    graph = with_algorithms(random_step(seed, 2 + seed % 12), seed)
    floor = min(peak(policy, least(graph)), peak(policy, graph))
    with pytest.raises(InfeasiblePlanError) as caught:
        plan_within(policy, graph, 1)
    assert caught.value.smallest_limit_bytes == floor
    validate(graph, plan_within(policy, graph, floor))


def two_ops():
    """One needs much scratch at the peak, the other little where there is room."""
    graph = random_step(3, 6)
    rows = (Algorithm("fast", 1.0, 1 << 20), Algorithm("slow", 9.0, 1 << 10))
    more = (Algorithm("middle", 2.0, 1 << 18), Algorithm("other", 3.0, 1 << 17))
    ops = list(graph.ops)
    ops[0] = replace(ops[0], algorithms=(*rows, *more), scratch_bytes=1 << 20)
    few = (Algorithm("fast", 1.0, 1 << 12), Algorithm("slow", 9.0, 0))
    ops[1] = replace(ops[1], algorithms=few, scratch_bytes=1 << 12)
    return replace(graph, ops=tuple(ops))


def test_only_what_must_needs_less():
    graph = two_ops()
    limit = peak(share(), graph) - 64
    plan = plan_within(share(), graph, limit)
    assert named(plan) == {0: "middle"}  # the most that fits, and no other op
    assert plan.summary.less_scratch.count == 1
    assert plan.summary.less_scratch.nbytes == limit + 64 - plan.peak_bytes
    assert "less scratch" in str(plan)
    assert graph.ops[0].name in str(plan)
    assert "less scratch" not in str(share()(graph))


def test_the_fastest_of_those_that_fit_is_taken():
    graph = two_ops()
    rows = (*graph.ops[0].algorithms, Algorithm("quick", 1.5, 1 << 16))
    ops = (replace(graph.ops[0], algorithms=rows), *graph.ops[1:])
    graph = replace(graph, ops=ops)
    plan = plan_within(share(), graph, peak(share(), graph) - 64)
    assert named(plan) == {0: "quick"}


def test_without_a_limit_or_a_choice_the_policy_answers():
    graph = two_ops()
    assert plan_within(share(), graph) == share()(graph)
    bare = replace(graph, ops=tuple(replace(op, algorithms=()) for op in graph.ops))
    with pytest.raises(InfeasiblePlanError) as caught:
        plan_within(share(), bare, 64)
    assert caught.value.smallest_limit_bytes == peak(share(), bare)
