"""Capuchin: choices by hand, times against other methods, feedback, bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from networks import zoo_step
from training_graphs import five, random_step

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor, Tier
from memcfg.plan import (
    Compute,
    SwapIn,
    SwapOut,
    Wait,
    capuchin,
    capuchin_feedback,
    chen_sqrt,
    exact,
    lower_bound,
    share,
    simulate,
    validate,
    vdnn_dyn,
)

nn = mc.nn


@pytest.fixture(scope="module")
def resnet():
    return zoo_step("resnet18", 32)


def between(graph, share_):
    """A limit between the state and the peak of `share`."""
    state = sum(graph.tensors[t].nbytes for t in graph.persistent)
    return int(state + (share()(graph).peak_bytes - state) * share_)


def with_lane(graph, bandwidth):
    return replace(graph, tiers=(Tier("host", bandwidth),))


def kinds(graph, limit):
    plan = capuchin()(graph, limit)
    validate(graph, plan)
    swaps = {a.tensor for a in plan.actions if isinstance(a, SwapOut)}
    runs = [a.op for a in plan.actions if isinstance(a, Compute)]
    return swaps, len(runs) - len(set(runs))


def test_a_fast_lane_swaps_and_a_slow_one_computes_again():
    graph = five()
    limit = share()(graph).peak_bytes - 64
    swaps, again = kinds(with_lane(graph, 1e9), limit)
    assert swaps
    assert not again
    swaps, again = kinds(with_lane(graph, 1e-3), limit)
    assert not swaps
    assert again


def test_the_slower_the_lane_the_less_is_moved(resnet):
    limit = between(resnet, 0.5)
    moved, again = [], []
    for rate in (5e9, 1e8, 1e7):
        plan = capuchin()(with_lane(resnet, rate), limit)
        moved.append(plan.predicted.moved_bytes)
        again.append(plan.predicted.recompute_seconds)
    assert again == sorted(again)
    assert again[0] == 0.0 < again[1]
    assert moved[0] > moved[-1]


def test_a_limit_holds_or_is_refused_by_the_least(resnet):
    with pytest.raises(InfeasiblePlanError) as refused:
        capuchin()(resnet, 64)
    least = refused.value.smallest_limit_bytes
    assert least <= 1.001 * lower_bound(resnet)
    for share_ in (0.9, 0.7, 0.5):
        limit = between(resnet, share_)
        plan = capuchin()(resnet, limit)
        validate(resnet, plan)
        assert plan.peak_bytes <= limit
    assert capuchin()(resnet, least).peak_bytes <= least
    assert capuchin()(resnet).predicted.moved_bytes == 0


@pytest.mark.strength(1)
@pytest.mark.parametrize("bandwidth", [5e9, 5e8, 5e7])
@pytest.mark.parametrize(("name", "batch"), [("resnet18", 32), ("unet", 4)])
def test_it_is_as_fast_as_vdnn_and_chen(name, batch, bandwidth):
    graph = with_lane(zoo_step(name, batch), bandwidth)
    compared = 0
    for share_ in (0.9, 0.7, 0.55):
        limit = between(graph, share_)
        own = capuchin()(graph, limit).elapsed_seconds
        for other in (vdnn_dyn(), chen_sqrt()):
            try:
                found = other(graph, limit).elapsed_seconds
            except InfeasiblePlanError:
                continue
            compared += 1
            assert own <= found
    assert compared >= 3


def recurrent():
    layers = [nn.Input((12, 8)), nn.LSTM(16, return_sequences=True), nn.LSTM(16)]
    return nn.Sequential([*layers, nn.Dense(3)])


def attention():
    x = nn.Input((12, 16))
    y = nn.Add()([x, nn.MultiHeadAttention(2, 8)(x, x)])
    y = nn.LayerNormalization()(y)
    return nn.Model(x, nn.Dense(3)(nn.GlobalAveragePooling1D()(y)))


@pytest.mark.parametrize("build", [recurrent, attention])
def test_it_asks_for_no_types_of_layers(build):
    nn.set_random_seed(0)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model = build()
    model.compile(nn.SGD(0.1), loss)
    graph = with_lane(model.graph(16), 1e9)
    model.close()
    unnamed = replace(graph, ops=tuple(replace(op, type="op") for op in graph.ops))
    peak = share()(graph).peak_bytes
    with pytest.raises(InfeasiblePlanError) as refused:
        capuchin()(graph, 64)
    limit = (refused.value.smallest_limit_bytes + peak) // 2
    plan = capuchin()(graph, limit)
    validate(graph, plan)
    assert plan.peak_bytes <= limit < peak
    assert capuchin()(unnamed, limit).actions == plan.actions


# -- the first step, and what is learned from it -------------------------------------


def test_the_first_step_ends_within_a_limit_and_takes_longer(resnet):
    for share_ in (0.8, 0.5):
        limit = between(resnet, share_)
        assert share()(resnet).peak_bytes > limit
        first = capuchin(passive=True)(resnet, limit)
        validate(resnet, first)
        assert first.peak_bytes <= limit
        guided = capuchin()(resnet, limit)
        assert guided.elapsed_seconds < first.elapsed_seconds
        assert first.predicted.recompute_seconds == 0
    assert capuchin(passive=True)(resnet).predicted.moved_bytes == 0


def test_the_first_step_fetches_what_is_accessed_while_its_op_waits(resnet):
    """Nothing is known to come: every copy is waited for as soon as it has begun."""
    plan = capuchin(passive=True)(resnet, between(resnet, 0.6))
    waits = {a.action: n for n, a in enumerate(plan.actions) if isinstance(a, Wait)}
    for number, action in enumerate(plan.actions):
        if isinstance(action, SwapIn | SwapOut):
            between_ = plan.actions[number : waits[number]]
            assert not any(isinstance(each, Compute) for each in between_)


def fine(large=3, between_=60, nbytes=6400):
    """A chain of short ops, of whose values some are large, which backward reads."""
    count = large * between_
    tensors = [
        Tensor(f"x{n}", 64 if n % between_ else nbytes, "activation")
        for n in range(count + 1)
    ]
    tensors += [Tensor(f"d{n}", 64, "activation_gradient") for n in range(count + 1)]
    ops = [
        Op(f"f{n}", "f", "forward", (n,), (n + 1,), seconds=0.3, replayable=False)
        for n in range(count)
    ]
    first = count + 1
    for n in range(count + 1):
        large_ones = () if (count - n) % between_ else (count - n,)
        reads = (*large_ones, *((first + n - 1,) if n else ()))
        ops.append(Op(f"b{n}", "b", "backward", reads, (first + n,), seconds=0.3))
    return Graph("fine", tuple(tensors), tuple(ops), keep=(first + count,))


def test_feedback_hides_what_a_slower_lane_takes():
    """Planned at twice the bandwidth there is: what was late starts earlier."""
    true = 6400 / 12  # a copy takes 12 s, and the next is needed after 18 s
    graph = with_lane(fine(), 2 * true)
    limit = share()(graph).peak_bytes - 3200
    policy, stalls = capuchin(), []
    for _ in range(22):
        plan = policy(graph, limit)
        validate(graph, plan)
        assert plan.peak_bytes <= limit
        assert plan.predicted.recompute_seconds == 0
        found = simulate(graph, plan, {"host": true})
        stalls.append(found.elapsed_seconds - found.seconds)
        other = capuchin_feedback(policy, graph, plan, found)
        if other == policy:
            break
        policy = other
    assert stalls[0] > 5
    assert all(later < earlier for earlier, later in pairwise(stalls))
    assert stalls[-1] <= 0.05 * stalls[0]


def test_feedback_is_a_policy_of_what_was_late():
    graph = with_lane(fine(), 1e3)
    plan = capuchin()(graph, share()(graph).peak_bytes - 3200)
    same = simulate(graph, plan, {"host": 1e12})
    assert capuchin_feedback(capuchin(), graph, plan, same) == capuchin()
    late = simulate(graph, plan, {"host": 5e2})
    policy = capuchin_feedback(capuchin(), graph, plan, late)
    waited = {
        graph.tensors[plan.actions[plan.actions[each.action].action].tensor].name
        for each in late.schedule
        if isinstance(plan.actions[each.action], Wait)
        and isinstance(plan.actions[plan.actions[each.action].action], SwapIn)
        and each.end > each.begin
    }
    assert waited
    assert policy == capuchin(early=dict.fromkeys(waited, 0.05 * 6400 / 1e3))
    for other in (vdnn_dyn(), capuchin(passive=True), share()):
        with pytest.raises(TypeError, match="feedback is for capuchin"):
            capuchin_feedback(other, graph, plan, late)
    with pytest.raises(ValueError, match="passive"):
        capuchin(passive=True, early={"x": 1.0})


# -- plans of all graphs, and real steps -----------------------------------------------


def test_it_is_never_better_than_the_optimum_of_computing_again():
    """Over a lane on which nobody swaps, all schedules of small graphs are searched."""
    compared = as_good = 0
    for seed in range(150):
        graph = with_lane(random_step(seed, 4), 1e-9)
        limit = share()(graph).peak_bytes - 64
        try:
            best = exact()(graph, limit)
            own = capuchin()(graph, limit)
        except InfeasiblePlanError:
            continue
        if best.summary.unproven or own.predicted.moved_bytes:
            continue
        compared += 1
        as_good += own.predicted.seconds == best.predicted.seconds
        assert own.predicted.seconds >= best.predicted.seconds
    assert compared >= 5
    assert as_good >= compared // 2


def test_a_replay_that_vanishes_may_leave_nothing_to_begin_from():
    """What was dropped behind it has its next access later, where sources are gone."""
    graph = with_lane(random_step(572094, 13), 0.1352211570012431)
    peak = share()(graph).peak_bytes
    with pytest.raises(InfeasiblePlanError) as refused:
        capuchin()(graph, 1)
    limit = (refused.value.smallest_limit_bytes + peak) // 2
    validate(graph, capuchin()(graph, limit))


def test_a_tier_without_room_is_refused(resnet):
    limit = between(resnet, 0.6)
    needed = simulate(resnet, capuchin()(resnet, limit)).tier_peak_bytes["host"]
    exact = replace(resnet, tiers=(Tier("host", 5e9, needed),))
    assert capuchin()(exact, limit).peak_bytes <= limit
    less = replace(resnet, tiers=(Tier("host", 5e9, needed - 64),))
    with pytest.raises(InfeasiblePlanError, match="whose limit is") as refused:
        capuchin()(less, limit)
    assert not refused.value.is_smallest
    enough = refused.value.smallest_limit_bytes
    validate(less, capuchin()(less, enough))
    none = replace(resnet, tiers=(Tier("host", 5e9, 64),))
    with pytest.raises(InfeasiblePlanError, match="whose limit is 64 B") as refused:
        capuchin(passive=True)(none, limit)
    plan = capuchin(passive=True)(none, refused.value.smallest_limit_bytes)
    assert plan.predicted.moved_bytes == 0
