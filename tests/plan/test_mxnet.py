from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import random_step

from memcfg.commands._tasks import Task
from memcfg.plan import Compute, keep_all, mxnet, share, validate
from memcfg.plan._mxnet import Life, co_share


def test_free_buffers_are_taken_by_size():
    lives = [Life(0, 1, 100), Life(0, 1, 40), Life(2, 3, 50), Life(2, 3, 30)]
    assert co_share(lives, 1).sizes == [100, 40, 50, 30]
    found = co_share(lives, 2)
    assert found.buffer == [0, 1, 0, 1]  # the larger of two first, in what is enough
    assert found.sizes == [100, 40]
    assert found.total == 140
    grown = co_share([Life(0, 1, 40), Life(2, 3, 60)], 2)
    assert (grown.buffer, grown.sizes) == ([0, 0], [60])
    alone = co_share([Life(-1, 1, 40), Life(2, 3, 40)], 16)
    assert alone.sizes == [40, 40]


def test_what_ends_where_something_begins_is_not_free_yet():
    assert co_share([Life(0, 1, 64), Life(1, 2, 64)], 1).sizes == [64, 64]
    assert co_share([Life(0, 0, 64), Life(1, 2, 64)], 1).sizes == [64]


@given(
    drawn=st.lists(
        st.tuples(st.integers(-1, 8), st.integers(0, 8), st.integers(1, 300)),
        max_size=30,
    ),
    match=st.sampled_from([1, 2, 4, 16]),
)
def test_lives_at_one_time_never_share(drawn, match):
    lives = [Life(begin, max(begin, 0) + more, size) for begin, more, size in drawn]
    found = co_share(lives, match)
    assert found.total <= sum(life.size for life in lives)
    for i, a in enumerate(lives):
        assert a.size <= found.sizes[found.buffer[i]]
        for j, b in enumerate(lives[:i]):
            if found.buffer[i] == found.buffer[j]:
                assert a.end < b.begin or b.end < a.begin


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 24))
def test_plans_of_random_steps_are_valid(seed, ops):
    graph = random_step(seed, ops)
    plan = mxnet()(graph)
    validate(graph, plan)
    assert len(graph.ops) == sum(isinstance(a, Compute) for a in plan.actions)


@pytest.mark.parametrize("network", ["vgg16", "inception_v3", "resnet50"])
def test_training_takes_half_as_the_paper_says(network):
    """Of what is no parameter, input or state of an optimizer."""
    graph = Task(network, 4).graph()
    state = sum(graph.tensors[t].nbytes for t in graph.persistent)
    plans = [policy(graph) for policy in (keep_all(), mxnet(), share())]
    validate(graph, plans[1])
    inside = [plan.peak_bytes - state for plan in plans]
    assert inside[0] >= 2 * inside[1]
    assert inside[1] >= inside[2]
