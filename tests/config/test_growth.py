from __future__ import annotations

import itertools

import pytest

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration


# [T] "Given nothing set, then get_memory_growth(gpu) is None." [M] wart:
# "get_memory_growth(cpu) ⇒ raw KeyError"
def test_given_nothing_set_the_growth_is_none(cpu, gpus):
    for device in (cpu, *gpus, "CPU:0"):
        assert config.get_memory_growth(device) is None


def test_by_default_a_cpu_grows_and_a_gpu_does_not(gpus, growths):
    assert growths("CPU") == [True]
    assert growths("GPU") == [False] * len(gpus)


# [T] "Given True on all GPUs, then computed options have allow_growth True; after init
# setting False ⇒ RuntimeError 'cannot be modified'; setting True again ⇒ fine."
def test_true_on_all_gpus_lets_them_grow(gpus, growths, limits):
    for gpu in gpus:
        config.set_memory_growth(gpu, True)
    assert growths() == [True, True]
    assert limits("GPU") == [2**34, 2**34]
    for other in (False, None):
        with pytest.raises(RuntimeError, match="cannot be modified"):
            config.set_memory_growth(gpus[0], other)
    config.set_memory_growth(gpus[0], True)
    assert config.get_memory_growth(gpus[0]) is True


# [T] "Given True on GPU0 only and ≥2 visible GPUs, when options are computed, then
# ValueError 'cannot differ'; limiting visibility to GPU0 ⇒ True; to GPU1 ⇒ False;
# restoring both ⇒ ValueError again."
def test_growth_cannot_differ_between_visible_gpus(gpus, growths):
    def again(visible):
        config.reset()
        found = [
            config.experimental.add_simulated_device(memory="1GiB") for _ in range(2)
        ]
        assert found == gpus
        config.set_memory_growth(gpus[0], True)
        config.set_visible_devices(visible, "GPU")

    config.set_memory_growth(gpus[0], True)
    with pytest.raises(ValueError, match="cannot differ"):
        config.list_logical_devices()
    config.set_visible_devices(gpus[0], "GPU")  # nothing was made
    assert growths() == [True]
    again(gpus[1])
    assert growths() == [False]
    again(gpus)
    with pytest.raises(ValueError, match="cannot differ"):
        config.list_logical_devices()


# [T] "Given virtual devices configured, when setting growth (any value), then
# ValueError 'virtual devices'." and "Given growth True first and then virtual devices
# set, then … silently dropped, issue 38367. memcfg: honour both."
@pytest.mark.parametrize("growth_first", [True, False])
@pytest.mark.parametrize("growth", [True, False])
def test_growth_and_virtual_devices_are_honoured_in_either_order(
    gpus, growths, limits, growth_first, growth
):
    config.set_visible_devices(gpus[0], "GPU")
    calls = [
        lambda: config.set_memory_growth(gpus[0], growth),
        lambda: config.set_logical_device_configuration(
            gpus[0], [Configuration(10), Configuration(20)]
        ),
    ]
    for call in calls if growth_first else reversed(calls):
        call()
    assert growths() == [growth, growth]
    assert limits("GPU") == [10 * 2**20, 20 * 2**20]


@pytest.mark.parametrize("growth_first", [True, False])
@pytest.mark.parametrize("growth", [True, False])
def test_a_contradiction_is_refused_in_either_order(cpu, gpus, growth, growth_first):
    for device in (cpu, gpus[0]):
        opposite = [Configuration(10), Configuration(10, growth=not growth)]
        if growth_first:
            config.set_memory_growth(device, growth)
            with pytest.raises(ValueError, match="virtual devices"):
                config.set_logical_device_configuration(device, opposite)
            assert config.get_logical_device_configuration(device) is None
        else:
            config.set_logical_device_configuration(device, opposite)
            with pytest.raises(ValueError, match="virtual devices"):
                config.set_memory_growth(device, growth)
            assert config.get_memory_growth(device) is None


