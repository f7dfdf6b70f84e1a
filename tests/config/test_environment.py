"""What the environment says is read at first need; nonsense in it is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import forget_unknown_variables

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration
from memcfg.config import PhysicalDevice
from memcfg.errors import FormatError

MIB = 2**20
TYPES = st.from_regex(r"[A-Z][A-Z0-9_]*", fullmatch=True).filter(lambda t: t != "CPU")


class TestSimulatedDevices:
    def test_they_appear_in_every_listing(self, monkeypatch, cpu):
        config.reset()
        monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", "GPU:2:16GiB")
        gpus = config.list_physical_devices("GPU")
        assert gpus == [
            PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in (0, 1)
        ]
        assert config.get_visible_devices() == [cpu, *gpus]
        details = [config.get_device_details(gpu) for gpu in gpus]
        assert [d["simulated"] for d in details] == [True, True]
        assert [d["memory"] for d in details] == [2**34, 2**34]
        assert [device.name for device in config.list_logical_devices()] == [
            *("/device:CPU:0", "/device:GPU:0", "/device:GPU:1")
        ]

    def test_several_entries_and_the_code_count_on(self, monkeypatch):
        monkeypatch.setenv(
            "MEMCFG_SIMULATED_DEVICES", " GPU:1:8GiB, TPU:2:1.5GiB,GPU : 1 : 4096 "
        )
        config.experimental.add_simulated_device("GPU", memory="1MiB")
        memories = {
            device.name.removeprefix("/physical_device:"): config.get_device_details(
                device
            )["memory"]
            for device in config.list_physical_devices()
            if device.device_type != "CPU"
        }
        assert memories == {
            "GPU:0": 2**33,
            "TPU:0": 3 * 2**29,
            "TPU:1": 3 * 2**29,
            "GPU:1": 4096,
            "GPU:2": MIB,
        }

    @settings(max_examples=30)
    @given(
        st.lists(st.tuples(TYPES, st.integers(1, 9), st.integers(1, 2**50)), max_size=4)
    )
    def test_what_is_written_by_the_rules_is_read(self, entries):
        text = ",".join(f"{kind}:{count}:{size}B" for kind, count, size in entries)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MEMCFG_SIMULATED_DEVICES", text)
            config.reset()
            found = config.list_physical_devices()[1:]  # behind the CPU
            assert [
                (each.device_type, config.get_device_details(each)["memory"])
                for each in found
            ] == [(kind, size) for kind, count, size in entries for _ in range(count)]

    @pytest.mark.parametrize(
        "text",
        [
            *("GPU", "GPU:2", "GPU:2:16GiB:x", "GPU:two:16GiB", "GPU:0:16GiB", ":::"),
            *(
                "GPU:-1:16GiB",
                "GPU:2:",
                "GPU:2:lots",
                "GPU:2:0B",
                "gpu:1:1B",
            ),
            *(
                "CPU:1:16GiB",
                "GPU:2:50%",
                "GPU:1:1GiB,",
                ",",
                "2:GPU:16GiB",
                "GPU:²:1B",
            ),
        ],
    )
    def test_bad_text_is_an_error_that_names_the_variable(self, monkeypatch, text):
        monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", text)
        with pytest.raises(
            ValueError, match=r"MEMCFG_SIMULATED_DEVICES.*TYPE:COUNT:MEMORY"
        ):
            config.list_physical_devices()
        monkeypatch.delenv("MEMCFG_SIMULATED_DEVICES")
        assert len(config.list_physical_devices()) == 1

    @pytest.mark.parametrize(
        "text",
        [
            *("GPU:1:99999999999TiB", f"GPU:1:{2**62 + 1}B", f"GPU:1:{2**64}"),
            *("GPU:1000000:1GiB", "GPU:1025:1B", f"GPU:{10**30}:1GiB"),
        ],
    )
    def test_numbers_beyond_all_devices_are_refused_at_once(self, monkeypatch, text):
        monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", text)
        with pytest.raises(FormatError, match=r"MEMCFG_SIMULATED_DEVICES.*needs a"):
            config.list_physical_devices()

    @pytest.mark.parametrize("memory", ["1GB", "1B", "100B", "5MB", "12345678901"])
    def test_any_number_of_bytes_is_a_memory(self, monkeypatch, limits, memory):
        monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", f"GPU:2:{memory}")
        assert config.get_memory_info("CPU:0")["current"] == 0
        assert len(set(limits("GPU"))) == 1
        details = config.get_device_details(config.list_physical_devices("GPU")[0])
        assert limits("GPU")[0] == details["memory"]

    def test_the_largest_there_can_be(self, monkeypatch, growths):
        monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", f"GPU:1024:{2**52}")
        monkeypatch.setenv("MEMCFG_FORCE_GPU_ALLOW_GROWTH", "true")
        assert growths() == [True] * 1024


class TestMemoryLimit:
    def test_it_limits_what_was_not_configured(self, monkeypatch, gpus, limits):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=2GiB, GPU:1 = 25%")
        assert limits() == [2**31]
        assert limits("GPU") == [2**34, 2**32]
        assert config.get_logical_device_configuration(gpus[1]) is None

    def test_a_mere_number_is_bytes(self, monkeypatch, limits):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "/physical_device:CPU:0=4096")
        assert limits() == [4096]

    def test_few_bytes_are_probably_meant_in_another_unit(self, monkeypatch, limits):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=512")
        monkeypatch.setenv("MEMCFG_SIMULATED_DEVICES", "GPU:1:16")
        with pytest.warns(RuntimeWarning) as warned:
            assert limits() == [512]
        texts = [str(each.message) for each in warned]
        assert len(texts) == 2
        assert any("512 in MEMCFG_MEMORY_LIMIT='CPU:0=512'" in each for each in texts)
        assert any("'16MiB' if MiB are meant, or '16B'" in each for each in texts)

    def test_a_configuration_below_it_holds(self, monkeypatch, cpu, limits):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=2MiB")
        config.set_logical_device_configuration(cpu, [Configuration(1)] * 2)
        assert limits() == [MIB, MIB]

    def test_a_configuration_above_it_is_an_error_that_names_both(
        self, monkeypatch, cpu, limits
    ):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=2MiB")
        for above in ([Configuration(3)], [Configuration(1), Configuration("1025KiB")]):
            config.set_logical_device_configuration(cpu, above)
            with pytest.raises(
                ValueError,
                match=r"MEMCFG_MEMORY_LIMIT allows 2097152 B.*CPU:0.*"
                r"come to (3145728|2098176) B",
            ):
                config.list_logical_devices()
        config.set_logical_device_configuration(cpu, [Configuration()])
        assert limits() == [2 * MIB]

    def test_each_of_several_devices_needs_a_limit_under_it(self, monkeypatch, cpu):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=2MiB")
        config.set_logical_device_configuration(
            cpu, [Configuration(1), Configuration()]
        )
        with pytest.raises(
            ValueError, match=r"MEMCFG_MEMORY_LIMIT.*each logical device"
        ):
            config.list_logical_devices()

    def test_a_changed_limit_stays_below_it(self, monkeypatch, cpu, limits):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=3MiB")
        config.set_logical_device_configuration(cpu, [Configuration(1)] * 2)
        with pytest.raises(ValueError, match="MEMCFG_MEMORY_LIMIT"):
            config.set_memory_limit("CPU:0", 2 * MIB + 1)
        with pytest.raises(ValueError, match="MEMCFG_MEMORY_LIMIT"):
            config.memory_fraction("CPU:0", 1)
        assert config.set_memory_limit("CPU:0", None) == MIB
        assert limits() == [2 * MIB, MIB]

    def test_it_is_not_read_for_hardware_that_is_invisible(self, monkeypatch, gpus):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "GPU:0=1MiB")
        config.set_logical_device_configuration(gpus[0], [Configuration(2)])
        config.set_visible_devices(gpus[1], "GPU")
        assert len(config.list_logical_devices("GPU")) == 1

    @pytest.mark.parametrize(
        "text",
        [
            *("2GiB", "CPU:0", "CPU:0=", "=2GiB", "CPU:0=much", "CPU:0=0B", "CPU=1B"),
            *("CPU:0=101%", "CPU:0=-1B", "CPU:0=1GiB,CPU:00=2GiB", "CPU:0=1GiB;"),
            *(
                "GPU:0=1GiB",
                "/job:worker/cpu:0=1GiB",
                "CPU:1=1GiB",
                "CPU:0=1GiB,",
                "cpu:0=1GiB,/device:CPU:0=2GiB",
            ),
        ],
    )
    def test_bad_text_is_an_error_that_names_the_variable(self, monkeypatch, text):
        monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", text)
        with pytest.raises(ValueError, match=r"MEMCFG_MEMORY_LIMIT.*DEVICE=SIZE"):
            config.list_logical_devices()
        monkeypatch.delenv("MEMCFG_MEMORY_LIMIT")
        config.list_logical_devices()


class TestHostLimits:
    def test_they_hold_from_the_first_use(self, monkeypatch):
        monkeypatch.setenv("MEMCFG_MAX_BYTES", "1GiB")
        monkeypatch.setenv("MEMCFG_MAX_RSS_BYTES", str(2**40))
        config.list_logical_devices()
        monkeypatch.delenv("MEMCFG_MAX_BYTES")
        assert config.set_host_memory_limit() == (2**30, 2**40)

    def test_code_replaces_them(self, monkeypatch, cpu):
        total = config.get_device_details(cpu)["memory"]
        monkeypatch.setenv("MEMCFG_MAX_BYTES", "50%")
        assert config.set_host_memory_limit(tracked="2GiB") == (total // 2, None)
        assert config.set_host_memory_limit(tracked=None) == (2**31, None)
        config.list_logical_devices()
        assert config.set_host_memory_limit() == (None, None)

    @pytest.mark.parametrize("variable", ["MEMCFG_MAX_BYTES", "MEMCFG_MAX_RSS_BYTES"])
    @pytest.mark.parametrize("text", ["much", "0", "-1", "1.5", "0%", "GiB", "1GiB,"])
    def test_bad_text_is_an_error_that_names_the_variable(
        self, monkeypatch, variable, text
    ):
        monkeypatch.setenv(variable, text)
        for ask in (config.list_logical_devices, config.set_host_memory_limit):
            with pytest.raises(ValueError, match=f"{variable}=.*a size, such as"):
                ask()
        monkeypatch.delenv(variable)
        assert config.set_host_memory_limit() == (None, None)


def test_the_errors_are_memcfgs_own_too(monkeypatch):
    monkeypatch.setenv("MEMCFG_MAX_BYTES", "much")
    with pytest.raises(FormatError):
        config.list_logical_devices()


def test_the_environment_is_read_again_after_reset(monkeypatch, limits):
    assert limits() == [None]
    monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=1MiB")
    assert limits() == [None]
    config.reset()
    assert limits() == [MIB]


def test_unknown_variables_are_told_once(monkeypatch):
    monkeypatch.setenv("MEMCFG_MEMORY_LIMT", "CPU:0=1GiB")
    monkeypatch.setenv("MEMCFG_XYZ", "1")
    forget_unknown_variables(monkeypatch)
    with pytest.warns(RuntimeWarning, match="does not know") as caught:
        config.list_physical_devices("CPU")
    told = str(caught[0].message)
    assert "MEMCFG_MEMORY_LIMT (did you mean MEMCFG_MEMORY_LIMIT?), MEMCFG_XYZ " in told
    assert [each.filename for each in caught] == [__file__]
    config.list_physical_devices("CPU")  # no second warning


def test_all_variables_of_the_page_are_known(monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    names = set(re.findall(r"MEMCFG_\w+", page))
    assert len(names) > 15
    for name in names:
        monkeypatch.setenv(name, "")
    forget_unknown_variables(monkeypatch)
    config.list_physical_devices("CPU")
