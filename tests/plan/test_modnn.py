"""The method moDNN: budgets down to the bound, times, and algorithms that change."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import zoo_step
from training_graphs import SUB_BATCHES, random_step

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor, Tier
from memcfg.plan import (
    Compute,
    keep_all,
    lower_bound,
    modnn,
    share,
    simulate,
    validate,
    vdnn_dyn,
)

nn = mc.nn


def step(network, batch, bandwidth=5e9):
    graph = zoo_step(network, batch)
    return replace(graph, tiers=(Tier("host", bandwidth),))


def least_of(graph, policy=None):
    with pytest.raises(InfeasiblePlanError) as refused:
        (policy or modnn())(graph, 64)
    return refused.value.smallest_limit_bytes


def budgets(least, most, count=10):
    return [least + (most - least) * n // (count - 1) for n in range(count)]


@pytest.fixture(scope="module")
def resnet():
    return step("resnet18", 32)


def chain(layers=8, nbytes=6400, bandwidth=6400.0):
    """Convolutions whose backward reads each input."""
    tensors = [Tensor(f"x{n}", nbytes, "activation") for n in range(layers + 1)]
    tensors += [Tensor(f"d{n}", nbytes, "activation_gradient") for n in range(layers)]
    scratch = SUB_BATCHES[0].scratch_bytes
    ops = [
        Op(
            f"f{n}",
            "conv2d",
            "forward",
            (n,),
            (n + 1,),
            seconds=1.0,
            scratch_bytes=scratch,
            algorithms=SUB_BATCHES,
        )
        for n in range(layers)
    ]
    for place, n in enumerate(reversed(range(layers))):
        reads = (n, layers + place) if place else (n, layers)
        out = (layers + 1 + place,)
        ops.append(Op(f"b{n}", "g", "backward", reads, out, seconds=2.0))
    graph = Graph("chain", tuple(tensors), tuple(ops), keep=(2 * layers,))
    return replace(graph, tiers=(Tier("host", bandwidth),))


def test_the_bound_has_a_plan_and_less_is_refused_with_it():
    """Two inputs or outputs, and the least scratch there is beside them."""
    graph = chain()
    bound = 2 * 6400 + 16384
    assert least_of(graph) == bound
    plan = modnn()(graph, bound)
    validate(graph, plan)
    assert plan.peak_bytes == bound
    with pytest.raises(InfeasiblePlanError) as refused:
        modnn()(graph, bound - 64)
    assert refused.value.smallest_limit_bytes == bound
    assert lower_bound(without_oracle(graph)) == bound


def without_oracle(graph):
    """NumPy's algorithm, which takes no scratch, is no choice."""
    return replace(graph, ops=tuple(map(_bare, graph.ops)))


def _bare(op):
    ways = tuple(each for each in op.algorithms if each.name != "reference")
    return replace(op, algorithms=ways)


@pytest.mark.parametrize("name", ["resnet18", "unet", "alexnet"])
def test_networks_are_planned_down_to_the_bound(name):
    graph = step(name, 4)
    least = least_of(graph)
    assert least <= 1.001 * lower_bound(without_oracle(graph))
    validate(graph, modnn()(graph, least))


def test_less_time_with_more_memory_and_never_more():
    graph = chain(bandwidth=3200.0)
    seconds = []
    for budget in budgets(least_of(graph), share()(graph).peak_bytes):
        plan = modnn()(graph, budget)
        validate(graph, plan)
        assert plan.peak_bytes <= budget
        seconds.append(plan.elapsed_seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.2 * seconds[-1]
    assert seconds[-1] == pytest.approx(sum(op.seconds for op in graph.ops))


@pytest.mark.strength(1)
@pytest.mark.parametrize("bandwidth", [5e9, 5e8])
@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("resnet18", 32),
        ("alexnet", 32),
        pytest.param("unet", 4, marks=pytest.mark.slow),
    ],
)
def test_it_is_as_fast_as_vdnn_at_every_budget(name, batch, bandwidth):
    graph = step(name, batch, bandwidth)
    seconds, compared = [], 0
    for budget in budgets(least_of(graph), share()(graph).peak_bytes):
        plan = modnn()(graph, budget)
        validate(graph, plan)
        assert plan.peak_bytes <= budget
        seconds.append(plan.elapsed_seconds)
        try:
            other = vdnn_dyn()(graph, budget).elapsed_seconds
        except InfeasiblePlanError:
            continue
        compared += 1
        assert plan.elapsed_seconds <= other
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(seconds))
    assert compared >= 2


