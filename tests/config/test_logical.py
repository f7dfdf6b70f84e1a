from __future__ import annotations

import pytest

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration


# [T] "Given nothing set, then get_logical_device_configuration(dev) is None."
def test_given_nothing_set_the_configuration_is_none(cpu, gpus):
    for device in (cpu, *gpus):
        assert config.get_logical_device_configuration(device) is None


# [T] "Given two configs set on CPU:0 and init, then 2 logical CPUs exist and each name
# is usable"; row 4 of table (i): with limits that are real on a CPU
def test_two_configurations_make_two_logical_cpus(cpu, limits):
    config.set_logical_device_configuration(
        cpu, [Configuration(1), Configuration("100B")]
    )
    names = [device.name for device in config.list_logical_devices("CPU")]
    assert names == ["/device:CPU:0", "/device:CPU:1"]
    assert limits() == [2**20, 100]
    for name in names:
        with config.device(name):
            assert config.logical_device().name == name


# [T] "(assertTrue(len(logical), len(gpus)+1) in the test is vacuous; assert equality.)"
def test_a_split_gpu_counts_as_two(gpus, limits):
    config.set_logical_device_configuration(gpus[0], [Configuration(10)] * 2)
    assert len(config.list_logical_devices("GPU")) == len(gpus) + 1
    assert limits("GPU") == [10 * 2**20, 10 * 2**20, 2**34]


# [M] wart: "the caller's list is aliased. memcfg: … copy."
def test_any_iterable_will_do_and_is_copied(cpu):
    mine = [Configuration(1)]
    config.set_logical_device_configuration(cpu, mine)
    mine.append(Configuration(2))
    config.get_logical_device_configuration(cpu).clear()
    assert config.get_logical_device_configuration(cpu) == [Configuration(1)]
    config.set_logical_device_configuration(cpu, iter(mine))
    assert config.get_logical_device_configuration(cpu) == mine


# [C] "Pre-init, later calls replace earlier ones."
def test_before_first_use_the_last_call_holds(cpu, limits):
    config.set_logical_device_configuration(cpu, [Configuration(1)])
    config.set_logical_device_configuration(cpu, [Configuration(2)])
    assert limits() == [2**21]


def test_before_first_use_the_last_way_of_writing_holds(cpu):
    config.set_logical_device_configuration(cpu, [Configuration(48)])
    config.set_logical_device_configuration(cpu, [Configuration("48MiB")])
    assert config.get_logical_device_configuration(cpu) == [Configuration("48MiB")]
    config.set_logical_device_configuration(cpu, [Configuration()])
    assert config.get_logical_device_configuration(cpu) == [Configuration()]


# [M] wart: "None as list ⇒ TypeError though docs say optional. memcfg: treat None as
# default"
def test_none_is_the_default(cpu, limits):
    config.set_logical_device_configuration(cpu, [Configuration(1)])
    config.set_logical_device_configuration(cpu, None)
    assert config.get_logical_device_configuration(cpu) is None
    assert limits() == [None]


# [T][M] "Given init, when the count or any field differs, then RuntimeError 'cannot be
# modified'"
@pytest.mark.parametrize(
    "changed",
    [
        None,
        [Configuration(2)],
        [Configuration(1), Configuration(1)],
        [Configuration(1, growth=True)],
    ],
)
def test_after_first_use_another_value_is_refused(cpu, changed, limits):
    config.set_logical_device_configuration(cpu, [Configuration(1)])
    config.list_logical_devices()
    with pytest.raises(RuntimeError, match="cannot be modified"):
        config.set_logical_device_configuration(cpu, changed)
    assert limits() == [2**20]
    assert config.get_logical_device_configuration(cpu) == [Configuration(1)]


# [T] "On GPU: two limits of 10 then 20 or three of 10 after init ⇒ RuntimeError; same
# two of 10 ⇒ fine."
def test_on_a_gpu_another_value_is_refused_and_the_same_is_fine(gpus):
    config.set_logical_device_configuration(gpus[0], [Configuration(10)] * 2)
    config.list_logical_devices()
    for changed in (
        [Configuration(20)] * 2,
        [Configuration(10)] * 3,
        [Configuration(10, 0)] * 2,
        [Configuration(10, None, 0)] * 2,
    ):
        with pytest.raises(RuntimeError, match="cannot be modified"):
            config.set_logical_device_configuration(gpus[0], changed)
    config.set_logical_device_configuration(gpus[0], [Configuration(10)] * 2)
    with pytest.raises(RuntimeError, match="cannot be modified"):
        config.set_logical_device_configuration(gpus[1], [Configuration(10)])


