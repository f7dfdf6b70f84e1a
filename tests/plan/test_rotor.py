from __future__ import annotations

from training_graphs import chain

from memcfg.plan import revolve, rotor, share, validate


def test_a_chain_takes_no_more_work_than_by_revolve():
    graph = chain(64, reads="both")
    least = revolve()(graph).peak_bytes
    costs = []
    for limit in range(least, share()(graph).peak_bytes + 1, 64 * 8):
        plan = rotor()(graph, limit)
        validate(graph, plan)
        costs.append(plan.predicted.recompute_seconds)
        assert costs[-1] <= revolve()(graph, limit).predicted.recompute_seconds
    assert costs == sorted(costs, reverse=True)
