"""What every policy promises, over many random training steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import chain, random_step

from memcfg import plan as planning
from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import (
    Alloc,
    Compute,
    Plan,
    auto,
    keep_all,
    look_ahead,
    lower_bound,
    replay_elementwise,
    share,
    simulate,
    sqrt_checkpoint,
    validate,
)

RECOMPUTING = [replay_elementwise(), sqrt_checkpoint(), look_ahead()]
POLICIES = [keep_all(), share(), *RECOMPUTING, auto()]
by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


def _least(graph: Graph) -> int:
    """The least peak of what auto takes."""
    return min(policy(graph).peak_bytes for policy in RECOMPUTING)


def _rounded(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


@pytest.mark.parametrize(
    "seeds",
    [
        range(150),
        *(
            pytest.param(range(k, k + 170), marks=pytest.mark.slow)
            for k in range(150, 1000, 170)
        ),
    ],
)
def test_a_thousand_steps_are_planned_right(seeds):
    for seed in seeds:
        graph = random_step(seed, 2 + seed % 14)
        peaks = []
        for policy in (keep_all(), share(), sqrt_checkpoint()):
            plan = policy(graph)
            validate(graph, plan)
            assert plan.peak_bytes >= lower_bound(graph) == plan.lower_bound_bytes
            assert plan.peak_bytes % 64 == 0
            peaks.append(plan.peak_bytes)
        assert peaks == sorted(peaks, reverse=True)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 20), share_of=st.floats(0, 1))
def test_auto_fits_every_limit_from_the_least_peak_on(seed, ops, share_of):
    graph = random_step(seed, ops)
    most = share()(graph).peak_bytes
    least = _least(graph)
    limit = max(1, least + round((most - least) * share_of))
    plan = auto()(graph, limit)
    validate(graph, plan)
    assert plan.limit_bytes == limit
    assert plan.peak_bytes <= limit
    if limit >= most:
        assert plan.predicted.recompute_seconds == 0


@by_name
def test_the_state_lies_at_the_bottom_in_id_order(policy):
    graph = random_step(1, 12)
    plan = policy(graph)
    offset = 0
    for tensor, action in zip(
        graph.persistent, _state_allocs(graph, plan), strict=True
    ):
        assert action == Alloc(tensor, offset)
        offset += _rounded(graph.tensors[tensor].nbytes)


def _state_allocs(graph: Graph, plan: Plan) -> list[Alloc]:
    state = set(graph.persistent)
    return [a for a in plan.actions if isinstance(a, Alloc) and a.tensor in state]


@by_name
def test_a_limit_at_the_peak_is_met_and_one_byte_below_refused(policy):
    graph = random_step(7, 12)
    least = policy(graph).peak_bytes
    if policy.name == "auto":
        least = _least(graph)
    assert policy(graph, least).peak_bytes == least
    with pytest.raises(InfeasiblePlanError) as refusal:
        policy(graph, least - 1)
    assert refusal.value.smallest_limit_bytes == least
    assert refusal.value.limit_bytes == least - 1
    assert refusal.value.lower_bound_bytes == lower_bound(graph)
    assert f"{least} B" in str(refusal.value)
    assert f"limit {least - 1} B" in str(refusal.value)


@by_name
@pytest.mark.parametrize("limit", [0, -1, -(2**40)])
def test_a_limit_must_be_positive(policy, limit):
    with pytest.raises(ValueError, match="positive"):
        policy(random_step(1), limit)


@by_name
def test_a_limit_that_a_file_could_not_state_is_refused(policy):
    graph = random_step(1)
    assert Plan.from_json(policy(graph, 2**63 - 1).to_json()).limit_bytes == 2**63 - 1
    with pytest.raises(ValueError, match=r"below 2\*\*63"):
        policy(graph, 2**63)


@by_name
@pytest.mark.parametrize("limit", [True, 1.5, "4MiB"])
def test_a_limit_is_a_whole_number(policy, limit):
    with pytest.raises(TypeError, match="number of bytes"):
        policy(random_step(1), limit)


@by_name
def test_the_same_graph_gives_the_same_plan(policy):
    graph = random_step(11, 14)
    assert policy(graph) == policy(graph)


@by_name
def test_policies_are_values(policy):
    assert policy == getattr(planning, policy.name)()
    assert hash(policy) == hash(getattr(planning, policy.name)())
    told = repr(policy).replace(", time_limit=None", "")
    assert told == f"{type(policy).__name__}(name={policy.name!r})"


@by_name
def test_seconds_are_those_of_the_computed_ops(policy):
    graph = random_step(5, 14)
    least = _least(graph)
    plan = policy(graph, least if policy.name == "auto" else None)
    ops = [a.op for a in plan.actions if isinstance(a, Compute)]
    once = sum(op.seconds for op in graph.ops)
    every = sum(graph.ops[op].seconds for op in ops)
    assert plan.predicted.seconds == pytest.approx(every)
    assert plan.predicted.recompute_seconds == pytest.approx(every - once)


@by_name
def test_the_simulator_agrees_with_the_claims(policy):
    graph = random_step(9, 14)
    plan = policy(graph)
    simulation = simulate(graph, plan)
    assert simulation.peak_bytes == plan.peak_bytes
    assert sum(simulation.by_role_at_peak.values()) <= plan.peak_bytes
    assert max(live for _, live in simulation.timeline) <= plan.peak_bytes


@by_name
def test_graphs_without_ops_and_without_a_backward_phase(policy):
    x, y = Tensor("x", 100, "input"), Tensor("y", 70, "output")
    empty = Graph("empty", (x,), (), (0,))
    validate(empty, policy(empty))
    assert policy(empty).peak_bytes == 128
    op = Op("f", "f", "forward", (0,), (1,))
    forward = Graph("forward", (x, y), (op,), (1,))
    validate(forward, policy(forward))
    assert policy(forward).peak_bytes == 256
    nothing = Graph("nothing", (), (), ())
    validate(nothing, policy(nothing))
    assert policy(nothing).peak_bytes == 0
    assert str(policy(nothing))


@by_name
def test_sizes_beyond_64_bits_are_refused(policy):
    graph = Graph("huge", (Tensor("x", 2**62, "input"),), ())
    with pytest.raises(GraphError, match=r"2\*\*62"):
        policy(graph)


@by_name
def test_times_are_not_needed(policy):
    graph = chain(12)
    ops = tuple(Op(o.name, o.type, o.phase, o.inputs, o.outputs) for o in graph.ops)
    untimed = Graph("untimed", graph.tensors, ops, graph.keep)
    plan = policy(untimed)
    validate(untimed, plan)
    assert plan.predicted.seconds == 0
    if policy.name == "auto":
        assert plan.method == "share"
