"""Schedules that are the best: against brute force, and against published optima."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedule_oracle import least_costs, load
from schedule_search import least_time
from tiny_graphs import tiny_graph
from training_graphs import Sketch, chain, random_step, unit_chain

from memcfg import nn
from memcfg.errors import GraphError, InfeasiblePlanError, PlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import (
    Compute,
    Policy,
    auto,
    checkmate,
    checkmate_lp,
    exact,
    look_ahead,
    lower_bound,
    share,
    time_lower_bound,
    validate,
)
from memcfg.plan.search import Request

if TYPE_CHECKING:
    from memcfg.plan import Plan

EFFORT = 20_000_000


def hasty(effort: int) -> Policy:
    """The search with so many states to compare."""
    return replace(exact(), effort=effort)


def costs(graph: Graph) -> list[float]:
    timed = any(op.seconds for op in graph.ops)
    return [op.seconds if timed else 1.0 for op in graph.ops]


def computed(plan: Plan) -> list[int]:
    return [action.op for action in plan.actions if isinstance(action, Compute)]


def small(seed: int) -> Graph:
    """A random step of at most 8 ops, its updates in time."""
    graph = random_step(seed, 1 + seed % 4)
    return Request.of(graph, "small", None).graph


def brute_force(graph: Graph) -> list[tuple[int, float]]:
    """Each limit from which on a schedule costs less, the highest first."""
    return list(least_costs(graph, costs(graph)))


def mirrored(seed: int) -> Graph:
    """A chain and its gradients, of 5 or 7 ops of any size and time."""
    chance = random.Random(seed)
    sketch = Sketch()
    n = chance.choice([2, 3])
    sizes = [64 * chance.choice([1, 1, 2, 3, 5, 8]) for _ in range(n + 1)]
    x = [sketch.tensor("x0", sizes[0], "input")]
    for i in range(1, n + 1):
        x.append(sketch.tensor(f"x{i}", sizes[i], "activation"))
        reads = {x[i - 1], chance.choice(x[:i])}
        seconds = float(chance.randint(0, 4))
        pairs = ((x[i - 1], x[i]),) if sizes[i] == sizes[i - 1] else ()
        sketch.op(f"f{i}", "forward", reads, [x[i]], seconds=seconds, in_place=pairs)
    gradient = sketch.tensor("g", sizes[n], "activation_gradient")
    sketch.op("loss", "backward", [x[n]], [gradient], seconds=1.0)
    for i in range(n, 0, -1):
        below = sketch.tensor(f"g{i - 1}", sizes[i - 1], "activation_gradient")
        reads = {gradient, x[i - 1], chance.choice(x)}
        seconds = float(chance.randint(1, 4))
        pairs = ((gradient, below),) if sizes[i] == sizes[i - 1] else ()
        sketch.op(f"b{i}", "backward", reads, [below], seconds=seconds, in_place=pairs)
        gradient = below
    return sketch.graph(f"mirrored {seed}", [gradient])


def few_ops(seeds, most: int = 8):
    for seed in seeds:
        yield mirrored(seed)
        graph = small(seed)
        if len(graph.ops) <= most:
            yield graph


def test_the_search_agrees_with_brute_force_at_every_limit():
    tried = again = 0
    for graph in few_ops(range(12)):
        step = Request.of(graph, "exact", None).step
        front = brute_force(graph)
        tried += 1
        again += front[-1][1] > 0
        for k, (limit, cost) in enumerate(front):
            verdict, schedule, _, _, _ = step.least_cost(limit, effort=EFFORT)
            assert verdict == 0
            assert load(graph, schedule) <= limit
            assert step.measure(schedule)[1] == pytest.approx(cost)
            verdict, schedule, need, _, _ = step.least_cost(limit - 1, effort=EFFORT)
            if k + 1 < len(front):
                assert verdict == 0
                assert step.measure(schedule)[1] == pytest.approx(front[k + 1][1])
            else:
                assert verdict == 1
                assert limit >= need
        schedule, least, floor, _ = step.least_load(
            range(len(graph.ops)), effort=EFFORT
        )
        assert floor == least == front[-1][0] == load(graph, schedule)
    assert tried > 15
    assert again > 2


def test_auto_agrees_with_brute_force():
    """On the smallest limit, and on the least time from there to the default peak."""
    tried = 0
    for graph in few_ops(range(1000, 1008)):
        sizes = [-(-tensor.nbytes // 64) for tensor in graph.tensors]
        if any(sizes[i] != sizes[o] for op in graph.ops for i, o in op.in_place):
            continue  # smaller outputs in place may need less than what is counted
        tried += 1
        front = brute_force(graph)
        least = front[-1][0]
        with pytest.raises(InfeasiblePlanError) as refusal:
            auto()(graph, least - 1)
        assert refusal.value.smallest_limit_bytes == least
        total = sum(op.seconds for op in graph.ops)
        top = share()(graph).peak_bytes
        for limit in sorted({peak for peak, _ in front} | {top, (least + top) // 2}):
            cost = next(cost for peak, cost in front if peak <= limit)
            plan = auto()(graph, limit)
            validate(graph, plan)
            assert plan.peak_bytes <= limit
            if any(op.seconds for op in graph.ops):
                assert plan.predicted.seconds == pytest.approx(total + cost)
    assert tried > 8


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), share_of=st.floats(0, 1))
def test_a_plan_that_is_proven_is_valid_and_the_best(seed, share_of):
    graph = small(seed) if seed % 2 else mirrored(seed)
    assume(len(graph.ops) <= 9)
    front = brute_force(graph)
    least, most = front[-1][0], share()(graph).peak_bytes
    limit = least + round(max(0, most - least) * share_of)
    plan = exact()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    cost = next(cost for peak, cost in front if peak <= limit)
    if plan.predicted.optimality_gap == 0 and any(op.seconds for op in graph.ops):
        assert plan.predicted.recompute_seconds == pytest.approx(cost)


def is_planned_at_its_smallest_limit(policy: Policy, graph: Graph) -> None:
    with pytest.raises(InfeasiblePlanError) as refusal:
        policy(graph, 1)
    least = refusal.value.smallest_limit_bytes
    plan = policy(graph, least)
    validate(graph, plan)
    assert plan.peak_bytes <= least


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 6), effort=st.integers(1, 10**5))
def test_the_smallest_limit_of_a_refusal_has_a_plan(seed, ops, effort):
    graph = random_step(seed, ops)
    assume(sum(tensor.nbytes for tensor in graph.tensors) > 0)
    is_planned_at_its_smallest_limit(hasty(effort=effort), graph)


@pytest.mark.parametrize("seed", [51, 95])
def test_smaller_outputs_in_place_are_not_lost(seed):
    is_planned_at_its_smallest_limit(exact(), small(seed))


def test_the_least_load_is_found_above_a_limit_that_is_not_decided():
    """A chain's lowest limits take the most states."""
    graph = unit_chain(16)
    step = Request.of(graph, "exact", None).step
    found = [
        step.least_load(range(len(graph.ops)), effort=effort)
        for effort in (300, 3_000, 30_000)
    ]
    loads = [load(graph, schedule) for schedule, *_ in found]
    assert loads == [reported for _, reported, *_ in found]
    assert loads[0] > loads[1] > loads[2] >= 64 * 3
    assert all(floor <= 64 * 3 for _, _, floor, _ in found)


