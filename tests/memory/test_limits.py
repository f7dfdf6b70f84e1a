"""Limits on what goes through, on a pool, and on all memory of the host."""

from __future__ import annotations

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import machine
import pytest

from memcfg import memory
from memcfg.errors import ResourceExhaustedError


@pytest.fixture
def host():
    before = machine.get_host_limits()
    yield
    machine.set_host_limits(*before)


def test_a_limit_is_on_what_goes_through_here():
    pool = memory.Pool(limit="1MiB", name="GPU:0")
    half = memory.limiting(pool, "512KiB")
    assert (half.limit, half.upstream, half.name) == (2**19, pool, "GPU:0")
    others = pool.allocate(2**19)
    with half.allocate(2**19 - 100, tag="mine"):
        assert half.stats().largest_free_bytes == 64
        with pytest.raises(ResourceExhaustedError) as caught:
            half.allocate(65)
        error = caught.value
        assert (error.limit_bytes, error.in_use_bytes) == (2**19, 2**19 - 64)
        assert (error.requested_bytes, error.rounded_bytes) == (65, 128)
        assert (error.owners, error.device) == ({"mine": 2**19 - 64}, "GPU:0")
        assert "set_limit" in error.hint
    others.free()


def test_upstream_may_refuse_earlier():
    half = memory.limiting(memory.Pool(limit=4096), "1MiB")
    assert half.stats().largest_free_bytes <= 4096
    with pytest.raises(ResourceExhaustedError) as caught:
        half.allocate(8192)
    assert caught.value.limit_bytes == 4096
    assert half.stats().current_bytes == 0


@pytest.mark.parametrize("make", [memory.limiting, memory.Pool])
def test_limits_are_set_and_refused(make):
    def build(limit):
        if make is memory.Pool:
            return memory.Pool(limit=limit)
        return memory.limiting(memory.system(), limit)

    resource = build("4KiB")
    block = resource.allocate(1000)
    assert resource.set_limit(2048) == 4096
    with pytest.raises(ResourceExhaustedError, match="below the bytes in use"):
        resource.set_limit(1023)
    assert resource.set_limit("1KiB") == 2048
    assert resource.set_limit(None) == 1024
    assert resource.limit is None
    assert resource.stats().limit_bytes is None
    block.free()
    for bad in (0, -1, "0B", "-1KiB", 2**64, 2**70, "4 parsecs"):
        with pytest.raises(ValueError, match=r"limit|size"):
            build(bad)
        with pytest.raises(ValueError, match=r"limit|size"):
            resource.set_limit(bad)
    for bad in (1.5, True, [1], b"1KiB"):
        with pytest.raises(TypeError):
            build(bad)
        with pytest.raises(TypeError):
            resource.set_limit(bad)
    assert resource.limit is None


def test_threads_never_pass_a_limit():
    limiting = memory.limiting(memory.Pool(), 64 * 50)
    refused = []

    def work(lane: int) -> None:
        held = []
        for step in range(300):
            try:
                held.append(limiting.allocate(1 + step % 300, tag=str(lane)))
            except ResourceExhaustedError:
                refused.append(lane)
                held.clear()

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused
    assert limiting.stats().current_bytes == 0
    assert limiting.stats().peak_bytes <= 64 * 50
    limiting.check()


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("make", [memory.system, memory.Pool])
def test_tracked_bytes_are_those_of_all_resources_on_the_host(make):
    resource = make()
    other = memory.Pool()
    simulated = memory.Pool(memory.simulated("1TiB"))
    before = machine.tracked_bytes()
    with other.allocate(2**16), simulated.allocate(2**30):
        assert machine.set_host_limits(before + 2**20, None) == (None, None)
        assert machine.get_host_limits() == (before + 2**20, None)
        with resource.allocate(2**19):
            assert machine.tracked_bytes() == before + 2**16 + 2**19
            with pytest.raises(ResourceExhaustedError, match="all pools") as caught:
                resource.allocate(2**19)
            assert "set_host_memory_limit(tracked=" in caught.value.hint
        resource.allocate(2**19).free()
    assert machine.tracked_bytes() == before


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("make", [memory.system, memory.Pool])
def test_resident_bytes_are_limited(make):
    resource = make()
    resident = machine.resident_bytes()
    if resident == 0:
        pytest.skip("this system does not tell what is resident")
    machine.set_host_limits(None, resident + 2**26)
    with pytest.raises(ResourceExhaustedError, match="resident") as caught:
        resource.allocate(2**30)
    assert "set_host_memory_limit(rss=" in caught.value.hint
    resource.allocate(2**20).free()
    with pytest.raises(ResourceExhaustedError):
        machine.set_host_limits(None, 2**20)
    assert machine.get_host_limits() == (None, resident + 2**26)


def grants_at_once(resources, nbytes):
    """Have each resource asked by a thread of its own; gives the blocks granted."""
    meeting = threading.Barrier(len(resources))
    granted = []

    def ask(resource) -> None:
        meeting.wait()
        with suppress(ResourceExhaustedError):
            granted.append(resource.allocate(nbytes))

    with ThreadPoolExecutor(len(resources)) as threads:
        list(threads.map(ask, resources))
    return granted


