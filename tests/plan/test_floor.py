"""The smallest limit with a plan, of policies whose refusals may be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import chain

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan import share
from memcfg.plan.search._floor import Floor, lowest_plan

GRAPH = chain(4)
PLAN = share()(GRAPH)


def policy(floor, named, peak=0):
    """Plan from a limit on; refusals name another one."""

    def plan(graph, limit_bytes):
        if limit_bytes < floor:
            raise InfeasiblePlanError(
                "less", smallest_limit_bytes=named, lower_bound_bytes=1
            )
        predicted = replace(PLAN.predicted, peak_bytes=peak or limit_bytes)
        return replace(PLAN, limit_bytes=limit_bytes, predicted=predicted)

    return plan


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 50), st.integers(1, 60))
def test_the_floor_is_found_to_the_byte_or_lies_between(floor, named):
    floor, named = 64 * floor, 64 * named
    found = Floor(policy(floor, named), GRAPH)
    found.ask(1)
    found.descend(1)
    if named < floor:  # and nothing told of a limit that has a plan
        assert not found.planned
        return
    assert found.refused_below() < floor <= found.limit
    if named == floor:
        assert (found.refused_below(), found.limit) == (floor - 1, floor)


def test_a_peak_below_a_limit_is_asked_next():
    found = Floor(policy(500, 800, peak=512), GRAPH)
    assert found.first_of([600, 700]).limit_bytes == 600
    assert found.narrow(2, 1).limit_bytes == 512


def test_limits_that_rise_are_asked_until_one_has_a_plan():
    found = Floor(policy(1000, 1), GRAPH)
    assert found.first_of([100, 900]) is None
    assert found.first_of([900, 1100, 1200]).limit_bytes == 1100
    assert [*found.refused] == [100, 900]


def test_the_lowest_plan_is_that_of_the_limit_that_is_named():
    assert lowest_plan(policy(640, 640), GRAPH).limit_bytes == 640


def test_larger_limits_are_asked_where_what_is_named_has_no_plan():
    assert lowest_plan(policy(640, 512), GRAPH).limit_bytes == 640
    with pytest.raises(InfeasiblePlanError, match="less"):
        lowest_plan(policy(10_000, 512), GRAPH)


def test_what_is_no_refusal_is_raised():
    def fails(graph, limit_bytes):
        raise PlanError("full")

    with pytest.raises(PlanError, match="full"):
        lowest_plan(fails, GRAPH)
    assert Floor(fails, GRAPH).ask(1) is None
