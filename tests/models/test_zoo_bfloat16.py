"""The zoo in mixed bfloat16: planned bytes, equal bits, and digits as in float32."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from sklearn.datasets import load_digits
from zoo_table import DEEP, FAMILIES, batch, make_small

import memcfg as mc

nn = mc.nn
EPOCHS, BATCH, SEEDS = 12, 32, (1, 2, 3)
# Their ops are those of others, in float32 in the gate as well.
LARGE = {"googlenet", "nin", "resnet18", "unet", "vgg16"}


def run(model, policy, data):
    """Train two steps; check what was planned, and return losses and weights."""
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(1e-3), loss, memory=policy)
    losses = [model.train_on_batch(*data) for _ in range(2)]
    weights = [zlib.crc32(each.numpy()) for each in model.weights]
    assert np.isfinite(losses).all()
    assert all(each.dtype == "float32" for each in model.weights)
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == model.memory_plan.peak_bytes
    return losses, weights


@pytest.mark.strength(1)
@pytest.mark.parametrize("policy", ["replay_elementwise", "sqrt_checkpoint"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in {*DEEP, *LARGE}))
        for name in sorted(FAMILIES)
    ],
)
def test_every_plan_of_a_family_has_the_same_bits(name, policy, monkeypatch):
    mc.config.set_dtype_policy("mixed_bfloat16")
    nn.set_random_seed(7)
    model = make_small(name, monkeypatch)
    assert {each.compute_dtype for each in model.layers} == {"bfloat16"}
    data = batch(model)
    start = model.get_weights()
    expected = run(model, "share", data)
    model.set_weights(start)
    assert run(model, policy, data) == expected
    model.close()


def accuracy(policy, seed, digits):
    (x, y), (tests, labels) = digits
    mc.config.set_dtype_policy(policy)
    nn.set_random_seed(seed)
    inputs = nn.Input((8, 8, 1))
    enlarged = nn.UpSampling2D(4, interpolation="bilinear")(inputs)
    model = nn.Model(inputs, mc.models.lenet5()(enlarged))
    steps = EPOCHS * -(-len(x) // BATCH)
    model.compile(
        nn.Adam(nn.optimizers.schedules.CosineDecay(2e-3, steps)),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, seed=seed)
    _, found = model.evaluate(tests, labels, verbose=0)
    model.close()
    return found


def test_lenet5_tells_digits_apart_as_in_float32(tenths):
    """The gate trains one seed of three, and allows three more wrong digits of 600."""
    whole = 3 if tenths == 10 else 1
    digits = load_digits()
    x = (digits.images / 16).astype(np.float32)[..., None]
    order = np.random.default_rng(0).permutation(len(x))
    parts = [(x[part], digits.target[part]) for part in (order[:1200], order[1200:])]
    means = [
        np.mean([accuracy(policy, seed, parts) for seed in SEEDS[:whole]])
        for policy in ("float32", "mixed_bfloat16")
    ]
    assert means[0] >= 0.975
    assert means[1] >= means[0] - (0.005 if whole == 3 else 0.01)
