from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from memcfg import config
from memcfg.cli import main
from memcfg.config import LogicalDeviceConfiguration


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def rows(text):
    cells = [re.split(r"\s*[│┃]\s*", line)[1:-1] for line in text.splitlines()]
    return [row for row in cells if row and row[0].startswith("/device")]


def test_devices_limits_and_use_are_listed(cpu, capsys):
    config.set_logical_device_configuration(
        cpu, [LogicalDeviceConfiguration(48), LogicalDeviceConfiguration()]
    )
    with config.logical_device("CPU:1").pool.allocate(3000):
        assert main(["devices"]) == 0
    assert rows(capsys.readouterr().out) == [
        ["/device:CPU:0", "48.00 MiB", "0 B", "0 B"],
        ["/device:CPU:1", "none", "2.94 KiB", "2.94 KiB"],
    ]


def test_the_kernels_are_named(capsys):
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    if config.logical_device().kernels.name == "onednn":
        assert re.search(r"^Kernels: oneDNN 3\.\d+\.\d+.* .*libdnnl", out, re.MULTILINE)
    else:
        assert re.search(r"^Kernels: .*NumPy", out, re.MULTILINE)
    assert re.search(r"^Threads: [1-9]", out, re.MULTILINE)


def test_it_is_a_module_too(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "memcfg", "devices"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert rows(run.stdout) == [["/device:CPU:0", "none", "0 B", "0 B"]]
    assert "Threads: 1\n" in run.stdout
