from __future__ import annotations

import pytest

from memcfg import config
from memcfg.config import PhysicalDevice


# [T] "Given a fresh runtime, then get_visible_devices('CPU') has 1 and GPUs are all
# visible."
def test_at_first_everything_is_visible(cpu, gpus):
    assert config.get_visible_devices("CPU") == [cpu]
    assert config.get_visible_devices("GPU") == gpus
    assert config.get_visible_devices() == [cpu, *gpus]


# [T] "When set_visible_devices(cpu) without a type, then all other types become
# invisible."
@pytest.mark.usefixtures("gpus")
def test_without_a_type_all_other_types_become_invisible(cpu):
    config.set_visible_devices(cpu)
    assert config.get_visible_devices() == [cpu]
    assert config.list_logical_devices("GPU") == []
    assert len(config.list_physical_devices("GPU")) == 2


# [C] "When a type is given, then only that type is replaced; others keep order before
# it."
def test_with_a_type_only_that_type_is_replaced_and_others_stand_before(cpu, gpus):
    config.set_visible_devices([gpus[1], gpus[0]], "GPU")
    assert config.get_visible_devices() == [cpu, gpus[1], gpus[0]]
    config.set_visible_devices(cpu, "CPU")
    assert config.get_visible_devices() == [gpus[1], gpus[0], cpu]
    config.set_visible_devices(gpus[1], "GPU")
    assert config.get_visible_devices() == [cpu, gpus[1]]


# [C][M] "Given a single device rather than a list, then it is wrapped; given a tuple,
# then ValueError (accidental: accept any iterable)."
def test_a_single_device_is_wrapped_and_any_iterable_will_do(cpu, gpus):
    config.set_visible_devices("GPU:1", "GPU")
    assert config.get_visible_devices("GPU") == [gpus[1]]
    config.set_visible_devices(tuple(gpus), "GPU")
    assert config.get_visible_devices("GPU") == gpus
    config.set_visible_devices(iter([cpu, "GPU:0"]))
    assert config.get_visible_devices() == [cpu, gpus[0]]


def test_the_callers_list_is_copied(cpu, gpus):
    mine = [cpu]
    config.set_visible_devices(mine)
    mine.append(gpus[0])
    assert config.get_visible_devices() == [cpu]


# [C][M] "Given an unknown device, or a device whose type ≠ the given type, then
# ValueError 'Unrecognized device'."
def test_an_unknown_device_or_one_of_another_type_is_unrecognized(cpu, gpus):
    for devices, kind in (
        (PhysicalDevice("/physical_device:GPU:5", "GPU"), None),
        ("GPU:5", "GPU"),
        (gpus[0], "CPU"),
        ([gpus[0], cpu], "GPU"),
    ):
        with pytest.raises(ValueError, match="Unrecognized device"):
            config.set_visible_devices(devices, kind)
    assert config.get_visible_devices() == [cpu, *gpus]


# A type that is no word in capital letters is a slip, whatever the list.
@pytest.mark.parametrize("devices", [None, [], "GPU:0"])
@pytest.mark.parametrize("kind", ["gpu", "Gpu", "", "GPU:0", " GPU"])
def test_a_type_that_is_no_type_is_refused(cpu, gpus, devices, kind):
    with pytest.raises(ValueError, match="a device type is a word like 'GPU'"):
        config.set_visible_devices(devices, kind)
    assert config.get_visible_devices() == [cpu, *gpus]


@pytest.mark.parametrize("devices", [None, []])
@pytest.mark.parametrize("kind", [5, b"GPU", ["GPU"]])
def test_a_type_is_a_string(cpu, gpus, devices, kind):
    with pytest.raises(TypeError, match="a device type is a word like 'GPU'"):
        config.set_visible_devices(devices, kind)
    assert config.get_visible_devices() == [cpu, *gpus]


# [M] "Given duplicates, then Python accepts them; memcfg should raise ValueError."
def test_duplicates_are_refused(gpus):
    with pytest.raises(ValueError, match="duplicate"):
        config.set_visible_devices([gpus[0], gpus[0]], "GPU")
    with pytest.raises(ValueError, match="duplicate"):
        config.set_visible_devices([gpus[0], "GPU:0"])
    assert config.get_visible_devices("GPU") == gpus


def test_none_is_everything(cpu, gpus):
    config.set_visible_devices(gpus[1])
    config.set_visible_devices(None, "GPU")
    assert config.get_visible_devices() == gpus
    config.set_visible_devices(None)
    assert config.get_visible_devices() == [cpu, *gpus]


# TensorFlow's own documentation hides GPUs with an empty list and the type.
def test_an_empty_list_hides_a_type(cpu, gpus):
    config.set_visible_devices([], "GPU")
    assert config.get_visible_devices() == [cpu]
    config.set_visible_devices(gpus, "GPU")
    config.set_visible_devices([], "TPU")  # hides nothing, and nothing is there
    assert config.get_visible_devices() == [cpu, *gpus]


@pytest.mark.parametrize(("devices", "kind"), [([], None), ((), "CPU")])
def test_nothing_at_all_is_refused(cpu, devices, kind):
    with pytest.raises(ValueError, match="no device would be visible"):
        config.set_visible_devices(devices, kind)
    assert config.get_visible_devices() == [cpu]


# [T] "Given init and a different list, then RuntimeError matching 'cannot be modified';
# [T][M] given the same list, then no error."
def test_after_first_use_only_the_same_list_is_fine(cpu, gpus):
    config.set_visible_devices([cpu, gpus[0]])
    config.list_logical_devices()
    for devices in (cpu, None, [cpu, *gpus], [gpus[0], cpu]):
        with pytest.raises(RuntimeError, match="cannot be modified"):
            config.set_visible_devices(devices)
    config.set_visible_devices([cpu, gpus[0]])
    config.set_visible_devices(gpus[0], "GPU")
    assert config.get_visible_devices() == [cpu, gpus[0]]


# [M] "Given validation error and init both apply, then ValueError wins."
def test_what_is_wrong_is_said_before_that_it_is_too_late(gpus):
    config.list_logical_devices()
    with pytest.raises(ValueError, match="duplicate"):
        config.set_visible_devices([gpus[0], gpus[0]])


def test_logical_devices_are_numbered_over_the_visible_hardware(gpus, limits):
    configuration = config.LogicalDeviceConfiguration
    config.set_logical_device_configuration(gpus[0], [configuration(1)])
    config.set_logical_device_configuration(gpus[1], [configuration(2)])
    config.set_visible_devices(gpus[1], "GPU")
    assert limits("GPU") == [2 * 2**20]
    config.reset()


def test_the_order_of_visible_devices_does_not_number_them(gpus, limits):
    configuration = config.LogicalDeviceConfiguration
    config.set_logical_device_configuration(gpus[0], [configuration(1)])
    config.set_logical_device_configuration(gpus[1], [configuration(2)])
    config.set_visible_devices(gpus[::-1], "GPU")
    assert limits("GPU") == [2**20, 2 * 2**20]


def test_when_the_cpu_is_invisible_another_device_is_the_default(gpus):
    config.set_visible_devices(gpus[1])
    assert config.logical_device().name == "/device:GPU:0"
    with pytest.raises(ValueError, match="No matching"):
        config.get_memory_info("CPU:0")
