"""Plans that compute any op as often as is worth it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import end_search_at_once
from networks import zoo_step
from schedule_oracle import load as oracle_load
from training_graphs import chain, random_step, unit_chain

from memcfg import models, nn
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import (
    Compute,
    auto,
    checkmate_lp,
    in_place,
    look_ahead,
    lower_bound,
    place,
    recompute,
    replay_elementwise,
    share,
    sqrt_checkpoint,
    validate,
)
from memcfg.plan import chain as composed
from memcfg.plan.search import Request

if TYPE_CHECKING:
    from memcfg.graph import Graph


def computed(plan) -> list[int]:
    return [action.op for action in plan.actions if isinstance(action, Compute)]


@pytest.mark.parametrize(
    ("layers", "optima"),
    [
        (8, {3: 45, 4: 26, 5: 22, 6: 21, 7: 20, 8: 19, 9: 18, 10: 17}),
        (16, {8: 43, 10: 41, 14: 37}),
    ],
)
def test_the_optima_of_checkmate(layers, optima):
    """P. Jain et al., "Checkmate", MLSys 2020: its integer program, solved."""
    graph = unit_chain(layers)
    for values, seconds in optima.items():
        plan = look_ahead()(graph, 64 * values)
        validate(graph, plan)
        assert plan.predicted.seconds == seconds


def test_below_the_least_limit_it_refuses_with_it():
    graph = unit_chain(8)
    with pytest.raises(InfeasiblePlanError) as refusal:
        look_ahead()(graph, 64 * 2)  # no schedule does: a working set is three values
    assert refusal.value.smallest_limit_bytes == 64 * 3
    assert look_ahead()(graph).peak_bytes == 64 * 3


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 14), part=st.floats(0, 1))
def test_plans_are_right_and_within_the_limit(seed, ops, part):
    graph = random_step(seed, ops)
    least, most = look_ahead()(graph), share()(graph).peak_bytes
    validate(graph, least)
    assert lower_bound(graph) <= least.peak_bytes <= most
    limit = max(1, least.peak_bytes + round((most - least.peak_bytes) * part))
    plan = look_ahead()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    once = set(range(len(graph.ops)))
    for op in graph.ops:
        if not op.replayable or op.phase == "update":
            index = graph.ops.index(op)
            assert computed(plan).count(index) == 1
    assert set(computed(plan)) == once


def test_an_op_is_computed_more_than_twice_where_that_is_needed():
    graph = chain(40)
    lowest, segments = look_ahead()(graph), sqrt_checkpoint()(graph)
    assert lowest.peak_bytes < segments.peak_bytes
    counts = [computed(lowest).count(op) for op in range(len(graph.ops))]
    assert max(counts) > 2
    assert max(computed(segments).count(op) for op in range(len(graph.ops))) == 2


@pytest.mark.parametrize("seed", range(12))
def test_the_search_measures_what_a_schedule_needs(seed):
    """The rungs of a descent go down, by the measure that shares no code with it."""
    request = Request.of(random_step(seed, 14), "look_ahead", None)
    step, given = request.step, list(range(len(request.graph.ops)))
    rungs = step.descend(given, 0, work=100_000)
    assert rungs[0] == given
    assert all(step.fault(rung) is None for rung in rungs)
    loads = [step.measure(rung)[0] for rung in rungs]
    assert all(a > b for a, b in itertools.pairwise(loads))
    for limit in (loads[0], loads[-1]):
        found = step.within([given, rungs[-1]], limit, work=100_000)
        assert step.fault(found) is None
        load, cost, _ = step.measure(found)
        assert load <= limit
        assert cost <= step.measure(rungs[-1])[1]
    assert step.measure(step.within([given], loads[0], work=1))[1] == 0


@pytest.mark.parametrize("seed", [0, 20, 21])
def test_more_is_held_where_a_better_order_leaves_room(seed, monkeypatch):
    """Backward ops of different branches come in no useful order in these graphs."""
    # Second tries put ops in order, too, and so do parts.
    end_search_at_once(monkeypatch, "again")
    end_search_at_once(monkeypatch, "parts")
    graph = random_step(seed, 30)
    limit = (lower_bound(graph) + share()(graph).peak_bytes) // 2
    plan, least = look_ahead()(graph, limit), look_ahead()(graph)
    for each in (plan, least):
        validate(graph, each)
    end_search_at_once(monkeypatch, "orders")
    assert plan.predicted.seconds < look_ahead()(graph, limit).predicted.seconds
    assert least.peak_bytes < look_ahead()(graph).peak_bytes


def cheaper(step, start, limit):
    return step.cheaper(start, limit, work=50_000)


def replanned(step, start, limit):
    return step.replanned(start, limit, effort=50_000)


@pytest.mark.parametrize("search", [cheaper, replanned])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(2, 20), part=st.floats(0, 1))
def test_each_schedule_is_cheaper_than_the_one_before(search, seed, ops, part):
    request = Request.of(random_step(seed, ops), "look_ahead", None)
    step, given_order = request.step, list(range(len(request.graph.ops)))
    rungs = step.descend(given_order, 0, work=20_000)
    start = rungs[round((len(rungs) - 1) * part)]
    limit = step.measure(start)[0]
    found = search(step, start, limit)
    assert found == search(step, start, limit)
    for each in found:
        assert step.fault(each) is None
        assert oracle_load(request.graph, each) <= limit
    measured = [step.measure(each)[1:] for each in (start, *found)]
    assert all(a > b for a, b in itertools.pairwise(measured))


@pytest.mark.parametrize("search", [cheaper, replanned])
@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_nothing_is_cheaper_than_the_best(search, seed):
    """Small steps are searched completely, by code that `cheaper` does not share."""
    request = Request.of(random_step(seed, 3), "look_ahead", None)
    step, given_order = request.step, list(range(len(request.graph.ops)))
    for start in step.descend(given_order, 0, work=20_000):
        limit, cost, _ = step.measure(start)
        verdict, best, *_ = step.least_cost(limit, effort=10**6)
        assert verdict == 0
        found = [start, *search(step, start, limit)]
        assert step.measure(best)[1] <= step.measure(found[-1])[1] <= cost


@pytest.mark.parametrize("seed", range(1, 60, 4))
def test_parts_of_a_small_step_lead_to_the_best(seed):
    request = Request.of(random_step(seed, 4), "look_ahead", None)
    step, given_order = request.step, list(range(len(request.graph.ops)))
    for start in step.descend(given_order, 0, work=20_000):
        limit = step.measure(start)[0]
        verdict, best, *_ = step.least_cost(limit, effort=10**6)
        found = [start, *step.replanned(start, limit, effort=10**5)][-1]
        assert verdict == 0
        assert step.measure(found)[1] == pytest.approx(step.measure(best)[1])


@pytest.mark.parametrize("seed", [5, 15, 23])
def test_parts_that_are_planned_anew_compute_less_again(seed, monkeypatch):
    """After all other searches, whose order and replays such a part gives up."""
    graph = random_step(seed, 30)
    least, most = look_ahead()(graph).peak_bytes, share()(graph).peak_bytes
    limit = (least + most) // 2
    plan = look_ahead()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    end_search_at_once(monkeypatch, "parts")
    assert plan.predicted.seconds < look_ahead()(graph, limit).predicted.seconds


def test_what_fits_is_searched_again(monkeypatch):
    graph = zoo_step("unet", 32)
    limit = share()(graph).peak_bytes * 4 // 10
    plan = look_ahead()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    end_search_at_once(monkeypatch, "again")
    before = look_ahead()(graph, limit)
    assert plan.predicted.recompute_seconds < 0.95 * before.predicted.recompute_seconds


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(8, 24), part=st.floats(0, 1))
def test_searching_again_never_takes_more_time(seed, ops, part):
    graph = random_step(seed, ops)
    least, most = look_ahead()(graph).peak_bytes, share()(graph).peak_bytes
    limit = least + round((most - least) * part)
    plan = look_ahead()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit
    with pytest.MonkeyPatch.context() as patch:
        end_search_at_once(patch, "again")
        before = look_ahead()(graph, limit)
    assert plan.predicted.seconds <= before.predicted.seconds * (1 + 1e-12)


def test_a_chain_without_order_searches_for_none(monkeypatch):
    """The graph's order stays, also where another one would leave more room."""
    graph = random_step(20, 30)
    limit = (lower_bound(graph) + share()(graph).peak_bytes) // 2
    policy = composed(in_place(), recompute(look_ahead()), place())
    plan = policy(graph, limit)
    end_search_at_once(monkeypatch, "orders")
    assert computed(policy(graph, limit)) == computed(plan)


