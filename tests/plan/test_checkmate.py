"""Optimal recomputation by integer programming: published optima, and brute force."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import leave_unproven
from networks import zoo_step
from training_graphs import chain, plan_in_order, random_step, unit_chain

from memcfg.errors import InfeasiblePlanError, MissingDependencyError, PlanError
from memcfg.plan import (
    Compute,
    auto,
    checkmate,
    checkmate_lp,
    retention_intervals,
    share,
    validate,
)

POLICIES = [checkmate(), checkmate_lp(), retention_intervals()]
by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


def work(plan) -> int:
    return sum(isinstance(action, Compute) for action in plan.actions)


@pytest.mark.parametrize(
    ("units", "optimum"),
    [(3, 45), (4, 26), (5, 22), (6, 21), (7, 20), (8, 19), (9, 18), (10, 17)],
)
def test_the_optima_of_a_chain_of_eight(units, optimum):
    plan = checkmate()(unit_chain(8), 64 * units)
    validate(unit_chain(8), plan)
    assert work(plan) == optimum
    assert plan.peak_bytes == 64 * units
    rounded = checkmate_lp()(unit_chain(8), 64 * units)
    assert work(rounded) >= optimum


@by_name
def test_two_units_are_refused_and_three_named(policy):
    with pytest.raises(InfeasiblePlanError) as refusal:
        policy(unit_chain(8), 128)
    if policy.name == "retention_intervals":
        assert refusal.value.smallest_limit_bytes == 320  # each op twice at most
        assert work(policy(unit_chain(8))) == 22
    else:
        assert refusal.value.smallest_limit_bytes == 192
        assert work(policy(unit_chain(8))) == 45


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 6))
def test_no_op_runs_more_than_twice(seed, ops):
    least = retention_intervals()(random_step(seed, ops))
    runs = [action.op for action in least.actions if isinstance(action, Compute)]
    assert max(map(runs.count, runs)) <= 2


@by_name
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 6))
def test_plans_are_valid_and_refusals_exact(policy, seed, ops):
    graph = random_step(seed, ops)
    least = policy(graph)
    validate(graph, least)
    assert policy(graph, least.peak_bytes).peak_bytes == least.peak_bytes
    if least.peak_bytes > 1:
        with pytest.raises(InfeasiblePlanError) as refusal:
            policy(graph, least.peak_bytes - 1)
        assert refusal.value.smallest_limit_bytes == least.peak_bytes
    middle = (least.peak_bytes + plan_in_order(graph).peak_bytes) // 2 or 1
    plan = policy(graph, middle)
    validate(graph, plan)
    assert plan.peak_bytes <= middle
    assert plan == policy(graph, middle)


@by_name
def test_more_memory_never_takes_more_time(policy):
    graph = chain(6, reads="both")
    least, most = policy(graph).peak_bytes, share()(graph).peak_bytes
    assert least < most
    costs = [
        policy(graph, limit).predicted.recompute_seconds
        for limit in range(least, most + 1, 64)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0


@by_name
def test_large_graphs_are_refused_in_words(policy):
    most = 96 if policy.name == "checkmate_lp" else 48
    with pytest.raises(PlanError, match=f"at most {most} ops, and 'chain of 60' has"):
        policy(chain(60))


@by_name
def test_without_highs_there_is_a_clear_sentence(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingDependencyError, match=r"pip install highspy"):
        policy(unit_chain(4), 192)
    assert policy(unit_chain(4), 64 * 6).peak_bytes == 384  # nothing is to be solved


def test_a_plan_says_when_the_search_ended_before_it_was_proven(monkeypatch):
    graph, policy = unit_chain(5), checkmate()
    proven = policy(graph, 64 * 4)
    assert not proven.summary.unproven
    assert "proof" not in str(proven)

    leave_unproven(monkeypatch)
    plan = policy(graph, 64 * 4)
    assert plan == proven  # but for what it says of itself
    assert plan.summary.unproven
    told = " ".join(str(plan).split())
    assert "proof none the search ended early: the method may have a better" in told
    assert policy(graph).summary.unproven
    assert not policy(graph, 64 * 7).summary.unproven  # nothing is computed again
    with pytest.raises(InfeasiblePlanError, match="ended early: that is not proven"):
        policy(graph, 64 * 2)


def test_the_solver_prints_nothing():
    """In a new process: HiGHS says who it is once in each."""
    code = (
        "from memcfg.graph import Graph, Op, Tensor\n"
        "from memcfg.plan import checkmate\n"
        "x, y = Tensor('x', 64, 'input'), Tensor('y', 64, 'output')\n"
        "op = Op('f', 'f', 'forward', (0,), (1,))\n"
        "assert checkmate()(Graph('g', (x, y), (op,), (1,))).peak_bytes == 128"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(("name", "part"), [("vgg16", 0.3), ("resnet18", 0.1)])
def test_layers_of_large_networks_take_no_more_time_than_auto(name, part):
    graph = zoo_step(name, 16)
    with pytest.raises(PlanError, match=r"checkmate\(granularity='layer'\)"):
        checkmate()(graph)
    with pytest.raises(InfeasiblePlanError) as refusal:
        auto()(graph, 1)
    least = refusal.value.smallest_limit_bytes
    limit = round(least + part * (share()(graph).peak_bytes - least))
    plan, start = checkmate(granularity="layer")(graph, limit), auto()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    assert plan.summary.unproven
    assert plan.predicted.recompute_seconds <= start.predicted.recompute_seconds


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 8), part=st.integers(0, 4))
def test_layers_of_small_graphs_are_planned_like_their_ops(seed, ops, part):
    graph = random_step(seed, ops)
    least, most = checkmate()(graph), plan_in_order(graph).peak_bytes
    limit = least.peak_bytes + (most - least.peak_bytes) * part // 4 or 1
    plan = checkmate(granularity="layer")(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    best = checkmate()(graph, limit)
    if not best.summary.unproven:
        started = auto()(graph, limit).predicted.recompute_seconds
        assert plan.predicted.recompute_seconds <= started * (1 + 1e-9)


def test_other_granularities_are_refused():
    with pytest.raises(ValueError, match="unknown granularity 'layers': did you mean"):
        checkmate(granularity="layers")


def test_layers_of_ops_that_alternate_are_planned_or_refused():
    graph = chain(90)
    ops = tuple(replace(op, replayable=i % 2 == 0) for i, op in enumerate(graph.ops))
    mixed = replace(graph, ops=ops)
    limit = share()(mixed).peak_bytes - 64 * 20
    plan = checkmate(granularity="layer")(mixed, limit)
    validate(mixed, plan)
    assert plan.peak_bytes <= limit
    phases = ("forward", "backward")
    ops = tuple(replace(op, phase=phases[i % 2]) for i, op in enumerate(graph.ops))
    with pytest.raises(PlanError, match="at most 64 runs of ops, and the phases of"):
        checkmate(granularity="layer")(replace(graph, ops=ops))
