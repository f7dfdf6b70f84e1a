from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration
from memcfg.config._names import DeviceName, parse_name

TYPES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)


@given(TYPES, st.integers(0, 10**9 - 1), st.sampled_from(["", "/", "device:"]))
def test_every_name_that_is_written_by_the_rules_is_read(kind, index, prefix):
    assert parse_name(f"{prefix}{kind}:{index}") == DeviceName(kind, index)
    assert parse_name(f"/device:{kind}:{index}") == DeviceName(kind, index)
    full = f"/physical_device:{kind}:{index}"
    assert parse_name(full, physical=True) == DeviceName(kind, index)


@given(st.text())
def test_any_text_is_read_or_refused_with_a_value_error(text):
    try:
        found = parse_name(text)
    except ValueError as error:
        assert str(error).startswith("Failed parsing device name")  # noqa: PT017
    else:
        written = found.device_type if found.number is None else text.rsplit(":", 1)[0]
        assert text.isascii()
        assert written.endswith(found.device_type)


@pytest.mark.parametrize("physical", [False, True])
def test_a_full_name_tells_hardware_from_logical_devices(physical):
    other = "/device:CPU:0" if physical else "/physical_device:CPU:0"
    with pytest.raises(ValueError, match="Failed parsing"):
        parse_name(other, physical=physical)


class TestTwelveDevices:
    @pytest.fixture(autouse=True)
    def _twelve_devices(self, cpu):
        config.set_logical_device_configuration(
            cpu, [LogicalDeviceConfiguration()] * 12
        )

    # [T] "Short names ('GPU:0') match."
    @pytest.mark.parametrize("name", ["CPU:1", "/CPU:1", "device:CPU:1", "CPU:01"])
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
            *("unknown_device", "CPU:", "CPU:GPU", "", "CPU:-1", "a b", "cpu", ":0"),
            *("CPU:0:1", "CPU:0 ", "//CPU:0", "CPU:\N{ARABIC-INDIC DIGIT ONE}"),
        ],
    )
    def test_unparsable_is_refused_with_failed_parsing(self, name):
        for ask in (config.logical_device, config.get_memory_info):
            with pytest.raises(ValueError, match="Failed parsing device name"):
                ask(name)

    # [M] "parsable but absent ('GPU:0', 'TPU:0', lower-case 'cpu:0') ⇒ ValueError
    # 'No matching devices found'"
    @pytest.mark.parametrize("name", ["GPU:0", "TPU:0", "cpu:0", "CPU:12", "GPU"])
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