def test_no_schedule_within_no_bytes():
    request = Request.of(random_step(3, 8), "look_ahead", None)
    assert request.step.within([range(len(request.graph.ops))], 1, work=1000) is None


def test_the_same_arguments_give_the_same_schedule():
    request = Request.of(random_step(5, 14), "look_ahead", None)
    given = list(range(len(request.graph.ops)))
    limit = (request.step.measure(given)[0] * 3) // 4
    found = [request.step.within([given], limit, work=50_000) for _ in range(2)]
    assert found[0] == found[1]


def test_more_work_is_never_worse():
    request = Request.of(unit_chain(16), "look_ahead", None)
    given = list(range(len(request.graph.ops)))
    costs = []
    for work in (20_000, 100_000, 400_000):
        found = request.step.within([given], 64 * 8, work=work)
        costs.append(request.step.measure(found)[1])
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 43 - 33


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), questions=st.integers(0, 12))
def test_searches_that_are_ended_give_what_they_have(seed, questions):
    graph = random_step(seed, 14)
    request = Request.of(graph, "look_ahead", None)
    asked = itertools.count()
    watch = SimpleNamespace(is_over=lambda: next(asked) >= questions)
    step = replace(request, watch=watch, known={}).step
    given = list(range(len(graph.ops)))
    rungs = step.descend(given, 0, work=10**7)
    loads = [step.measure(rung)[0] for rung in rungs]
    assert all(step.fault(rung) is None for rung in rungs)
    assert all(a > b for a, b in itertools.pairwise(loads))
    asked = itertools.count()
    limit = min(loads)
    found = step.within([given, rungs[-1]], limit, work=10**7)
    assert step.fault(found) is None
    assert step.measure(found)[0] <= limit
    assert step.measure(found)[1] <= step.measure(rungs[-1])[1]
    asked = itertools.count()
    for other in step.cheaper(found, limit, work=10**7):
        assert step.fault(other) is None
        assert step.measure(other)[0] <= limit
        assert step.measure(other)[1:] < step.measure(found)[1:]
    asked = itertools.count()
    sequence, load, floor, _ = step.least_load(given, effort=10**5)
    assert step.measure(sequence)[0] == load >= floor
    asked = itertools.count()
    some = step.extra_cost(limit, effort=10**8)
    assert 0 <= some <= request.step.extra_cost(limit, effort=10**8) * (1 + 1e-9)


