"""Where tensors go that leave a device: which tier, under what limit, how fast."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from interpreter import random_values
from networks import chain
from swapping import Swapping

import memcfg as mc
from memcfg.devices import TierLimit
from memcfg.errors import PlanError, ResourceExhaustedError
from memcfg.runtime import Executor

Configuration = mc.config.LogicalDeviceConfiguration


def device(**options):
    (cpu,) = mc.config.list_physical_devices("CPU")
    mc.config.set_logical_device_configuration(cpu, [Configuration(**options)])
    return mc.config.logical_device()


def load(device, tier, batch=8, name="model"):
    graph = chain(batch=batch)
    executor = Executor(device, name=name)
    executor.load({"train": graph}, Swapping((tier,)), random_values(graph))
    return executor


def train(executor):
    graph = executor.graphs["train"]
    values = random_values(graph)
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "input" and graph.producer[i] is None:
            value = 0 if tensor.name == "step" else values[tensor.name]
            executor.feed("train", tensor.name)[...] = value
    assert executor.run("train")
    return executor.fetch("train", "loss").tobytes()


@pytest.mark.parametrize("tier", ["host", "file"])
def test_a_device_has_the_tier_that_it_was_told(tier, tmp_path):
    target = "host" if tier == "host" else tmp_path
    found = device(memory_limit="64MiB", spill_to=target)
    assert set(found.tiers) == {tier}
    other = {"host": "file", "file": "host"}[tier]
    with pytest.raises(PlanError, match=f"no tier '{other}' to swap to; it has {tier}"):
        load(found, other)
    executor = load(found, tier)
    expected = train(load(found, tier, name="again"))
    assert train(executor) == expected
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_both_tiers_are_there_unless_it_was_told_of_one():
    assert set(device(memory_limit="64MiB").tiers) == {"host", "file"}


@pytest.mark.parametrize("tier", ["host", "file"])
def test_a_plan_beyond_the_limit_is_refused(tier, tmp_path):
    target = "host" if tier == "host" else str(tmp_path)
    found = device(spill_to=target, spill_limit="1KiB")
    with pytest.raises(
        PlanError, match=r"takes \d+ B of tier .* spill_limit is 1024 B"
    ):
        load(found, tier)


@pytest.mark.parametrize("tier", ["host", "file"])
def test_what_may_overflow_is_below_the_limit_too(tier, tmp_path):
    target = "host" if tier == "host" else str(tmp_path)
    graph = chain(batch=8)
    policy = Swapping(("zvc",), planned=0.0, overflow=tier)
    placed = mc.plan.with_copies_placed(graph, policy(graph))
    needed = mc.plan.simulate(graph, placed).tier_peak_bytes[tier]
    found = device(spill_to=target, spill_limit=f"{needed - 1}B")
    values = random_values(graph)
    with pytest.raises(PlanError, match=f"takes {needed} B of tier '{tier}'"):
        Executor(found, name="model").load({"train": graph}, policy, values)
    assert found.pool.stats().current_bytes == 0
    mc.config.reset()
    found = device(spill_to=target, spill_limit=f"{needed}B")
    executor = Executor(found, name="model")
    executor.load({"train": graph}, policy, values)
    executor.close()


@pytest.mark.parametrize("tier", ["host", "file"])
def test_models_share_the_limit(tier, tmp_path):
    target = "host" if tier == "host" else str(tmp_path)
    graph = chain(batch=8)
    plan = Swapping((tier,))(graph)
    needed = mc.plan.simulate(graph, plan).tier_peak_bytes[tier]
    found = device(spill_to=target, spill_limit=f"{needed}B")
    first = load(found, tier, name="first")
    loss = train(first)
    with pytest.raises(ResourceExhaustedError) as caught:
        train(load(found, tier, name="second"))
    assert caught.value.limit_bytes == needed
    assert caught.value.in_use_bytes == needed
    assert train(first) is not None
    first.close()
    del first
    assert train(load(found, tier, name="third")) == loss


@pytest.mark.parametrize("tier", ["host", "file"])
def test_what_grows_is_counted_once(tier, tmp_path):
    """A larger program takes the place of a smaller one, at exactly the limit."""
    target = "host" if tier == "host" else str(tmp_path)
    large = chain(batch=8)
    needed = mc.plan.simulate(large, Swapping((tier,))(large)).tier_peak_bytes[tier]
    found = device(spill_to=target, spill_limit=f"{needed}B")
    executor = load(found, tier, batch=4)
    train(executor)
    executor.load({"train": large}, Swapping((tier,)), {})
    train(executor)


def test_reservations_of_several_threads_keep_to_the_limit():
    limit = TierLimit("CPU:0", mc.devices.Spill("host", None, 100))

    class Owner:
        pass

    owners = [Owner() for _ in range(8)]
    barrier = threading.Barrier(len(owners))

    def reserve(owner):
        barrier.wait()
        try:
            limit.reserve(owner, {"host": 60})
        except ResourceExhaustedError:
            return 0
        return 1

    with ThreadPoolExecutor(len(owners)) as pool:
        assert sum(pool.map(reserve, owners)) == 1
    limit.reserve(owners[0], {"file": 1000})  # of another tier nothing is counted
    owners.clear()
    gc.collect()
    limit.reserve(limit, {"host": 100})


def test_a_full_disk_is_an_error_before_the_step(tmp_path, monkeypatch):
    found = device(spill_to=str(tmp_path))

    def full(folder, nbytes):
        raise OSError(28, "No space left on device", folder)

    monkeypatch.setattr("memcfg.devices.cpu._device.ScratchFile", full)
    with pytest.raises(OSError, match="No space left"):
        load(found, "file")


def test_copies_take_as_long_as_the_bandwidth_says():
    seconds = {}
    for bandwidth in (None, "1MiB"):
        mc.config.reset()
        found = device(spill_to="host", lane_bandwidth=bandwidth)
        executor = load(found, "host")
        train(executor)
        began = time.perf_counter()
        train(executor)
        seconds[bandwidth] = time.perf_counter() - began
        plan = executor.plans["train"]
        executor.close()
    one_way = plan.predicted.moved_bytes / 2
    assert seconds["1MiB"] >= 0.9 * one_way / 2**20
    assert seconds["1MiB"] > seconds[None]


def test_simulated_devices_take_all_of_it(tmp_path):
    gpu = mc.config.experimental.add_simulated_device("GPU", memory="1GiB")
    options = {"spill_limit": "50%", "lane_bandwidth": 2}
    mc.config.set_logical_device_configuration(
        gpu, [Configuration(memory_limit=64, spill_to="host", **options)]
    )
    spill = mc.config.logical_device("GPU:0").spill
    assert (spill.tier, spill.limit_bytes, spill.bandwidth) == ("host", 2**29, 2**21)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"spill_limit": 3}, ValueError, "spill_limit is for where tensors spill to"),
        ({"lane_bandwidth": 3}, ValueError, "lane_bandwidth is for where"),
        ({"spill_to": ""}, ValueError, "spill_to is empty"),
        ({"spill_to": b"/tmp"}, TypeError, "not b'/tmp'"),
        ({"spill_to": 3}, TypeError, "a folder's path or None, not 3"),
        ({"spill_to": "host", "spill_limit": 0}, ValueError, "spill_limit must be pos"),
        ({"spill_to": "host", "spill_limit": True}, TypeError, "spill_limit is a num"),
        ({"spill_to": "host", "lane_bandwidth": "5%"}, ValueError, "'5%' is a share"),
        ({"spill_to": "host", "lane_bandwidth": np.inf}, ValueError, "must be finite"),
    ],
)
def test_what_cannot_be_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        Configuration(**options)


def test_a_folder_must_be_there(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        device(spill_to=tmp_path / "none")
    assert replace(Configuration(), spill_to=tmp_path).spill_on(1).tier == "file"