def test_a_configurations_own_growth_goes_before_the_default(gpus, growths, cpu):
    config.set_logical_device_configuration(
        gpus[0], [Configuration(10, growth=True), Configuration(10)]
    )
    config.set_logical_device_configuration(
        cpu, [Configuration(1, growth=False), Configuration()]
    )
    assert growths() == [True, False, False]
    assert growths("CPU") == [False, True]


def test_none_takes_growth_back(gpus, growths):
    config.set_memory_growth(gpus[0], True)
    config.set_memory_growth(gpus[0], None)
    config.set_memory_growth(gpus[1], None)
    assert config.get_memory_growth(gpus[0]) is None
    assert growths() == [False, False]


# [C] "non-GPU/non-pluggable ⇒ ValueError 'non-GPU'": here growth works on a CPU too.
@pytest.mark.parametrize("growth_first", [True, False])
def test_a_cpu_that_does_not_grow_takes_its_limit_at_once(cpu, growths, growth_first):
    calls = [
        lambda: config.set_memory_growth(cpu, False),
        lambda: config.set_logical_device_configuration(cpu, [Configuration(1)]),
    ]
    for call in calls if growth_first else reversed(calls):
        call()
    assert growths("CPU") == [False]
    stats = config.logical_device().pool.stats()
    assert stats.current_bytes == 0
    assert 2**20 <= stats.reserved_bytes <= 2**20 + 2**16


def test_a_cpu_that_does_not_grow_needs_a_limit(cpu, growths):
    config.set_memory_growth(cpu, False)
    for _ in range(2):
        with pytest.raises(ValueError, match="memory limit"):
            config.list_logical_devices()
    config.set_memory_growth(cpu, True)
    assert growths("CPU") == [True]


@pytest.mark.parametrize("enable", [1, 0, "true", "yes", 1.0])
def test_growth_is_a_bool(cpu, enable):
    with pytest.raises(TypeError, match="growth"):
        config.set_memory_growth(cpu, enable)
    assert config.get_memory_growth(cpu) is None


def test_what_is_wrong_is_said_before_that_it_is_too_late(cpu):
    config.set_logical_device_configuration(cpu, [Configuration(1, growth=True)])
    config.list_logical_devices()
    with pytest.raises(ValueError, match="virtual devices"):
        config.set_memory_growth(cpu, False)
    with pytest.raises(RuntimeError, match="cannot be modified"):
        config.set_memory_growth(cpu, True)


# [G] Env: "true ⇒ growth even if option False; false ⇒ full limit even if option True"
@pytest.mark.parametrize(
    ("text", "setting"),
    list(itertools.product(["true", "FALSE", " True "], [None, True, False])),
)
def test_the_environment_overrides_every_setting(
    gpus, growths, monkeypatch, text, setting
):
    monkeypatch.setenv("MEMCFG_FORCE_GPU_ALLOW_GROWTH", text)
    config.set_memory_growth(gpus[0], setting)  # may differ: it does not count
    config.set_logical_device_configuration(
        gpus[1], [Configuration(10, growth=setting)]
    )
    assert growths() == [text.strip().lower() == "true"] * 2
    assert growths("CPU") == [True]
    assert config.get_memory_growth(gpus[0]) is setting


# [G] Env: "unset ⇒ option kept"; "unparsable": an error here
def test_an_empty_variable_is_none_at_all(gpus, growths, monkeypatch):
    monkeypatch.setenv("MEMCFG_FORCE_GPU_ALLOW_GROWTH", "")
    for gpu in gpus:
        config.set_memory_growth(gpu, True)
    assert growths() == [True, True]


@pytest.mark.parametrize("text", ["yes", "1", "truefalse", "true,false"])
def test_an_unparsable_variable_is_an_error_that_names_it(monkeypatch, text):
    monkeypatch.setenv("MEMCFG_FORCE_GPU_ALLOW_GROWTH", text)
    with pytest.raises(
        ValueError, match=r"MEMCFG_FORCE_GPU_ALLOW_GROWTH.*'true' or 'false'"
    ):
        config.list_logical_devices()
    monkeypatch.delenv("MEMCFG_FORCE_GPU_ALLOW_GROWTH")
    config.list_logical_devices()
