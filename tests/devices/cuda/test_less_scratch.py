"""Limits that the libraries' scratch exceeds: models train with less of it."""

from __future__ import annotations

import cublaslt_stand_in
import cuda_stand_in
import cudnn_stand_in
import gpus
import numpy as np
import pytest

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import InfeasiblePlanError

PAGE = 4096  # bytes; of a driver that has blocks only
POLICIES = {
    "share": planning.share(),
    "keep_all": planning.keep_all(),
    "sqrt_checkpoint": planning.sqrt_checkpoint(),
    "auto": planning.auto(),
}


@pytest.fixture
def module():
    yield cudnn_stand_in.StandIn()
    cuda_stand_in.reset()


def train(module, monkeypatch, policy, limit=None):
    """Train two epochs; gives what a user sees, and what the GPU had at most."""
    hardware = gpus.fresh(
        load_products=cublaslt_stand_in.load,
        load_convolutions=module.load,
        pages=False,
    )
    device = gpus.made(hardware, limit)
    monkeypatch.setattr(mc.config, "logical_device", lambda name=None: device)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 8, 8, 2)).astype(np.float32)
    y = rng.integers(0, 3, 16)
    mc.nn.set_random_seed(0)
    model = mc.nn.Sequential(
        [
            mc.nn.Conv2D(32, 3, padding="same"),
            mc.nn.AveragePooling2D(4),
            mc.nn.Flatten(),
            mc.nn.Dense(3),
        ]
    )
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, memory=policy, on_oom="raise")
    try:
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, seed=0)
        plan = model.plan(8)
        stats = device.pool.stats()
        assert stats.peak_reserved_bytes <= (limit or stats.peak_reserved_bytes)
        return history.history["loss"], plan, stats.peak_reserved_bytes
    finally:
        model.close()
        assert device.pool.stats().current_bytes == 0


def algorithms(plan):
    return {
        action.algorithm
        for action in plan.actions
        if isinstance(action, planning.Compute) and action.algorithm
    }


@pytest.mark.parametrize("name", POLICIES)
def test_a_limit_that_the_defaults_exceed_trains(module, monkeypatch, name):
    policy = POLICIES[name]
    free, plan, peak = train(module, monkeypatch, policy)
    assert not algorithms(plan)
    assert cudnn_stand_in.STAGED in module.executed
    with pytest.raises(InfeasiblePlanError) as caught:
        train(module, monkeypatch, policy, PAGE)
    floor = caught.value.smallest_limit_bytes
    assert floor < peak
    module.executed.clear()
    with pytest.warns(RuntimeWarning, match=r"no room .* Raise the limit by") as told:
        losses, plan, used = train(module, monkeypatch, policy, floor)
    assert len({str(each.message) for each in told}) == 1
    assert {each.filename for each in told} == {__file__}
    assert used <= floor
    assert plan.peak_bytes <= floor
    assert any(
        each.startswith((f"cudnn:{cudnn_stand_in.PLAIN}", "cuda"))
        for each in algorithms(plan)
    )
    np.testing.assert_allclose(losses, free, rtol=1e-5)
    assert "less scratch" in str(plan)
    with pytest.raises(InfeasiblePlanError) as caught:
        train(module, monkeypatch, policy, floor - PAGE)
    assert caught.value.smallest_limit_bytes == floor
