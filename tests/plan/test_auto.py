from __future__ import annotations

import pytest
from training_graphs import chain, random_step

from memcfg.errors import InfeasiblePlanError
from memcfg.plan import (
    auto,
    keep_all,
    look_ahead,
    lower_bound,
    replay_elementwise,
    share,
    sqrt_checkpoint,
)

RECOMPUTING = (sqrt_checkpoint(), replay_elementwise(), look_ahead())


def test_without_a_limit_nothing_is_recomputed():
    plan = auto()(chain(30))
    assert plan == share()(chain(30))
    assert plan.summary.chosen_by == "auto"
    assert "chosen by auto" in str(plan)


def test_below_the_sharing_peak_it_recomputes_the_least():
    graph = chain(30)
    limit = share()(graph).peak_bytes - 64
    plan = auto()(graph, limit)
    assert plan.method == "look_ahead"
    assert plan == look_ahead()(graph, limit)
    assert 0 < plan.predicted.recompute_seconds < 30


def test_it_is_as_fast_as_the_fastest_that_fits():
    for seed in range(20):
        graph = random_step(seed)
        limit = share()(graph).peak_bytes
        methods = [share(), *RECOMPUTING]
        if keep_all()(graph).peak_bytes <= limit:
            methods.append(keep_all())
        seconds = min(method(graph, limit).predicted.seconds for method in methods)
        assert auto()(graph, limit).predicted.seconds == seconds


def test_the_refusal_names_the_least_peak_of_all_methods():
    graph = random_step(4, 14)
    policies = (keep_all(), share(), *RECOMPUTING)
    least = min(policy(graph).peak_bytes for policy in policies)
    with pytest.raises(InfeasiblePlanError) as refusal:
        auto()(graph, 1)
    assert refusal.value.smallest_limit_bytes == least
    assert refusal.value.lower_bound_bytes == lower_bound(graph)
    assert str(refusal.value).startswith(
        "No method that auto takes can plan 'random 4'"
    )
