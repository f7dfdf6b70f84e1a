"""Copies beside a schedule: bytes and seconds are those of the plan that is made."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import random_step

from memcfg.graph import Tier
from memcfg.plan import validate
from memcfg.plan.search import (
    EndSwapOut,
    Entry,
    Request,
    Run,
    StartSwapIn,
    StartSwapOut,
    Swaps,
    Trace,
    clock,
    least_load,
    plan_events,
    with_tiers_told,
)
from memcfg.units import align_up


def traced(request):
    graph = request.graph
    trace = Trace(graph, [Entry(n, n) for n in range(len(graph.ops))])
    return trace, [align_up(op.scratch_bytes) for op in graph.ops]


def swaps_of(request, chance, share, *, beside=False, slack=2.0):
    trace, scratch = traced(request)
    gaps = [gap for gap in trace.gaps() if chance.random() < share]
    runs = [Run(n) for n in range(len(request.graph.ops))]
    seconds = [op.seconds for op in request.graph.ops]
    codes = {
        tensor: StartSwapOut(tensor, "zvc", nbytes // 2 + 64)
        for tensor in map(trace.tensor, gaps)
        if beside and (nbytes := request.graph.tensors[tensor].nbytes) % 3
    }
    return Swaps(
        *(trace, runs, seconds, scratch, gaps), beside=beside, slack=slack, codes=codes
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 16), st.integers(0, 10))
def test_loads_are_those_of_the_plan(seed, ops, share):
    """With every copy waited for at once, and back when it is needed."""
    graph = replace(random_step(seed, ops), tiers=(Tier("host", 1e3),))
    request = Request.of(graph, "walk", None)
    swaps = swaps_of(request, random.Random(seed), share / 10)
    lowest = swaps.lowest
    walked = swaps.walk(max(lowest))
    assert max(walked.loads) == max(lowest[: len(walked.loads)])
    load = least_load(request, walked.events)
    assert load <= max(lowest)
    if not walked.stalls:
        assert load == max(lowest)
    assert clock(request.graph, walked.events).elapsed_seconds <= walked.seconds + 1e-9


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 16),
    st.floats(0, 7),
    st.integers(100, 200),
    st.booleans(),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([None, 640, 2560]),
)
def test_goals_hold(seed, ops, power, percent, beside, slack, near):
    tiers = (Tier("host", 10**power, near), Tier("file", 10 ** (power / 2)))
    graph = replace(random_step(seed, ops), tiers=tiers[: 1 if near is None else 2])
    request = Request.of(graph, "walk", None)
    swaps = swaps_of(request, random.Random(seed), 0.6, beside=beside, slack=slack)
    lowest = swaps.lowest
    goal = max(lowest) * percent // 100
    on_demand = swaps.walk(goal)
    arrives = swaps.on_time(goal, on_demand.loads)
    walked = swaps.walk(goal, arrives)
    for found in (on_demand, walked):
        assert max(found.loads) <= goal
        assert least_load(request, found.events) <= goal
        if as_thought(request.graph, found.events):
            told = clock(request.graph, found.events)
            assert told.elapsed_seconds <= found.seconds + 1e-9
        validate(graph, plan_events(request, found.events))


def as_thought(graph, events):
    """Whether copies go where a walk had them."""
    told = with_tiers_told(graph, events)
    return [*events] == [*told]


def test_most_copies_go_where_walks_have_them():
    tiers = (Tier("host", 1e3, 640), Tier("file", 1e2))
    right = 0
    for seed in range(40):
        graph = replace(random_step(seed, 10), tiers=tiers)
        request = Request.of(graph, "walk", None)
        swaps = swaps_of(request, random.Random(seed), 0.6)
        walked = swaps.walk(2 * max(swaps.lowest))
        used = {each.tier for each in walked.events if isinstance(each, StartSwapOut)}
        right += as_thought(request.graph, walked.events) and len(used) == 2
    assert right >= 10


def test_nothing_away_is_the_schedule_itself():
    graph = random_step(3, 6)
    trace, scratch = traced(Request.of(graph, "walk", None))
    request = Request.of(graph, "walk", None)
    runs = [Run(n) for n in range(len(graph.ops))]
    assert max(trace.loads(scratch)) == least_load(request, runs)


def brute_force(request, trace, gaps):
    """The least bytes in use of all choices of gaps, by the schedules themselves."""
    places = range(len(trace.entries))
    loads = []
    for chosen in product((False, True), repeat=len(gaps)):
        away = [gap for gap, is_away in zip(gaps, chosen, strict=True) if is_away]
        first = {gap.value: gap for gap in reversed(away)}
        events = []
        for place in places:
            for gap in first.values():
                if gap.after + 1 == place:
                    tensor = trace.values[gap.value].tensor
                    events += [StartSwapOut(tensor), EndSwapOut(tensor)]
            events += [
                StartSwapIn(trace.values[gap.value].tensor)
                for gap in away
                if gap.back == place
            ]
            events.append(Run(place))
        loads.append(least_load(request, events))
    return min(loads)


def test_nothing_has_fewer_bytes_in_use_than_all_that_may_be_away():
    compared = 0
    for seed in range(60):
        graph = replace(random_step(seed, 4), tiers=(Tier("host", 1e9),))
        request = Request.of(graph, "walk", None)
        trace, scratch = traced(request)
        gaps = trace.gaps()
        if not 2 <= len(gaps) <= 7:
            continue
        everything = Swaps(trace, (), (), scratch, gaps)
        assert max(everything.lowest) == brute_force(request, trace, gaps)
        compared += 1
    assert compared >= 10


def test_a_copy_that_is_on_its_way_when_it_is_needed_never_left():
    graph = replace(random_step(3, 6), tiers=(Tier("host", 1e-3),))
    request = Request.of(graph, "walk", None)
    trace, scratch = traced(request)
    first = {gap.value: gap for gap in reversed(trace.gaps())}
    runs = [Run(n) for n in range(len(graph.ops))]
    seconds = [op.seconds for op in graph.ops]
    walked = Swaps(trace, runs, seconds, scratch, first.values()).walk(10**9)
    assert len(first) > 2
    assert walked.seconds == pytest.approx(sum(op.seconds for op in graph.ops))