@pytest.mark.parametrize(
    ("n", "optima"),
    [
        (8, {3: 45, 4: 26, 5: 22, 6: 21, 7: 20, 8: 19, 9: 18, 10: 17}),
        (16, {14: 37, 18: 33}),
    ],
)
def test_the_optima_of_checkmate(n, optima):
    graph = unit_chain(n)
    for tensors, seconds in optima.items():
        plan = exact()(graph, 64 * tensors)
        validate(graph, plan)
        assert plan.predicted.seconds == seconds
        assert plan.predicted.optimality_gap == 0
    if n == 8:
        assert exact()(graph).peak_bytes == 3 * 64
        with pytest.raises(InfeasiblePlanError, match="has such a low peak"):
            exact()(graph, 2 * 64)


@pytest.mark.slow
@pytest.mark.parametrize(("tensors", "seconds"), [(5, 53), (6, 47), (8, 43), (10, 41)])
def test_the_optima_of_checkmate_that_take_long(tensors, seconds):
    plan = exact()(unit_chain(16), 64 * tensors)
    assert plan.predicted.seconds == seconds
    assert plan.predicted.optimality_gap == 0


def test_a_search_that_ends_early_does_not_say_that_there_is_none():
    graph = chain(24)
    policy = hasty(effort=200)
    least = look_ahead()(graph).peak_bytes
    with pytest.raises(InfeasiblePlanError, match=r"none was found in \d+ states") as e:
        policy(graph, least - 64)
    assert not e.value.is_smallest
    plan = policy(graph)
    validate(graph, plan)
    assert plan.summary.unproven


@pytest.mark.parametrize("effort", [1, 200, 5_000])
@pytest.mark.parametrize("tensors", [4, 6, 9])
def test_a_search_that_ends_early_tells_what_it_has_proven(effort, tensors):
    """It starts from the best plan of other methods, whose best is known here."""
    graph, limit = unit_chain(8), 64 * tensors
    plan = hasty(effort=effort)(graph, limit)
    validate(graph, plan)
    assert plan.predicted.seconds <= look_ahead()(graph, limit).predicted.seconds
    best = exact()(graph, limit).predicted.seconds
    assert plan.predicted.seconds <= (1 + plan.gap) * best * (1 + 1e-9)
    assert plan.summary.unproven == (plan.gap > 0)


def test_a_search_ends_with_its_time():
    graph = unit_chain(30)
    plan = exact(time_limit=1.0)(graph, 64 * 16)  # without a limit it takes minutes
    validate(graph, plan)
    assert plan.gap > 0
    assert plan.summary.unproven
    assert "the search ended early" in str(plan)