@pytest.mark.usefixtures("host")
def test_threads_together_are_granted_no_more_resident_bytes_than_allowed():
    if machine.resident_bytes() == 0:
        pytest.skip("this system does not tell what is resident")
    for _ in range(20):
        resources = [memory.Pool(), memory.Pool(), memory.Pool(), memory.system()]
        machine.set_host_limits(None, machine.resident_bytes() + 100 * 2**20)
        assert len(grants_at_once(resources, 60 * 2**20)) == 1


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("hold", [memory.Pool.allocate, memory.Pool.arena])
def test_pages_that_nobody_touched_count_as_resident(hold):
    resident = machine.resident_bytes()
    if resident == 0:
        pytest.skip("this system does not tell what is resident")
    machine.set_host_limits(None, resident + 100 * 2**20)
    pool, held = memory.Pool(), []

    def take() -> None:
        held.append(hold(pool, 2**26))
        if isinstance(held[-1], memory.Arena):
            held[-1].grow(2**26)

    take()
    assert machine.resident_bytes() < resident + 2**25
    with pytest.raises(ResourceExhaustedError, match="resident"):
        take()
    held.clear()
    pool.trim()
    take()
    view = memoryview(held[0])  # and those touched count once
    view[:: 2**12] = bytes(2**26 // 2**12)
    with memory.Pool().allocate(2**24):
        pass
    view.release()
    held.clear()


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("bad", [0, -1, 1.5, "much"])
def test_host_limits_that_are_none(bad):
    for arguments in ((bad, None), (None, bad)):
        with pytest.raises((TypeError, ValueError)):
            machine.set_host_limits(*arguments)
    assert machine.get_host_limits() == (None, None)


def test_more_than_the_machine_has_is_refused_before_it_is_filled():
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    resident, begin = machine.resident_bytes(), time.monotonic()
    with pytest.raises(ResourceExhaustedError) as caught:
        memory.Pool(limit=4 * most, growth=False)
    assert time.monotonic() - begin < 5
    assert machine.resident_bytes() < resident + 2**24
    assert caught.value.requested_bytes == 4 * most
    assert caught.value.hint


@pytest.mark.parametrize("bad", [None, 0, 1, "no", [], "False"])
def test_growth_is_a_bool(bad):
    with pytest.raises(TypeError, match="growth is True or False"):
        memory.Pool(limit=2**20, growth=bad)


def test_the_largest_request_is_what_the_resource_below_grants_too():
    """Two pools share a device of 16 GiB; each may have 10 of them."""
    device = memory.simulated("16GiB")
    first, second = (memory.Pool(device, limit="10GiB") for _ in range(2))
    with first.allocate(9 * 2**30):
        assert second.stats().largest_free_bytes <= 7 * 2**30
        with pytest.raises(ResourceExhaustedError) as caught:
            second.allocate(8 * 2**30)
        assert caught.value.largest_free_bytes <= 7 * 2**30
        second.allocate(caught.value.largest_free_bytes).free()


def test_a_refusal_of_the_resource_below_is_told_as_one():
    pool = memory.Pool(memory.limiting(memory.system(), "1MiB"), limit="8MiB")
    assert pool.stats().largest_free_bytes <= 2**20
    with pytest.raises(ResourceExhaustedError, match="resource below") as caught:
        pool.allocate(2**21)
    assert caught.value.largest_free_bytes <= 2**20
    assert caught.value.hint.endswith("or raise its limit.")
    with pool.allocate(pool.stats().largest_free_bytes):
        pool.check()


@pytest.mark.parametrize("nbytes", [1, 100, 4095, 10**9, 12345678901, "1GB", "5MB"])
def test_a_device_of_any_number_of_bytes_can_be_taken_whole(nbytes):
    device = memory.simulated(nbytes)
    size = device.stats().limit_bytes
    pool = memory.Pool(device, limit=size, growth=False)
    pool.check()
    with pool.allocate(max(1, size // 64 * 64)) if size >= 64 else nullcontext():
        assert pool.stats().current_bytes <= size
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(size + 1)


def test_a_device_is_as_large_as_was_said():
    device = memory.simulated("4MiB", name="GPU:0")
    pool = memory.Pool(device)
    assert pool.name == "GPU:0"
    paged = pool.allocate(3 * 2**20)
    assert device.stats().reserved_bytes == 3 * 2**20
    with pytest.raises(ResourceExhaustedError, match="no more memory") as caught:
        device.allocate(2**21)
    assert caught.value.limit_bytes == 2**22
    assert "simulate a larger one" in caught.value.hint
    with pytest.raises(ResourceExhaustedError, match="no more memory"):
        pool.allocate(2**21)
    with device.allocate(2**20), pytest.raises(ResourceExhaustedError):
        pool.allocate(2**20)
    paged.free()
    for bad in (0, -1, "0GiB", "big", 2**62 + 1, 2**70):
        with pytest.raises(ValueError, match=r"size|byte|negative"):
            memory.simulated(bad)
    for bad in (None, 1.5, True):
        with pytest.raises(TypeError):
            memory.simulated(bad)


@pytest.mark.parametrize("nbytes", [2**40, 2**50, 2**61])
def test_devices_may_be_larger_than_any_machine(nbytes):
    device = memory.simulated(nbytes)
    with device.allocate(nbytes // 2), memory.Pool(device).allocate(2**30):
        assert device.stats().reserved_bytes >= nbytes // 2 + 2**30
    device.check()


def test_devices_have_addresses_of_their_own():
    pools = [memory.Pool(memory.simulated("1TiB")) for _ in range(3)]
    spans = sorted(
        (block.address, block.nbytes)
        for blocks in ([pool.allocate(2**38) for _ in range(3)] for pool in pools)
        for block in blocks
    )
    assert len(spans) == 9
    for (left, size), (right, _) in itertools.pairwise(spans):
        assert left >= 2**62
        assert left + size <= right
