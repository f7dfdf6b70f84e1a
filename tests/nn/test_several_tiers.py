"""Training that fills one tier and goes on to the next: bits, bytes, refusals."""

from __future__ import annotations

import time

import numpy as np
import pytest
from small_disks import run_on_a_disk
from tier_rules import broken, bytes_by_tier

import memcfg as mc
from memcfg import nn
from memcfg.errors import InfeasiblePlanError, PlanError, ResourceExhaustedError
from memcfg.plan import (
    NAMED_POLICIES,
    Compute,
    Policy,
    gist,
    keep_all,
    out_of_core,
    share,
    validate,
    vdnn_all,
    vdnn_dyn,
)

BATCH, STEPS = 4, 2
METHODS: dict[str, Policy] = {
    **{
        name: make()
        for name, make in NAMED_POLICIES.items()
        # gist moves nothing, and what is lossy has other bits
        if getattr(make(), "swaps", False) and name != "gist" and make().lossless
    },
    "out_of_core zvc": out_of_core("zvc"),
    "auto": NAMED_POLICIES["auto"](),
}


def network():
    nn.set_random_seed(1)
    layers = [nn.Conv2D(16, 3, padding="same", activation="relu") for _ in range(16)]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((16, 16, 3)), *layers, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss


def compiled(policy):
    model, loss = network()
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy, on_oom="raise")
    return model


def step(model):
    x = np.random.default_rng(0).standard_normal((BATCH, 16, 16, 3), np.float32)
    return model.train_on_batch(x, np.arange(BATCH) % 5)


def trained(policy):
    """Train some steps: the plan, its graph, the weights, and what is reported."""
    model = compiled(policy)
    try:
        for _ in range(STEPS):
            step(model)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        return model.memory_plan, model.graph(BATCH), model.get_weights(), report
    finally:
        model.close()


def device(limit, places, limits=None, **more):
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    if limits is not None:
        more["spill_limit"] = [n if n is None else f"{n}B" for n in limits]
    wanted = mc.config.LogicalDeviceConfiguration(
        memory_limit=None if limit is None else f"{limit}B", spill_to=places, **more
    )
    mc.config.set_logical_device_configuration(cpu, [wanted])
    return mc.config.logical_device()


def watch(monkeypatch):
    """List what is taken of tiers."""
    found = mc.config.logical_device()
    taken = {}
    own = found.tier_memory

    def tier_memory(tier, nbytes, *, tag):
        taken[tier] = space = own(tier, nbytes, tag=tag)
        return space

    monkeypatch.setattr(found, "tier_memory", tier_memory)
    return taken


