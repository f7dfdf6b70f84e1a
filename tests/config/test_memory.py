from __future__ import annotations

import gc
from fractions import Fraction

import numpy as np
import pytest

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration
from memcfg.errors import ResourceExhaustedError

MIB = 2**20


# [T] "After an allocation on GPU: current>0, peak>0, keys exactly {'current','peak'},
# get_memory_usage == current." [M] "current counts rounded bytes, not requested"
@pytest.mark.parametrize("device", ["CPU:0", "GPU:0"])
@pytest.mark.usefixtures("gpus")
def test_info_counts_bytes_in_use_rounded_up_to_64(device):
    # [M] CPU: "{'current':0,'peak':0} … or ValueError: memcfg: always real"
    assert config.get_memory_info(device) == {"current": 0, "peak": 0}
    pool = config.logical_device(device).pool
    with pool.allocate(1):
        assert config.get_memory_info(device) == {"current": 64, "peak": 64}
        assert config.get_memory_usage(device) == 64
        with pool.allocate(65):
            assert config.get_memory_info(device) == {"current": 192, "peak": 192}
            assert config.get_memory_usage(device) == 192
    assert config.get_memory_info(device) == {"current": 0, "peak": 192}


# [T] "Allocating 4 MB raises peak by ≥ 4 MB; freeing does not lower peak; peak ≥
# current always."
@pytest.mark.parametrize("device", ["CPU:0", "GPU:1"])
@pytest.mark.usefixtures("gpus")
def test_four_megabytes_raise_the_peak_by_as_much(device):
    pool = config.logical_device(device).pool
    with pool.allocate(100):
        before = config.get_memory_info(device)["peak"]
        block = pool.allocate(4_000_000)
        info = config.get_memory_info(device)
        assert info["peak"] >= before + 4_000_000
        assert info["peak"] >= info["current"]
        block.free()
        assert config.get_memory_info(device)["peak"] == info["peak"]


# [C/doc] "reset_memory_stats sets peak = current"
def test_resetting_the_statistics_sets_the_peak_to_what_is_in_use():
    pool = config.logical_device().pool
    pool.allocate(640).free()
    with pool.allocate(64):
        config.reset_memory_stats("CPU:0")
        assert config.get_memory_info("CPU:0") == {"current": 64, "peak": 64}


# [M] "Passing a PhysicalDevice ⇒ TypeError. memcfg: accept objects too."
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
    for ask in (
        config.get_memory_info,
        config.get_memory_usage,
        config.reset_memory_stats,
        config.memory_fraction,
        config.trim,
    ):
        with pytest.raises(TypeError):
            ask(device)
    with pytest.raises(TypeError):
        config.set_memory_limit(device, 4096)


def test_each_logical_device_counts_for_itself(cpu):
    config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 2)
    with config.logical_device("CPU:1").pool.allocate(64):
        assert config.get_memory_info("CPU:0")["current"] == 0
        assert config.get_memory_info("CPU:1")["current"] == 64


