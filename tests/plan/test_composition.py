"""Chains of stages: what each is worth, that each gives a whole plan, and limits."""

from __future__ import annotations

import itertools
from bisect import insort
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import replace_judge_of_stages
from networks import NETWORKS, unscratched, wide_branches
from plan_oracle import check
from swapping import Swapping
from training_graphs import chain as backward_chain
from training_graphs import random_step

import memcfg as mc
from memcfg.errors import GraphError, InfeasiblePlanError, PlanError
from memcfg.plan import (
    POLICIES,
    Alias,
    Alloc,
    Compute,
    Free,
    Plan,
    Stage,
    chain,
    chen_sqrt,
    exact,
    in_place,
    keep_all,
    look_ahead,
    mxnet,
    order,
    place,
    recompute,
    rotor,
    share,
    simulate,
    state_updates,
    validate,
)

RECOMPUTING = (
    *("chen_sqrt", "chen_mirror", "chen_budget", "chen_recursive", "revolve", "rotor"),
    *("superneurons_speed", "kusumoto_pruned_time", "kusumoto_pruned_memory"),
)  # in the order of the graph
ANY = (
    *("superneurons_memory", "superneurons_cost"),  # that of `share` if it is lower
    *(*RECOMPUTING, "auto", "share", "look_ahead", "sqrt_checkpoint", "mxnet"),
    "meng_attention",
)
stages = st.tuples(*[st.booleans()] * 3, st.sampled_from([None, *ANY])).map(
    lambda drawn: [
        *([order()] if drawn[0] else []),
        *([in_place()] if drawn[1] else []),
        *([recompute(drawn[3])] if drawn[3] else []),
        *([place()] if drawn[2] else []),
    ]
)


def computed(plan: Plan) -> list[int]:
    return [action.op for action in plan.actions if isinstance(action, Compute)]


# -- values ----------------------------------------------------------------------------


def test_a_chain_is_a_value_that_prints_as_it_is_typed():
    policy = chain(order(), in_place(), recompute(rotor()), place())
    assert repr(policy) == "chain(order(), in_place(), recompute('rotor'), place())"
    assert policy.name == repr(policy)
    names = {"chain": chain, "order": order, "in_place": in_place}
    same = eval(repr(policy), names | {"recompute": recompute, "place": place})
    assert same == policy
    assert hash(same) == hash(policy)
    assert chain(order()) != chain(in_place())
    assert chain() != policy != chain(*policy.stages[:-1])
    assert recompute("rotor") == recompute(rotor()) != recompute(chen_sqrt())
    assert place() == Stage("place")
    assert policy(NETWORKS["chain"]()).method == policy.name


def test_a_chain_can_be_computed_again_by_a_chain():
    graph = NETWORKS["chain"]()
    inner = chain(in_place(), recompute("chen_sqrt"))
    plan = chain(in_place(), recompute(inner), place())(graph)
    assert "recompute(chain(in_place()" in plan.method
    assert computed(plan) == computed(chen_sqrt()(graph))


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: chain(in_place(), order()), ValueError, "^order comes after in_place"),
        (lambda: chain(place(), recompute("rotor")), ValueError, "after place; the"),
        (lambda: chain(place(), place()), ValueError, "^place comes twice; the ord"),
        (lambda: chain(order), TypeError, r"not the function order: call it$"),
        (lambda: chain(share()), TypeError, r"not Method\(name='share'\)$"),
        (lambda: chain("order"), TypeError, "not 'order'$"),
        (
            lambda: recompute("rotr"),
            ValueError,
            "'rotr': did you mean 'rotor'",
        ),
        (lambda: recompute(rotor), TypeError, r"call rotor\(\)$"),
        (
            lambda: recompute(lambda graph, budget: None),
            TypeError,
            "limit_bytes=...*so$",
        ),
        (lambda: recompute(place()), TypeError, r"name, not place\(\)$"),
        (lambda: recompute(None), TypeError, "name, not None$"),
        (lambda: place(capacity=4), TypeError, "takes no arguments"),
        (lambda: place(time_limit=1.0), TypeError, "takes no arguments"),
    ],
)
def test_what_is_no_chain_is_refused_in_a_line(wrong, error, text):
    with pytest.raises(error, match=text) as refused:
        wrong()
    assert len(str(refused.value)) < 120


# -- what each stage is worth ----------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        *(NETWORKS[name] for name in ("chain", "residual", "noisy")),
        lambda: unscratched(mc.models.mobilenet(), 1),
        lambda: unscratched(mc.models.lenet5(), 16),
    ],
    ids=["chain", "residual", "noisy", "mobilenet", "lenet5"],
)
def test_leaving_out_placement_or_pairs_costs_bytes(make):
    graph = make()
    whole = chain(order(), in_place(), place())(graph)
    assert whole.peak_bytes == share()(graph).peak_bytes
    for less in (chain(order(), place()), chain(order(), in_place())):
        plan = less(graph)
        validate(graph, plan)
        assert plan.peak_bytes > whole.peak_bytes
        assert plan.peak_bytes == simulate(graph, plan).peak_bytes
    assert chain()(graph).peak_bytes <= keep_all()(graph).peak_bytes


