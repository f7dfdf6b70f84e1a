"""The resident memory of a process under a limit, in a process for each test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import memcfg.torch as mt

TRAIN = """
import torch
import memcfg.torch as mt
process = mt.limit_process("200MiB", above_now=True)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
x = torch.randn(1024, 256)
mt.budget(model, process)
for _ in range(4):
    model(x).square().mean().backward()
print(process.peak_bytes <= process.limit_bytes)
print(mt.get_budget(model).memory_report())
"""
EXCEED = """
import sys, time
import memcfg.torch as mt
how = {"samples": "samples", "any": True}[sys.argv[1]]
process = mt.limit_process("50MiB", above_now=True, enforce=how)
print(process.enforced_by, flush=True)
held = [bytearray(b"1" * 2**20) for _ in range(200)]
time.sleep(5)
print("alive")
"""


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_step_is_planned_within_what_the_process_has_left():
    done = run(TRAIN)
    assert done.returncode == 0, done.stderr
    fits, *report = done.stdout.splitlines()
    assert fits == "True"
    assert report[0].startswith("Resident now: ")
    assert report[1].startswith("Beside tensors when limit_process was called: ")
    assert report[2].startswith("Beside tensors when a step was planned: ")
    assert any(line.strip().startswith("beside tensors ") for line in report)


@pytest.mark.parametrize("how", ["samples", "any"])
def test_the_system_ends_a_process_above_an_enforced_limit(how):
    done = run(EXCEED, how)
    assert done.returncode == -9
    assert "alive" not in done.stdout
    if how == "samples":
        assert done.stdout == "samples\n"
        assert "bytes are resident, the limit is" in done.stderr


def test_limits_that_make_no_sense_are_refused():
    from memcfg.errors import ResourceExhaustedError

    with pytest.raises(ValueError, match="more than 0 bytes"):
        mt.limit_process(0)
    with pytest.raises(ResourceExhaustedError, match="more resident than the limit"):
        mt.limit_process("1MiB")
    with pytest.raises(TypeError):
        mt.limit_process(None)
    with pytest.raises(ValueError, match="enforce is True, False"):
        mt.limit_process("8TiB", enforce="samplings")