@pytest.mark.strength(1)
@pytest.mark.parametrize("order", ["host, file", "file, host"])
@pytest.mark.parametrize("name", METHODS)
def test_what_has_no_room_on_the_first_tier_goes_to_the_next(
    name, order, tmp_path, monkeypatch
):
    """Of a quarter of what it takes, with a first tier for a third of what leaves."""
    everything, _, expected, _ = trained(keep_all())
    limit = everything.peak_bytes // 4
    names = order.split(", ")
    places = ["host" if tier == "host" else tmp_path for tier in names]
    device(limit, "host")
    away = trained(METHODS[name])[0].summary.by_tier["host"]
    device(limit, places, [away // 3, None])
    taken = watch(monkeypatch)
    plan, graph, weights, report = trained(METHODS[name])
    validate(graph, plan)
    assert share()(graph).peak_bytes > limit
    assert broken(graph, plan, graph.tiers) == []
    there = bytes_by_tier(graph, plan)
    assert plan.summary.by_tier == there
    assert {*there} == {"host", "file"}
    assert there[names[0]] <= away // 3
    # What was taken is what was predicted, beside a copy of the state on the host.
    assert report.tier_bytes["file"] == there["file"]
    assert report.tier_bytes["host"] == there["host"] + report.saved_bytes
    assert report.saved_bytes > 0
    assert taken["file"].nbytes == report.tier_bytes["file"]
    assert sum(plan.summary.by_tier.values()) >= plan.predicted.host_peak_bytes
    assert plan.peak_bytes <= limit
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    assert list(tmp_path.iterdir()) == []  # files have no names
    named = any(isinstance(a, Compute) and a.algorithm for a in plan.actions)
    for found, wanted in zip(weights, expected, strict=True):
        if named:  # algorithms of less scratch round differently
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        else:
            assert found.tobytes() == wanted.tobytes()


def test_three_places_of_which_two_are_folders(tmp_path):
    everything, _, expected, _ = trained(keep_all())
    limit = everything.peak_bytes // 4
    folders = [tmp_path / name for name in ("near", "far")]
    for folder in folders:
        folder.mkdir()
    device(limit, ["host", *folders], [70_000, 70_000, None])
    plan, graph, weights, report = trained(vdnn_all())
    assert broken(graph, plan, graph.tiers) == []
    assert {*plan.summary.by_tier} == {"host", "file", "file2"}
    assert report.tier_bytes["file2"] == bytes_by_tier(graph, plan)["file2"]
    assert all(map(np.array_equal, weights, expected))
    rows = [line.split() for line in str(report).splitlines() if "tier" in line]
    assert [row[1] for row in rows] == ["host", "file", "file2"]


def test_each_tier_has_lanes_of_its_own_bandwidth(tmp_path):
    """The bytes of the slow tier take their time; those of the other one do not."""
    everything = trained(keep_all())[0]
    limit = everything.peak_bytes // 4
    slow = 4 * 2**20  # bytes a second
    found = device(
        limit, ["host", tmp_path], [2**18, None], lane_bandwidth=[None, f"{slow}B"]
    )
    plan = trained(vdnn_all())[0]
    rates = {tier: found.spill.at(tier).bandwidth for tier in found.tiers}
    assert rates == {"host": None, "file": slow}
    moved = plan.summary.by_tier["file"]
    assert moved > 2**16
    assert plan.predicted.stall_seconds > moved / slow
    model = compiled(vdnn_all())
    took = [step_seconds(model) for _ in range(3)]
    model.close()
    assert min(took) > 0.9 * moved / slow


def step_seconds(model):
    began = time.perf_counter()
    step(model)
    return time.perf_counter() - began


def test_tiers_that_are_too_small_are_refused_before_the_step(tmp_path):
    everything = trained(keep_all())[0]
    limit = everything.peak_bytes // 4
    near = BATCH * 16 * 16 * (3 + 16) * 4  # images and one map
    device(limit, ["host", tmp_path], [near, None])
    there = trained(vdnn_all())[0].summary.by_tier
    device(limit, ["host", tmp_path], [near, there["file"]])
    assert trained(vdnn_all())[0].summary.by_tier == there
    device(limit, ["host", tmp_path], [near, there["file"] - 64])
    model = compiled(vdnn_all())
    before = [weight.tobytes() for weight in model.get_weights()]
    with pytest.raises(PlanError, match=r"on 'host', whose.*: 64 B too much"):
        step(model)
    assert [weight.tobytes() for weight in model.get_weights()] == before
    assert model.optimizer.iterations == 0
    model.close()
    device(limit, ["host", tmp_path], [64, 64])
    model = compiled(vdnn_dyn())
    with pytest.raises(InfeasiblePlanError, match="on 'file', whose limit is 64 B"):
        step(model)
    model.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["meng_swap", "capuchin"])
def test_the_limit_that_a_refusal_names_trains(name, tmp_path):
    limit = trained(keep_all())[0].peak_bytes // 6
    device(limit, ["host", tmp_path], [2**14, 2**14])
    model = compiled(NAMED_POLICIES[name]())
    with pytest.raises(InfeasiblePlanError, match="'file', whose limit is") as refused:
        step(model)
    model.close()
    assert not refused.value.is_smallest
    assert "would do, and a smaller one may" in str(refused.value)
    device(refused.value.smallest_limit_bytes, ["host", tmp_path], [2**14, 2**14])
    assert trained(NAMED_POLICIES[name]())[0].peak_bytes > limit


@pytest.mark.parametrize("tier", ["host", "file"])
def test_models_share_the_limit_of_each_tier(tier, tmp_path):
    places = ["host", tmp_path] if tier == "host" else [tmp_path, "host"]
    device(None, places, [2**17 + 64, None])
    there = trained(vdnn_all())[0].summary.by_tier
    assert 2 * there[tier] > 2**17 + 64
    first, second = compiled(vdnn_all()), compiled(vdnn_all())
    step(first)
    with pytest.raises(ResourceExhaustedError, match=f"tier '{tier}' of") as caught:
        step(second)
    assert caught.value.in_use_bytes == there[tier]
    step(first)
    first.close()
    step(second)
    second.close()


def test_what_encodings_leave_over_goes_to_the_tier_with_room(tmp_path):
    """Gist with next to no zeros expected: what does not fit stays as it is."""
    policy = gist(density=0.01)
    lossy = gist(density=0.01).name
    device(None, ["host", tmp_path], [2**18, None])
    plan, graph, weights, report = trained(policy)
    assert lossy == plan.method
    assert broken(graph, plan, graph.tiers) == []
    assert {*plan.summary.by_tier} == {"host", "file"}
    assert report.tier_bytes["file"] == plan.summary.by_tier["file"]
    mc.config.reset()
    expected = trained(policy)[2]
    assert all(map(np.array_equal, weights, expected))


FULL = """
import errno, os
import numpy as np
import memcfg as mc
from memcfg import nn

(cpu,) = mc.config.list_physical_devices("CPU")
configuration = mc.config.LogicalDeviceConfiguration(
    spill_to=["host", os.getcwd()], spill_limit=["64KiB", "64MiB"]
)
mc.config.set_logical_device_configuration(cpu, [configuration])

def network(policy):
    nn.set_random_seed(1)
    layers = [nn.Conv2D(16, 3, padding="same", activation="relu") for _ in range(8)]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((16, 16, 3)), *layers, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy, on_oom="raise")
    return model

def step(model, batch):
    x = np.random.default_rng(batch).standard_normal((batch, 16, 16, 3), np.float32)
    return model.train_on_batch(x, np.arange(batch) % 5)

def state(model):
    weights = [weight.tobytes() for weight in model.get_weights()]
    return weights, int(model.optimizer.iterations)

undisturbed = network(mc.plan.share())
expected = [step(undisturbed, batch) for batch in (1, 1, 32)]

model = network(mc.plan.vdnn_all())
losses = [step(model, 1)]
assert {*model.memory_plan.summary.by_tier} == {"host", "file"}
before = state(model)
limit = mc.config.logical_device().tier_limit
reserved = {tier: 2**16 if tier == "host" else 2**26 for tier in ("host", "file")}
there = dict(model.memory_plan.summary.by_tier)
with open("filler", "wb") as file:
    free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
    os.posix_fallocate(file.fileno(), 0, free - 2**19)
for _ in range(2):
    try:
        step(model, 32)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert "for what is swapped out cannot be made" in str(error), error
        assert str(error.filename) == os.getcwd(), error
    else:
        raise AssertionError("it was not refused")
    assert state(model) == before
    # Nothing stays reserved of what could not be had: another owner may have the rest.
    owner = type("Owner", (), {})()
    limit.reserve(owner, {tier: reserved[tier] - there[tier] for tier in there})
    del owner
losses += [step(model, 1)]
os.remove("filler")
losses += [step(model, 32)]
assert losses == expected
assert state(model) == state(undisturbed)
assert os.listdir() == []
"""


def test_a_full_disk_of_the_second_tier_is_told_before_the_step(tmp_path):
    run_on_a_disk(tmp_path, 2**24, FULL)
