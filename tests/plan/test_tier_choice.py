"""Several tiers: each tensor goes to the first that has room as long as it is away."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import Row, layer_chain
from networks import chain as typed_chain
from plan_oracle import check
from random_schedules import Walk
from tier_rules import broken, bytes_by_tier
from training_graphs import random_step

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.graph import Tier
from memcfg.plan import (
    NAMED_POLICIES,
    Compute,
    Plan,
    SwapIn,
    SwapOut,
    cdma,
    gist,
    share,
    simulate,
    validate,
    vdnn_all,
    vdnn_dyn,
    violations,
)
from memcfg.plan.search import Request, clock, plan_events

METHODS = [
    *(name for name, make in NAMED_POLICIES.items() if getattr(make(), "swaps", False)),
    "auto",
]
LINE = 64


def with_tiers(graph, *rows):
    """A graph of tiers; rows of name, bandwidth and limit."""
    tiers = tuple(Tier(*row, is_stated=True) for row in rows)
    return replace(graph, tiers=tiers)


def rates(graph):
    return {tier.name: tier.bytes_per_second for tier in graph.tiers}


def out(plan):
    return {a.tensor: a.tier for a in plan.actions if isinstance(a, SwapOut)}


# -- which tensor goes where ---------------------------------------------------------


# -- plans ---------------------------------------------------------------------------


def chain(bandwidth=64.0, **sizes):
    rows = [Row(64 * n, 1.0, 2.0) for n in (4, 3, 2, 1, 1)]
    return layer_chain(rows, bandwidth, **sizes)


def test_a_chain_by_hand():
    """Inputs of 1, 4, 3 and 2 lines leave; the first two fill the host."""
    graph = with_tiers(chain(), ("host", 64.0, 5 * LINE), ("file", 32.0, None))
    plan = vdnn_all()(graph)
    validate(graph, plan)
    assert out(plan) == {0: "host", 1: "host", 2: "file", 3: "file"}
    assert bytes_by_tier(graph, plan) == {"host": 5 * LINE, "file": 5 * LINE}
    assert plan.summary.by_tier == {"host": 5 * LINE, "file": 5 * LINE}
    assert plan.predicted.host_peak_bytes == 10 * LINE
    # Layers wait for their copies out: of 1 and 4 lines at a second a line, of 3 and 2
    # at two. While the loss and the last layer are differentiated, and the layer before
    # it, those of 2 and of 3 lines come back; the host's are faster than a layer.
    forward = [max(1, 1), max(1, 4), max(1, 6), max(1, 4), 1]
    backward = [max(1 + 2, 4), max(2, 6), 2, 2, 2]
    assert plan.elapsed_seconds == sum(forward) + sum(backward)
    found = simulate(graph, plan, rates(graph))
    assert found.elapsed_seconds == plan.elapsed_seconds
    starts = {
        (each.queue, graph.tensors[plan.actions[each.action].tensor].name): each
        for each in found.schedule
        if each.queue != "compute"
    }
    assert starts["host out", "x0"].end == 1
    assert starts["host out", "x1"].begin == 1
    assert starts["file out", "x2"].begin == 1 + 4
    assert starts["file out", "x3"].end == sum(forward[:4])
    assert {queue for queue, _ in starts} == {
        *("host out", "host in", "file out", "file in"),
    }


def test_two_lanes_copy_at_the_same_time():
    """Of two maps of a line, one each way: both copies run beside the same op."""
    rows = [Row(64, 0.0, 0.0), Row(64, 10.0, 10.0), Row(64, 10.0, 10.0)]
    one = with_tiers(layer_chain(rows, 1.0), ("host", 1.0, None))
    two = with_tiers(layer_chain(rows, 1.0), ("host", 1.0, 64), ("file", 1.0, None))
    both = [vdnn_all()(graph) for graph in (one, two)]
    assert len(set(out(both[1]).values())) == 2
    assert both[1].elapsed_seconds <= both[0].elapsed_seconds


def test_the_order_of_tiers_is_that_of_the_device():
    rows = (("host", 64.0, 5 * LINE), ("file", 32.0, 5 * LINE))
    for order in (rows, rows[::-1]):
        graph = with_tiers(chain(), *order)
        plan = vdnn_all()(graph)
        validate(graph, plan)
        first, second = (name for name, *_ in order)
        assert out(plan) == {0: first, 1: first, 2: second, 3: second}


def test_a_refusal_names_all_tiers_and_by_how_much():
    graph = with_tiers(chain(), ("host", 64.0, 5 * LINE), ("file", 32.0, 4 * LINE))
    told = (
        r"vdnn_all has 320 B of 'layers' on 'host', whose limit is 320 B, and 320 B on "
        r"'file', whose limit is 256 B: 64 B too much\. Raise spill_limit"
    )
    with pytest.raises(PlanError, match=told):
        vdnn_all()(graph)
    enough = with_tiers(chain(), ("host", 64.0, 5 * LINE), ("file", 32.0, 5 * LINE))
    validate(enough, vdnn_all()(enough))
    everything = share()(graph).peak_bytes
    lowest = vdnn_all()(chain()).peak_bytes
    with pytest.raises(InfeasiblePlanError, match=": 64 B too much") as refused:
        vdnn_dyn()(graph, lowest)
    assert refused.value.smallest_limit_bytes >= lowest
    assert everything >= lowest


def test_the_judge_knows_the_limits_of_tiers():
    graph = with_tiers(chain(), ("host", 64.0, 5 * LINE), ("file", 32.0, None))
    plan = vdnn_all()(graph)
    assert violations(graph, plan) == []
    less = with_tiers(chain(), ("host", 64.0, 5 * LINE - 1), ("file", 32.0, 1))
    assert violations(less, plan) == [
        "at the end: the plan takes 320 B of tier 'host', whose limit is 319 B",
        "at the end: the plan takes 320 B of tier 'file', whose limit is 1 B",
    ]
    unplaced = replace(
        plan,
        actions=tuple(
            replace(a, offset=None) if isinstance(a, SwapOut | SwapIn) else a
            for a in plan.actions
        ),
    )
    assert violations(graph, unplaced) == []
    assert len(violations(less, unplaced)) == 2


def test_a_report_tells_bytes_by_tier():
    graph = with_tiers(chain(), ("host", 64.0, 5 * LINE), ("file", 32.0, None))
    plan = vdnn_all()(graph)
    lines = str(plan).splitlines()
    rows = [line.split() for line in lines if line.split()[:1] == ["on"]]
    assert rows == [
        ["on", "host", "320", "B", "(320", "B)"],
        ["on", "file", "320", "B", "(320", "B)"],
    ]
    assert Plan.from_json(plan.to_json()) == plan
    full = vdnn_all()(with_tiers(chain(), ("host", 64.0, 32), ("file", 32.0, None)))
    assert full.summary.by_tier == {"host": 0, "file": 10 * LINE}
    assert re.search(r"^  on host +0 B  \(0 B\)$", str(full), re.MULTILINE)
    assert re.search(r"^  on file +640 B  \(640 B\)$", str(full), re.MULTILINE)
    stays = share()(with_tiers(chain(), ("host", 64.0, None), ("file", 32.0, None)))
    assert stays.summary.by_tier == {}
    assert " on host" not in str(stays)
    single = vdnn_all()(chain())
    assert not [line for line in str(single).splitlines() if " on host" in line]


@st.composite
def tiered(draw):
    """A random step, with two or three tiers of which the first may be small."""
    graph = random_step(draw(st.integers(0, 10**6)), draw(st.integers(4, 14)))
    order = draw(st.permutations(["host", "file", "file2"]))[: draw(st.integers(2, 3))]
    tiers = [
        (
            name,
            float(10 ** draw(st.integers(2, 4))),
            draw(st.integers(8, 80)) * LINE if n or draw(st.booleans()) else 5 * LINE,
        )
        for n, name in enumerate(order)
    ]
    if draw(st.booleans()):
        tiers[-1] = (*tiers[-1][:2], None)
    return with_tiers(graph, *tiers)


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=25, deadline=None)
@given(tiered(), st.sampled_from([0.95, 0.85, 0.7]))
def test_every_method_keeps_to_every_tier(name, graph, part):
    limit = int(part * share()(graph).peak_bytes)
    policy, smallest, refused = NAMED_POLICIES[name](), limit, None
    try:
        plan = policy(graph, limit)
    except PlanError:  # no limit of the device would do
        with pytest.raises(PlanError, match="whose limit is"):
            policy(graph, None)
        return
    except InfeasiblePlanError as error:
        smallest, refused = error.smallest_limit_bytes, error
    if refused is not None:
        assert smallest > limit
        limited = any(tier.limit_bytes is not None for tier in graph.tiers)
        assert refused.is_smallest != limited
        plan = policy(graph, smallest)
    assert plan.peak_bytes <= smallest
    validate(graph, plan)
    check(graph, plan)
    assert broken(graph, plan, graph.tiers) == []
    found = simulate(graph, plan, rates(graph))
    assert plan.elapsed_seconds == pytest.approx(found.elapsed_seconds, rel=1e-9)
    there = {tier: n for tier, n in found.tier_peak_bytes.items() if n}
    assert bytes_by_tier(graph, plan) == there


@settings(max_examples=60, deadline=None)
@given(tiered(), st.integers(0, 10**6))
def test_any_legal_schedule_is_a_plan_of_its_clock(graph, seed):
    graph = replace(graph, tiers=(*graph.tiers[:-1], Tier("last", 1e3)))
    request = Request.of(graph, "chance", None)
    events = Walk(request, random.Random(seed)).walk()
    plan = plan_events(request, events)
    validate(graph, plan)
    check(graph, plan)
    assert broken(graph, plan, graph.tiers) == []
    told = clock(request.graph, events)
    assert told.elapsed_seconds == pytest.approx(plan.elapsed_seconds, abs=1e-12)
    assert sum(isinstance(a, Compute) for a in plan.actions) >= len(graph.ops)


def test_chance_uses_all_tiers():
    used = []
    for seed in range(30):
        graph = with_tiers(
            random_step(seed, 10),
            ("host", 1e3, 640),
            ("file", 1e3, 1280),
            ("f2", 1, None),
        )
        request = Request.of(graph, "chance", None)
        plan = plan_events(request, Walk(request, random.Random(seed)).walk())
        used.append(len(bytes_by_tier(graph, plan)))
    assert max(used) == 3


# -- codes ---------------------------------------------------------------------------


def test_copies_are_encoded_where_lanes_encode():
    graph = typed_chain(depth=6, batch=16)
    alone = cdma()(with_tiers(graph, ("host", 1e6, None)))
    most = bytes_by_tier(graph, alone)["host"]
    near = with_tiers(graph, ("host", 1e6, most // 2), ("file", 1e6, None))
    plan = cdma()(near)
    validate(near, plan)
    assert broken(near, plan, near.tiers) == []
    assert plan.summary.by_tier == bytes_by_tier(near, plan)
    codecs = {"host": set(), "file": set()}
    for action in plan.actions:
        if isinstance(action, SwapOut):
            codecs[action.tier].add(action.codec)
    assert "zvc" in codecs["host"]
    assert codecs["file"] == {None}
    far = with_tiers(graph, ("file", 1e6, None), ("host", 1e6, None))
    with pytest.raises(PlanError, match="cdma encodes copies to 'host'"):
        cdma()(far)
    raw = bytes_by_tier(near, vdnn_all()(near))
    exact = with_tiers(graph, ("host", 1e6, raw["host"]), ("file", 1e6, raw["file"]))
    validate(exact, vdnn_all()(exact))
    with pytest.raises(PlanError, match=r"cdma has .*, and .* too much\. Raise"):
        cdma()(exact)


def test_what_overflows_goes_to_the_tier_that_has_room():
    for seed in range(20):
        graph = with_tiers(
            random_step(seed, 12), ("host", 1e3, 2048), ("file", 1e3, None)
        )
        plan = gist(density=0.1)(graph)
        validate(graph, plan)
        assert broken(graph, plan, graph.tiers) == []
