"""Schedules of ops, copies and encodings: random ones are plans of their clock."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_oracle import check
from training_graphs import chain, random_step

from memcfg.graph import Tier
from memcfg.plan import simulate, validate
from memcfg.plan._clock import clock
from memcfg.plan._lifetimes import Request
from memcfg.plan._tensor_moves import (
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


class Walk:
    """A legal schedule made by chance: whatever is read is there when it is."""

    def __init__(self, request, chance):
        self.graph = request.graph
        self.repeatable = request.repeatable
        self.chance = chance
        self.there = {*self.graph.persistent}
        self.fixed = {*self.graph.persistent, *self.graph.keep, *self.graph.losses}
        self.away = {}  # tensor -> "tier", "codec" or "dropped"
        self.leaving = []
        self.copied = set()
        self.events = []
        self.updated = False
        self.left = {t: len(r) for t, r in enumerate(self.graph.consumers)}

    def walk(self):
        for index in range(len(self.graph.ops)):
            self.compute(index)
            for tensor in self.graph.ops[index].inputs:
                self.left[tensor] -= 1
            self.move()
        self.end_copies(1.0)
        for tensor, how in [*self.away.items()]:
            if how == "codec":
                self.bring(tensor)
        return self.events

    def compute(self, index):
        op = self.graph.ops[index]
        wanted = set(op.inputs)
        if op.phase == "update":  # of what those read that are computed again
            self.updated = True
            wanted.update(t for t, how in self.away.items() if how == "dropped")
        for tensor in sorted(wanted):
            self.bring(tensor)
        self.events.append(Run(index))
        self.there.update(op.outputs)

    def bring(self, tensor):
        how = self.away.pop(tensor, None)
        if how == "tier":
            self.events.append(Return(tensor))
            if self.chance.random() < 0.5:
                self.events.append(Returned(tensor))
        elif how == "codec":
            self.events.append(Unpack(tensor))
        elif how == "dropped":
            self.compute(self.graph.producer[tensor])
        self.there.add(tensor)

    def move(self):
        self.end_copies(0.5)
        for tensor in sorted(self.there - self.fixed):
            if not self.left[tensor] or self.chance.random() > 0.3:
                continue
            if tensor in self.leaving:
                continue
            maker = self.graph.producer[tensor]
            how = self.chance.choice(["tier", "codec", "dropped"])
            if how == "dropped" and (
                self.updated
                or maker not in self.repeatable
                or len(self.graph.ops[maker].outputs) > 1
            ):
                continue
            if how == "tier":
                if tensor in self.copied:
                    continue
                self.copied.add(tensor)
                self.events.append(Leave(tensor, *self.lane_codec(tensor)))
                self.leaving.append(tensor)
                continue
            if how == "codec":
                self.events.append(Pack(tensor, "zvc", *self.room(tensor)))
            self.there.remove(tensor)
            self.away[tensor] = how

    def lane_codec(self, tensor):
        size = self.graph.tensors[tensor].nbytes
        if self.chance.random() < 0.5:
            return ()
        return "csr", self.chance.randint(1, size + 64)

    def room(self, tensor):
        """Bytes for what is encoded, and whether it may overflow."""
        size = self.graph.tensors[tensor].nbytes
        if self.chance.random() < 0.5:
            return (size + 64,)
        return self.chance.randint(64, size + 64), True

    def end_copies(self, chance):
        for tensor in [*self.leaving]:
            if self.chance.random() <= chance:
                self.leaving.remove(tensor)
                self.events.append(Left(tensor))
                self.there.discard(tensor)
                self.away[tensor] = "tier"


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
