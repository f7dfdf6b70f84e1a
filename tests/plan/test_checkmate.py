"""Optimal recomputation by integer programming: published optima, and brute force."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import chain, plan_in_order, random_step

from memcfg.errors import InfeasiblePlanError, MissingDependencyError, PlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import (
    Compute,
    checkmate,
    checkmate_lp,
    retention_intervals,
    share,
    validate,
)
from memcfg.plan.methods._highs import solve
from memcfg.plan.methods._stages import Stages
from memcfg.plan.search import Request

POLICIES = [checkmate(), checkmate_lp(), retention_intervals()]
by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


def unit_chain(layers: int) -> Graph:
    """Unit values and costs: node 2 L - i reads node 2 L - i - 1 and node i."""
    nodes = range(2 * layers + 1)
    ops = []
    for i in nodes:
        reads = ([i - 1] if i else []) + ([2 * layers - i] if i > layers else [])
        phase = "forward" if i <= layers else "backward"
        ops.append(Op(f"n{i}", "unit", phase, tuple(reads), (i,)))
    tensors = tuple(Tensor(f"v{i}", 64, "activation") for i in nodes)
    return Graph(f"unit chain of {layers}", tensors, tuple(ops))


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


@pytest.mark.parametrize(("units", "optimum"), [(8, 43), (10, 41), (14, 37)])
def test_the_optima_of_a_chain_of_sixteen(units, optimum):
    stages = Stages(Request.of(unit_chain(16), "", None))
    found = solve(stages, 64 * units)
    assert found.optimal
    assert 33 + found.value == pytest.approx(optimum, abs=1e-6)
    relaxed = solve(stages, 64 * units, whole=False)
    assert relaxed.value <= found.value + 1e-6


@pytest.mark.slow
def test_the_optimum_of_a_chain_of_sixteen_in_six_units():
    stages = Stages(Request.of(unit_chain(16), "", None))
    found = solve(stages, 64 * 6, checks=10**6)
    assert found.optimal
    assert 33 + found.value == pytest.approx(47, abs=1e-6)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 6))
def test_no_op_runs_more_than_twice(seed, ops):
    least = retention_intervals()(random_step(seed, ops))
    runs = [action.op for action in least.actions if isinstance(action, Compute)]
    assert max(map(runs.count, runs)) <= 2


def every_schedule(stages: Stages):
    for count in range(len(stages.again) + 1):
        yield from itertools.combinations(sorted(stages.again), count)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 3))
def test_the_program_is_as_good_as_all_schedules(seed, ops):
    """On Checkmate's grid: any op again in any stage, in the order of the graph."""
    graph = random_step(seed, ops)
    request = Request.of(graph, "", None)
    stages = Stages(request)
    if len(stages.again) > 9:
        return
    found = []
    for again in every_schedule(stages):
        sequence = stages.sequence(again)
        if request.step.fault(sequence) is None:
            found.append(request.step.measure(sequence))
    least = solve(stages, None)
    assert least.optimal
    load = stages.base + least.value * stages.unit
    # What the graph starts with counts throughout, so the program may be above.
    assert load >= min(each[0] for each in found) - 1e-3 * stages.unit
    for limit in {each[0] for each in found}:
        answer = solve(stages, limit)
        assert answer.optimal == bool(answer.columns)
        if not answer.columns:
            continue
        again = {k for k, c in stages.again.items() if answer.columns[c] > 1 / 2}
        measured = request.step.measure(stages.sequence(again))
        assert measured[0] <= limit + 1e-3 * stages.unit
        assert measured[1] >= min(e[1] for e in found if e[0] <= measured[0]) - 1e-9


@settings(max_examples=15, deadline=None)
@given(layers=st.integers(1, 3), units=st.integers(2, 6))
def test_nothing_is_better_on_small_chains(layers, units):
    graph = unit_chain(layers)
    request = Request.of(graph, "", None)
    stages = Stages(request)
    pairs = [key for key in stages.again if key[1] < layers]  # no gradient again
    costs = [
        len(again)
        for count in range(len(pairs) + 1)
        for again in itertools.combinations(pairs, count)
        if request.step.measure(stages.sequence(again))[0] <= 64 * units
    ]
    answer = solve(stages, 64 * units)
    assert bool(answer.columns) == bool(costs)
    if costs:
        assert answer.value == pytest.approx(min(costs), abs=1e-6)


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


def test_an_interruption_ends_the_search():
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stages = Stages(Request.of(unit_chain(16), "", None))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            solve(stages, 64 * 6, checks=10**6)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_search_that_is_ended_early_keeps_what_it_has():
    stages = Stages(Request.of(unit_chain(16), "", None))
    lowest = solve(stages, None, start=stages.values(frozenset()), checks=1)
    assert not lowest.optimal
    start = stages.values(frozenset())
    first = solve(stages, 64 * 18, start=start, checks=1)
    assert first.columns
    assert first.value == pytest.approx(0, abs=1e-6)


def test_a_plan_says_when_the_search_ended_before_it_was_proven(monkeypatch):
    graph, policy = unit_chain(5), checkmate()
    proven = policy(graph, 64 * 4)
    assert not proven.summary.unproven
    assert "proof" not in str(proven)

    def ended(*asked, **options):
        return solve(*asked, **options)._replace(optimal=False)

    monkeypatch.setattr("memcfg.plan.methods._checkmate.solve", ended)
    plan = policy(graph, 64 * 4)
    assert plan == proven  # but for what it says of itself
    assert plan.summary.unproven
    told = " ".join(str(plan).split())
    assert "proof none the search ended first: the method may have a better" in told
    assert policy(graph).summary.unproven
    assert not policy(graph, 64 * 7).summary.unproven  # nothing is computed again
    with pytest.raises(InfeasiblePlanError, match="ended before that was proven"):
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
