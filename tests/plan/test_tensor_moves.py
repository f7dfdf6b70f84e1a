"""Schedules of ops, copies and encodings: random ones are plans of their clock."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_oracle import check
from random_schedules import Walk
from training_graphs import chain, random_step

from memcfg.graph import Tier
from memcfg.plan import simulate, validate
from memcfg.plan.search._clock import clock
from memcfg.plan.search._lifetimes import Request
from memcfg.plan.search._tensor_moves import (
    Leave,
    Left,
    Pack,
    Return,
    Returned,
    Run,
    Unpack,
    least_load,
    plan_events,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 14))
def test_any_legal_schedule_is_a_valid_plan(seed, ops):
    graph = replace(random_step(seed, ops), tiers=(Tier("host", 1e6),))
    request = Request.of(graph, "chance", None)
    events = Walk(request, random.Random(seed + 1)).walk()
    plan = plan_events(request, events)
    validate(graph, plan)
    check(graph, plan)
    assert least_load(request, events) <= plan.peak_bytes
    told = clock(request.graph, events)
    assert told.elapsed_seconds == pytest.approx(plan.elapsed_seconds, abs=1e-12)
    assert "codecs" in str(plan) or not plan.predicted.codec_seconds
    found = simulate(graph, plan, {"host": 1e6})
    assert told.elapsed_seconds == pytest.approx(found.elapsed_seconds, abs=1e-12)
    assert told.stall_seconds == pytest.approx(
        max(each.end for each in found.schedule if each.queue == "compute")
        - found.seconds
        - found.codec_seconds,
        abs=1e-12,
    )


def test_chance_makes_actions_of_all_kinds():
    kinds = set()
    for seed in range(40):
        request = Request.of(random_step(seed, 10), "chance", None)
        events = Walk(request, random.Random(seed)).walk()
        runs = [event.op for event in events if isinstance(event, Run)]
        kinds.update(type(event) for event in events)
        if len(runs) > len(set(runs)):
            kinds.add("again")
        kinds.update("coded" for e in events if isinstance(e, Leave) and e.codec)
        kinds.update("overflow" for e in events if isinstance(e, Pack) and e.overflows)
    assert kinds == {
        *(Run, Leave, Left, Return, Returned, Pack, Unpack),
        *("again", "coded", "overflow"),
    }


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([Run(0), Leave(1), Left(1), Run(1)], "'x1' is not there"),
        ([Run(0), Pack(1, "zvc", 128), Run(1)], "'x1' is not there"),
        ([Run(0), Leave(1), Return(1)], "'x1' is there again before"),
        ([Run(0), Leave(1)], "'x1' stays on its way"),
        ([Run(0), Pack(1, "zvc", 128)], "'x1' stays on its way"),
    ],
)
def test_what_is_not_there_is_not_read(events, told):
    request = Request.of(chain(3), "chance", None)
    with pytest.raises(ValueError, match=told):
        plan_events(request, events)
