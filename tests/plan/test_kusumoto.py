"""Strategies over lower sets, against all of them listed by definition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import Sketch, chain, plan_in_order, random_step

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan import (
    kusumoto_exact_memory,
    kusumoto_exact_time,
    kusumoto_pruned_memory,
    kusumoto_pruned_time,
    share,
    validate,
)

POLICIES = [
    *(kusumoto_exact_time(), kusumoto_exact_memory()),
    *(kusumoto_pruned_time(), kusumoto_pruned_memory()),
]
by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


def wide_step(width: int):
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    made = []
    for i in range(width):
        made.append(sketch.tensor(f"y{i}", 64, "activation"))
        sketch.op(f"f{i}", "forward", [x], [made[-1]], seconds=1.0)
    total = sketch.tensor("sum", 64, "activation")
    sketch.op("sum", "forward", made, [total], seconds=1.0)
    return sketch.graph("wide", [total])


@pytest.mark.parametrize("policy", POLICIES[:2], ids=lambda p: p.name)
def test_too_many_lower_sets_are_refused_in_words(policy):
    words = (
        f"{policy.name} cannot plan 'wide': it has more than 2048 lower sets. "
        r"Plan with kusumoto_pruned_time\(\)\."
    )
    with pytest.raises(PlanError, match=words):
        policy(wide_step(11))
    validate(wide_step(10), policy(wide_step(10)))
    validate(wide_step(11), kusumoto_pruned_time()(wide_step(11)))


@by_name
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 12))
def test_plans_are_valid_and_refusals_exact(policy, seed, ops):
    graph = random_step(seed, ops)
    least = policy(graph)
    validate(graph, least)
    assert policy(graph, least.peak_bytes).peak_bytes == least.peak_bytes
    if least.peak_bytes > 1:
        with pytest.raises(InfeasiblePlanError) as refusal:
            policy(graph, least.peak_bytes - 1)
        assert refusal.value.smallest_limit_bytes == least.peak_bytes
    most = plan_in_order(graph).peak_bytes
    plan = policy(graph, (least.peak_bytes + most) // 2 or 1)
    validate(graph, plan)
    within = policy(graph, max(1, most)).predicted
    assert within.recompute_seconds == 0


@by_name
def test_less_memory_takes_more_time_on_a_chain(policy):
    graph = chain(48, reads="both")
    least, most = policy(graph).peak_bytes, share()(graph).peak_bytes
    assert least < most / 2
    costs = []
    for limit in (*range(least, most, 256), most):
        plan = policy(graph, limit)
        assert plan.peak_bytes <= limit
        costs.append(plan.predicted.recompute_seconds)
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1] == 0


def test_most_recomputation_gives_the_lower_peak_on_a_chain():
    for n in (32, 64, 100):
        graph = chain(n, reads="both")
        exact = kusumoto_exact_memory()(graph).peak_bytes
        assert exact < kusumoto_exact_time()(graph).peak_bytes
        assert exact == kusumoto_pruned_memory()(graph).peak_bytes


def test_a_cut_goes_through_branches_where_they_are_thin():
    """Two branches of ten: the exact method may cut each where it is small."""
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    ends, pairs = [], []
    for branch in range(2):
        value = x
        for i in range(10):
            size = 64 if i % 5 == 4 else 1024
            made = sketch.tensor(f"y{branch}.{i}", size, "activation")
            sketch.op(f"f{branch}.{i}", "forward", [value], [made], seconds=1.0)
            pairs.append((value, made))
            value = made
        ends.append(value)
    total = sketch.tensor("sum", 64, "activation")
    sketch.op("sum", "forward", ends, [total], seconds=1.0)
    gradients = {total: sketch.tensor("g", 64, "activation_gradient")}
    sketch.op("loss", "backward", [total], [gradients[total]], seconds=1.0)
    for end in ends:
        gradients[end] = gradients[total]
    last = []
    for value, made in reversed(pairs):
        size = sketch.tensors[value].nbytes
        below = sketch.tensor(f"g{value}.{made}", size, "activation_gradient")
        sketch.op(
            f"b{made}", "backward", [value, made, gradients[made]], [below], seconds=2.0
        )
        gradients[value] = below
        last += [below] if value == x else []
    graph = sketch.graph("two branches", last)
    exact = kusumoto_exact_time()(graph)
    validate(graph, exact)
    pruned = kusumoto_pruned_time()(graph)
    assert exact.peak_bytes <= pruned.peak_bytes < share()(graph).peak_bytes
