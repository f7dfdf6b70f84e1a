"""Plans of any order of the ops, each computed as often as a schedule says."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import chain, random_step

from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import Compute, validate
from memcfg.plan.search import Request


def some_schedule(request: Request, draw: random.Random) -> list[int]:
    """Any op that may run next, until every op has run: by definition, op by op."""
    graph = request.graph
    repeats = draw.random()
    done: list[int] = []
    made = {t for t, maker in enumerate(graph.producer) if maker is None}
    forward = {i for i, op in enumerate(graph.ops) if op.phase == "forward"}
    while len(set(done)) < len(graph.ops):
        updated = {
            source
            for index in done
            for source, _ in graph.ops[index].in_place
            if graph.ops[index].phase == "update"
        }
        legal = [
            i
            for i, op in enumerate(graph.ops)
            if made.issuperset(op.inputs)
            and updated.isdisjoint(op.inputs)
            and (op.phase != "update" or forward.issubset(done))
            and (op.phase != "update" or no_reader_is_left(graph, i, done))
        ]
        again = [i for i in legal if i in done and i in request.repeatable]
        new = [i for i in legal if i not in done]
        if again and len(done) < 4 * len(graph.ops) and draw.random() < repeats:
            done.append(draw.choice(again))
        else:
            done.append(draw.choice(new))
        made.update(graph.ops[done[-1]].outputs)
    return done


def no_reader_is_left(graph: Graph, update: int, done: list[int]) -> bool:
    states = {source for source, _ in graph.ops[update].in_place}
    readers = {r for t in states for r in graph.consumers[t]} - {update}
    return readers.issubset(done)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 10))
def test_any_schedule_is_planned_right(seed, ops):
    request = Request.of(random_step(seed, ops), "any", None)
    schedule = some_schedule(request, random.Random(seed))
    assert request.step.fault(schedule) is None
    plan = request.scheduled(schedule)
    validate(request.graph, plan)
    computed = [a.op for a in plan.actions if isinstance(a, Compute)]
    assert computed == [request.order[op] for op in schedule]
    load, cost, again = request.step.measure(schedule)
    sizes = [tensor.nbytes for tensor in request.graph.tensors]
    pairs = [pair for op in request.graph.ops for pair in op.in_place]
    if all(sizes[i] == sizes[o] for i, o in pairs):  # a score lets no others in place
        assert load <= plan.peak_bytes
    assert again == len(schedule) - len(request.graph.ops)
    timed = any(op.seconds for op in request.graph.ops)
    total = sum(request.graph.ops[i].seconds if timed else 1 for i in schedule)
    once = sum(op.seconds if timed else 1 for op in request.graph.ops)
    assert cost == pytest.approx(total - once)


def test_an_op_is_computed_three_times_where_that_takes_the_least_memory():
    graph = chain(7, reads="input")
    request = Request.of(graph, "any", None)
    schedule = list(range(7))
    for back in range(7):  # x0 to x5 once more for each gradient: O(1) of activations
        schedule += [*range(6 - back), 7 + back]
    schedule += range(14, len(graph.ops))
    plan = request.scheduled(schedule)
    validate(graph, plan)
    assert plan.peak_bytes < request.scheduled(range(len(graph.ops))).peak_bytes


def a_step() -> Request:
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("w", 64, "parameter"),
        Tensor("y", 64, "activation"),
        Tensor("loss", 64, "output"),
        Tensor("g", 64, "gradient"),
        Tensor("w2", 64, "parameter"),
    )
    ops = (
        Op("mul", "mul", "forward", (0, 1), (2,)),
        Op("sum", "sum", "forward", (2,), (3,)),
        Op("grad", "grad", "backward", (0, 2), (4,)),
        Op("sgd", "sgd", "update", (1, 4), (5,), in_place=((1, 5),)),
    )
    graph = Graph("g", tensors, ops, keep=(3,), losses=(3,))
    return Request.of(graph, "any", None)


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        ([0, 1, 2, 3], None),
        ([0, 1, 0, 2, 3], None),
        ([0, 2, 1, 3], None),
        ([0, 1, 4], "there is no op 4"),
        ([0, -1], "there is no op -1"),
        ([0, 1, 1, 2, 3], "op 1 may not be computed again, at place 2"),
        ([0, 1, 2, 3, 3], "op 3 may not be computed again, at place 4"),
        ([1, 0, 2, 3], "op 1 reads tensor 2 at place 0, which was not computed yet"),
        ([0, 1, 2, 3, 0], "op 0 reads tensor 1 at place 4, after its update"),
        ([0, 2, 3, 1], "op 3 is an update at place 2, before the forward phase has"),
        ([0, 1, 2], "op 3 is never computed"),
        ([], "op 0 is never computed"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_told(schedule, fault):
    request = a_step()
    found = request.step.fault(schedule)
    if fault is None:
        assert found is None
        validate(request.graph, request.scheduled(schedule))
    else:
        assert found is not None
        assert found.startswith(fault)
        with pytest.raises(ValueError, match="graph 'g': "):
            request.scheduled(schedule)
