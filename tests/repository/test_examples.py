"""Every example runs, from its own source, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))
MARK = "@pytest.mark.alone\n"
LONG_ON_NUMPY = ("25_regression", "26_unet", "85_fine_tune")  # half a minute or more


def test_there_are_several_and_they_are_short():
    assert len(EXAMPLES) >= 5
    for path in EXAMPLES:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80


UNASKED = "ignore:this processor has no instructions for bfloat16:RuntimeWarning"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path, tmp_path):
    if os.environ.get("MEMCFG_KERNELS") == "reference" and path.stem in LONG_ON_NUMPY:
        pytest.skip("NumPy's kernels take long, and the others show that they are used")
    told = "error"
    if "torch" in path.stem and "pytorch" not in path.stem:
        if find_spec("torch") is None:
            pytest.skip("the parity environment has PyTorch, and runs it")
        told = "default"  # PyTorch warns of its own internals
    if "trainer" in path.stem and find_spec("transformers") is None:
        pytest.skip("needs transformers: tox run -e parity")
    if "http" in path.stem and find_spec("uvicorn") is None:
        pytest.skip("needs uvicorn, which the extra serve installs")
    if "keras" in path.stem and find_spec("h5py") is None:
        pytest.skip("needs h5py, which the extra h5 installs")
    if "onnx" in path.stem and find_spec("onnx") is None:
        pytest.skip("needs onnx, which the extra onnx installs")
    done = subprocess.run(
        [sys.executable, "-W", told, "-W", UNASKED, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
@pytest.mark.parametrize(
    "network", ["resnet50", pytest.param("gpt", marks=pytest.mark.slow)]
)
def test_half_of_pytorchs_memory_is_enough_in_full_size(network):
    """The example says what resident memory is, and fails above 1.03 of the plan."""
    if os.environ.get("MEMCFG_KERNELS") == "reference":
        pytest.skip("NumPy's temporaries are beside the plan")
    (path,) = (path for path in EXAMPLES if path.stem.startswith("29_"))
    done = subprocess.run(
        [sys.executable, str(path), network],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the peak" in done.stdout


def test_what_runs_alone_is_here():
    """`tox.ini` collects no other file for it."""
    tests = Path(__file__).parents[1]
    marked = [path for path in tests.rglob("test_*.py") if MARK in path.read_text()]
    assert marked == [Path(__file__)]
