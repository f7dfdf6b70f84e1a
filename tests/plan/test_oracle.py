"""What the judge accepts runs right, byte for byte."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_mutations import Mutator, claimed, with_collectives, with_statistics
from plan_oracle import WrongPlanError, check
from swapping import Swapping
from training_graphs import typed_step

from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Plan,
    Predicted,
    Start,
    SwapIn,
    SwapOut,
    Wait,
    auto,
    keep_all,
    look_ahead,
    overlap_collectives,
    replay_elementwise,
    share,
    sqrt_checkpoint,
    violations,
)

POLICIES = (
    *(keep_all(), share(), replay_elementwise(), sqrt_checkpoint()),
    *(look_ahead(), auto()),
    *(Swapping(), Swapping(("host", "file"), early=1, late=3)),
    *(Swapping(("host", "zvc"), early=4), Swapping(placed=False)),
)
SEEDS = st.integers(0, 2**32 - 1)


def planned(chance: random.Random) -> tuple[Graph, list[Plan]]:
    step = typed_step(chance.randrange(10**6), chance.randint(1, 5))
    graph = with_statistics(step, chance)
    return graph, [policy(graph) for policy in POLICIES]


def overlapped(chance: random.Random) -> tuple[Graph, list[Plan]]:
    """Plans of a step with collectives, and the same with collectives that overlap."""
    step = typed_step(chance.randrange(10**6), chance.randint(1, 5))
    graph = with_collectives(with_statistics(step, chance), chance)
    plans = [policy(graph) for policy in POLICIES]
    return graph, plans + [overlap_collectives(graph, plan) for plan in plans]


def run(seed: int, mutations: int, make=planned) -> int:
    """Try plans and mutations of one graph; the number that was accepted."""
    chance = random.Random(seed)
    graph, plans = make(chance)
    for plan in plans:
        assert violations(graph, plan) == []
        check(graph, plan)
    accepted = 0
    for _ in range(mutations):
        plan = Mutator(graph, chance.choice(plans), chance).mutate()
        if not violations(graph, plan):
            accepted += 1
            check(graph, plan)
    return accepted


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_what_the_judge_accepts_runs_right(seed):
    run(seed, mutations=40)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_what_the_judge_accepts_of_collectives_runs_right(seed):
    run(seed, 40, overlapped)


def test_enough_is_accepted_to_say_so():
    assert sum(run(seed, mutations=40) for seed in range(5)) > 15
    assert sum(run(seed, 40, overlapped) for seed in range(5)) > 15


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(seed=SEEDS)
def test_what_the_judge_accepts_runs_right_at_length(seed):
    run(seed, mutations=40)
    run(seed, 40, overlapped)


# -- the oracle sees what it is there for -------------------------------------------

X, Y, Z, W, NEW = range(5)
TENSORS = (
    Tensor("x", 64, "input"),
    Tensor("y", 64, "activation"),
    Tensor("loss", 4, "output"),
    Tensor("w", 64, "parameter"),
    Tensor("new", 64, "parameter"),
)
OPS = (
    Op("f", "f", "forward", (X,), (Y,), in_place=((X, Y),)),
    Op("g", "g", "forward", (Y,), (Z,), scratch_bytes=64),
    Op("h", "h", "update", (W, X), (NEW,), in_place=((W, NEW),)),
)
GRAPH = Graph("g", TENSORS, OPS, (Z, NEW), (Z,))
GOOD = (
    *(Alloc(W, 0), Alloc(X, 64)),
    *(Alloc(Y, 128), Compute(0)),
    *(Alloc(Z, 192), Compute(1, None, 256)),
    *(Free(Y), Alias(NEW, W), Compute(2)),
)


def plan(actions, alignment=64) -> Plan:
    blank = Plan("g", "hand", None, alignment, Predicted(0), ())
    return claimed(GRAPH, blank, actions)


def test_the_good_plan_is_right():
    check(GRAPH, plan(GOOD))
    assert violations(GRAPH, plan(GOOD)) == []


SAVED = (Encode(Y, "c", 8, 256), Free(Y), Decode(Y, 128))
SWAPPED = (
    *(SwapOut(Y, "host"), Wait(4), Free(Y)),
    *(Alloc(Y, 128), SwapIn(Y, "host"), Wait(8)),
)


@pytest.mark.parametrize("middle", [SAVED, SWAPPED])
def test_encodings_and_copies_are_right(middle):
    actions = (*GOOD[:4], *middle, *GOOD[4:])
    check(GRAPH, plan(actions))
    assert violations(GRAPH, plan(actions)) == []


WRONG = {
    "state behind": (Alloc(X, 0), Alloc(W, 64), *GOOD[2:]),
    "update apart": (*GOOD[:7], Alloc(NEW, 320), Compute(2)),
    "update before the loss": (*GOOD[:4], *GOOD[7:], *GOOD[4:7]),
    "alias of nothing": (Alias(NEW, W), *GOOD[:7], Compute(2)),
    "overlap": (*GOOD[:2], Alloc(Y, 64), *GOOD[3:]),
    "scratch over an output": (*GOOD[:5], Compute(1, None, 192), *GOOD[6:]),
    "scratch nowhere": (*GOOD[:5], Compute(1), *GOOD[6:]),
    "scratch over state": (*GOOD[:5], Compute(1, None, 0), *GOOD[6:]),
    "alias that is no pair": (*GOOD[:4], Alias(Z, Y), *GOOD[5:]),
    "input overwritten": (
        *(*GOOD[:2], Alias(Y, X), Compute(0), Free(X)),
        *(Alloc(Z, 192), Compute(1, None, 256), *GOOD[7:]),
    ),
    "a code of nothing": (*GOOD[:4], Encode(Y, "c", 0, 256), *GOOD[4:]),
    "a code that is overwritten": (
        *(*GOOD[:4], Encode(Y, "c", 8, 192), *GOOD[4:7]),
        *(Decode(Y, 128), *GOOD[7:]),
    ),
    "a copy before it is there": (*GOOD[:4], *SWAPPED[:-1], *GOOD[4:]),
    "a loss that moves": (*GOOD, Free(Z), Alloc(Z, 320), Alloc(Y, 128), *GOOD[3:6:2]),
    "another algorithm": (*GOOD[:5], Compute(1, "fft", 256), *GOOD[6:]),
}


@pytest.mark.parametrize("actions", WRONG.values(), ids=WRONG)
def test_wrong_plans_are_wrong(actions):
    with pytest.raises(WrongPlanError):
        check(GRAPH, plan(actions))
    assert violations(GRAPH, plan(actions))


def meeting(names: str) -> Graph:
    """The graph, whose ops of these names are collectives."""
    ops = (replace(op, type="all_reduce") if op.name in names else op for op in OPS)
    return replace(GRAPH, ops=tuple(ops))


STARTED = (  # f in bytes of its own, g in scratch, the update in place
    *(Alloc(W, 0), Alloc(X, 64), Alloc(Y, 128), Start(0)),
    *(Alloc(Z, 192), Start(1, None, 256), Wait(5), Wait(3), Free(Y)),
    *(Alias(NEW, W), Start(2), Wait(10)),
)


def test_started_collectives_are_right():
    check(meeting("fgh"), plan(STARTED))
    assert violations(meeting("fgh"), plan(STARTED)) == []


CODED_AMID = (Wait(3), Encode(X, "c", 8, 256), Free(X), Wait(5), Decode(X, 64))
STARTED_WRONG = {
    "no collective": ("fg", STARTED),
    "read too early": ("f", (*STARTED[:5], Compute(1, None, 256), Wait(3), *GOOD[6:])),
    "scratch over an output": (
        "fgh",
        (*STARTED[:5], Start(1, None, 192), *STARTED[6:]),
    ),
    "bytes of scratch too early": ("fg", (*STARTED[:6], *CODED_AMID, *GOOD[6:])),
    "update before the loss": ("fg", (*STARTED[:6], *GOOD[7:], Wait(5), Wait(3))),
    "never waited for": ("fgh", STARTED[:-1]),
}


@pytest.mark.parametrize(
    ("names", "actions"), STARTED_WRONG.values(), ids=STARTED_WRONG
)
def test_wrong_starts_are_wrong(names, actions):
    with pytest.raises(WrongPlanError):
        check(meeting(names), plan(actions))
    assert violations(meeting(names), plan(actions))


def test_narrow_lines_are_wrong():
    narrow = [Alloc(W, 0), Alloc(X, 64), Alloc(Y, 132), *GOOD[3:]]
    with pytest.raises(WrongPlanError):
        check(GRAPH, plan(narrow, alignment=4))
    assert violations(GRAPH, plan(narrow, alignment=4))
