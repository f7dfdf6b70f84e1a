from __future__ import annotations

import os
from pathlib import Path

import pytest
from internals import replace_machine_files

from memcfg import config
from memcfg.config import PhysicalDevice


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


MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # bytes


def memory() -> int:
    config.reset()
    return config.get_device_details(config.list_physical_devices("CPU")[0])["memory"]


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Stand in for the files of the kernel; returns where the groups are."""
    paths = {
        "/proc/self/cgroup": tmp_path / "cgroup",
        "/sys/fs/cgroup": tmp_path / "sys",
    }
    replace_machine_files(monkeypatch, lambda first, *rest: Path(paths[first], *rest))
    return tmp_path / "sys"


def write_limit(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("1048576\n", 2**20), ("", None), ("0\n", None), ("x", None)],
)
def test_a_control_group_bounds_the_memory(groups, text, limit):
    write_limit(groups / "outer", "memory.max", text)
    (groups.parent / "cgroup").write_text("12:cpu:/x\n0::/outer/inner\n")
    assert memory() == (limit or MACHINE)


@pytest.mark.parametrize("controllers", ["memory", "hugetlb,memory,pids"])
def test_a_control_group_of_version_1_does_too(groups, controllers):
    folder, name = groups / "memory", "memory.limit_in_bytes"
    write_limit(folder / "outer" / "inner", name, "2097152\n")
    write_limit(folder / "outer", name, "1048576\n")
    write_limit(folder, name, "9223372036854771712\n")  # none
    lines = f"9:name=systemd:/outer\n4:{controllers}:/outer/inner\n1:memoryless:/x\n"
    (groups.parent / "cgroup").write_text(lines)
    assert memory() == 2**20
    write_limit(folder / "outer" / "inner", name, "524288\n")
    assert memory() == 2**19
    write_limit(folder / "outer" / "inner", name, "2097152\n")
    write_limit(folder / "outer", name, "9223372036854771712\n")
    assert memory() == 2**21


def test_a_path_with_a_colon_is_one(groups):
    write_limit(groups / "a:b", "memory.max", "1048576\n")
    (groups.parent / "cgroup").write_text("0::/a:b\n")
    assert memory() == 2**20


def test_without_control_groups_there_is_the_machine(monkeypatch, tmp_path):
    replace_machine_files(monkeypatch, lambda *_: tmp_path / "missing")
    assert memory() == MACHINE > 2**20
    assert config.get_device_details(config.list_physical_devices()[0])["device_name"]
