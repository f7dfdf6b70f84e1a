from __future__ import annotations

import threading

import pytest

from memcfg import config
from memcfg.config import LogicalDevice, LogicalDeviceConfiguration, PhysicalDevice


def limits():
    return [
        config.logical_device(device.name).pool.limit
        for device in config.list_logical_devices()
    ]


class TestDiscovery:
    def test_there_is_a_physical_cpu_and_asking_initialises_nothing(self, cpu):
        assert cpu == PhysicalDevice("/physical_device:CPU:0", "CPU")
        config.list_physical_devices()
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        assert limits() == [2**20]

    @pytest.mark.parametrize("kind", ["cpu", "FOO", "GPU", "", 7])
    def test_an_unknown_type_lists_nothing(self, kind):
        assert config.list_physical_devices(kind) == []
        assert config.list_logical_devices(kind) == []

    def test_a_returned_list_is_a_copy(self, cpu):
        config.list_physical_devices().clear()
        config.list_logical_devices().clear()
        assert config.list_physical_devices() == [cpu]
        assert config.list_logical_devices() == [LogicalDevice("/device:CPU:0", "CPU")]

    def test_by_default_there_is_one_device_without_a_limit(self, cpu):
        assert config.get_logical_device_configuration(cpu) is None
        assert limits() == [None]


class TestLogicalConfiguration:
    def test_several_devices_with_limits_of_their_own(self, cpu):
        config.set_logical_device_configuration(
            cpu, [LogicalDeviceConfiguration(1), LogicalDeviceConfiguration("100B")]
        )
        names = [device.name for device in config.list_logical_devices("CPU")]
        assert names == ["/device:CPU:0", "/device:CPU:1"]
        assert limits() == [2**20, 100]

    def test_any_iterable_will_do_and_is_copied(self, cpu):
        mine = [LogicalDeviceConfiguration(1)]
        config.set_logical_device_configuration(cpu, mine)
        mine.append(LogicalDeviceConfiguration(2))
        config.get_logical_device_configuration(cpu).clear()
        expected = [LogicalDeviceConfiguration(1)]
        assert config.get_logical_device_configuration(cpu) == expected
        config.set_logical_device_configuration(cpu, iter(mine))
        assert config.get_logical_device_configuration(cpu) == mine

    def test_before_first_use_the_last_call_holds(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(2)])
        assert limits() == [2**21]

    def test_none_is_the_default(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        config.set_logical_device_configuration(cpu, None)
        assert config.get_logical_device_configuration(cpu) is None
        assert limits() == [None]

    @pytest.mark.parametrize(
        "changed",
        [
            None,
            [LogicalDeviceConfiguration(2)],
            [LogicalDeviceConfiguration(1), LogicalDeviceConfiguration(1)],
        ],
    )
    def test_after_first_use_another_value_is_refused(self, cpu, changed):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        config.list_logical_devices()
        with pytest.raises(RuntimeError, match="cannot be modified"):
            config.set_logical_device_configuration(cpu, changed)
        assert limits() == [2**20]
        expected = [LogicalDeviceConfiguration(1)]
        assert config.get_logical_device_configuration(cpu) == expected

    def test_after_first_use_the_same_value_is_fine(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        config.list_logical_devices()
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        config.set_logical_device_configuration(
            cpu, [LogicalDeviceConfiguration("1MiB")]
        )

    def test_after_first_use_of_the_default_the_default_is_fine(self, cpu):
        config.list_logical_devices()
        config.set_logical_device_configuration(cpu, None)
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()])
        with pytest.raises(RuntimeError, match="cannot be modified"):
            config.set_logical_device_configuration(
                cpu, [LogicalDeviceConfiguration(1)]
            )

    @pytest.mark.parametrize("used", [False, True])
    @pytest.mark.parametrize(
        ("bad", "error", "words"),
        [
            ([], ValueError, "no logical device"),
            (
                [LogicalDeviceConfiguration(1, experimental_priority=0)],
                ValueError,
                "priority",
            ),
            (
                [LogicalDeviceConfiguration(1, experimental_device_ordinal=0)],
                ValueError,
                "ordinal",
            ),
            ([LogicalDeviceConfiguration(1), 48], TypeError, "48"),
            (LogicalDeviceConfiguration(1), TypeError, "list"),
        ],
    )
    def test_bad_values_are_refused_before_the_first_use_is_asked_about(
        self, cpu, bad, error, words, used
    ):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(3)])
        if used:
            config.list_logical_devices()
        with pytest.raises(error, match=words):
            config.set_logical_device_configuration(cpu, bad)
        expected = [LogicalDeviceConfiguration(3)]
        assert config.get_logical_device_configuration(cpu) == expected

    def test_a_device_of_another_machine_is_refused(self):
        foreign = PhysicalDevice("/physical_device:CPU:7", "CPU")
        with pytest.raises(ValueError, match="Unrecognized device"):
            config.set_logical_device_configuration(foreign, None)
        with pytest.raises(ValueError, match="Unrecognized device"):
            config.get_logical_device_configuration(foreign)

    def test_only_a_physical_device_can_be_split(self):
        logical = config.list_logical_devices()[0]
        for wrong in (logical, "CPU:0", None):
            with pytest.raises(TypeError, match="PhysicalDevice"):
                config.set_logical_device_configuration(wrong, None)
            with pytest.raises(TypeError, match="PhysicalDevice"):
                config.get_logical_device_configuration(wrong)