def test_leaving_out_the_order_costs_bytes_with_and_without_recomputation():
    graph = unscratched(wide_branches(), 8)
    for more in ([], [recompute(chen_sqrt())], [recompute("rotor")]):
        with_it = chain(order(), in_place(), *more, place())(graph)
        without = chain(in_place(), *more, place())(graph)
        validate(graph, with_it)
        validate(graph, without)
        assert with_it.peak_bytes < 0.5 * without.peak_bytes


def test_published_methods_can_be_put_in_order():
    better = 0
    for name, make in NETWORKS.items():
        graph = make()
        for method in RECOMPUTING:
            plan = chain(order(), in_place(), recompute(method), place())(graph)
            validate(graph, plan)
            alone = POLICIES[method]()(graph)
            assert plan.peak_bytes <= 1.1 * alone.peak_bytes, (name, method)
            better += plan.peak_bytes < alone.peak_bytes
    assert better >= 10


@pytest.mark.parametrize("method", RECOMPUTING)
def test_a_method_alone_is_what_it_is_in_a_chain_without_order(method):
    for graph in (NETWORKS["noisy"](), random_step(7, 12), random_step(8, 9)):
        plan = chain(in_place(), recompute(method), place())(graph)
        alone = POLICIES[method]()(graph)
        assert plan.actions == alone.actions
        limit = (alone.peak_bytes + share()(graph).peak_bytes) // 2
        if limit >= alone.peak_bytes:
            plan = chain(in_place(), recompute(method), place())(graph, limit)
            assert plan.actions == POLICIES[method]()(graph, limit).actions


# -- what each plan keeps to -----------------------------------------------------------