class TestLimit:
    @pytest.mark.parametrize(
        ("limit", "nbytes"),
        [
            (2048, 2048),
            (np.int64(2048), 2048),
            ("1KiB", 1024),
            ("100B", 100),
            (None, None),
        ],
    )
    def test_it_can_change_while_memory_is_in_use(self, limit, nbytes):
        pool = config.logical_device().pool
        with pool.allocate(64):
            assert config.set_memory_limit("CPU:0", limit) is None
            assert pool.limit == nbytes
            assert config.set_memory_limit("CPU:0", None) == nbytes

    def test_the_changed_limit_is_the_one_that_is_kept(self):
        config.set_memory_limit("CPU:0", "128B")
        pool = config.logical_device().pool
        with pool.allocate(128):
            with pytest.raises(ResourceExhaustedError):
                pool.allocate(1)
            config.set_memory_limit("CPU:0", "192B")
            pool.allocate(1).free()

    def test_below_what_is_in_use_is_refused_and_nothing_changes(self):
        config.set_memory_limit("CPU:0", 4096)
        pool = config.logical_device().pool
        with pool.allocate(1000, tag="weights"):
            with pytest.raises(ResourceExhaustedError, match="weights") as caught:
                config.set_memory_limit("CPU:0", "1023B")
            assert caught.value.in_use_bytes == 1024
            assert caught.value.device == "/device:CPU:0"
            assert pool.limit == 4096
            config.set_memory_limit("CPU:0", 1024)

    @pytest.mark.parametrize(
        "limit",
        [0, -5, np.int64(-5), "0B", "-5B", "much", 2**63, "0%", "101%"],
    )
    def test_no_positive_size_changes_nothing(self, limit):
        config.set_memory_limit("CPU:0", "128B")
        with pytest.raises(ValueError, match="memory_limit"):
            config.set_memory_limit("CPU:0", limit)
        assert config.logical_device().pool.limit == 128

    @pytest.mark.parametrize("limit", [512, np.int32(1), 1023])
    def test_few_bytes_are_probably_meant_in_another_unit(self, limit):
        gc.collect()  # what earlier tests left in cycles is tracked, too
        both = f"'{limit}MiB' if MiB are meant, or '{limit}B'"
        with pytest.warns(RuntimeWarning, match=both) as warned:
            config.set_memory_limit("CPU:0", limit)
        assert [each.filename for each in warned] == [__file__]
        assert config.get_memory_limit("CPU:0") == limit
        with pytest.warns(RuntimeWarning, match=f"tracked={limit} is .*{both}") as it:
            config.set_host_memory_limit(tracked=limit, rss=2**62)
        assert [each.filename for each in it] == [__file__]
        config.set_memory_limit("CPU:0", f"{limit}B")  # says it is bytes
        config.set_memory_limit("CPU:0", 1024)

    @pytest.mark.parametrize("limit", [True, 1.5, float("nan"), [64]])
    def test_no_whole_number_changes_nothing(self, limit):
        config.set_memory_limit("CPU:0", "128B")
        with pytest.raises(TypeError, match="memory_limit"):
            config.set_memory_limit("CPU:0", limit)
        assert config.logical_device().pool.limit == 128

    def test_a_bad_limit_is_no_first_use(self, cpu):
        with pytest.raises(ValueError, match="memory_limit"):
            config.set_memory_limit("CPU:0", "much")
        config.set_memory_growth(cpu, True)

    def test_a_share_is_of_the_hardwares_memory(self, cpu, gpus):
        for gpu in gpus:
            config.set_memory_growth(gpu, True)
        total = config.get_device_details(cpu)["memory"]
        config.set_memory_limit("CPU:0", "25%")
        assert config.logical_device().pool.limit == total // 4
        assert config.set_memory_limit(gpus[0], "25%") == 2**34
        assert config.set_memory_limit("GPU:0", None) == 2**32
        assert config.logical_device("GPU:0").pool.limit == 2**34

    def test_a_gpu_cannot_be_given_more_than_it_has(self, gpus):
        for gpu in gpus:
            config.set_memory_growth(gpu, True)
        with pytest.raises(ValueError, match=r"more than .*GPU:0 has"):
            config.set_memory_limit("GPU:0", "17GiB")
        assert config.logical_device("GPU:0").pool.limit == 2**34

    def test_gpus_that_do_not_grow_share_what_there_is(self, gpus):
        config.set_logical_device_configuration(
            gpus[0], [LogicalDeviceConfiguration("25%")] * 2
        )
        with pytest.raises(ValueError, match="at once"):
            config.set_memory_limit("GPU:0", "76%")
        assert config.set_memory_limit("GPU:0", None) == 2**32
        assert config.logical_device("GPU:0").pool.limit == 3 * 2**32
        config.set_memory_limit("GPU:0", "1GiB")
        config.set_memory_limit("GPU:1", "15GiB")

    @pytest.mark.parametrize("device", ["CPU:0", "GPU:0"])
    def test_without_growth_a_lower_limit_gives_back(self, gpus, cpu, device):
        for hardware in (cpu, gpus[0]):
            config.set_logical_device_configuration(
                hardware, [LogicalDeviceConfiguration(16, growth=False)]
            )
        pool = config.logical_device(device).pool
        assert pool.stats().reserved_bytes == 16 * MIB
        config.set_memory_limit(device, "8MiB")
        assert pool.stats().reserved_bytes <= 8 * MIB + 4096
        config.set_memory_limit(device, "12MiB")
        with pool.allocate(12 * MIB):
            assert pool.stats().reserved_bytes >= 12 * MIB


