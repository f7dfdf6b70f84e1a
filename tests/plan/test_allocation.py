"""All memory of a step by need, by priority and in equal shares."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_graphs import Sketch, chain, random_step, with_algorithms

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Algorithm
from memcfg.plan import (
    NAMED_POLICIES,
    POLICIES,
    Compute,
    Plan,
    balanced,
    by_need,
    by_priority,
    exact,
    share,
    simulate,
    validate,
    workspace_dynamic,
)

nn = mc.nn

RULES = (by_need, by_priority, balanced)
by_rule = pytest.mark.parametrize("make", RULES, ids=lambda make: make.__name__)


def floor(make, graph):
    """The smallest limit that a refusal names."""
    try:
        return make()(graph, 1).peak_bytes
    except InfeasiblePlanError as refusal:
        return refusal.smallest_limit_bytes


def random_graph(seed, ops, *, choices):
    graph = random_step(seed, ops)
    return with_algorithms(graph, seed) if choices else graph


@by_rule
def test_they_are_policies_by_name(make):
    name = make.__name__
    assert POLICIES[name] is NAMED_POLICIES[name] is make
    assert make() == make()
    assert make().name == name
    assert make().lossless


@by_rule
@given(
    seed=st.integers(0, 10**6),
    ops=st.integers(2, 12),
    choices=st.booleans(),
    parts=st.lists(st.integers(0, 120), min_size=2, max_size=9),
)
@settings(max_examples=40, deadline=None)
def test_a_larger_limit_is_never_slower(make, seed, ops, choices, parts):
    graph = random_graph(seed, ops, choices=choices)
    low, high = floor(make, graph), share()(graph).peak_bytes
    before = math.inf
    for limit in [*(low + (high - low) * part // 100 for part in sorted(parts)), None]:
        plan = make()(graph, limit if limit is None else max(limit, low))
        written = Plan.from_json(plan.to_json())
        validate(graph, written)
        assert plan.peak_bytes == simulate(graph, plan).peak_bytes
        assert plan.predicted.seconds <= before * (1 + 1e-12)
        before = plan.predicted.seconds
        runs: dict[int, set] = {}
        for action in plan.actions:
            if isinstance(action, Compute):
                runs.setdefault(action.op, set()).add(action.algorithm)
        assert all(len(names) == 1 for names in runs.values())  # the same bits again


@by_rule
@given(seed=st.integers(0, 10**6), ops=st.integers(2, 12), choices=st.booleans())
@settings(max_examples=25, deadline=None)
def test_without_a_limit_nothing_is_computed_twice_or_slower(make, seed, ops, choices):
    graph = random_graph(seed, ops, choices=choices)
    plan = make()(graph)
    quickest = sum(
        min((a.seconds for a in op.algorithms if a.name != "reference"), default=s)
        for op, s in ((op, op.seconds) for op in graph.ops)
    )
    assert plan.predicted.seconds == pytest.approx(quickest)


@by_rule
def test_below_the_smallest_limit_is_nothing(make):
    graph = chain(12, nbytes=640)
    low = floor(make, graph)
    assert make()(graph, low).peak_bytes <= low
    with pytest.raises(InfeasiblePlanError, match=rf"{make.__name__} cannot plan"):
        make()(graph, low - 64)


# -- how good they are -----------------------------------------------------------


def quickest(graph, limit):
    """The least time of all schedules, with all choices of algorithms."""
    indices = [i for i, op in enumerate(graph.ops) if op.algorithms]
    rows = [
        [each for each in graph.ops[i].algorithms if each.name != "reference"]
        for i in indices
    ]
    best = math.inf
    for row in itertools.product(*rows):
        ops = list(graph.ops)
        for i, each in zip(indices, row, strict=True):
            ops[i] = replace(
                ops[i], seconds=each.seconds, scratch_bytes=each.scratch_bytes
            )
        if sum(op.seconds for op in ops) < best:
            with suppress(InfeasiblePlanError):
                plan = exact()(replace(graph, ops=tuple(ops)), limit)
                assert plan.gap == 0
                best = min(best, plan.predicted.seconds)
    return best


def test_by_need_is_near_the_best_division():
    """By brute force: over all algorithms of tiny graphs, and all schedules of others.

    Measured over sixty seeds: 0.7 % slower in the mean, at most 16 %, the best in nine
    of ten cases; with algorithms always the best.
    """
    ratios = []
    for seed in range(12):
        tiny = with_algorithms(random_step(seed, 2 + seed % 3), seed, most=2)
        plain = random_step(seed, 6 + seed % 4)
        for graph in (tiny, plain):
            low, high = floor(by_need, graph), by_need()(graph).peak_bytes
            for part in (0, 4):
                limit = low + (high - low) * part // 10
                found = by_need()(graph, limit).predicted.seconds
                least = quickest(graph, limit)
                assert found >= least * (1 - 1e-12)
                ratios.append(found / least)
    assert np.exp(np.mean(np.log(ratios))) < 1.03
    assert np.max(ratios) < 1.25


@pytest.mark.parametrize(
    ("seed", "limit", "slow"), [(3, 11744, balanced), (11, 9171, by_need)]
)
def test_rules_divide_differently(seed, limit, slow):
    graph = with_algorithms(random_step(seed, 14), seed)
    seconds = {make: make()(graph, limit).predicted.seconds for make in RULES}
    assert seconds[slow] > min(seconds.values())


@by_rule
def test_what_share_can_plan_is_planned(make):
    for seed in range(0, 60, 7):
        graph = random_step(seed, 9)
        assert make()(graph, share()(graph).peak_bytes).predicted.recompute_seconds == 0


def test_algorithms_and_outputs_compete_for_bytes():
    """Keeping all outputs leaves no room for the scratch that saves more."""
    rows = (Algorithm("small", 50.0, 0), Algorithm("quick", 10.0, 6400))
    graph = chain(8, nbytes=640)
    ops = list(graph.ops)
    ops[7] = replace(ops[7], seconds=50.0, algorithms=rows)  # as all outputs wait
    graph = replace(graph, ops=tuple(ops))
    limit = share()(graph).peak_bytes + 2560
    plan = by_need()(graph, limit)
    validate(graph, plan)
    assert "quick" in {a.algorithm for a in plan.actions if isinstance(a, Compute)}
    assert plan.predicted.recompute_seconds == 5
    assert plan.predicted.seconds == quickest(graph, limit)
    assert plan.predicted.seconds < workspace_dynamic()(graph, limit).predicted.seconds


def test_a_pack_that_is_an_op_is_kept_where_it_saves_most():
    """A kernel that an op packs for both phases is a tensor like others."""
    sketch = Sketch()
    x = sketch.tensor("x", 64, "input")
    weight = sketch.tensor("w", 640, "parameter")
    packed = sketch.tensor("packed", 640, "activation")
    sketch.op("pack", "forward", [weight], [packed], seconds=5.0)
    values = [x]
    for n in range(4):
        values.append(sketch.tensor(f"y{n}", 640, "activation"))
        reads = [values[-2], packed] if n == 0 else [values[-2]]
        sketch.op(f"f{n}", "forward", reads, [values[-1]], seconds=1.0)
    gradient = sketch.tensor("g", 640, "activation_gradient")
    sketch.op("loss", "backward", [values[-1]], [gradient], seconds=1.0)
    for n in reversed(range(4)):
        below = sketch.tensor(f"g{n}", 640, "activation_gradient")
        reads = [values[n], gradient, *([packed] if n == 0 else [])]
        sketch.op(f"b{n}", "backward", reads, [below], seconds=1.0)
        gradient = below
    graph = sketch.graph("packed", keep=[gradient])
    high = share()(graph).peak_bytes
    limit = high - 640
    names = [
        graph.ops[a.op].name
        for a in by_need()(graph, limit).actions
        if isinstance(a, Compute)
    ]
    assert names.count("pack") == 1
    assert len(names) > len(graph.ops)


# -- a network -------------------------------------------------------------------


@by_rule
def test_a_network_has_the_bits_of_share_and_the_peak_that_is_predicted(make):
    def trained(policy, limit):
        mc.config.reset()
        if limit is not None:
            (cpu,) = mc.config.list_physical_devices("CPU")
            device = mc.config.LogicalDeviceConfiguration(memory_limit=f"{limit}B")
            mc.config.set_logical_device_configuration(cpu, [device])
        nn.set_random_seed(1)
        layers = [nn.Dense(32, activation="relu") for _ in range(8)]
        model = nn.Sequential([nn.Input((16,)), *layers, nn.Dense(3)])
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(nn.SGD(0.1, momentum=0.9), loss, memory=policy)
        x = np.random.default_rng(0).standard_normal((128, 16)).astype(np.float32)
        for _ in range(3):
            model.train_on_batch(x, np.arange(128) % 3)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        plan, weights = model.memory_plan, model.get_weights()
        model.close()
        mc.config.reset()
        return plan, weights

    plain, expected = trained(share(), None)
    for limit in (None, plain.peak_bytes * 9 // 10):
        plan, weights = trained(make.__name__, limit)
        assert plan.method == make.__name__
        for one, other in zip(weights, expected, strict=True):
            assert one.tobytes() == other.tobytes()
    assert plan.peak_bytes <= plain.peak_bytes * 9 // 10
    assert plan.predicted.recompute_seconds > 0