@pytest.mark.parametrize("wrong", [0, -1.0, "1", True])
def test_time_limits_are_positive_numbers(wrong):
    with pytest.raises((TypeError, ValueError), match="a time limit"):
        exact(time_limit=wrong)


def test_dense_layers_are_planned_as_fast_as_by_any_method():
    layers = [nn.Dense(64, activation="relu") for _ in range(4)]
    model = nn.Sequential([nn.Input((64,)), *layers, nn.Dense(10)])
    model.compile(nn.SGD(0.1), nn.SparseCategoricalCrossentropy(from_logits=True))
    graph = model.graph(256)
    lowest, top = lower_bound(graph), share()(graph).peak_bytes
    for part in (0.5, 0.8):
        limit = round(lowest + part * (top - lowest))
        plan = exact()(graph, limit)
        validate(graph, plan)
        assert plan.gap == 0
        assert not plan.summary.unproven
        for policy in (look_ahead(), auto()):
            other = policy(graph, limit)
            assert plan.predicted.seconds <= other.predicted.seconds * (1 + 1e-9)


def kept_and_dropped() -> Graph:
    """A large output is read early, and is best dropped until the end."""
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("first", 640, "output"),
        Tensor("narrow", 64, "activation"),
        Tensor("wide", 640, "activation"),
        Tensor("last", 64, "output"),
    )
    ops = (
        Op("cheap", "f", "forward", (0,), (1,), seconds=0.0001),
        Op("read", "f", "forward", (1,), (2,), seconds=0.5),
        Op("widen", "f", "forward", (2,), (3,), seconds=0.25),
        Op("end", "f", "forward", (3,), (4,), seconds=0.25),
    )
    return Graph("kept", tensors, ops, (1, 4))


KEEPING = exact(), auto(), look_ahead(), checkmate(), checkmate_lp()


@pytest.mark.parametrize("policy", KEEPING, ids=lambda policy: policy.name)
def test_what_is_kept_is_dropped_and_computed_again(policy):
    graph = kept_and_dropped()
    limit = 64 * 12
    with pytest.raises(InfeasiblePlanError):
        share()(graph, limit)
    plan = policy(graph, limit)
    validate(graph, plan)
    assert plan.predicted.seconds == pytest.approx(1.0002)
    assert least_time(graph, limit) == pytest.approx(1.0002)
    assert plan.gap == pytest.approx(0, abs=1e-12)
    with pytest.raises(InfeasiblePlanError):
        policy(graph, limit - 64)
    assert least_time(graph, limit - 64) == math.inf


def test_a_loss_that_is_kept_stays_where_it_is():
    """A guard that ends the step leaves it to be read there."""
    graph = replace(kept_and_dropped(), losses=(1,))
    with pytest.raises(InfeasiblePlanError, match="has such a low peak"):
        exact()(graph, 64 * 12)
    assert least_time(graph, 64 * 12) == math.inf
    plan = exact()(kept_and_dropped(), 64 * 12)
    with pytest.raises(PlanError, match="is a loss and is recomputed"):
        validate(graph, plan)


def check_claims(graph: Graph, limit: int) -> None:
    """No claim of a plan or a refusal is refuted by the least time of all schedules."""
    least = least_time(graph, limit)
    assert time_lower_bound(graph, limit) <= least * (1 + 1e-12)
    for policy in (exact(), hasty(effort=20), auto(), look_ahead()):
        try:
            plan = policy(graph, limit)
        except InfeasiblePlanError as refusal:
            smallest, told = refusal.smallest_limit_bytes, str(refusal)
            assert least == math.inf or "no schedule needs" not in told
            if policy.name == "exact" and refusal.is_smallest and smallest > 64:
                assert least_time(graph, smallest - 64) == math.inf
            continue
        validate(graph, plan)
        assert plan.predicted.seconds <= (1 + plan.gap) * least * (1 + 1e-9)
        if policy.name == "exact":
            assert plan.summary.unproven == (plan.gap > 0)


def check_tiny(seed: int, parts: list[float]) -> None:
    graph = tiny_graph(seed, kept=5)
    if not any(op.seconds for op in graph.ops) or least_time(graph, 2**40) == math.inf:
        return
    try:
        top = share()(graph).peak_bytes
    except GraphError:  # a state that is kept is updated
        return
    low = lower_bound(graph)
    if low > 64:
        assert least_time(graph, low - 64) == math.inf
    for part in parts:
        check_claims(graph, max(64, low + 64 * round(part * (top - low) / 64)))


def test_claims_hold_where_several_tensors_are_kept():
    for seed in range(40):
        check_tiny(seed, [random.Random(seed).random()])


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(st.integers(10**6, 10**9), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_claims_hold_of_any_graph(seed, parts):
    check_tiny(seed, parts)


def test_graphs_that_are_too_large_are_refused():
    with pytest.raises(GraphError, match=r"64 ops and 128 tensors; .* has 101 and 102"):
        exact()(chain(50))
