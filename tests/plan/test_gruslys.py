from __future__ import annotations

import functools
import itertools
import math

import pytest
from recurrent_graphs import unrolled
from training_graphs import chain

from memcfg import nn
from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.plan import (
    bptt_hidden,
    bptt_internal,
    bptt_mixed,
    share,
    validate,
)
from memcfg.plan.methods import hidden_table, internal_table, mixed_table, table_moves
from memcfg.plan.search import Chain, Do, Request

SLOTS = (1, 2, 3, 4, 5, 8, 10)
GOLDEN = {
    4: ((10, 8, 7, 7, 7, 7, 7), (10, 6, 5, 4, 4, 4, 4)),
    10: ((55, 30, 25, 24, 23, 20, 19), (55, 24, 18, 16, 15, 12, 10)),
    32: ((528, 172, 125, 107, 100, 86, 84), (528, 147, 97, 78, 71, 56, 54)),
    100: ((5050, 945, 590, 474, 416, 345, 322), (5050, 858, 497, 379, 320, 248, 225)),
}
METHODS = (bptt_hidden(), bptt_internal(), bptt_mixed())
by_name = pytest.mark.parametrize("policy", METHODS, ids=lambda p: p.name)


@pytest.mark.parametrize("cells", GOLDEN)
def test_tables_have_the_published_recurrences_values(cells):
    hidden, internal = GOLDEN[cells]
    assert [hidden_table(cells, 10).steps[m, cells] for m in SLOTS] == [*hidden]
    assert [internal_table(cells, 10).steps[m, cells] for m in SLOTS] == [*internal]


def test_a_thousand_cells_with_a_twentieth_of_the_memory_take_a_third_more_time():
    hidden = hidden_table(1000, 50).steps[:, 1000]
    internal = internal_table(1000, 50).steps[:, 1000]
    slots = (5, 10, 20, 32, 50)
    assert [hidden[m] for m in slots] == [7284, 4636, 3747, 3405, 2948]
    assert [internal[m] for m in slots] == [6292, 3640, 2750, 2408, 1950]
    assert (internal[50] + 2000) / 3000 == pytest.approx(1.317, abs=5e-4)
    assert all(hidden[m] <= m * 1000 ** (1 + 1 / m) for m in range(1, 51))


@functools.cache
def hidden_steps(t: int, m: int) -> float:
    """HSM as it is written in the paper."""
    if m == 0:
        return math.inf
    if t == 1:
        return 1
    if m == 1:
        return t * (t + 1) / 2
    return min(y + hidden_steps(t - y, m - 1) + hidden_steps(y, m) for y in range(1, t))


@functools.cache
def internal_steps(t: int, m: int) -> float:
    """ISM as it is written in the paper."""
    if t == 0:
        return 0
    if m == 0:
        return math.inf
    return min(
        y + internal_steps(t - y, m - 1) + internal_steps(y - 1, m)
        for y in range(1, t + 1)
    )


def test_tables_are_the_recurrences():
    hidden, internal = hidden_table(40, 12), internal_table(40, 12)
    for t, m in itertools.product(range(1, 41), range(13)):
        assert hidden.steps[m, t] == hidden_steps(t, m)
        assert internal.steps[m, t] == internal_steps(t, m)


