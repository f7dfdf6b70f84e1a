from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from memcfg import config
from memcfg.cli import main
from memcfg.config import LogicalDeviceConfiguration
from memcfg.units import format_bytes


def rows(text):
    """Return the rows of both tables: cells are two spaces apart."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return [row for row in lines if re.match(r"(/device:)?[A-Z]+:\d", row[0])]


@pytest.fixture(autouse=True)
def _silent_environment(monkeypatch):
    for variable in set(os.environ) - {"MEMCFG_KERNELS", "MEMCFG_ONEDNN_LIBRARY"}:
        if variable.startswith("MEMCFG_"):
            monkeypatch.delenv(variable)


@pytest.fixture
def listed(capsys, monkeypatch):
    """Return a function that runs the command on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run():
        assert main(["devices"]) == 0
        return capsys.readouterr().out

    return run


def test_devices_limits_and_use_are_listed(cpu, listed):
    config.set_logical_device_configuration(
        cpu, [LogicalDeviceConfiguration(48), LogicalDeviceConfiguration()]
    )
    with config.logical_device("CPU:1").pool.allocate(3000):
        reserved = config.logical_device("CPU:1").pool.stats().reserved_bytes
        found = rows(listed())
    assert found[0][0] == "CPU:0"
    assert found[0][-1] == str(config.get_device_details(cpu)["cores"])
    assert found[1:] == [
        ["/device:CPU:0", "yes", "48.00 MiB", "0 B", "0 B", "0 B"],
        [
            *("/device:CPU:1", "yes", "none", "2.94 KiB"),
            *(format_bytes(reserved), "2.94 KiB"),
        ],
    ]


def test_simulated_and_invisible_hardware_is_marked(cpu, listed):
    gpus = [
        config.experimental.add_simulated_device("GPU", memory=memory)
        for memory in ("16GiB", "8GiB")
    ]
    config.set_visible_devices([cpu, gpus[1]])
    assert rows(listed())[1:] == [
        ["GPU:0", "simulated GPU, invisible", "16.00 GiB"],
        ["GPU:1", "simulated GPU", "8.00 GiB"],
        ["/device:CPU:0", "yes", "none", "0 B", "0 B", "0 B"],
        ["/device:GPU:0", "no", "8.00 GiB", "0 B", "8.00 GiB", "0 B"],
    ]


def test_without_a_visible_cpu_there_are_no_kernels(listed):
    config.set_visible_devices(
        config.experimental.add_simulated_device("GPU", memory="1GiB")
    )
    assert "Kernels: none: the CPU is invisible\n" in listed()


def test_the_largest_numbers_fit_80_columns(listed):
    for _ in range(11):
        gpu = config.experimental.add_simulated_device("GPU", memory="1023.75GiB")
        config.set_memory_growth(gpu, True)
    pool = config.logical_device("GPU:10").pool
    with pool.allocate(pool.limit // 1024):
        text = listed()
    found = rows(text)[-1]
    assert found[:3] == ["/device:GPU:10", "yes", "1023.75 GiB"]
    assert found[3] == found[5] == "1023.75 MiB"
    tables = text[: text.index("Kernels:")]
    assert max(len(line) for line in tables.splitlines()) <= 80


def test_limits_of_the_process_are_told(listed):
    assert "Limit of this process" not in listed()
    config.set_host_memory_limit(tracked="2GiB", rss="1TiB")
    text = listed()
    assert "Limit of this process, tracked by pools: 2.00 GiB\n" in text
    assert "Limit of this process, resident: 1.00 TiB\n" in text


def test_the_kernels_are_named(listed):
    out = listed()
    if config.logical_device().kernels.name == "onednn":
        assert re.search(r"^Kernels: oneDNN 3\.\d+\.\d+.* .*libdnnl", out, re.MULTILINE)
    else:
        assert re.search(r"^Kernels: .*NumPy", out, re.MULTILINE)
    assert re.search(r"^Threads: [1-9]", out, re.MULTILINE)


def test_a_variable_that_cannot_be_read_is_one_line(monkeypatch, capsys):
    config.reset()
    monkeypatch.setenv("MEMCFG_MEMORY_LIMIT", "CPU:0=much")
    assert main(["devices"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("memcfg: error: cannot read MEMCFG_MEMORY_LIMIT=")
    assert error.count("\n") == 1


def test_kernels_that_there_are_not_are_one_line(monkeypatch, capsys):
    config.reset()
    monkeypatch.setenv("MEMCFG_KERNELS", "foo")
    assert main(["devices"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("memcfg: error: ")
    assert "foo" in error
    assert error.count("\n") == 1


def test_it_is_a_module_too(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "memcfg", "devices"],
        cwd=tmp_path,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "MEMCFG_SIMULATED_DEVICES": "GPU:1:16GiB"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = rows(run.stdout)
    assert [row[0] for row in found] == [
        *("CPU:0", "GPU:0", "/device:CPU:0", "/device:GPU:0")
    ]
    assert found[2] == ["/device:CPU:0", "yes", "none", "0 B", "0 B", "0 B"]
    assert "Threads: 1\n" in run.stdout