class TestFraction:
    def test_it_is_the_share_of_the_limit(self, gpus):
        assert config.memory_fraction("CPU:0") is None
        assert config.memory_fraction("GPU:0") == 1.0
        config.set_memory_limit(gpus[0], "4GiB")
        assert config.memory_fraction("GPU:0") == 0.25

    def test_it_sets_the_limit_and_tells_the_share_before(self, cpu):
        total = config.get_device_details(cpu)["memory"]
        assert config.memory_fraction(cpu, 0.5) is None
        assert config.logical_device().pool.limit == total // 2
        before = config.memory_fraction("CPU:0", Fraction(1, 4))
        assert before == pytest.approx(0.5)
        assert config.logical_device().pool.limit == total // 4
        assert config.memory_fraction("CPU:0", np.float32(1)) == pytest.approx(0.25)
        assert config.logical_device().pool.limit == total
        assert config.memory_fraction("CPU:0", 1) == 1.0

    # [G] "fraction 1.2 (unified) ⇒ limit = 1.2 × total": no unified memory here
    @pytest.mark.parametrize("bad", [0, -0.5, 1.2, float("nan"), float("inf"), 1e-30])
    def test_out_of_range_changes_nothing(self, bad):
        config.memory_fraction("CPU:0", 0.5)
        limit = config.logical_device().pool.limit
        with pytest.raises(ValueError, match="fraction"):
            config.memory_fraction("CPU:0", bad)
        assert config.logical_device().pool.limit == limit

    @pytest.mark.parametrize("bad", [True, "0.5", "50%", [0.5]])
    def test_no_number_is_a_type_error(self, bad):
        with pytest.raises(TypeError, match="fraction"):
            config.memory_fraction("CPU:0", bad)

    # [G] "virtual_devices with per_process fraction ⇒ INVALID_ARGUMENT"
    def test_it_is_of_one_logical_device(self, gpus):
        config.set_logical_device_configuration(
            gpus[0], [LogicalDeviceConfiguration(10)] * 2
        )
        with pytest.raises(ValueError, match="Multiple devices"):
            config.memory_fraction(gpus[0], 0.5)

    def test_below_what_is_in_use_is_refused(self, gpus):
        with (
            config.logical_device("GPU:0").pool.allocate(2**33),
            pytest.raises(ResourceExhaustedError),
        ):
            config.memory_fraction(gpus[0], 0.25)


class TestTrim:
    def test_free_memory_goes_back(self):
        pool = config.logical_device().pool
        pool.allocate(8 * MIB).free()
        held = pool.stats().reserved_bytes
        given = config.trim("CPU:0")
        assert given == held - pool.stats().reserved_bytes
        assert pool.stats().reserved_bytes < MIB
        assert config.trim("CPU:0") == 0

    def test_some_may_be_kept(self):
        pool = config.logical_device().pool
        pool.allocate(8 * MIB).free()
        config.trim("CPU:0", "2MiB")
        assert 2 * MIB <= pool.stats().reserved_bytes <= 4 * MIB
        config.trim("CPU:0", keep=0)
        assert pool.stats().reserved_bytes < MIB

    @pytest.mark.parametrize("bad", [-1, "-1B", "much", "50%"])
    def test_no_size_is_refused(self, bad):
        with pytest.raises(ValueError, match="size"):
            config.trim("CPU:0", bad)

    @pytest.mark.parametrize("bad", [None, 1.5, True])
    def test_no_number_is_a_type_error(self, bad):
        with pytest.raises(TypeError, match="size"):
            config.trim("CPU:0", keep=bad)


def test_the_limit_in_force_can_be_asked_for():
    assert config.get_memory_limit("CPU:0") is None
    assert config.set_memory_limit("CPU:0", "1MiB") is None
    assert config.get_memory_limit(config.list_logical_devices()[0]) == 2**20
    with pytest.raises(ValueError, match="No matching"):
        config.get_memory_limit("CPU:9")


class TestMoreThanTheMachineHas:
    """A limit that limits nothing is said once, with the line that set it."""

    WORDS = r"a memory limit of .* on /physical_device:CPU:0 limits nothing: this machi"

    def test_changed_at_any_time(self, cpu):
        total = config.get_device_details(cpu)["memory"]
        config.set_memory_limit("CPU:0", total)
        config.set_memory_limit("CPU:0", "100%")
        with pytest.warns(RuntimeWarning, match=self.WORDS) as caught:
            config.set_memory_limit("CPU:0", total + 1)
        assert [each.filename for each in caught] == [__file__]
        assert config.get_memory_limit("CPU:0") == total + 1
        config.set_memory_limit("CPU:0", None)

    def test_configured(self, cpu):
        total = config.get_device_details(cpu)["memory"]
        configurations = [LogicalDeviceConfiguration(f"{total + 1}B")] * 2
        config.set_logical_device_configuration(cpu, configurations)
        with pytest.warns(RuntimeWarning, match=self.WORDS) as caught:
            config.list_logical_devices()
        assert [each.filename for each in caught] == [__file__]
        config.set_memory_limit("CPU:0", total)  # of the other it was said

    def test_in_the_environment(self, cpu, monkeypatch):
        total = config.get_device_details(cpu)["memory"]
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", f"CPU:0={total + 1}")
        with pytest.warns(RuntimeWarning, match=self.WORDS):
            assert config.get_memory_limit("CPU:0") == total + 1
