from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from training_graphs import chain

from memcfg.plan import Compute, chen_recursive, revolve, share, validate
from memcfg.plan.methods import hidden_table, revolve_forwards, revolve_moves
from memcfg.plan.search import Do


def test_the_closed_form_is_the_optimum_of_the_recurrence():
    """Hidden states of equal cells are checkpoints of a uniform chain."""
    table = hidden_table(100, 40).steps
    for count, slots in itertools.product(range(1, 101), range(1, 41)):
        assert revolve_forwards(count, slots) == table[slots, count]
        moves = revolve_moves(count, slots)
        assert sum(do is not Do.BACKWARD for do, _ in moves) == table[slots, count]


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