def zoo(name: str) -> Graph:
    models_ = {
        "resnet18": lambda: models.resnet18((64, 64, 3)),
        "mobilenet": lambda: models.mobilenet((64, 64, 3)),
        "unet": lambda: models.unet((64, 64, 3), 2, "same"),
        "lstm_lm": lambda: models.lstm_lm(2, 64, vocabulary_size=200),
    }
    model = models_[name]()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1, momentum=0.9), loss)
    return model.graph(8)


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "lstm_lm"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenet", "unet")),
    ],
)
def test_networks_take_no_more_work_than_by_segments(name):
    """At every tenth of the way; and the more memory, the less work."""
    graph = zoo(name)
    most, least = share()(graph).peak_bytes, look_ahead()(graph).peak_bytes
    seconds = []
    for tenth in range(0, 10, 3):
        limit = least + (most - least) * tenth // 10
        plan = look_ahead()(graph, limit)
        validate(graph, plan)
        seconds.append(plan.predicted.seconds)
        for other in (sqrt_checkpoint(), replay_elementwise()):
            try:
                theirs = other(graph, limit).predicted.seconds
            except InfeasiblePlanError:
                continue
            assert plan.predicted.seconds <= 1.001 * theirs  # a search without proof
            assert auto()(graph, limit).predicted.seconds <= theirs
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("part", [0.1, 0.3])
def test_what_is_computed_again_may_come_before_it_is_read(part):
    """AlexNet's first layer runs again before gradients that leave it no room."""
    graph = zoo_step("alexnet", 16)
    with pytest.raises(InfeasiblePlanError) as refusal:
        look_ahead()(graph, 1)
    least = refusal.value.smallest_limit_bytes
    limit = round(least + part * (share()(graph).peak_bytes - least))
    plan, rounded = look_ahead()(graph, limit), checkmate_lp()(graph, limit)
    validate(graph, plan)
    assert plan.predicted.recompute_seconds <= rounded.predicted.recompute_seconds
