"""Where tensors go that leave a device: which tier, under what limit, how fast."""

from __future__ import annotations

import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from interpreter import random_values
from networks import chain
from small_disks import run_in_a_folder, run_on_a_disk
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
    with pytest.raises(PlanError, match=r"takes \d+ B of tier .* limit is 1024 B"):
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
    limit = TierLimit(
        "CPU:0", mc.devices.Spill((mc.devices.SpillPlace("host", None, 100),))
    )

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


def test_all_tiers_are_reserved_or_none():
    place = mc.devices.SpillPlace
    spill = mc.devices.Spill((place("host", None, 100), place("file", "/", 50)))
    limit = TierLimit("CPU:0", spill)

    class Owner:
        pass

    first, second = Owner(), Owner()
    limit.reserve(first, {"host": 40, "file": 30})
    limit.reserve(second, {"host": 30, "file2": 10**9})
    with pytest.raises(ResourceExhaustedError, match="tier 'file' of CPU:0") as full:
        limit.reserve(second, {"host": 10, "file": 21})
    assert (full.value.in_use_bytes, full.value.limit_bytes) == (30, 50)
    with pytest.raises(ResourceExhaustedError, match="tier 'host' of CPU:0") as full:
        limit.reserve(first, {"host": 71})
    assert full.value.in_use_bytes == 30
    limit.reserve(first, {"host": 70, "file": 50})


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


def test_timeouts_that_nobody_lives_to_see_are_none(tmp_path):
    for given in (1e12, 10**400, np.inf):
        assert (
            device(spill_to=str(tmp_path), lane_timeout=given).spill.timeout == np.inf
        )
        mc.config.reset()
    assert device(spill_to=str(tmp_path), lane_timeout=np.int64(5)).spill.timeout == 5


def test_a_timeout_has_a_default(tmp_path):
    assert device().spill.timeout == 300
    for given, wanted in ((None, 300), (2, 2), (np.inf, np.inf)):
        mc.config.reset()
        found = device(spill_to=str(tmp_path), lane_timeout=given)
        assert found.spill.timeout == wanted


def test_simulated_devices_take_all_of_it(tmp_path):
    gpu = mc.config.experimental.add_simulated_device("GPU", memory="1GiB")
    options = {"spill_limit": "50%", "lane_bandwidth": 2}
    mc.config.set_logical_device_configuration(
        gpu, [Configuration(memory_limit=64, spill_to="host", **options)]
    )
    spill = mc.config.logical_device("GPU:0").spill
    assert spill.places == (mc.devices.SpillPlace("host", None, 2**29, 2**21),)


def test_each_place_has_its_own_limit_and_bandwidth(tmp_path):
    folders = [tmp_path / name for name in ("fast", "slow")]
    for folder in folders:
        folder.mkdir()
    given = Configuration(
        spill_to=[folders[0], "host", folders[1]],
        spill_limit=["1KiB", None, 1],
        lane_bandwidth=(None, "2GB", 1),
    )
    assert isinstance(hash(given), int)
    place = mc.devices.SpillPlace
    assert given.spill_on(1).places == (
        place("file", str(folders[0]), 2**10, None),
        place("host", None, None, 2 * 10**9),
        place("file2", str(folders[1]), 2**20, 2**20),
    )
    (cpu,) = mc.config.list_physical_devices("CPU")
    mc.config.set_logical_device_configuration(cpu, [given])
    found = mc.config.logical_device()
    assert list(found.tiers.items()) == [
        ("file", "file"),
        ("host", "host"),
        ("file2", "file"),
    ]
    graph = chain(batch=8)
    tiers = Executor(found, name="model").annotate(graph).tiers
    assert [
        (each.name, each.bytes_per_second, each.limit_bytes, each.is_stated)
        for each in tiers
    ] == [
        ("file", 1e9, 2**10, True),
        ("host", 2e9, None, True),
        ("file2", 2**20, 2**20, True),
    ]


def test_one_place_may_be_told_as_a_sequence():
    several = Configuration(spill_to=("host",), spill_limit=(3,))
    assert several.spill_on(1) == Configuration(
        spill_to="host", spill_limit=3
    ).spill_on(1)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"spill_limit": 3}, ValueError, "spill_limit applies to where"),
        ({"lane_bandwidth": 3}, ValueError, "lane_bandwidth applies to where"),
        ({"spill_to": ""}, ValueError, "spill_to is empty"),
        ({"spill_to": b"/tmp"}, TypeError, "not b'/tmp'"),
        ({"spill_to": 3}, TypeError, "a folder's path or None, not 3"),
        ({"spill_to": "host", "spill_limit": 0}, ValueError, "spill_limit must be pos"),
        ({"spill_to": "host", "spill_limit": True}, TypeError, "spill_limit is a num"),
        ({"spill_to": "host", "lane_bandwidth": "5%"}, ValueError, "'5%' is a share"),
        ({"spill_to": "host", "lane_bandwidth": np.inf}, ValueError, "must be finite"),
        ({"spill_to": ()}, ValueError, "spill_to is empty"),
        ({"spill_to": ("host", "")}, ValueError, "spill_to is empty"),
        ({"spill_to": ("host", None)}, TypeError, "a folder's path or None, not None"),
        ({"spill_to": ("host", "host")}, ValueError, "names 'host' twice"),
        ({"spill_to": ("/a", "/b/../a")}, ValueError, "names '/b/../a' twice"),
        (
            {"spill_to": ("host", "/a"), "spill_limit": "1GiB"},
            ValueError,
            "spill_limit has 1 value, but spill_to has 2",
        ),
        (
            {"spill_to": ("host", "/a"), "lane_bandwidth": (1, 2, 3)},
            ValueError,
            "lane_bandwidth has 3 values, but spill_to has 2",
        ),
        (
            {"spill_to": "host", "spill_limit": ("1GiB", None)},
            ValueError,
            "spill_limit has 2 values, but spill_to has 1",
        ),
        (
            {"spill_to": ("host", "/a"), "spill_limit": (0, None)},
            ValueError,
            "spill_limit must be positive",
        ),
        ({"lane_timeout": 3}, ValueError, "lane_timeout applies to where"),
        (
            {"spill_to": "host", "lane_timeout": 0},
            ValueError,
            "must be positive, not 0",
        ),
        ({"spill_to": "host", "lane_timeout": np.nan}, ValueError, "must be positive"),
        ({"spill_to": "host", "lane_timeout": True}, TypeError, "a number of seconds"),
        ({"spill_to": "host", "lane_timeout": "5s"}, TypeError, "not '5s'"),
    ],
)
def test_what_cannot_be_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        Configuration(**options)