def assert_lowest_gaps(graph, plan: Plan) -> None:
    """Each buffer that is no state lies in the lowest gap for it at that moment."""
    base = sum(-(-graph.tensors[t].nbytes // 64) * 64 for t in graph.persistent)
    state = {*graph.persistent, *state_updates(graph)}
    sizes = [-(-tensor.nbytes // 64) * 64 for tensor in graph.tensors]
    live: dict[int, tuple[int, int]] = {}
    new: list[tuple[int, int]] = []
    for action in plan.actions:
        match action:
            case Alloc(tensor, offset) if tensor not in state:
                live[tensor] = offset - base, sizes[tensor]
                new.append(live[tensor])
            case Alias(output, source) if output not in state:
                assert sizes[output] <= sizes[source]
                live[output] = live[source]
            case Free(tensor):
                live.pop(tensor)
            case Compute(op, None, scratch):
                busy: list[tuple[int, int]] = []
                for each in {*live.values(), *new}:
                    insort(busy, each)
                if scratch is not None:
                    nbytes = -(-graph.ops[op].scratch_bytes // 64) * 64
                    new.append((scratch - base, nbytes))
                    insort(busy, new[-1])
                for offset, size in new:
                    ends = [0, *itertools.accumulate((o + n for o, n in busy), max)]
                    gaps = zip(ends, (o for o, _ in busy), strict=False)
                    big = [at for at, end in gaps if end - at >= size and at < offset]
                    assert size == 0 or not big
                new = []


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 14), drawn=stages)
def test_stages_that_are_left_out_are_left_out(seed, ops, drawn):
    graph = random_step(seed, ops)
    plan = chain(*drawn)(graph)
    validate(graph, plan)
    check(graph, plan)
    assert plan.peak_bytes == simulate(graph, plan).peak_bytes
    names = {stage.name for stage in drawn}
    if not names & {"order", "recompute"}:
        _, given_order = mc.plan.with_updates_in_time(graph)
        assert computed(plan) == [*given_order]
    if "recompute" not in names:
        assert sorted(computed(plan)) == [*range(len(graph.ops))]
    if "in_place" not in names:
        updates = state_updates(mc.plan.with_updates_in_time(graph)[0])
        pairs = [(a.output, a.input) for a in plan.actions if isinstance(a, Alias)]
        assert all(updates.get(output) == source for output, source in pairs)
    if "place" not in names:
        assert_lowest_gaps(mc.plan.with_updates_in_time(graph)[0], plan)


def assert_says(refusal: InfeasiblePlanError, limit: int) -> None:
    assert f"{limit} B" in str(refusal)
    assert refusal.limit_bytes == limit < refusal.smallest_limit_bytes


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ops=st.integers(2, 12),
    drawn=stages,
    tenths=st.integers(3, 10),
)
def test_limits_are_kept_and_the_limit_of_a_refusal_suffices(seed, ops, drawn, tenths):
    graph = random_step(seed, ops)
    policy = chain(*drawn)
    limit = max(1, share()(graph).peak_bytes * tenths // 10)
    try:
        plan = policy(graph, limit)
    except InfeasiblePlanError as error:
        assert_says(error, limit)
        limit = error.smallest_limit_bytes
        plan = policy(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= plan.limit_bytes == limit


@pytest.mark.parametrize("name", ["auto", "look_ahead", "sqrt_checkpoint"])
def test_a_refusal_names_the_least_peak_of_the_policy(name):
    """Without a limit auto() computes nothing again."""
    graph = backward_chain(20, reads="both")
    least = POLICIES[name]()(graph, refused(POLICIES[name](), graph)).peak_bytes
    policy = chain(order(), in_place(), recompute(name), place())
    assert refused(policy, graph) == least < share()(graph).peak_bytes
    assert policy(graph, least).peak_bytes <= least
    assert refused(policy, graph, least - 1) == least


def test_policies_have_names():
    assert recompute("exact") == recompute(exact())
    assert repr(recompute(exact())) == "recompute('exact')"
    with pytest.raises(
        ValueError, match="unknown policy 'exactly': did you mean 'exact'"
    ):
        recompute("exactly")


def refused(policy, graph, limit=64):
    with pytest.raises(InfeasiblePlanError) as refusal:
        policy(graph, limit)
    return refusal.value.smallest_limit_bytes


def test_a_policy_that_searches_less_is_asked_for_less():
    """Without `place` what a user's policy calls fitting is above the limit."""

    @dataclass(frozen=True)
    class Own:
        name: str = "own"

        def __call__(self, graph, limit_bytes=None):
            return look_ahead()(graph, limit_bytes)

    graph = NETWORKS["residual"]()
    policy = chain(in_place(), recompute(Own()))
    assert repr(policy).endswith(f"recompute({Own()!r}))")
    free, whole = policy(graph).peak_bytes, chain(in_place())(graph).peak_bytes
    for part in range(5):
        limit = free + (whole - free) * part // 4
        plan = policy(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
    with pytest.raises(InfeasiblePlanError, match="chain"):
        policy(graph, free * 9 // 10)


def test_each_stage_gives_a_plan_that_is_judged(monkeypatch):
    seen = []

    def judged(graph, plan):
        validate(graph, plan)
        seen.append(plan)

    replace_judge_of_stages(monkeypatch, judged)
    graph = NETWORKS["residual"]()
    plan = chain(order(), in_place(), recompute("rotor"), place())(graph)
    assert len(seen) == 5
    assert seen[-1].actions == plan.actions
    assert [each.peak_bytes for each in seen[:3]] == [
        policy(graph).peak_bytes
        for policy in (chain(), chain(order()), chain(order(), in_place()))
    ]

    seen.clear()

    def refuses(graph, plan):
        if len(seen) == 2:
            raise PlanError("the plan is invalid: it is not")
        judged(graph, plan)

    replace_judge_of_stages(monkeypatch, refuses)
    with pytest.raises(PlanError, match=r"^after in_place\(\), the plan is invalid"):
        chain(order(), in_place(), place())(graph)


def test_policies_that_do_more_than_compute_are_refused():
    graph = NETWORKS["chain"]()
    with pytest.raises(ValueError, match="takes policies that only compute, but this"):
        chain(recompute(Swapping()), place())(graph)

    def naming(graph, limit_bytes=None):
        plan = share()(graph, limit_bytes)
        actions = (
            replace(a, algorithm="direct") if isinstance(a, Compute) else a
            for a in plan.actions
        )
        return replace(plan, actions=tuple(actions))

    with pytest.raises(ValueError, match="names algorithms"):
        chain(recompute(naming))(graph)

    def wrong(graph, limit_bytes=None):
        plan = share()(graph, limit_bytes)
        return replace(plan, actions=plan.actions[:-40])

    with pytest.raises(ValueError, match="never computed"):
        chain(recompute(wrong))(graph)


def test_what_refuses_the_graph_refuses_it_in_a_chain():
    with pytest.raises(GraphError, match="no repeated cells"):
        chain(recompute("bptt_mixed"))(random_step(1, 5))
    with pytest.raises(ValueError, match="positive"):
        chain()(random_step(1, 5), 0)


def test_what_is_not_proven_alone_is_not_proven_in_a_chain():
    graph = random_step(5, 8)

    def unproven(graph, limit_bytes=None):
        plan = share()(graph, limit_bytes)
        return replace(plan, summary=replace(plan.summary, unproven=True))

    assert chain(recompute(unproven), place())(graph).summary.unproven
    assert not chain(recompute(share()), place())(graph).summary.unproven


def test_whole_policies_have_their_say():
    """Those that place, or have orders of their own, give their computations."""
    graph = random_step(12, 6)
    for policy in (mxnet(), keep_all()):
        plan = chain(recompute(policy), place())(graph)
        assert plan.actions == chain(place())(graph).actions
    searched = exact()(graph)
    plan = chain(in_place(), recompute(exact()), place())(graph)
    assert computed(plan) == computed(searched)
    assert plan.peak_bytes == searched.peak_bytes
