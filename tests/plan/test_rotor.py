from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import chain, random_step

from memcfg._core.search import ChainTable
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import revolve, rotor, share, validate
from memcfg.plan.methods import hidden_table
from memcfg.plan.methods._rotor import Stage, chain_moves, in_slots
from memcfg.plan.search import Do


def successors(stages, slots: int, state):
    """What can be done in a state within the slots, and what it costs.

    A state: the ends of stages that are kept, whole stages that are, the end that was
    just made, and how many stages are left to go backward. What is kept stays until
    it is read backward.
    """
    ends, wholes, here, left = state
    top = left - 1
    stored = sum(stages[e].crossing for e in ends)
    stored += sum(stages[w].kept for w in wholes)
    if top in wholes and stored + stages[top].backward <= slots:
        yield 0.0, (frozenset(e for e in ends if e < top - 1), wholes - {top}, -1, top)
    for end in {-1, *ends, *wholes, here}:
        stage = end + 1
        if stage > top or stage in wholes:
            continue
        loose = end >= 0 and end not in ends and end not in wholes
        used = stored + stages[stage].forward + stages[top].gradient
        used += stages[end].crossing if loose else 0
        kept = ends | {end} if loose else ends
        cost = stages[stage].cost
        if stage < top and used + stages[stage].crossing <= slots:
            yield cost, (ends, wholes, stage, left)  # what was just made is dropped
            yield cost, (kept, wholes, stage, left)
        if used + stages[stage].kept <= slots:
            yield cost, (kept, wholes | {stage}, stage, left)


def least_cost(stages, slots: int) -> float:
    """Search all schedules for the cheapest."""
    tie = itertools.count()
    start = (frozenset(), frozenset(), -1, len(stages))
    heap = [(0.0, next(tie), start)]
    seen = set()
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state[-1] == 0:
            return cost
        if state in seen:
            continue
        seen.add(state)
        for more, after in successors(stages, slots, state):
            heapq.heappush(heap, (cost + more, next(tie), after))
    return math.inf


def some_stages(seed: int, count: int) -> list[Stage]:
    chance = random.Random(seed)
    stages = []
    for _ in range(count):
        crossing = chance.randint(1, 3)
        kept = crossing + chance.randint(0, 3)
        stages.append(
            Stage(chance.randint(1, 5), crossing, kept, 0, chance.randint(0, 2), 0)
        )
    return stages


@pytest.mark.parametrize("seed", range(30))
def test_the_table_is_the_optimum_of_all_schedules(seed):
    stages = some_stages(seed, 1 + seed % 5)
    most = sum(stage.kept for stage in stages) + 2
    table = ChainTable(stages, most)
    for slots in range(most + 1):
        assert table.cost(0, len(stages) - 1, slots) == least_cost(stages, slots)


def test_equal_stages_cost_no_more_than_binomial_checkpoints():
    """A hidden table has a slot for the first state; here two are for what runs."""
    stages = [Stage(1.0, 1, 1, 0, 0, 0)] * 40
    table = ChainTable(stages, 41)
    assert table.cost(0, 39, 40) == 40
    for slots in range(2, 41):
        least = hidden_table(40, slots).steps[slots, 40]
        assert table.cost(0, 39, slots + 1) <= least


@given(seed=st.integers(0, 10**6), count=st.integers(1, 12))
def test_a_schedule_costs_what_its_table_says_within_its_slots(seed, count):
    stages = some_stages(seed, count)
    most = sum(stage.kept for stage in stages) + 2
    table = ChainTable(stages, most)
    costs = [table.cost(0, count - 1, slots) for slots in range(most + 1)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == sum(stage.cost for stage in stages)
    for slots, cost in enumerate(costs):
        if math.isinf(cost):
            continue
        moves = chain_moves(table, stages, slots)
        forwards = [stage for do, stage in moves if do is not Do.BACKWARD]
        assert sum(stages[stage].cost for stage in forwards) == cost
        backward = [stage for do, stage in moves if do is Do.BACKWARD]
        assert backward == [*reversed(range(count))]


def test_sizes_are_rounded_up_to_slots():
    stages = [Stage(1.0, 10, 30, 0, 5, 0), Stage(2.0, 11, 60, 5, 0, 10)]
    assert in_slots(stages, 10) == [
        Stage(1.0, 1, 3, 0, 1, 0),
        Stage(2.0, 2, 6, 1, 0, 1),
    ]


def test_tables_refuse_what_is_no_chain():
    with pytest.raises(ValueError, match="a chain of 0 stages"):
        ChainTable([], 4)
    with pytest.raises(ValueError, match="not negative"):
        ChainTable([Stage(1.0, -1, 0, 0, 0, 0)], 4)
    with pytest.raises(ValueError, match="not negative"):
        ChainTable([Stage(1.0, 1, 1, 0, 0, 0)], -1)
    table = ChainTable([Stage(1.0, 1, 1, 0, 0, 0)], 4)
    assert table.choice(0, 0, 0) == -1
    for place in ((1, 1, 0), (0, 1, 0), (0, 0, 5)):
        with pytest.raises(IndexError):
            table.cost(*place)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 20))
def test_plans_of_random_steps_are_valid(seed, ops):
    graph = random_step(seed, ops)
    plan = rotor()(graph)
    validate(graph, plan)
    with pytest.raises(InfeasiblePlanError) as refusal:
        rotor()(graph, plan.peak_bytes - 1)
    assert refusal.value.smallest_limit_bytes == plan.peak_bytes


def test_a_chain_takes_no_more_work_than_by_revolve():
    graph = chain(64, reads="both")
    least = revolve()(graph).peak_bytes
    costs = []
    for limit in range(least, share()(graph).peak_bytes + 1, 64 * 8):
        plan = rotor()(graph, limit)
        validate(graph, plan)
        costs.append(plan.predicted.recompute_seconds)
        assert costs[-1] <= revolve()(graph, limit).predicted.recompute_seconds
    assert costs == sorted(costs, reverse=True)


def test_what_is_expensive_is_kept():
    """Of two equal halves the one that costs more is computed once."""
    cheap = [Stage(1.0, 1, 2, 0, 0, 0)] * 4
    dear = [Stage(9.0, 1, 2, 0, 0, 0)] * 4
    stages = [*cheap, *dear]
    table = ChainTable(stages, 16)
    moves = chain_moves(table, stages, 12)
    again = [s for do, s in moves if do is not Do.BACKWARD]
    assert all(again.count(stage) == 1 for stage in range(4, 8))
    assert table.cost(0, 7, 12) <= 40 + 4
