"""What methods promise alike: on random steps, on networks, and within hard limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_chains import IMAGES, at_a_limit, network, weights_after
from networks import NETWORKS
from training_graphs import random_step, typed_step

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Tier
from memcfg.plan import (
    auto,
    capuchin,
    chen_budget,
    chen_mirror,
    chen_recursive,
    chen_sqrt,
    layrub_migration,
    meng_attention,
    meng_swap,
    modnn,
    out_of_core,
    revolve,
    rotor,
    share,
    simulate,
    superneurons,
    superneurons_cache,
    superneurons_cost,
    superneurons_memory,
    superneurons_speed,
    validate,
    vdnn_all,
    vdnn_conv,
    vdnn_dyn,
    vdnn_pp,
)

nn = mc.nn
COMPUTING = (  # the same plans over any lane; without a limit the lowest
    *(chen_sqrt(), chen_mirror(), chen_budget(), chen_recursive(), revolve(), rotor()),
    *(superneurons_speed(), superneurons_memory(), superneurons_cost()),
    meng_attention(),
)
SWAPPING = (
    *(capuchin(), capuchin(passive=True), superneurons()),
    *map(meng_swap, ("in_time", "at_once", "on_demand")),
)
OTHERS = (
    *(vdnn_all(), vdnn_conv(), vdnn_dyn(), vdnn_pp(), vdnn_pp("conv")),
    *map(layrub_migration, (1, 2, 3, 4)),
)


def within(policy, graph, limit):
    """Plan within a limit, or the smallest that the method names."""
    try:
        plan = policy(graph, limit)
    except InfeasiblePlanError as refusal:
        limit = refusal.smallest_limit_bytes
        plan = policy(graph, limit)
    validate(graph, plan)
    assert simulate(graph, plan).peak_bytes == plan.peak_bytes <= limit
    return plan


@pytest.mark.parametrize("policy", [*COMPUTING, *SWAPPING, *OTHERS], ids=repr)
@settings(max_examples=40, deadline=None)
@given(
    make=st.sampled_from([random_step, typed_step]),
    seed=st.integers(0, 10**6),
    ops=st.integers(1, 24),
    part=st.integers(20, 110),
    power=st.floats(0, 7),
)
def test_plans_of_random_steps_are_valid(policy, make, seed, ops, part, power):
    graph = replace(make(seed, ops), tiers=(Tier("host", 10**power),))
    plan = policy(graph)
    validate(graph, plan)
    within(policy, graph, max(share()(graph).peak_bytes * part // 100, 64))
    if policy in COMPUTING and plan.peak_bytes > 1:
        assert policy(graph, plan.peak_bytes).peak_bytes <= plan.peak_bytes
        with pytest.raises(InfeasiblePlanError) as refusal:
            policy(graph, plan.peak_bytes - 1)
        assert refusal.value.smallest_limit_bytes == plan.peak_bytes


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "policy", [*SWAPPING, modnn(), out_of_core(), meng_attention()], ids=repr
)
def test_networks_of_all_kinds(policy, name):
    graph = NETWORKS[name]()
    peak = share()(graph).peak_bytes
    for limit in (peak - 64, *(peak * percent // 100 for percent in (75, 50, 10))):
        within(policy, graph, limit)
    if policy == superneurons():
        assert policy(graph, peak).predicted.moved_bytes == 0


def normalized():
    """Convolutions, of which what comes behind is computed again soon."""
    nn.set_random_seed(1)
    layers = [nn.Input((32, 32, 3))]
    for _ in range(8):
        layers += [nn.Conv2D(16, 3, padding="same"), nn.BatchNormalization(), nn.ReLU()]
    return nn.Sequential([*layers, nn.GlobalAveragePooling2D(), nn.Dense(5)])


def noisy():
    """Batch normalisation, dropout and a connection around all of it."""
    nn.set_random_seed(3)
    x = nn.Input((32, 32, 3))
    first = y = nn.Conv2D(8, 3, padding="same")(x)
    for _ in range(8):
        z = nn.BatchNormalization()(nn.Conv2D(8, 3, padding="same")(y))
        y = nn.Dropout(0.2, seed=5)(nn.ReLU()(z))
    y = nn.Add()([first, y])
    return nn.Model(x, nn.Dense(3)(nn.GlobalAveragePooling2D()(y)))


AT_LIMITS = [  # a network, a method, and parts of the peak of `share`
    *((normalized, make(), (2.0,)) for make in (vdnn_all, vdnn_conv, vdnn_dyn)),
    *((network, make(), (1.0, 0.5)) for make in (layrub_migration, vdnn_pp)),
    (network, superneurons_cache(), (0.7, 0.2)),
    *((make, superneurons(), (0.2,)) for make in (network, noisy)),
]


@pytest.mark.parametrize(("make", "policy", "parts"), AT_LIMITS)
def test_weights_have_the_bits_of_share(make, policy, parts):
    expected = weights_after(make, share(), IMAGES)
    for part in parts:
        plans = []
        assert weights_after(make, at_a_limit(policy, part, plans), IMAGES) == expected
        (plan,) = plans
        assert plan.predicted.moved_bytes or policy == vdnn_dyn()  # which fits
        assert policy != superneurons() or plan.predicted.recompute_seconds


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (auto(), {}),
        (out_of_core(), {}),
        (capuchin(), {"lane_bandwidth": "300MB"}),
        (capuchin(passive=True), {}),
    ],
    ids=["auto", "out_of_core", "capuchin", "passive"],
)
def test_weights_have_the_bits_of_share_within_a_hard_limit(policy, options):
    plans = []

    def noted(graph, limit_bytes=None):
        plans.append(policy(graph, limit_bytes))
        return plans[-1]

    expected = weights_after(normalized, share(), IMAGES)
    model = normalized()
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    limit = share()(model.graph(8)).peak_bytes * 6 // 10
    model.close()
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    device = mc.config.LogicalDeviceConfiguration(
        memory_limit=f"{limit}B", spill_to="host", **options
    )
    mc.config.set_logical_device_configuration(cpu, [device])
    assert weights_after(normalized, noted, IMAGES) == expected
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    assert plans[-1].predicted.moved_bytes
    if policy == capuchin():
        assert plans[-1].predicted.recompute_seconds
    mc.config.reset()
