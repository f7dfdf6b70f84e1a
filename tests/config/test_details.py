from __future__ import annotations

import os
from pathlib import Path

import pytest

from memcfg import config
from memcfg.config import PhysicalDevice
from memcfg.devices.cpu import _hardware


# [T] "CPU ⇒ {}"; here it tells more, by row 38 of table (i): "incl. CPU (name, cores,
# RAM)"
def test_a_cpu_has_a_name_cores_and_memory(cpu):
    details = config.get_device_details(cpu)
    assert set(details) == {"device_name", "cores", "memory"}
    assert details["device_name"]
    assert 1 <= details["cores"] <= os.cpu_count()
    assert 2**20 < details["memory"] < 2**50


# [T] "GPU ⇒ non-empty str device_name, compute_capability an (int,int) tuple (absent on
# ROCm)": absent on simulated hardware too
def test_simulated_hardware_says_that_it_is(gpus):
    assert config.experimental.get_device_details(gpus[0]) == {
        "device_name": "simulated GPU",
        "memory": 2**34,
        "simulated": True,
    }


def test_the_answer_is_a_copy_and_no_first_use(cpu):
    config.get_device_details(cpu).clear()
    assert config.get_device_details(cpu)
    config.set_memory_growth(cpu, True)


# [T] "Logical device or str ⇒ ValueError 'must be a tf.config.PhysicalDevice'"
@pytest.mark.parametrize("device", ["CPU:0", "GPU:0", None])
def test_only_a_physical_device_will_do(device):
    with pytest.raises(ValueError, match=r"must be a memcfg\.config\.PhysicalDevice"):
        config.get_device_details(device)
    logical = config.list_logical_devices()[0]
    with pytest.raises(ValueError, match=r"must be a memcfg\.config\.PhysicalDevice"):
        config.get_device_details(logical)


# [T] "unknown PhysicalDevice ⇒ ValueError 'must be one obtained from calling …'"
def test_an_unknown_physical_device_is_refused():
    with pytest.raises(ValueError, match="must be one obtained from calling"):
        config.get_device_details(PhysicalDevice("/physical_device:CPU:7", "CPU"))


@pytest.mark.parametrize(
    ("text", "limits"),
    [("max\n", []), ("1048576\n", [2**20]), ("", []), ("0\n", []), ("x", [])],
)
def test_a_control_group_bounds_the_memory(monkeypatch, tmp_path, text, limits):
    group = tmp_path / "sys" / "outer" / "inner"
    group.mkdir(parents=True)
    (group.parent / "memory.max").write_text(text)
    (tmp_path / "cgroup").write_text("12:cpu:/x\n0::/outer/inner\n")
    places = {
        "/proc/self/cgroup": tmp_path / "cgroup",
        "/sys/fs/cgroup": tmp_path / "sys",
    }
    monkeypatch.setattr(
        _hardware, "Path", lambda first, *rest: Path(places[first], *rest)
    )
    assert list(_hardware._group_limits()) == limits
    if limits:
        assert _hardware.CpuHardware().memory_bytes == min(limits)


def test_without_control_groups_there_is_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(_hardware, "Path", lambda *_: tmp_path / "missing")
    assert list(_hardware._group_limits()) == []
    details = _hardware.CpuHardware().details()
    assert details["device_name"]
    assert details["memory"] > 2**20
