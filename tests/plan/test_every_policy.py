"""All methods there are on random graphs, through the interchange format."""

from __future__ import annotations

import pytest
from training_graphs import random_step

from memcfg import nn
from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.graph import Graph
from memcfg.plan import (
    NAMED_POLICIES,
    POLICIES,
    Plan,
    lower_bound,
    share,
    time_lower_bound,
    validate,
)

GRAPHS = 1000
RECURRENT = [name for name in POLICIES if name.startswith("bptt_")]
NAMES = [name for name in POLICIES if name not in RECURRENT]
PROGRAMS = {"checkmate", "checkmate_lp", "retention_intervals"}  # many variables an op


def within(policy, graph: Graph, limit: int) -> Plan:
    """A plan within the limit, or within the smallest that the refusal names."""
    try:
        return policy(graph, limit)
    except InfeasiblePlanError as refusal:
        smallest = refusal.smallest_limit_bytes
    assert smallest > limit
    return policy(graph, smallest)


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_random_graphs_are_planned_right(name, tenths):
    """Each method has its part of them; files stand between it and the judge.

    A gate has a quarter of that part.
    """
    first = NAMES.index(name)
    for seed in range(first, GRAPHS, len(NAMES) * (1 if tenths == 10 else 4)):
        most = 3 if name in PROGRAMS else 13
        kept = 0.5 * (seed // len(NAMES) % 2)
        document = random_step(seed, 2 + seed % most, kept=kept).to_json()
        graph = Graph.from_json(document)
        limit = share()(graph).peak_bytes * (4 + seed % 7) // 10
        plan = within(POLICIES[name](), graph, max(limit, 1))
        written = Plan.from_json(plan.to_json())
        validate(Graph.from_json(document), written)
        assert written.actions == plan.actions
        assert written.peak_bytes <= written.limit_bytes


@pytest.mark.parametrize("name", [*NAMES, "exact"])
def test_the_smallest_limit_that_a_refusal_names_has_a_plan(name, tenths):
    """Also where no bytes would do: the lowest peak that the method knows of."""
    make = NAMED_POLICIES[name]
    for seed in range(2000, 2012, 1 if tenths == 10 else 3):
        most = 3 if name in PROGRAMS else 8
        graph = random_step(seed, 1 + seed % most)
        assert any(tensor.nbytes for tensor in graph.tensors)
        plan = within(make(), graph, 1)
        validate(graph, plan)
        assert plan.peak_bytes <= plan.limit_bytes


@pytest.mark.parametrize("name", NAMED_POLICIES)
def test_what_is_no_graph_is_told_what_gives_one(name):
    for given in (nn.Sequential([nn.Dense(3)]), "graph.json", None):
        with pytest.raises(
            TypeError, match=r"^expected a .*Graph, not .*model\.graph\("
        ):
            NAMED_POLICIES[name]()(given, 2**20)


def test_bounds_are_of_graphs_too():
    for bound in (lower_bound, lambda given: time_lower_bound(given, 2**20)):
        with pytest.raises(TypeError, match=r"not Dense: use model\.graph\("):
            bound(nn.Dense(3))


@pytest.mark.parametrize("name", RECURRENT)
def test_what_unrolls_nothing_is_refused_by_methods_for_recurrent_networks(name):
    with pytest.raises(GraphError, match="no repeated cells"):
        POLICIES[name]()(random_step(1, 5))
