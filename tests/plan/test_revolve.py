from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import chain, random_step

from memcfg.errors import InfeasiblePlanError
from memcfg.plan import Compute, chen_recursive, revolve, share, validate
from memcfg.plan.methods import hidden_table, revolve_forwards, revolve_moves
from memcfg.plan.methods._revolve import repetitions
from memcfg.plan.search import Do


def test_the_closed_form_is_the_optimum_of_the_recurrence():
    """Hidden states of equal cells are checkpoints of a uniform chain."""
    table = hidden_table(100, 40).steps
    for count, slots in itertools.product(range(1, 101), range(1, 41)):
        assert revolve_forwards(count, slots) == table[slots, count]
        moves = revolve_moves(count, slots)
        assert sum(do is not Do.BACKWARD for do, _ in moves) == table[slots, count]


def test_repetitions_are_binomial():
    assert repetitions(math.comb(10, 3), 3) == 7
    assert repetitions(math.comb(10, 3) + 1, 3) == 8
    assert repetitions(1, 5) == 0


@given(count=st.integers(1, 30), slots=st.integers(1, 12))
def test_no_more_checkpoints_than_slots_are_held(count, slots):
    moves = revolve_moves(count, slots)
    there = {-1}
    for place, (do, stage) in enumerate(moves):
        if do is Do.BACKWARD:
            continue
        assert stage - 1 in there
        there.add(stage)
        ahead = moves[place + 1 :]
        left = [s for d, s in ahead if d is Do.BACKWARD]
        there = {
            s for s in there if s == stage or (s + 1 in left and is_read(s, ahead))
        }
        assert sum(s != stage for s in there) <= slots
    assert [s for do, s in moves if do is Do.BACKWARD] == [*reversed(range(count))]


def is_read(end: int, moves) -> bool:
    for do, stage in moves:
        if do is not Do.BACKWARD and stage == end + 1:
            return True
        if do is not Do.BACKWARD and stage == end:
            return False
    return False


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 24))
def test_plans_of_random_steps_are_valid(seed, ops):
    graph = random_step(seed, ops)
    plan = revolve()(graph)
    validate(graph, plan)
    with pytest.raises(InfeasiblePlanError) as refusal:
        revolve()(graph, plan.peak_bytes - 1)
    assert refusal.value.smallest_limit_bytes == plan.peak_bytes


def test_a_uniform_chain_takes_the_binomial_steps():
    graph = chain(100, reads="both")
    least = revolve()(graph)
    assert least.peak_bytes <= chen_recursive()(graph).peak_bytes
    costs = []
    for limit in range(least.peak_bytes, share()(graph).peak_bytes + 1, 640):
        plan = revolve()(graph, limit)
        validate(graph, plan)
        ops = [a.op for a in plan.actions if isinstance(a, Compute)]
        costs.append(sum(graph.ops[op].phase == "forward" for op in ops))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] <= 200
