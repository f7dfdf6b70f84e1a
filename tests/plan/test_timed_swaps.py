"""Swaps by the clock: the bytes of a walk, and steps that train within hard limits."""

from __future__ import annotations

import numpy as np
import pytest
from layer_chains import weights_after

import memcfg as mc
from memcfg.errors import InfeasiblePlanError
from memcfg.plan import (
    layrub_migration,
    share,
    superneurons,
    superneurons_cache,
    vdnn_pp,
)

nn = mc.nn
METHODS = (layrub_migration(), superneurons(), superneurons_cache(), vdnn_pp())


def recurrent():
    """Cells one by one."""
    nn.set_random_seed(2)
    x = nn.Input((12, 8))
    return nn.Model(x, nn.Dense(3)(nn.LSTM(16, unroll=True)(x)))


def attending():
    """Two blocks of attention with residual connections and normalisation."""
    nn.set_random_seed(2)
    x = y = nn.Input((12, 8))
    for _ in range(2):
        y = nn.LayerNormalization()(nn.Add()([y, nn.MultiHeadAttention(2, 4)(y, y)]))
        y = nn.Add()([y, nn.Dense(8)(nn.Dense(32, "gelu")(y))])
    return nn.Model(x, nn.Dense(3)(nn.GlobalAveragePooling1D()(y)))


@pytest.mark.parametrize("policy", METHODS, ids=lambda policy: policy.name)
@pytest.mark.parametrize("make", [recurrent, attending])
def test_weights_have_the_bits_of_share_within_a_hard_limit(policy, make):
    x = np.random.default_rng(1).standard_normal((8, 12, 8)).astype(np.float32)
    expected = weights_after(make, share(), x)
    model = make()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy)
    graph = model.graph(8)
    model.close()
    with pytest.raises(InfeasiblePlanError) as refused:
        policy(graph, 64)
    limit = refused.value.smallest_limit_bytes
    assert limit < share()(graph).peak_bytes
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    device = mc.config.LogicalDeviceConfiguration(
        memory_limit=f"{limit}B", spill_to="host"
    )
    mc.config.set_logical_device_configuration(cpu, [device])
    found = weights_after(make, policy, x)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    mc.config.reset()
    assert found == expected