def algorithms(plan):
    return {a.algorithm for a in plan.actions if isinstance(a, Compute)}


def test_algorithms_change_with_the_budget():
    graph = chain()
    found = [algorithms(modnn()(graph, 2 * 6400 + n)) for n in (16384, 32768, 65536)]
    assert "im2col/4" in found[0]
    assert "im2col/2" in found[1] - found[0]
    assert "im2col/4" not in found[2]
    assert algorithms(modnn()(graph)) == {None}
    assert all("reference" not in names for names in found)


@pytest.mark.parametrize("more", [0, 64, 4096])
@pytest.mark.parametrize("scratch", [16384, 32768, 65536])
def test_where_copies_take_no_time_the_algorithms_are_the_optimum(scratch, more):
    """Values are free to move, so each op has the fastest that fits beside its own."""
    graph = chain(bandwidth=1e15)
    fast = [each.seconds for each in SUB_BATCHES if 0 < each.scratch_bytes <= scratch]
    plan = modnn()(graph, 2 * 6400 + scratch + more)
    validate(graph, plan)
    backward = sum(op.seconds for op in graph.ops if op.phase == "backward")
    assert plan.elapsed_seconds == pytest.approx(8 * min(fast) + backward)


def test_a_slow_lane_takes_scratch_before_it_moves_values():
    """A little less than all: half the batch costs less than a copy nobody hides."""
    graph = chain(layers=3, bandwidth=10.0)
    limit = share()(graph).peak_bytes - 64
    slow = modnn()(graph, limit)
    fast = modnn()(replace(graph, tiers=(Tier("host", 1e12),)), limit)
    assert "im2col/2" in algorithms(slow)
    assert slow.predicted.moved_bytes == 0 < fast.predicted.moved_bytes
    assert algorithms(fast) == {None}


def test_a_deep_network_takes_a_tenth_of_what_holds_everything():
    layers = [nn.Input((32, 32, 3))]
    for _ in range(40):
        layers += [nn.Conv2D(16, 3, padding="same"), nn.ReLU()]
    model = nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(5)])
    model.compile(nn.SGD(0.1), nn.SparseCategoricalCrossentropy(from_logits=True))
    graph = model.graph(16)
    model.close()
    assert least_of(graph) * 10 <= keep_all()(graph).peak_bytes


def test_a_tier_without_room_is_refused(resnet):
    limit = share()(resnet).peak_bytes * 7 // 10
    full = replace(resnet, tiers=(Tier("host", 5e9, 64),))
    told = "'host', whose limit is 64 B"
    with pytest.raises(InfeasiblePlanError, match=told) as refused:
        modnn()(full, limit)
    validate(full, modnn()(full, refused.value.smallest_limit_bytes))


@given(
    seed=st.integers(0, 10_000),
    ops=st.integers(2, 20),
    power=st.floats(0, 7),
)
@settings(max_examples=60, deadline=None)
def test_plans_of_random_steps_are_valid_and_take_no_longer_with_more(seed, ops, power):
    graph = replace(random_step(seed, ops), tiers=(Tier("host", 10**power),))
    seconds = []
    for budget in budgets(least_of(graph), share()(graph).peak_bytes + 64, 4):
        plan = modnn()(graph, max(budget, 1))
        validate(graph, plan)
        assert simulate(graph, plan).peak_bytes == plan.peak_bytes <= max(budget, 1)
        seconds.append(plan.elapsed_seconds)
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(seconds))


def compiled(policy):
    nn.set_random_seed(1)
    layers = [nn.Input((32, 32, 3))]
    for _ in range(8):
        layers += [nn.Conv2D(16, 3, padding="same"), nn.ReLU()]
    model = nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(5)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy)
    return model


def test_real_steps_hold_a_budget():
    x = np.random.default_rng(0).standard_normal((8, 32, 32, 3)).astype(np.float32)
    y = np.arange(8) % 5
    plain = compiled(share())
    for _ in range(5):
        plain.train_on_batch(x, y)
    limit = plain.memory_plan.peak_bytes * 5 // 10
    (cpu,) = mc.config.list_physical_devices("CPU")
    weights = plain.get_weights()
    plain.close()
    mc.config.reset()
    device = mc.config.LogicalDeviceConfiguration(
        memory_limit=f"{limit}B", spill_to="host"
    )
    mc.config.set_logical_device_configuration(cpu, [device])
    model = compiled(modnn())
    for _ in range(5):
        model.train_on_batch(x, y)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    for own, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)
    model.close()
    mc.config.reset()
