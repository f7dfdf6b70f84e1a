"""Timelines of plans: the boxes are the plan's bytes, at the simulator's times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from data_parallel import Overlapping, data_parallel
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import chain, noisy
from swapping import Swapping
from timelines import alive, held, overlaps
from training_graphs import random_step, unit_chain

from memcfg import nn
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Builder
from memcfg.plan import (
    POLICIES,
    Compute,
    Start,
    SwapIn,
    auto,
    memory_timeline,
    share,
    simulate,
    sqrt_checkpoint,
)

SEEDS = st.integers(0, 2**32 - 1)
METHODS = ["share", "keep_all", "look_ahead", "out_of_core", "gist", "vdnn_all"]


def check(graph, plan):
    """Compare a timeline with the actions and with the simulator."""
    timeline = memory_timeline(graph, plan, bandwidth={"host": 1e4, "file": 3e3})
    expected = held(graph, plan)
    assert len(timeline.events) == len(expected) == len(timeline.planned) - 1
    for number, (event, used) in enumerate(zip(timeline.events, expected, strict=True)):
        boxes = alive(timeline, number)
        assert sorted((box.offset, box.nbytes) for box in boxes) == used
        assert event.live_bytes == sum(nbytes for _, nbytes in used)
    simulation = simulate(graph, plan, {"host": 1e4, "file": 3e3})
    computed = [
        (event.name, event.live_bytes)
        for event in timeline.events
        if event.kind in ("forward", "backward", "update")
    ]
    computes = [each for each in plan.actions if isinstance(each, Compute)]
    assert computed == [
        (graph.ops[op].name, nbytes)
        for action, (op, nbytes) in zip(computes, simulation.timeline, strict=True)
        if not isinstance(action, Start)
    ]
    ends = [box.offset + box.nbytes for box in timeline.boxes]
    assert max(ends) == plan.peak_bytes == timeline.peak_bytes
    assert overlaps(timeline.boxes) == []
    last = max([timeline.planned[-1], *(copy.planned[1] for copy in timeline.copies)])
    assert last == simulation.elapsed_seconds
    return timeline


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, tenths=st.integers(4, 10))
def test_boxes_are_the_bytes_of_the_plan(method, seed, tenths):
    graph = random_step(seed, 2 + seed % 11, kept=0.5 * (seed % 2))
    limit = share()(graph).peak_bytes * tenths // 10
    try:
        plan = POLICIES[method]()(graph, limit)
    except InfeasiblePlanError as refusal:
        plan = POLICIES[method]()(graph, refusal.smallest_limit_bytes)
    check(graph, plan)


@pytest.mark.parametrize(
    "policy",
    [
        Swapping(("host", "file"), early=1, late=3),
        Swapping(("csr", "rle", "host")),
        Swapping(("zvc", "host", "csr"), planned=0.3),
        Overlapping(Swapping()),
    ],
    ids=["copies", "codecs", "overflow", "collectives"],
)
def test_copies_codecs_and_collectives_are_on_lanes(policy):
    graph = data_parallel(chain(3, 1, 4, 2), "chain", 2, hoisted=False)
    if not isinstance(policy, Overlapping):
        graph = noisy(2, 1, 4, 2)
    plan = policy(graph)
    timeline = check(graph, plan)
    queues = [
        (each.queue, each.begin, each.end)
        for each in simulate(graph, plan, {"host": 1e4, "file": 3e3}).schedule
        if each.queue != "compute"
    ]
    assert [(c.queue, *c.planned) for c in timeline.copies] == queues


def test_arrows_lead_from_the_old_box_of_a_tensor_to_the_new_one():
    graph = chain(16, 1, 4, 2)
    plan = sqrt_checkpoint()(graph)
    timeline = memory_timeline(graph, plan)
    again = [event.name for event in timeline.events if event.again]
    assert again
    assert timeline.arrows
    for arrow in timeline.arrows:
        source, target = timeline.boxes[arrow.source], timeline.boxes[arrow.target]
        assert source.name == target.name
        assert source.end <= target.begin
        assert target.origin == arrow.kind == "recomputed"
        assert target.op in again
    swapping = Swapping(("host",))(noisy(2, 1, 4, 2))
    timeline = memory_timeline(noisy(2, 1, 4, 2), swapping)
    swaps = [arrow for arrow in timeline.arrows if arrow.kind == "swapped in"]
    assert len(swaps) == sum(isinstance(each, SwapIn) for each in swapping.actions)
    for arrow in swaps:
        out, back = (timeline.copies[index] for index in arrow.copies)
        assert (out.queue, back.queue) == ("host out", "host in")
        assert out.name == back.name == timeline.boxes[arrow.target].name
        assert (out.box, back.box) == (arrow.source, arrow.target)


def test_what_is_recomputed_in_place_is_recomputed():
    model = nn.Sequential(
        [nn.Input((8, 8, 2))]
        + [nn.Conv2D(2, 3, padding="same", activation="relu", name="first")]
        + [nn.Conv2D(2, 3, padding="same", activation="relu") for _ in range(7)]
        + [nn.GlobalAvgPool2D()]
    )
    model.compile("sgd", "mse", memory=sqrt_checkpoint())
    model.train_on_batch(np.zeros((4, 8, 8, 2)), np.zeros((4, 2)))
    timeline = model.memory_timeline()
    again = [event.name for event in timeline.events if event.again]
    back = [box for box in timeline.boxes if box.origin == "recomputed"]
    assert len(again) == 8
    assert sorted(box.op for box in back) == sorted(again)
    assert {box.name for box in back} >= {"first/relu", "first/conv2d"}
    assert [timeline.boxes[arrow.target] for arrow in timeline.arrows] == back


def test_a_box_knows_its_layer_its_line_and_its_op():
    builder = Builder("two layers")
    x = builder.tensor("x", (4, 4), role="input")
    w = builder.tensor("dense/kernel", (4, 4), role="parameter")
    builder.lines = {"dense": "train.py:7", "block": "train.py:9"}
    builder.group = "dense"
    (y,) = builder.apply("matmul", (x, w), name="dense/matmul")
    builder.group = "block/act"
    (z,) = builder.apply("relu", (y,), name="block/act/relu")
    graph = builder.build(keep=[z])
    boxes = {box.name: box for box in memory_timeline(graph, share()(graph)).boxes}
    assert boxes["dense/kernel"].layer == boxes["dense/matmul"].layer == "dense"
    assert boxes["dense/kernel"].origin == "before the step"
    assert boxes["dense/matmul"].line == "train.py:7"
    assert boxes["block/act/relu"].line == "train.py:9"  # of the layer around it
    assert boxes["block/act/relu"].op == "block/act/relu"
    assert boxes["block/act/relu"].form == "float32 (4, 4)"


def test_without_places_boxes_are_packed():
    graph = unit_chain(8)
    plan = replace(share()(graph), places=False)
    timeline = memory_timeline(graph, plan)
    assert overlaps(timeline.boxes) == []
    assert not timeline.has_places
    live = [event.live_bytes for event in timeline.events]
    assert live == [nbytes for _, nbytes in simulate(graph, plan).timeline]


def test_the_measured_step_is_one_of_the_plan():
    graph = unit_chain(4)
    plan = share()(graph)
    schedule = simulate(graph, plan).schedule
    slower = [replace(s, begin=2 * s.begin, end=2 * s.end) for s in schedule]
    timeline = memory_timeline(graph, plan, measured=slower)
    assert timeline.measured == tuple(2 * time for time in timeline.planned)
    with pytest.raises(ValueError, match="not one of this plan"):
        memory_timeline(graph, plan, measured=slower[1:])


def test_a_refused_limit_has_no_timeline_and_a_plan_of_auto_says_who_chose_it():
    graph = unit_chain(6)
    timeline = memory_timeline(graph, auto()(graph, None))
    assert timeline.facts["method"] == "share, chosen by auto"
    assert sum(isinstance(a, Compute) for a in auto()(graph, None).actions) == len(
        timeline.events
    )
