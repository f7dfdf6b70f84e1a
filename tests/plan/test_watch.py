"""Methods that swap, when somebody wants no more searching."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from internals import ask_always
from training_graphs import chain, random_step

from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.graph import Tier
from memcfg.plan import (
    auto,
    capuchin,
    layrub_migration,
    lower_bound,
    meng_swap,
    modnn,
    out_of_core,
    share,
    superneurons,
    superneurons_cache,
    validate,
    vdnn_dyn,
    vdnn_pp,
)
from memcfg.plan.search import Request, Watch

SWAPPING = (
    *(out_of_core(), layrub_migration(), superneurons(), superneurons_cache()),
    *(capuchin(), modnn(), meng_swap(), vdnn_dyn(), vdnn_pp()),
)
SEARCHING = (out_of_core(), superneurons_cache(), capuchin(), modnn(), meng_swap())
AFTER = 400  # questions once it is over, most of them by layouts
LAYOUTS = 8  # once it is over


class Counting(Watch):
    """Is over from a question on, and counts those before and behind it."""

    def __init__(self, most: int | None = None, until: float = float("inf")) -> None:
        self.before = self.behind = 0
        super().__init__(until, lambda: most is not None and self.before > most)

    def is_over(self) -> bool:
        self.before += not self.is_ended
        self.behind += self.is_ended
        return super().is_over()


@pytest.fixture
def layouts(monkeypatch):
    """Searches may ask as often as they like; the questions before each layout."""
    ask_always(monkeypatch)
    found = []
    own = Request._layout

    def counted(self, *given):
        found.append(self.watch is not None and self.watch.is_ended)
        return own(self, *given)

    monkeypatch.setattr(Request, "_layout", counted)
    return found


def fits(plan) -> bool:
    return plan.limit_bytes is None or plan.peak_bytes <= plan.limit_bytes


def stated(graph, bandwidth=500.0):
    return replace(graph, tiers=(Tier("host", bandwidth, is_stated=True),))


def middle(graph) -> int:
    """A limit that takes some search."""
    return (share()(graph).peak_bytes + lower_bound(graph)) // 2


def requested(policy, graph, limit, watch):
    """Return the plan that a method makes, None for one that it refuses."""
    try:
        return policy.propose(Request.of(graph, policy.name, limit, watch))
    except (InfeasiblePlanError, PlanError):
        return None


STEPS = chain(40, reads="both"), random_step(1, 40), random_step(2, 40)
GRAPHS = [*map(stated, STEPS)]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("policy", SWAPPING, ids=lambda policy: policy.name)
def test_a_method_that_swaps_ends_soon_with_what_it_has(policy, graph, layouts):
    limit = middle(graph)
    whole = Counting()
    requested(policy, graph, limit, whole)
    searched = len(layouts)
    for questions in (2**k for k in range(20)):
        if questions >= whole.before:
            break
        layouts.clear()
        watch = Counting(questions)
        plan = requested(policy, graph, limit, watch)
        assert watch.is_ended
        assert watch.behind <= AFTER
        assert sum(layouts) <= min(LAYOUTS, searched)
        if plan is not None:  # the lowest, where none fits
            validate(graph, plan if fits(plan) else replace(plan, limit_bytes=None))


@pytest.mark.parametrize("policy", SEARCHING, ids=lambda policy: policy.name)
def test_what_ends_at_once_is_a_plan_that_took_less(policy, layouts):
    """Without time there is still one that fits, if the method has one."""
    graph = GRAPHS[0]
    limit = middle(graph)
    plan = requested(policy, graph, limit, Counting())
    searched = len(layouts)
    assert fits(plan)
    layouts.clear()
    for watch in (Counting(0), Counting(until=0.0)):
        ended = requested(policy, graph, limit, watch)
        assert watch.is_ended
        assert fits(ended)
        validate(graph, ended)
        assert ended.elapsed_seconds >= plan.elapsed_seconds
    assert len(layouts) <= 2 * searched


class Asked:
    """Says that it is over from a question on, and keeps how many layouts were made."""

    def __init__(self, most: int, layouts: list[bool]) -> None:
        self.left = most
        self.layouts = layouts
        self.at: int | None = None  # None: it never was over

    def __call__(self) -> bool:
        self.left -= 1
        if self.left < 0 and self.at is None:
            self.at = len(self.layouts)
        return self.at is not None


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_auto_with_a_tier_ends_soon_with_the_best_so_far(graph, layouts):
    limit = middle(graph)
    whole = auto()(graph, limit)
    ended = refused = 0
    for questions in (2**k for k in count()):
        layouts.clear()
        asked = Asked(questions, layouts)
        try:
            plan = auto(cancel=asked)(graph, limit)
        except InfeasiblePlanError:
            refused += 1
            continue
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        assert plan.elapsed_seconds >= whole.elapsed_seconds
        if asked.at is None:
            assert plan == whole
            break
        assert len(layouts) - asked.at <= LAYOUTS
        ended += 1
    assert ended
    assert refused <= 2  # of few questions


def test_auto_without_time_says_so_though_there_is_a_tier():
    graph = GRAPHS[0]
    with pytest.raises(InfeasiblePlanError, match="ended before a plan within"):
        auto(time_limit=1e-9)(graph, 64)
