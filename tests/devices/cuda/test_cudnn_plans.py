"""The graphs that are asked of cuDNN, before the real library, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path

import cudnn_plans
import pytest
from cudnn_plans import GPUS, KINDS, MISSING

from memcfg.devices.cuda._convolution_ranks import workspace_limit

LOPSIDED = ("asymmetric", "dilated")  # their padding
DRIVER = (
    *("cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData"),
    *("cuModuleUnload", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled"),
)
# Cases that no cuDNN engine computes exactly; a generated kernel does.
WITHOUT = {
    *((name, f"conv2d_bias, {what}") for name in GPUS for what in LOPSIDED),
    *(("A100", f"{kind}, {what}") for kind in KINDS for what in LOPSIDED),
    *((name, "conv2d_gradient_kernel, gaps") for name in GPUS),
    ("A100", "conv2d_gradient_kernel, one unit"),
}


@cache
def planned(folder, tf32=False):
    """Plan in another process, whose driver library is none."""
    if find_spec("cudnn") is None:
        pytest.skip("needs nvidia-cudnn-frontend")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    source = "".join(f'extern "C" int {name}() {{ return 100; }}\n' for name in DRIVER)
    stub = folder / "libcuda.so.1"
    command = [compiler, "-x", "c++", "-shared", "-fPIC", "-", "-o", str(stub)]
    command += ["-Wl,-soname,libcuda.so.1"]
    subprocess.run(command, input=source, text=True, check=True)
    done = subprocess.run(
        [sys.executable, cudnn_plans.__file__, str(stub)],
        env={**os.environ, "MEMCFG_CUDA_TF32": str(int(tf32))},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    if done.returncode == MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("driver")


def test_every_convolution_has_plans_within_the_limit(folder):
    answer = planned(folder)
    assert answer["told"] == []
    specs = dict(cudnn_plans.specs())
    for name in GPUS:
        for what, spec in specs.items():
            plans = answer["plans"][f"{name}, {what}"]
            # A divided batch has plans of its parts, and of the whole.
            assert len(plans) <= 8 * (2 if what.endswith("large") else 1), (name, what)
            assert plans or (name, what) in WITHOUT
            names = [each for each, _, _ in plans]
            assert len(set(names)) == len(names)
            assert all(each.startswith("cudnn:eng") for each in names)
            turned = spec.kernel[3] > 1 and prod(spec.kernel[:3]) > 1
            kernel = -(-4 * prod(spec.kernel) // 256) * 256 if turned else 0
            for _, workspace, scratch in plans:
                assert 0 <= workspace <= workspace_limit(spec)
                needed = kernel + workspace
                assert scratch == (needed + 256 if needed else 0)


def test_some_plan_of_the_forward_phase_needs_little(folder):
    """So that a planner has a choice; gradients of images turn them in workspace."""
    for what, plans in planned(folder)["plans"].items():
        if "gradient" not in what and plans:
            assert min(workspace for _, workspace, _ in plans) < 1 << 20, what


def test_tf32_adds_plans_that_come_first(folder):
    exact, short = planned(folder)["plans"], planned(folder, tf32=True)["plans"]
    for name in GPUS:
        what = f"{name}, conv2d, common"
        assert short[what][0] not in exact[what]
