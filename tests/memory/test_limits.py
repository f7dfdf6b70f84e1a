"""Limits on what goes through, on a pool, and on all memory of the host."""

from __future__ import annotations

import itertools
import threading

import pytest

from memcfg import _core, memory
from memcfg.errors import ResourceExhaustedError


@pytest.fixture
def host():
    before = _core.get_host_limits()
    yield
    _core.set_host_limits(*before)


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
    before = _core.tracked_bytes()
    with other.allocate(2**16), simulated.allocate(2**30):
        assert _core.set_host_limits(before + 2**20, None) == (None, None)
        assert _core.get_host_limits() == (before + 2**20, None)
        with resource.allocate(2**19):
            assert _core.tracked_bytes() == before + 2**16 + 2**19
            with pytest.raises(ResourceExhaustedError, match="all pools") as caught:
                resource.allocate(2**19)
            assert "set_host_memory_limit(tracked=" in caught.value.hint
        resource.allocate(2**19).free()
    assert _core.tracked_bytes() == before


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("make", [memory.system, memory.Pool])
def test_resident_bytes_are_limited(make):
    resource = make()
    resident = _core.resident_bytes()
    if resident == 0:
        pytest.skip("this system does not tell what is resident")
    _core.set_host_limits(None, resident + 2**26)
    with pytest.raises(ResourceExhaustedError, match="resident") as caught:
        resource.allocate(2**30)
    assert "set_host_memory_limit(rss=" in caught.value.hint
    resource.allocate(2**20).free()
    with pytest.raises(ResourceExhaustedError):
        _core.set_host_limits(None, 2**20)
    assert _core.get_host_limits() == (None, resident + 2**26)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("bad", [0, -1, 1.5, "much"])
def test_host_limits_that_are_none(bad):
    for arguments in ((bad, None), (None, bad)):
        with pytest.raises((TypeError, ValueError)):
            _core.set_host_limits(*arguments)
    assert _core.get_host_limits() == (None, None)


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
    for bad in (0, -1, "0GiB", "big"):
        with pytest.raises(ValueError, match=r"size|byte|negative"):
            memory.simulated(bad)
    for bad in (None, 1.5, True):
        with pytest.raises(TypeError):
            memory.simulated(bad)


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
