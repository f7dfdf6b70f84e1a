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

from memcfg.graph import Graph, Op, Tensor, Tier
from memcfg.plan import simulate, validate
from memcfg.plan.search import (
    EndSwapIn,
    EndSwapOut,
    Pack,
    Request,
    Run,
    StartSwapIn,
    StartSwapOut,
    Unpack,
    clock,
    least_load,
    plan_events,
)

KEPT_BESIDE = (("dropped", 2**11), ("kept", 64), ("made", 64))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 14), st.sampled_from([0.0, 0.5]))
def test_any_legal_schedule_is_a_valid_plan(seed, ops, kept):
    graph = replace(random_step(seed, ops, kept=kept), tiers=(Tier("host", 1e6),))
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
        kinds.update("coded" for e in events if isinstance(e, StartSwapOut) and e.codec)
        kinds.update("overflow" for e in events if isinstance(e, Pack) and e.overflows)
    assert kinds == {
        *(Run, StartSwapOut, EndSwapOut, StartSwapIn, EndSwapIn, Pack, Unpack),
        *("again", "coded", "overflow"),
    }


def test_a_kept_output_is_what_its_op_made_last():
    tensors = [
        Tensor("x", 64, "input"),
        *(Tensor(name, nbytes, "activation") for name, nbytes in KEPT_BESIDE),
        Tensor("end", 64, "activation"),
    ]
    ops = (
        Op("split", "split", "forward", (0,), (1, 2)),
        Op("between", "f", "forward", (2,), (3,), scratch_bytes=2**12),
        Op("end", "f", "forward", (1, 3), (4,)),
    )
    graph = Graph("kept beside", tuple(tensors), ops, (2, 4))
    request = Request.of(graph, "chance", None)
    plan = plan_events(request, [Run(0), Run(1), Run(0), Run(2)])
    validate(graph, plan)
    check(graph, plan)
    assert plan.peak_bytes == 2**12 + 3 * 64  # amid "between": x, kept and made


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([Run(0), StartSwapOut(1), EndSwapOut(1), Run(1)], "'x1' is not resident"),
        ([Run(0), Pack(1, "zvc", 128), Run(1)], "'x1' is not resident"),
        ([Run(0), StartSwapOut(1), StartSwapIn(1)], "'x1' is resident again before"),
        ([Run(0), StartSwapOut(1)], "'x1' is still away at the end"),
        ([Run(0), Pack(1, "zvc", 128)], "'x1' is still away at the end"),
    ],
)
def test_what_is_not_there_is_not_read(events, told):
    request = Request.of(chain(3), "chance", None)
    with pytest.raises(ValueError, match=told):
        plan_events(request, events)
