"""The limit of the process bounds each GPU as well, as ND4J's maxbytes does."""

from __future__ import annotations

import functools
import threading

import pytest

import memcfg as mc
from memcfg.errors import ResourceExhaustedError

GIB = 2**30


@pytest.fixture(autouse=True)
def _process_limit(request, monkeypatch):
    """Say what the environment allows, before anything of memory is made."""
    if hasattr(request, "param"):
        monkeypatch.setenv("MEMCFG_MAX_BYTES", request.param)
    request.getfixturevalue("gpus")


in_environment = functools.partial(
    pytest.mark.parametrize, "_process_limit", indirect=True
)


def pool_of(name):
    return mc.config.logical_device(name).pool


def limit(name="/GPU:0"):
    return pool_of(name).limit


def divide(*mib):
    physical = mc.config.list_physical_devices("GPU")[0]
    mc.config.set_logical_device_configuration(
        physical,
        [mc.config.LogicalDeviceConfiguration(memory_limit=each) for each in mib],
    )


@in_environment(["4GiB"])
def test_a_gpu_takes_no_more_than_the_environment_says():
    for name in ("/GPU:0", "/GPU:1"):
        assert limit(name) == 4 * GIB
        assert pool_of(name).stats().reserved_bytes <= 4 * GIB + 4096
    with pytest.raises(ResourceExhaustedError):
        pool_of("/GPU:0").allocate(5 * GIB)


def test_a_gpu_takes_no_more_than_the_function_says():
    mc.config.set_host_memory_limit(tracked="4GiB")
    assert limit() == 4 * GIB
    mc.config.set_host_memory_limit(tracked="1GiB")
    assert limit() == limit("/GPU:1") == GIB
    mc.config.set_host_memory_limit(tracked=None)
    assert limit() == GIB
    mc.config.set_memory_limit("/GPU:0", None)
    assert limit() == 16 * GIB


def test_a_limit_of_its_own_is_kept_if_it_is_lower():
    mc.config.set_host_memory_limit(tracked="4GiB")
    divide(1024, 512)
    assert limit("/GPU:0") == GIB
    mc.config.set_host_memory_limit(tracked="3GiB")
    assert limit("/GPU:0") == GIB
    assert limit("/GPU:1") == GIB // 2


@in_environment(["1GiB"])
def test_logical_devices_that_come_to_more_are_refused():
    divide(1024, 512)
    with pytest.raises(ValueError, match=r"MEMCFG_MAX_BYTES, allows 1073741824 B"):
        pool_of("/GPU:0")


def test_logical_devices_that_are_not_made_yet_are_refused_at_their_first_use():
    divide(1024, 512)
    mc.config.set_host_memory_limit(tracked="1GiB")
    with pytest.raises(ValueError, match=r"allows 1073741824 B"):
        pool_of("/GPU:0")


def test_what_cannot_be_lowered_leaves_all_as_it_was():
    divide(1024, 512)
    assert limit("/GPU:0") == GIB
    with pytest.raises(
        ValueError, match=r"more than 1073741824 B: lower their limits with"
    ):
        mc.config.set_host_memory_limit(tracked="1GiB")
    assert mc.config.set_host_memory_limit().tracked is None
    assert limit("/GPU:2") == 16 * GIB
    block = pool_of("/GPU:2").allocate(2 * GIB)
    mc.config.set_memory_limit("/GPU:1", "256MiB")
    with pytest.raises(ResourceExhaustedError):
        mc.config.set_host_memory_limit(tracked=GIB + GIB // 2)
    assert mc.config.set_host_memory_limit().tracked is None
    assert limit("/GPU:2") == 16 * GIB
    del block


def test_raising_a_gpus_limit_above_it_is_refused():
    mc.config.set_host_memory_limit(tracked="4GiB")
    assert limit() == 4 * GIB
    with pytest.raises(ValueError, match="MEMCFG_MAX_BYTES, allows"):
        mc.config.set_memory_limit("/GPU:0", "8GiB")
    assert limit() == 4 * GIB


class Giving:
    """Holds a block of a pool as a model does, and looks for a device amid giving."""

    spare_bytes = 0

    def __init__(self, pool, nbytes):
        self.block = pool.allocate(nbytes)
        self.found = None
        pool.holders.add(self, 2)  # asked when nobody else has any, as models are

    def give_back(self, nbytes):
        look = threading.Thread(target=self.look, daemon=True)
        look.start()
        look.join(20)
        freed = self.block.nbytes
        self.block.free()
        return freed

    def look(self):
        self.found = mc.config.logical_device("CPU:0")


def test_a_lower_limit_waits_for_models_without_the_lock_of_the_registry():
    """What gives memory, a step of another thread, may look for a device."""
    limits = {name: limit(name) for name in ("/GPU:0", "/GPU:1")}
    kept = pool_of("/GPU:0").allocate(GIB)
    giving = Giving(pool_of("/GPU:1"), 2 * GIB)
    before = mc.config.set_host_memory_limit(tracked="1GiB")
    assert giving.found == mc.config.logical_device("CPU:0")
    assert limit("/GPU:0") == limit("/GPU:1") == GIB
    assert mc.config.set_host_memory_limit(tracked=None) == (GIB, before[1])
    assert limits == dict.fromkeys(limits, 16 * GIB)
    kept.free()


def test_a_limit_that_nobody_makes_room_for_changes_nothing():
    limits = {name: limit(name) for name in ("/GPU:0", "/GPU:1")}
    block = pool_of("/GPU:1").allocate(2 * GIB)
    before = mc.config.set_host_memory_limit()
    with pytest.raises(ResourceExhaustedError):
        mc.config.set_host_memory_limit(tracked="1GiB")
    assert {name: limit(name) for name in limits} == limits
    assert mc.config.set_host_memory_limit() == before
    block.free()
