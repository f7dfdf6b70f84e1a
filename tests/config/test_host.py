"""The limits on the memory of the process: what pools track, and what is resident."""

from __future__ import annotations

import pytest

from memcfg import config
from memcfg.errors import ResourceExhaustedError

MIB = 2**20


def test_there_is_no_limit_at_first_and_asking_changes_nothing():
    assert config.set_host_memory_limit() == (None, None)
    assert config.set_host_memory_limit() == config.HostLimits(None, None)


def test_the_previous_pair_comes_back():
    assert config.set_host_memory_limit(tracked="1GiB") == (None, None)
    assert config.set_host_memory_limit(rss=2**40) == (2**30, None)
    assert config.set_host_memory_limit() == (2**30, 2**40)
    assert config.set_host_memory_limit(tracked=None) == (2**30, 2**40)
    before = config.set_host_memory_limit(rss=None)
    assert (before.tracked, before.rss) == (None, 2**40)
    assert config.set_host_memory_limit() == (None, None)


def test_a_share_is_of_the_machines_memory(cpu):
    total = config.get_device_details(cpu)["memory"]
    config.set_host_memory_limit(tracked="50%", rss="100%")
    assert config.set_host_memory_limit() == (total // 2, total)


@pytest.mark.parametrize("name", ["tracked", "rss"])
@pytest.mark.parametrize(
    ("limit", "error"),
    [
        *((0, ValueError), (-1, ValueError), ("much", ValueError), ("0B", ValueError)),
        *((True, TypeError), (1.5, TypeError), ([1], TypeError)),
    ],
)
def test_what_is_no_size_changes_nothing(name, limit, error):
    config.set_host_memory_limit(tracked="1GiB", rss="1TiB")
    with pytest.raises(error, match=name):
        config.set_host_memory_limit(**{name: limit})
    assert config.set_host_memory_limit() == (2**30, 2**40)


def test_they_are_keywords_and_no_first_use(cpu):
    with pytest.raises(TypeError):
        config.set_host_memory_limit(2**30)
    config.set_host_memory_limit(tracked=2**30)
    config.set_memory_growth(cpu, True)


def test_the_tracked_limit_holds_over_all_devices(cpu):
    config.set_logical_device_configuration(
        cpu, [config.LogicalDeviceConfiguration()] * 2
    )
    first, second = (config.logical_device(f"CPU:{i}").pool for i in (0, 1))
    tracked = config.get_host_memory_info()["tracked"]
    config.set_host_memory_limit(tracked=tracked + 8 * MIB)
    with first.allocate(5 * MIB):
        with pytest.raises(ResourceExhaustedError):
            second.allocate(5 * MIB)
        config.set_host_memory_limit(tracked=None)
        second.allocate(5 * MIB).free()


def test_the_resident_limit_counts_what_others_hold():
    pool = config.logical_device().pool
    resident = config.get_host_memory_info()["resident"]
    config.set_host_memory_limit(rss=resident + 32 * MIB)
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(64 * MIB)
    config.set_host_memory_limit(rss=None)
    pool.allocate(64 * MIB).free()


def test_below_what_is_in_use_is_refused_and_nothing_changes():
    config.set_host_memory_limit(tracked="1GiB", rss="1TiB")
    with config.logical_device().pool.allocate(2 * MIB):
        for name in ("tracked", "rss"):
            with pytest.raises(ResourceExhaustedError):
                config.set_host_memory_limit(**{name: MIB})
        assert config.set_host_memory_limit() == (2**30, 2**40)


def test_simulated_devices_take_no_host_memory(gpus):
    before = config.get_host_memory_info()["tracked"]
    with config.logical_device("GPU:0").pool.allocate(2**33):
        assert config.get_memory_usage(gpus[0]) == 2**33
        assert config.get_host_memory_info()["tracked"] == before


def test_reset_lifts_them():
    config.set_host_memory_limit(tracked="1GiB", rss="1TiB")
    config.reset()
    assert config.set_host_memory_limit() == (None, None)


def test_what_the_pools_do_not_count_is_told():
    pool = config.logical_device().pool
    before = config.get_host_memory_info()["tracked"]
    with pool.allocate(64 * MIB) as block:
        memoryview(block)[:: 2**12] = bytes(64 * MIB // 2**12)
        info = config.get_host_memory_info()
        assert info["tracked"] == before + 64 * MIB
        assert info["resident"] > 64 * MIB
        assert info["untracked"] == info["resident"] - info["tracked"]
    assert config.get_host_memory_info()["tracked"] == before


def test_untracked_is_never_more_than_there_is():
    """Untouched blocks are tracked and not resident: the number is a lower bound."""
    pool = config.logical_device().pool
    with pool.allocate(64 * MIB):
        alone = config.get_host_memory_info()
        with pool.allocate(2**33):
            info = config.get_host_memory_info()
            assert info["tracked"] == alone["tracked"] + 2**33
            assert info["resident"] < 2**33
            assert info["untracked"] == 0 <= alone["untracked"] <= alone["resident"]