def test_places_change_on_a_used_device_that_holds_nothing(tmp_path):
    found = device(memory_limit="64MiB")
    expected = train(load(found, "host"))
    gc.collect()
    mc.config.set_memory_limit("CPU:0", "32MiB")
    for target, tier in (("host", "host"), (tmp_path, "file"), ("host", "host")):
        again = device(memory_limit="64MiB", spill_to=target)
        assert again is found
        assert set(found.tiers) == {tier}
        assert found.pool.limit == 32 << 20
        executor = load(found, tier)
        assert train(executor) == expected
        del executor
    device(memory_limit="64MiB")
    assert set(found.tiers) == {"host", "file"}


def test_places_stay_while_memory_is_in_use():
    found = device(memory_limit="64MiB")
    executor = load(found, "host")
    with pytest.raises(RuntimeError, match=r"in use: model model holds .*CPU:0"):
        device(memory_limit="64MiB", spill_to="host")
    assert set(found.tiers) == {"host", "file"}
    (cpu,) = mc.config.list_physical_devices("CPU")
    assert mc.config.get_logical_device_configuration(cpu) == [
        Configuration(memory_limit="64MiB")
    ]
    executor.close()
    device(memory_limit="64MiB", spill_to="host")
    for other in ({"memory_limit": "32MiB"}, {"memory_limit": "64MiB", "growth": True}):
        with pytest.raises(RuntimeError, match="after first use"):
            device(**other)


def test_only_a_device_that_changes_must_hold_nothing():
    (cpu,) = mc.config.list_physical_devices("CPU")
    plain = Configuration(memory_limit="64MiB")
    mc.config.set_logical_device_configuration(cpu, [plain, plain])
    executor = load(mc.config.logical_device("CPU:0"), "host")
    spilling = replace(plain, spill_to="host")
    mc.config.set_logical_device_configuration(cpu, [plain, spilling])
    assert set(mc.config.logical_device("CPU:1").tiers) == {"host"}
    with pytest.raises(RuntimeError, match="in use"):
        mc.config.set_logical_device_configuration(cpu, [spilling, spilling])
    executor.close()


def test_a_folder_must_be_there(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        device(spill_to=tmp_path / "none")
    assert replace(Configuration(), spill_to=tmp_path).spill_on(1).at(
        "file"
    ).folder == str(tmp_path)


FULL = """
import numpy as np
import memcfg as mc
from memcfg import nn

(cpu,) = mc.config.list_physical_devices("CPU")
configuration = mc.config.LogicalDeviceConfiguration(spill_to=os.getcwd())
mc.config.set_logical_device_configuration(cpu, [configuration])

def network(policy):
    nn.set_random_seed(1)
    layers = [nn.Conv2D(16, 3, padding="same", activation="relu") for _ in range(8)]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((16, 16, 3)), *layers, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=policy)
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
before, files = state(model), os.listdir()
has_no_room()
for _ in range(2):
    try:
        step(model, 32)
    except OSError as error:
        assert error.errno == NUMBER, error
        assert "for what is swapped out cannot be made" in str(error), error
        assert str(error.filename) == os.getcwd(), error
    else:
        raise AssertionError("it was not refused")
    assert state(model) == before
losses += [step(model, 1)]
has_room_again()
losses += [step(model, 32)]
assert model.memory_plan.predicted.moved_bytes > 2**20
assert losses == expected
assert state(model) == state(undisturbed)
assert os.listdir() == files == []
"""


def test_a_full_disk_is_told_before_the_step_which_changes_nothing(tmp_path):
    """A larger batch needs a larger file; the smaller one trains on meanwhile."""
    run_on_a_disk(
        tmp_path,
        2**24,
        """
import errno, os, resource

NUMBER = errno.ENOSPC

def has_no_room():
    with open("filler", "wb") as file:
        free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
        os.posix_fallocate(file.fileno(), 0, free - 2**19)

def has_room_again():
    os.remove("filler")
"""
        + FULL,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_a_limit_on_the_size_of_files_is_told_before_the_step(tmp_path):
    run_in_a_folder(
        tmp_path,
        """
import errno, os, resource

NUMBER = errno.EFBIG

def has_no_room():
    global limits
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, limits[1]))

def has_room_again():
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
"""
        + FULL,
    )
