from __future__ import annotations

import numpy as np
import pytest

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration
from memcfg.errors import ResourceExhaustedError


def test_info_counts_bytes_in_use_rounded_up_to_64():
    assert config.get_memory_info("CPU:0") == {"current": 0, "peak": 0}
    pool = config.logical_device().pool
    with pool.allocate(1):
        assert config.get_memory_info("CPU:0") == {"current": 64, "peak": 64}
        with pool.allocate(65):
            assert config.get_memory_info("CPU:0") == {"current": 192, "peak": 192}
    assert config.get_memory_info("CPU:0") == {"current": 0, "peak": 192}


def test_resetting_the_statistics_sets_the_peak_to_what_is_in_use():
    pool = config.logical_device().pool
    pool.allocate(640).free()
    with pool.allocate(64):
        config.reset_memory_stats("CPU:0")
        assert config.get_memory_info("CPU:0") == {"current": 64, "peak": 64}


def test_devices_are_named_or_given(cpu):
    logical = config.list_logical_devices()[0]
    with config.logical_device().pool.allocate(64):
        for device in ("CPU", "CPU:0", "/device:CPU:0", logical, cpu):
            assert config.get_memory_info(device)["current"] == 64


def test_a_physical_device_that_is_split_is_ambiguous(cpu):
    config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 2)
    with pytest.raises(ValueError, match="Multiple devices"):
        config.get_memory_info(cpu)


@pytest.mark.parametrize("device", [None, 0, ["CPU:0"]])
def test_anything_else_is_a_type_error(device):
    for ask in (config.get_memory_info, config.reset_memory_stats):
        with pytest.raises(TypeError):
            ask(device)
    with pytest.raises(TypeError):
        config.set_memory_limit(device, 64)


def test_each_logical_device_counts_for_itself(cpu):
    config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 2)
    with config.logical_device("CPU:1").pool.allocate(64):
        assert config.get_memory_info("CPU:0")["current"] == 0
        assert config.get_memory_info("CPU:1")["current"] == 64


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [(128, 128), (np.int64(128), 128), ("1KiB", 1024), ("100B", 100), (None, None)],
)
def test_a_limit_can_change_while_memory_is_in_use(limit, nbytes):
    pool = config.logical_device().pool
    with pool.allocate(64):
        assert config.set_memory_limit("CPU:0", limit) is None
        assert pool.limit == nbytes
        assert config.set_memory_limit("CPU:0", None) == nbytes


def test_the_changed_limit_is_the_one_that_is_kept():
    config.set_memory_limit("CPU:0", 128)
    pool = config.logical_device().pool
    with pool.allocate(128):
        with pytest.raises(ResourceExhaustedError):
            pool.allocate(1)
        config.set_memory_limit("CPU:0", 192)
        pool.allocate(1).free()


def test_below_what_is_in_use_is_refused_and_nothing_changes():
    config.set_memory_limit("CPU:0", 4096)
    pool = config.logical_device().pool
    with pool.allocate(1000, owner="weights"):
        with pytest.raises(ResourceExhaustedError, match="weights") as caught:
            config.set_memory_limit("CPU:0", 1023)
        assert caught.value.in_use_bytes == 1024
        assert caught.value.device == "/device:CPU:0"
        assert pool.limit == 4096
        config.set_memory_limit("CPU:0", 1024)


@pytest.mark.parametrize("limit", [0, -5, np.int64(-5), "0B", "-5B", "much", 2**63])
def test_a_limit_that_is_no_positive_size_changes_nothing(limit):
    config.set_memory_limit("CPU:0", 128)
    with pytest.raises(ValueError, match="memory_limit"):
        config.set_memory_limit("CPU:0", limit)
    assert config.logical_device().pool.limit == 128


@pytest.mark.parametrize("limit", [True, 1.5, float("nan"), [64]])
def test_a_limit_that_is_no_whole_number_changes_nothing(limit):
    config.set_memory_limit("CPU:0", 128)
    with pytest.raises(TypeError, match="memory_limit"):
        config.set_memory_limit("CPU:0", limit)
    assert config.logical_device().pool.limit == 128
