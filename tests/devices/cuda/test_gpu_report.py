"""The report on a GPU, at a small size, on the driver's stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_report
import gpus
import pytest
from cuda_stand_in import driver_path

from memcfg import config
from memcfg.devices.cuda import _gpu


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDA_LIBRARY", driver_path())
    monkeypatch.setattr(_gpu.CudaHardware.__init__, "__defaults__", gpus.DEFAULTS)
    monkeypatch.setattr(gpu_report, "SMALL", True)
    config.reset()


# What it has not: pycuda, and tests for a GPU.
ALONE = [name for name in gpu_report.CHECKS if name not in ("one_context", "tests")]


@pytest.mark.parametrize("name", ALONE)
def test_a_check_finds_what_it_measures(gpu, name):
    found = gpu_report.CHECKS[name]()
    assert json.loads(json.dumps(found)) == found
    assert found


def test_the_table_has_a_line_for_each_check(gpu, tmp_path, monkeypatch, capsys):
    failed = {"ok": False, "why": "a | b\nc", "seconds": 2.0}
    passed = {"ok": True, "found": {"x": 1}, "seconds": 1.0}
    monkeypatch.setattr(
        gpu_report, "run_apart", lambda name, _: failed if name == "limit" else passed
    )
    assert gpu_report.main(["--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert '| steps | {"x": 1} | 1.0 |' in printed
    assert "| limit | FAILED: a / b c | 2.0 |" in printed
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("cuda-gpu-of-a-test-")
    assert set(json.loads(path.read_text())["checks"]) == set(gpu_report.CHECKS)


def test_without_a_gpu_it_says_so_and_ends():
    script = Path(gpu_report.__file__)
    environment = {k: v for k, v in os.environ.items() if k != "MEMCFG_CUDA_LIBRARY"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "There is no GPU" in done.stdout or "| check |" in done.stdout
