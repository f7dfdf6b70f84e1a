from __future__ import annotations

import threading

import pytest

from memcfg import config
from memcfg.config import LogicalDevice, LogicalDeviceConfiguration, PhysicalDevice


# [T] "Given a fresh runtime, when listing physical CPUs, then at least one is returned
# and init has not happened."
def test_there_is_a_physical_cpu_and_listing_it_initialises_nothing(cpu, limits):
    assert cpu == PhysicalDevice("/physical_device:CPU:0", "CPU")
    config.list_physical_devices()
    config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])
    assert limits() == [2**20]


# [T] "Given GPUs exist, when listing physical GPUs, then the list is non-empty."
def test_gpus_that_exist_are_listed(gpus, cpu):
    assert config.list_physical_devices("GPU") == gpus
    assert config.list_physical_devices() == [cpu, *gpus]
    assert gpus[1] == PhysicalDevice("/physical_device:GPU:1", "GPU")


# [M] "Given any type string not present (lower-case 'cpu', 'FOO', a number), when
# listing physical devices, then [], no error." Here, of a type that there is elsewhere.
@pytest.mark.parametrize("kind", ["GPU", "gpu", "tpu"])
def test_a_type_that_is_not_present_lists_nothing(kind):
    assert config.list_physical_devices(kind) == []
    assert config.list_logical_devices(kind) == []
    assert config.get_visible_devices(kind) == []


@pytest.mark.parametrize("kind", ["cpu", "Cpu", "xla"])
def test_types_are_listed_in_any_case(kind):
    config.experimental.add_simulated_device("XLA", memory="1GiB")
    upper = kind.upper()
    names = [f"/physical_device:{upper}:0"]
    assert [each.name for each in config.list_physical_devices(kind)] == names
    assert [each.name for each in config.get_visible_devices(kind)] == names
    assert config.list_logical_devices(kind) == config.list_logical_devices(upper) != []


# TensorFlow says nothing
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("FOO", "no device is of type 'FOO': there are CPU, GPU, TPU$"),
        ("", "no device is of type ''"),
        ("cuda", "of type 'cuda': write 'GPU'"),
        ("GPU:0", "of type 'GPU:0'"),
        (7, "of type 7: there are"),
    ],
)
def test_a_type_that_there_is_nowhere_has_no_devices_and_a_warning(kind, told):
    for ask in (
        config.list_physical_devices,
        config.list_logical_devices,
        config.get_visible_devices,
    ):
        with pytest.warns(RuntimeWarning, match=told) as caught:
            assert ask(kind) == []
        assert caught[0].filename == __file__


# [C] "Given a caller mutates the returned list, then internal state is unchanged."
def test_a_returned_list_is_a_copy(cpu):
    config.list_physical_devices().clear()
    config.list_logical_devices().clear()
    config.get_visible_devices().clear()
    assert config.list_physical_devices() == [cpu]
    assert config.list_logical_devices() == [LogicalDevice("/device:CPU:0", "CPU")]
    assert config.get_visible_devices() == [cpu]


# [C][M] "When listing logical devices, then init happens as a side effect; names are
# /device:CPU:0"
def test_listing_logical_devices_initialises(cpu):
    assert config.list_logical_devices() == [LogicalDevice("/device:CPU:0", "CPU")]
    with pytest.raises(RuntimeError, match="cannot be modified"):
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration(1)])


# [C] "Calling it triggers init."
@pytest.mark.parametrize(
    "ask",
    [
        config.get_memory_info,
        config.get_memory_usage,
        config.reset_memory_stats,
        config.memory_fraction,
        config.trim,
        config.logical_device,
    ],
)
def test_asking_a_device_initialises(cpu, ask):
    ask("CPU:0")
    with pytest.raises(RuntimeError, match="cannot be modified"):
        config.set_memory_growth(cpu, True)


# [G] "unset ⇒ one device with all available memory, priority 0"
def test_by_default_there_is_one_device_for_each_hardware(cpu, gpus, limits):
    assert config.get_logical_device_configuration(cpu) is None
    assert config.get_logical_device_configuration(gpus[0]) is None
    assert limits() == [None]
    assert limits("GPU") == [2**34, 2**34]
    assert [config.logical_device(f"GPU:{i}").priority for i in (0, 1)] == [0, 0]


@pytest.mark.parametrize("name", ["GPU:1", "/GPU:1", "/physical_device:GPU:1"])
def test_hardware_may_be_named_wherever_it_is_wanted(gpus, name, limits):
    config.set_memory_growth(name, True)
    assert config.get_memory_growth(gpus[1]) is True
    config.set_logical_device_configuration(name, [LogicalDeviceConfiguration(5)])
    expected = [LogicalDeviceConfiguration(5)]
    assert config.get_logical_device_configuration(gpus[1]) == expected
    assert config.get_logical_device_configuration(name) == expected
    config.set_visible_devices(name, "GPU")
    assert config.get_visible_devices("GPU") == [gpus[1]]
    assert limits("GPU") == [5 * 2**20]


@pytest.mark.parametrize("name", ["GPU:2", "TPU:0", "/physical_device:GPU:9", "gpu:2"])
def test_hardware_that_is_not_there_is_unrecognized(gpus, name):
    foreign = PhysicalDevice("/physical_device:GPU:7", "GPU")
    for device in (name, foreign):
        for ask in (
            config.get_memory_growth,
            config.get_logical_device_configuration,
            config.set_visible_devices,
            lambda device: config.set_memory_growth(device, True),
            lambda device: config.set_logical_device_configuration(device, None),
        ):
            with pytest.raises(ValueError, match=r"Unrecognized.*device:GPU:1"):
                ask(device)


def test_hardware_of_another_machine_has_no_logical_devices():
    foreign = PhysicalDevice("/physical_device:CPU:7", "CPU")
    with pytest.raises(ValueError, match="Unrecognized device"):
        config.get_memory_info(foreign)


@pytest.mark.usefixtures("gpus")
def test_a_type_names_hardware_only_when_there_is_one():
    assert config.get_memory_growth("CPU") is None
    with pytest.raises(ValueError, match="Multiple devices"):
        config.get_memory_growth("GPU")


@pytest.mark.parametrize("wrong", [LogicalDevice("/device:CPU:0", "CPU"), None, 0])
def test_only_hardware_can_be_configured(wrong):
    for ask in (
        config.get_memory_growth,
        config.get_logical_device_configuration,
        lambda device: config.set_memory_growth(device, True),
        lambda device: config.set_logical_device_configuration(device, None),
        lambda device: config.set_visible_devices([device]),
    ):
        with pytest.raises(TypeError, match="PhysicalDevice"):
            ask(wrong)


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
