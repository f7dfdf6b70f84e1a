"""Orders of the ops: against all orders of small steps, and what they are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import unscratched, wide_branches
from schedule_oracle import least_over_orders, load
from training_graphs import Sketch, random_step

import memcfg as mc
from memcfg.plan import Compute, share, sqrt_checkpoint, validate
from memcfg.plan.search import Request

if TYPE_CHECKING:
    from memcfg.graph import Graph

EFFORT = 20_000_000


def reordered(graph: Graph, sequence=None) -> tuple[Request, list[int], int, int]:
    request = Request.of(graph, "order", None)
    sequence = range(len(graph.ops)) if sequence is None else sequence
    return request, *request.step.reorder(sequence, effort=EFFORT)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 3))
def test_an_order_is_near_the_best_of_all_and_its_floor_below(seed, ops):
    graph = random_step(seed, ops)
    request, order, found, floor = reordered(graph)
    assert request.step.fault(order) is None
    assert sorted(order) == list(range(len(graph.ops)))
    assert load(request.graph, order) == found == request.step.measure(order)[0]
    best = least_over_orders(request.graph)
    assert floor <= best <= found
    assert found <= 1.25 * best


def test_most_orders_of_small_steps_are_the_best():
    tried = missed = proven = 0
    for seed in range(120):
        graph = random_step(seed, 1 + seed % 3)
        request, _, found, floor = reordered(graph)
        tried += 1
        missed += found > least_over_orders(request.graph)
        proven += floor == found
    assert tried == 120
    assert missed <= 4
    assert proven >= 60


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 16))
def test_a_schedule_with_repetitions_reads_the_same_values_in_its_new_order(seed, ops):
    graph = random_step(seed, ops)
    request = Request.of(graph, "order", None)
    dropped = bytearray(len(graph.ops))
    for op in request.droppable[:: 1 + seed % 3]:
        dropped[op] = 1
    schedule = request.step.sequence(bytes(dropped))
    before, cost, again = request.step.measure(schedule)
    order, found, _ = request.step.reorder(schedule, effort=EFFORT)
    assert request.step.fault(order) is None
    assert sorted(order) == sorted(schedule)
    assert request.step.measure(order) == pytest.approx((found, cost, again))
    assert found <= before
    assert found == load(request.graph, order)
    validate(request.graph, request.ordered(schedule))


def test_the_same_effort_gives_the_same_order_and_none_the_given_one():
    graph = random_step(8, 30)
    request, order, _, _ = reordered(graph)
    assert reordered(graph)[1] == order
    ops = range(len(graph.ops))
    assert request.step.reorder(ops, effort=0)[0] == list(ops)


def branches(count: int) -> Graph:
    """Branches that widen and narrow: one after another they need one wide tensor."""
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    wide = [sketch.tensor(f"wide{i}", 4096, "activation") for i in range(count)]
    ends = [sketch.tensor(f"end{i}", 64, "activation") for i in range(count)]
    y = sketch.tensor("y", 64, "output")
    for i in range(count):
        sketch.op(f"widen{i}", "forward", [x], [wide[i]])
    for i in range(count):
        sketch.op(f"narrow{i}", "forward", [wide[i]], [ends[i]])
    sketch.op("join", "forward", ends, [y])
    return sketch.graph("branches", [y])


def test_branches_run_one_after_another():
    graph = branches(12)
    in_order = Request.of(graph, "in order", None).scheduled(range(len(graph.ops)))
    plan = share()(graph)
    validate(graph, plan)
    assert in_order.peak_bytes == 12 * 4096 + 64
    assert plan.peak_bytes == 4096 + 12 * 64 + 64 - 64


@pytest.mark.parametrize(
    ("make", "batch_size", "in_order", "ordered"),
    [
        (wide_branches, 8, 9_086_144, 3_286_208),
        (mc.models.mobilenet, 1, 61_950_272, 58_063_104),
    ],
)
def test_a_network_costs_more_in_the_order_of_its_layers(
    make, batch_size, in_order, ordered
):
    graph = unscratched(make(), batch_size)
    request = Request.of(graph, "in order", None)
    assert request.step.measure(range(len(graph.ops)))[0] >= in_order
    plan = share()(graph)
    validate(graph, plan)
    assert plan.peak_bytes == ordered
    computed = [action.op for action in plan.actions if isinstance(action, Compute)]
    assert sorted(computed) == list(range(len(graph.ops)))


@pytest.mark.parametrize("policy", [share(), sqrt_checkpoint()])
def test_a_plan_is_never_above_the_load_of_the_given_order(policy):
    for seed in range(40):
        graph = random_step(seed, 12)
        request = Request.of(graph, "in order", None)
        in_order = request.scheduled(range(len(graph.ops)))
        assert policy(graph).peak_bytes <= in_order.peak_bytes