@pytest.mark.parametrize("inside", [1, 2, 10])
def test_mixed_is_never_worse_than_either(inside):
    mixed = mixed_table(80, 60, inside).steps
    hidden, internal = hidden_table(80, 60).steps, internal_table(80, 60).steps
    for t, m in itertools.product(range(1, 81), range(1, 61)):
        assert mixed[m, t] <= min(hidden[m, t], internal[m // inside, t])


def most_slots(moves, *, hidden: int, internal: int) -> int:
    """Follow a schedule: what is there when it is needed, and the most slots."""
    moves = [*moves]
    states, insides = {-1}, set()  # ends of cells; cells
    most = 0
    for place, (do, cell) in enumerate(moves):
        if do is Do.BACKWARD:
            assert cell in insides
            insides.discard(cell)
            states = {end for end in states if end < cell}
            continue
        assert cell - 1 in states
        states.add(cell)
        if do is Do.COMPUTE:
            insides.add(cell)
        ahead = moves[place + 1 :]
        states = {s for s in states if s == cell or is_read(s, ahead)}
        stored = sum(s != cell and s not in insides for s in states)
        kept = sum((Do.BACKWARD, c) != ahead[0] for c in insides)
        most = max(most, stored * hidden + kept * internal)
    return most


def is_read(state: int, moves) -> bool:
    """Whether a state is read before its cell runs again."""
    for do, cell in moves:
        if do is not Do.BACKWARD and cell == state + 1:
            return True
        if do is not Do.BACKWARD and cell == state:
            return False
    return False


@pytest.mark.parametrize("cells", [1, 2, 7, 24])
@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, 12])
def test_a_schedule_takes_its_tables_steps_and_slots(cells, slots):
    for table, hidden, internal in (
        (hidden_table(cells, slots), 1, 0),
        (internal_table(cells, slots), 0, 1),
        (mixed_table(cells, slots, 3), 1, 3),
    ):
        moves = table_moves(table, cells, slots)
        forwards = sum(do is not Do.BACKWARD for do, _ in moves)
        assert forwards == table.steps[slots, cells]
        backwards = [cell for do, cell in moves if do is Do.BACKWARD]
        assert backwards == list(reversed(range(cells)))
        assert most_slots(moves, hidden=hidden, internal=internal) <= slots


def stages_of(graph):
    """What is before the cells, each cell, and the rest of the forward phase."""
    forward = [n for n, op in enumerate(graph.ops) if op.phase == "forward"]
    cells = [n for n in forward if graph.ops[n].type == "cell"]
    others = [n for n in forward if n not in cells]
    before = [n for n in others if n < cells[0]]
    return [before, *([n] for n in cells), [n for n in others if n > cells[-1]]]


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (hidden_table, {2: 440, 3: 294, 5: 216, 8: 185, 12: 166}),
        (internal_table, {2: 390, 3: 240, 5: 160, 8: 128, 12: 108}),
    ],
)
def test_a_plan_runs_exactly_as_many_cells_as_its_table_says(make, steps):
    graph = unrolled(60)
    request = Request.of(graph, "", None)
    chain_ = Chain(request, stages_of(graph))
    for slots, expected in steps.items():
        sequence = chain_.sequence(table_moves(make(60, slots), 60, slots))
        assert sum(graph.ops[op].type == "cell" for op in sequence) == expected
        plan = request.scheduled(sequence)
        validate(graph, plan)
        inside = slots if make is internal_table else 1
        # Slots, what runs, its gradients, and the state before the first cell.
        assert plan.peak_bytes <= 64 * (11 * inside + (slots + 1) + 16)


@by_name
def test_less_memory_than_sharing_and_never_more_work_with_more(policy, tenths):
    graph = unrolled(60)
    most = share()(graph).peak_bytes
    least = policy(graph).peak_bytes
    assert least < most / 20
    costs = []
    for limit in range(least, most + 1, 64 * (100 if tenths == 10 else 400)):
        plan = policy(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        costs.append(plan.predicted.recompute_seconds)
    assert costs == sorted(costs, reverse=True)
    with pytest.raises(InfeasiblePlanError) as refusal:
        policy(graph, least - 1)
    assert refusal.value.smallest_limit_bytes == least


def test_mixed_slots_take_about_the_least_work_of_the_three():
    graph = unrolled(60)
    for limit in (4_000, 16_000):
        costs = [p(graph, limit).predicted.recompute_seconds for p in METHODS]
        assert costs[2] <= 1.1 * min(costs[:2])
        assert costs[2] < max(costs[:2])


@by_name
def test_a_graph_without_repeated_cells_is_refused(policy):
    with pytest.raises(GraphError, match="no repeated cells"):
        policy(chain(10))
    with pytest.raises(GraphError, match="no repeated cells"):
        policy(unrolled(2))
    validate(unrolled(3), policy(unrolled(3)))


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("policy", [bptt_hidden(), bptt_internal(), bptt_mixed()])
def test_unrolled_layers_are_nets_of_cells(layer, policy):
    """The last cell of an LSTM has other ops than those before it."""
    nn.set_random_seed(0)
    model = nn.Sequential(
        [nn.Input((9, 4)), getattr(nn, layer)(8, unroll=True), nn.Dense(3)]
    )
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, memory=share())
    graph = model.graph(4)
    model.close()
    plan = policy(graph)
    validate(graph, plan)
    assert plan.predicted.recompute_seconds > 0
    assert plan.peak_bytes < share()(graph).peak_bytes
