"""Swapping by triggers: what leaves, when it comes back, what that costs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from networks import zoo_step

from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Tier
from memcfg.plan import Compute, SwapIn, SwapOut, meng_swap, share, simulate, validate
from memcfg.plan.search import Request


@pytest.fixture(scope="module")
def resnet():
    return zoo_step("resnet18", 32)


class Map(NamedTuple):
    """What the forward phase makes and the backward phase reads, by places of ops."""

    tensor: int
    nbytes: int
    begin: int  # its last use in the forward phase
    first: int  # its first use behind that


def feature_maps(graph):
    """The maps that may be away for an op, in the order in which they are made."""
    phase = [op.phase for op in graph.ops]
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    found = []
    for place, op in enumerate(graph.ops):
        for tensor in op.outputs if op.phase == "forward" else ():
            uses = graph.consumers[tensor]
            ahead = max([u for u in uses if phase[u] == "forward"], default=place + 1)
            later = [u for u in uses if phase[u] != "forward"]
            if tensor not in fixed and later and min(later) > ahead + 1:
                nbytes = graph.tensors[tensor].nbytes
                found.append(Map(tensor, nbytes, ahead, min(later)))
    return found


def copies(plan):
    outs = [a.tensor for a in plan.actions if isinstance(a, SwapOut)]
    ins = [a.tensor for a in plan.actions if isinstance(a, SwapIn)]
    return outs, ins


def test_without_a_limit_nothing_leaves(resnet):
    assert copies(meng_swap()(resnet)) == ([], [])


def test_any_limit_holds_or_is_refused_by_the_least(resnet):
    peak = share()(resnet).peak_bytes
    with pytest.raises(InfeasiblePlanError) as refused:
        meng_swap()(resnet, 64)
    least = refused.value.smallest_limit_bytes
    assert least < 0.6 * peak
    for limit in (least, *(peak * percent // 100 for percent in range(60, 100, 5))):
        plan = meng_swap()(resnet, limit)
        validate(resnet, plan)
        assert plan.peak_bytes <= limit
        outs, ins = copies(plan)
        assert sorted(outs) == sorted(ins)
        assert len(set(outs)) == len(outs)
    assert meng_swap()(resnet, least).peak_bytes == least
    with pytest.raises(InfeasiblePlanError):
        meng_swap()(resnet, least - 64)


def test_what_was_made_first_leaves_first(resnet):
    limit = share()(resnet).peak_bytes * 9 // 10
    outs, _ = copies(meng_swap()(resnet, limit))
    maps = feature_maps(resnet)
    # Copies of others would not end before they are needed again.
    stays = [m.tensor for m in maps if m.tensor not in outs and m.first - m.begin > 20]
    assert outs
    assert stays
    last = max(resnet.producer[tensor] for tensor in outs)
    assert all(resnet.producer[tensor] >= last for tensor in stays)


def test_no_more_leaves_than_must(resnet):
    """With one map less, of those that are made last, the limit would not hold."""
    for percent in (95, 80, 65):
        limit = share()(resnet).peak_bytes * percent // 100
        plan = meng_swap()(resnet, limit)
        outs, _ = copies(plan)
        swapper = meng_swap().make
        maps = feature_maps(resnet)
        wanted = [each for each in maps if each.tensor in outs]
        fewer = maps[: maps.index(wanted[-1])]
        request = Request.of(resnet, "meng_swap", limit)
        assert swapper.planned(request, fewer).peak_bytes > limit


@pytest.mark.parametrize("trigger", ["in_time", "at_once", "on_demand"])
def test_what_a_limit_can_be_is_no_matter_of_the_lane(resnet, trigger):
    needs = {}
    for rate in (1e12, 1e7):
        graph = replace(resnet, tiers=(Tier("host", rate),))
        with pytest.raises(InfeasiblePlanError) as refused:
            meng_swap(trigger)(graph, 64)
        needs[rate] = refused.value.smallest_limit_bytes
        validate(graph, meng_swap(trigger)(graph, needs[rate]))
    assert max(needs.values()) <= 1.02 * min(needs.values())  # places differ


def test_a_tier_without_room_is_refused(resnet):
    limit = share()(resnet).peak_bytes * 8 // 10
    plan = meng_swap()(resnet, limit)
    needed = simulate(resnet, plan).tier_peak_bytes["host"]
    exact = replace(resnet, tiers=(Tier("host", 5e9, needed),))
    assert meng_swap()(exact, limit).peak_bytes <= limit
    less = replace(resnet, tiers=(Tier("host", 5e9, needed - 64),))
    with pytest.raises(InfeasiblePlanError, match="whose limit is") as refused:
        meng_swap()(less, limit)
    enough = refused.value.smallest_limit_bytes
    assert enough > limit
    assert not refused.value.is_smallest
    validate(less, meng_swap()(less, enough))


def test_triggers_wait_less_or_hold_less(resnet):
    """Just in time takes fewer bytes than at once, and waits less than on demand."""
    needs = {}
    request = Request.of(resnet, "meng_swap", 64)
    maps = feature_maps(resnet)
    for trigger in ("in_time", "at_once", "on_demand"):
        needs[trigger] = meng_swap(trigger).make.planned(request, maps).peak_bytes
    assert needs["in_time"] < needs["at_once"]
    limit = int(1.05 * max(needs["in_time"], needs["on_demand"]))
    quick, late = (meng_swap(each)(resnet, limit) for each in ("in_time", "on_demand"))
    assert quick.predicted.stall_seconds < late.predicted.stall_seconds
    endless = replace(resnet, tiers=(Tier("host", 1e15),))
    plan = meng_swap()(endless, limit)
    assert plan.predicted.stall_seconds < 1e-9


def test_stalls_are_those_of_the_clock(resnet):
    graph = replace(resnet, tiers=(Tier("host", 1e9),))
    plan = meng_swap()(graph, share()(graph).peak_bytes * 7 // 10)
    found = simulate(graph, plan, {"host": 1e9})
    assert plan.elapsed_seconds == pytest.approx(found.elapsed_seconds)
    assert plan.predicted.seconds == pytest.approx(
        sum(graph.ops[a.op].seconds for a in plan.actions if isinstance(a, Compute))
    )


def test_a_trigger_is_one_of_three():
    assert meng_swap() == meng_swap("in_time") != meng_swap("on_demand")
    with pytest.raises(
        ValueError, match="one of 'in_time', 'at_once', 'on_demand', not 'soon'"
    ):
        meng_swap("soon")
