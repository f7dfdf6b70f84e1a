"""Priorities and ordinals of virtual devices."""

from __future__ import annotations

import pytest

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration

MIB = 2**20


def numbers(limits):
    return [limit // MIB for limit in limits]


# [G] "ordinals {2,1} on limits {1,2} ⇒ order flipped"
def test_ordinals_flip_the_order(gpus, limits):
    config.set_visible_devices(gpus[0])
    config.set_logical_device_configuration(
        gpus[0], [Configuration(1, None, 2), Configuration(2, None, 1)]
    )
    assert numbers(limits("GPU")) == [2, 1]


# [G] "across two GPUs with {1,2},{1,2} ⇒ limits 1,3,2,4 (ordinal first, then physical
# id)"
def test_the_ordinal_comes_first_then_the_physical_id(gpus, limits):
    config.set_logical_device_configuration(
        gpus[0], [Configuration(1, None, 1), Configuration(2, None, 2)]
    )
    config.set_logical_device_configuration(
        gpus[1], [Configuration(3, None, 1), Configuration(4, None, 2)]
    )
    assert numbers(limits("GPU")) == [1, 3, 2, 4]
    for i, name in ((0, "GPU:0"), (1, "GPU:1")):
        with pytest.raises(ValueError, match="Multiple devices"):
            config.get_memory_info(gpus[i])
        assert config.get_memory_info(name) == {"current": 0, "peak": 0}


def test_without_ordinals_the_order_is_by_hardware(gpus, limits):
    config.set_logical_device_configuration(gpus[1], [Configuration(3)])
    config.set_logical_device_configuration(
        gpus[0], [Configuration(1), Configuration(2)]
    )
    assert numbers(limits("GPU")) == [1, 2, 3]


# [C] "Priority given for some virtual devices but not all ⇒ ValueError 'priority must
# be specified for all virtual devices', raised when the config is computed (init), not
# when set; same for ordinals." [G] "fewer priorities than limits ⇒ error"
@pytest.mark.parametrize(
    ("first", "word"),
    [(Configuration(1, 0), "priority"), (Configuration(1, None, 0), "ordinal")],
)
def test_all_or_none_is_checked_when_the_devices_are_made(gpus, first, word, limits):
    config.set_logical_device_configuration(gpus[0], [first, Configuration(2)])
    for _ in range(2):
        with pytest.raises(
            ValueError, match=f"{word} must be specified for all virtual devices"
        ):
            config.list_logical_devices()
    config.set_logical_device_configuration(gpus[0], [first])  # nothing was made
    assert numbers(limits("GPU"))[0] == 1


# [G] "priorities out of the device's range ⇒ error naming the value"
@pytest.mark.parametrize("priority", [-6, 1, 9999])
def test_a_priority_out_of_range_is_named(gpus, priority):
    config.set_logical_device_configuration(gpus[0], [Configuration(1, priority)])
    with pytest.raises(ValueError, match=rf"{priority} is out of range.* -5 to 0"):
        config.list_logical_devices()


def test_a_priority_reaches_its_device(gpus):
    config.set_logical_device_configuration(
        gpus[0], [Configuration(1, -5), Configuration(2, 0)]
    )
    found = [config.logical_device(f"GPU:{i}").priority for i in range(3)]
    assert found == [-5, 0, 0]
