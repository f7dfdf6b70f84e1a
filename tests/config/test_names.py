from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration

TYPES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{,9}", fullmatch=True)


LOCAL = "/job:localhost/replica:0/task:0"
SPELLINGS = [
    *("{0}:{1}", "/{0}:{1}", "device:{0}:{1}", "/device:{0}:{1}"),
    *(LOCAL + "/device:{0}:{1}", LOCAL + "/{0}:{1}", "/task:0/device:{0}:{1}"),
]


@given(TYPES, st.integers(0, 2), st.sampled_from(SPELLINGS))
def test_every_spelling_of_tensorflow_is_the_same_name(kind, index, spelling):
    upper = kind.upper()
    assume(upper != "CPU")
    config.reset()
    for _ in range(3):
        config.experimental.add_simulated_device(upper, memory="1GiB")
    full = f"/physical_device:{kind}:{index}"
    for name in (spelling.format(kind, index), spelling.format(kind.lower(), index)):
        config.set_visible_devices(name)
        visible = [device.name for device in config.get_visible_devices()]
        assert visible == [f"/physical_device:{upper}:{index}"]
    config.set_visible_devices(None)
    for name in (spelling.format(kind, index), full):
        assert config.logical_device(name).name == f"/device:{upper}:{index}"
    with pytest.raises(ValueError, match="Multiple devices"):
        config.logical_device(spelling.format(kind, "*"))


@given(st.text() | st.from_regex(r"(?i)(/?device:)?cpu(:[0-9])?", fullmatch=True))
def test_any_text_is_read_or_refused_with_a_value_error(text):
    try:
        found = config.logical_device(text)
    except ValueError as error:
        known = ("Failed parsing device name", "No matching devices found")
        assert str(error).startswith((*known, "Unrecognized device"))  # noqa: PT017
    else:
        assert text.upper().removesuffix(":0").endswith("CPU")
        assert found.name == "/device:CPU:0"


@pytest.mark.parametrize("other", ["/job:worker", "/replica:1", "/task:7"])
def test_another_process_has_no_devices_here(other):
    for ask in (
        config.get_memory_info,
        config.get_memory_growth,
        config.logical_device,
    ):
        with pytest.raises(ValueError, match=r"No matching devices.*this process"):
            ask(f"{other}/device:CPU:0")
    with pytest.raises(ValueError, match="this process"), config.device(f"{other}/cpu"):
        pytest.fail("the block was entered")


class TestEverywhere:
    """One spelling is as good as another wherever a device is named."""

    NAMES = ("gpu:1", "/gpu:1", "GPU:1", "/device:GPU:1", LOCAL + "/device:GPU:1")

    @pytest.mark.parametrize("name", NAMES)
    def test_in_functions(self, gpus, name):
        config.set_visible_devices(name)
        assert config.get_visible_devices() == [gpus[1]]
        config.set_visible_devices(None)
        config.set_memory_growth(name, True)
        assert config.get_memory_growth("GPU:1") is True
        config.set_memory_growth("GPU:0", True)
        config.set_logical_device_configuration(name, [LogicalDeviceConfiguration(48)])
        assert config.get_memory_limit(name) == 48 * 2**20
        config.set_memory_limit(name, "1MiB")
        assert config.get_memory_limit("GPU:1") == 2**20
        with config.device(name) as it:
            assert it.name == "/device:GPU:1"

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.usefixtures("gpus")
    def test_in_the_environment(self, monkeypatch, name):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", f"{name}=2MiB")
        assert config.get_memory_limit("GPU:1") == 2**21

    @pytest.mark.parametrize("name", ["cpu", "CPU", "/cpu:0", "CPU:*", "/CPU"])
    def test_the_index_of_an_only_device_may_be_left_out(self, name):
        with config.device(name) as it:
            assert it.name == "/device:CPU:0"

    def test_a_missing_device_is_one_warning_under_all_its_names(self):
        with pytest.warns(RuntimeWarning, match="no 'gpu:1'") as warned:  # noqa: PT031
            for name in self.NAMES:
                with config.device(name):
                    pass
        assert len(warned) == 1
        config.set_soft_device_placement(False)
        for name in self.NAMES:
            with pytest.raises(ValueError, match="Could not satisfy"):  # noqa: SIM117
                with config.device(name):
                    pytest.fail("the block was entered")

    def test_a_full_name_of_hardware_is_the_logical_device_on_it(self, cpu):
        assert config.logical_device(cpu.name).name == "/device:CPU:0"
        config.reset()
        config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 2)
        with pytest.raises(ValueError, match="Multiple devices"):
            config.get_memory_info(cpu.name)


class TestTwelveDevices:
    @pytest.fixture(autouse=True)
    def _twelve_devices(self, cpu):
        config.set_logical_device_configuration(
            cpu, [LogicalDeviceConfiguration()] * 12
        )

    # [T] "Short names ('GPU:0') match."
    @pytest.mark.parametrize("name", ["CPU:1", "/cpu:1", "device:CPU:1", "CPU:01"])
    def test_short_names_match(self, name):
        assert config.logical_device(name).name == "/device:CPU:1"

    def test_an_index_is_not_a_prefix(self):
        assert config.logical_device("CPU:11").name == "/device:CPU:11"

    # [T] "Ambiguous name with ≥2 GPUs ⇒ ValueError 'Multiple devices'"
    def test_an_ambiguous_name_is_refused_with_multiple_devices(self):
        for ask in (config.logical_device, config.get_memory_info):
            with pytest.raises(ValueError, match="Multiple devices"):
                ask("CPU")
        config.reset()
        assert config.logical_device("CPU").name == "/device:CPU:0"

    # [T][M] "Unparsable ('unknown_device', 'CPU:', 'CPU:GPU') ⇒ ValueError 'Failed
    # parsing device name'"
    @pytest.mark.parametrize(
        "name",
        [
            *("unknown_device", "CPU:", "CPU:GPU", "", "CPU:-1", "a b", "cuda", ":0"),
            *("gpu0", "/job:localhost", "/task:0device:CPU:0", "/device:/CPU:0"),
            *("CPU:0:1", "CPU:0 ", "//CPU:0", "CPU:\N{ARABIC-INDIC DIGIT ONE}"),
        ],
    )
    def test_unparsable_is_refused_with_failed_parsing(self, name):
        for ask in (config.logical_device, config.get_memory_info):
            with pytest.raises(ValueError, match="Failed parsing device name"):
                ask(name)

    # [M] "parsable but absent ('GPU:0', 'TPU:0') ⇒ ValueError 'No matching devices
    # found'"; lower case is not absent, as in tf.device
    @pytest.mark.parametrize("name", ["GPU:0", "TPU:0", "tpu", "CPU:12", "GPU"])
    def test_parsable_but_absent_is_refused_with_no_matching_devices(self, name):
        for ask in (config.logical_device, config.get_memory_info):
            with pytest.raises(ValueError, match=r"No matching .*/device:CPU:11"):
                ask(name)


# [T] the same rule, on GPUs
def test_with_two_gpus_the_name_gpu_is_ambiguous(gpus):
    with pytest.raises(ValueError, match=r"Multiple devices.*/device:GPU:1"):
        config.get_memory_info("GPU")
    assert config.get_memory_info("GPU:1") == {"current": 0, "peak": 0}
    assert config.get_memory_info(gpus[1]) == {"current": 0, "peak": 0}