class TestNames:
    @pytest.fixture(autouse=True)
    def _twelve_devices(self, cpu):
        config.set_logical_device_configuration(
            cpu, [LogicalDeviceConfiguration()] * 12
        )

    @pytest.mark.parametrize("name", ["CPU:1", "/CPU:1", "device:CPU:1", "CPU:01"])
    def test_a_device_has_short_names(self, name):
        assert config.logical_device(name).name == "/device:CPU:1"

    def test_an_index_is_not_a_prefix(self):
        assert config.logical_device("CPU:11").name == "/device:CPU:11"

    def test_a_type_alone_must_be_unambiguous(self):
        with pytest.raises(ValueError, match="Multiple devices"):
            config.logical_device("CPU")
        config.reset()
        assert config.logical_device("CPU").name == "/device:CPU:0"

    @pytest.mark.parametrize("name", ["CPU:", "CPU:GPU", "", "CPU:-1", "a b"])
    def test_what_is_no_name_cannot_be_read(self, name):
        with pytest.raises(ValueError, match="Failed parsing device name"):
            config.logical_device(name)

    @pytest.mark.parametrize("name", ["GPU:0", "cpu:0", "CPU:12", "unknown_device"])
    def test_a_device_that_is_not_there_is_named_with_those_that_are(self, name):
        with pytest.raises(ValueError, match=r"No matching .*/device:CPU:11"):
            config.logical_device(name)


class TestDeviceBlock:
    def test_the_innermost_block_chooses(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 3)
        second = config.list_logical_devices()[1]
        assert config.logical_device().name == "/device:CPU:0"
        with config.device(second) as chosen:
            assert chosen == second
            assert config.logical_device().name == second.name
            with config.device("/CPU:2"):
                assert config.logical_device().name == "/device:CPU:2"
            assert config.logical_device() is config.logical_device(second.name)
        assert config.logical_device().name == "/device:CPU:0"

    def test_an_error_inside_ends_the_block(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 2)
        with pytest.raises(KeyError), config.device("CPU:1"):
            raise KeyError
        assert config.logical_device().name == "/device:CPU:0"

    def test_a_wrong_name_is_refused_at_the_door(self):
        with pytest.raises(ValueError, match="No matching"), config.device("CPU:4"):
            pytest.fail("the block was entered")
        with pytest.raises(TypeError), config.device(0):
            pytest.fail("the block was entered")

    def test_another_thread_does_not_see_the_choice(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 2)
        seen = []
        with config.device("CPU:1"):
            thread = threading.Thread(
                target=lambda: seen.append(config.logical_device().name)
            )
            thread.start()
            thread.join()
        assert seen == ["/device:CPU:0"]


class TestReset:
    def test_everything_starts_over(self, cpu):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
        config.list_logical_devices()
        config.reset()
        assert config.get_logical_device_configuration(cpu) is None
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(2)])
        assert limits() == [2**21]

    def test_while_memory_is_in_use_it_names_the_holders_and_changes_nothing(self):
        device = config.logical_device()
        block = device.pool.allocate(1000, owner="some tensor")
        try:
            with pytest.raises(RuntimeError, match=r"some tensor.*/device:CPU:0"):
                config.reset()
            assert config.logical_device() is device
        finally:
            block.free()
        config.reset()
        assert config.logical_device() is not device


def test_threads_that_come_first_together_get_the_same_devices():
    barrier = threading.Barrier(8)
    seen = []

    def ask():
        barrier.wait()
        seen.append(config.logical_device())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len({id(device) for device in seen}) == 1
