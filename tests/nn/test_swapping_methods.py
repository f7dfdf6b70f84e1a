"""Every method that swaps trains what keeps four times the device's limit, and more."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import (
    NAMED_POLICIES,
    Compute,
    Policy,
    keep_all,
    meng_swap,
    share,
    vdnn_all,
    vdnn_conv,
)

ENCODING = ("gist",)  # and nothing leaves
METHODS: dict[str, Policy] = {
    **{
        name: make()
        for name, make in NAMED_POLICIES.items()
        if getattr(make(), "swaps", False) and make().lossless and name not in ENCODING
    },
    "vdnn_all (m)": vdnn_all("memory"),
    "vdnn_conv (m)": vdnn_conv("memory"),
    "meng_swap on_demand": meng_swap("on_demand"),
}
# meng_swap("at_once") is no such method: all comes back before it is needed, so that it
# needs nearly as much as if nothing had left.
BATCH, STEPS = 4, 2


def network():
    nn.set_random_seed(1)
    layers = [nn.Conv2D(16, 3, padding="same", activation="relu") for _ in range(16)]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((16, 16, 3)), *layers, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss


def trained(policy):
    x = np.random.default_rng(0).standard_normal((BATCH, 16, 16, 3), np.float32)
    model, loss = network()
    try:
        model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy, on_oom="raise")
        for _ in range(STEPS):
            model.train_on_batch(x, np.arange(BATCH) % 5)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        return model.memory_plan, model.get_weights()
    finally:
        model.close()


def needs(policy):
    model, loss = network()
    try:
        model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy, on_oom="raise")
        return policy(model.graph(BATCH), 1).peak_bytes
    except InfeasiblePlanError as error:
        return error.smallest_limit_bytes
    finally:
        model.close()


def limited(nbytes):
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    wanted = mc.config.LogicalDeviceConfiguration(
        memory_limit=f"{nbytes}B", spill_to="host"
    )
    mc.config.set_logical_device_configuration(cpu, [wanted])


def test_sharing_alone_does_not_fit():
    everything, _ = trained(keep_all())
    limited(everything.peak_bytes // 4)
    with pytest.raises(InfeasiblePlanError):
        trained(share())


@pytest.mark.strength(1)
@pytest.mark.parametrize("tight", [False, True], ids=["a quarter", "the smallest"])
@pytest.mark.parametrize("name", METHODS)
def test_it_trains_to_the_same_bits(name, tight):
    everything, expected = trained(keep_all())
    limit = needs(METHODS[name]) if tight else everything.peak_bytes // 4
    assert limit <= everything.peak_bytes // 4
    limited(limit)
    plan, weights = trained(METHODS[name])
    assert plan.predicted.moved_bytes > 0
    assert plan.peak_bytes <= limit
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    named = any(isinstance(a, Compute) and a.algorithm for a in plan.actions)
    for found, wanted in zip(weights, expected, strict=True):
        if named:  # algorithms of less scratch round differently
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        else:
            assert found.tobytes() == wanted.tobytes()


def test_all_methods_that_swap_are_here():
    assert METHODS.keys() == {
        *("vdnn_all", "vdnn_conv", "vdnn_dyn", "vdnn_pp", "meng_swap", "cdma"),
        *("superneurons", "superneurons_cache", "layrub_migration"),
        *("capuchin", "modnn", "out_of_core"),
        *("vdnn_all (m)", "vdnn_conv (m)", "meng_swap on_demand"),
    }