# [T][M] "when equal by value, then no error"
def test_after_first_use_the_same_value_is_fine(cpu):
    total = config.get_device_details(cpu)["memory"]
    config.set_logical_device_configuration(cpu, [Configuration(f"{total // 4}B")])
    config.list_logical_devices()
    for same in ("25%", f"{total // 4}B"):
        config.set_logical_device_configuration(cpu, [Configuration(same)])
    written = config.get_logical_device_configuration(cpu)
    assert written == [Configuration(f"{total // 4}B")]


def test_after_first_use_mebibytes_equal_their_text(cpu):
    config.set_logical_device_configuration(cpu, [Configuration(1)])
    config.list_logical_devices()
    config.set_logical_device_configuration(cpu, [Configuration("1MiB")])


def test_after_first_use_of_the_default_the_default_is_fine(cpu):
    config.list_logical_devices()
    config.set_logical_device_configuration(cpu, None)
    config.set_logical_device_configuration(cpu, [Configuration()])
    with pytest.raises(RuntimeError, match="cannot be modified"):
        config.set_logical_device_configuration(cpu, [Configuration(1)])


# [C][M] "Given CPU and memory_limit / priority / ordinal, then ValueError. memcfg
# deliberately allows memory_limit on CPU." [M] wart: "[] accepted … memcfg: reject"
# [M] "Given validation error and init both apply, then ValueError wins (validation
# precedes the init check)."
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ([], ValueError, "no logical device"),
        ([Configuration(1, experimental_priority=0)], ValueError, "priority"),
        ([Configuration(1, experimental_device_ordinal=0)], ValueError, "ordinal"),
        ([Configuration(growth=False)], ValueError, "memory limit"),
        ([Configuration(1), 48], TypeError, "48"),
        (Configuration(1), TypeError, "list"),
    ],
)
def test_bad_values_are_refused_before_the_first_use_is_asked_about(
    cpu, bad, error, words, used
):
    config.set_logical_device_configuration(cpu, [Configuration(3)])
    if used:
        config.list_logical_devices()
    with pytest.raises(error, match=words):
        config.set_logical_device_configuration(cpu, bad)
    assert config.get_logical_device_configuration(cpu) == [Configuration(3)]


# [T] "Given a GPU config with no memory_limit, then ValueError matching 'memory limit',
# and the stored config stays None (failed calls do not change state)."
@pytest.mark.parametrize("used", [False, True])
def test_a_gpu_configuration_needs_a_memory_limit(gpus, used):
    if used:
        config.list_logical_devices()
    for bad in ([Configuration()], [Configuration(10), Configuration(growth=True)]):
        with pytest.raises(ValueError, match="memory limit"):
            config.set_logical_device_configuration(gpus[0], bad)
    assert config.get_logical_device_configuration(gpus[0]) is None


# [C] "Given other device types, then ValueError 'Virtual devices are not supported for
# X'."
def test_other_types_cannot_be_split():
    tpu = config.experimental.add_simulated_device("TPU", memory="8GiB")
    with pytest.raises(ValueError, match="Virtual devices are not supported for TPU"):
        config.set_logical_device_configuration(tpu, [Configuration(1)])
    config.set_logical_device_configuration(tpu, None)
    assert [device.name for device in config.list_logical_devices("TPU")] == [
        "/device:TPU:0"
    ]


class TestLimitsOfHardware:
    def test_percentages_are_of_the_hardwares_memory(self, cpu, gpus, limits):
        total = config.get_device_details(cpu)["memory"]
        config.set_logical_device_configuration(cpu, [Configuration("50%")])
        config.set_logical_device_configuration(
            gpus[0], [Configuration("25%"), Configuration("75%")]
        )
        assert limits() == [total // 2]
        assert limits("GPU") == [2**32, 3 * 2**32, 2**34]

    def test_a_gpu_cannot_give_more_than_it_has(self, gpus):
        config.set_logical_device_configuration(
            gpus[0], [Configuration(16 * 1024 + 1, growth=True)]
        )
        with pytest.raises(ValueError, match=r"more than .*GPU:0 has.*16\.00 GiB"):
            config.list_logical_devices()
        config.set_logical_device_configuration(gpus[0], [Configuration(16 * 1024)])
        config.list_logical_devices()

    def test_devices_that_do_not_grow_cannot_have_more_than_there_is(
        self, gpus, limits
    ):
        config.set_logical_device_configuration(gpus[0], [Configuration("51%")] * 2)
        with pytest.raises(ValueError, match="at once"):
            config.list_logical_devices()
        config.set_logical_device_configuration(
            gpus[0], [Configuration("51%", growth=True)] * 2
        )
        assert sum(limits("GPU")[:2]) > 2**34
