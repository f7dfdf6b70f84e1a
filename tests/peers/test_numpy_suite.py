"""NumPy's own tests, of the installed package, with their arrays in memcfg's memory.

In a workspace each test is a cycle, and modules, caches and fixtures keep arrays over
its end: they must stay whole.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.parity, pytest.mark.slow]  # minutes; a release runs them

MODULES = ("test_mem_policy", "test_multiarray", "test_umath")
# Tests of NumPy's default allocator itself, by name and with the reason. None so far:
# those that look for it ask which one is in place when they begin.
DESELECTED: dict[str, str] = {}
# Tests that leave an array behind, with the reason.
LEAVES = {
    "TestArrayConverter.test_pyscalars_self_referencing_array_raises": (
        "its array of objects contains itself, and Python's garbage collector does not "
        "look into arrays"
    ),
}


def run(folder: Path, choice: str) -> dict:
    report = folder / "report.json"
    modules = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    scripts = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {
        "NPY_AVAILABLE_MEM": "8GB",  # NumPy skips two tests that take 18 GB
        "MEMCFG_PLUGIN_REPORT": str(report),
        "MEMCFG_PLUGIN_ALLOCATOR": choice,
        "PATH": os.pathsep.join(scripts),  # NumPy's tests run meson and ninja
        "PYTHONPATH": os.pathsep.join(filter(None, modules)),
    }
    settings = folder / "pytest.ini"  # none of ours, wherever NumPy is installed
    settings.write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings)]
    command += ["-p", "allocator_plugin", "-p", "no:cacheprovider", "--pyargs"]
    command += [f"numpy._core.tests.{name}" for name in MODULES]
    command += [f"--deselect={name}" for name in DESELECTED]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return json.loads(report.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    if find_spec("numpy._core.tests") is None:
        pytest.skip("the installed NumPy comes without its tests")
    return functools.cache(lambda choice: run(tmp_path_factory.mktemp("numpy"), choice))


@pytest.mark.parametrize("choice", ["pool", "workspace"])
def test_they_pass_and_were_there(reports, choice):
    report = reports(choice)
    outcomes = list(report["outcomes"].values())
    counts = {key: outcomes.count(key) for key in sorted(set(outcomes))}
    print(f"NumPy {np.__version__}:", counts)
    print({key: value for key, value in report.items() if key != "outcomes"})
    assert outcomes.count("passed") > 10_000
    assert report["allocation_count"] > 1_000_000


def test_nothing_is_left_of_them(reports):
    report = reports("pool")
    assert set(report["left"]) <= set(LEAVES)
    left = report["allocation_count"] - report["deallocation_count"]
    assert left == len(report["left"])
    assert report["current_bytes"] == 0 or left > 0


def test_a_workspace_keeps_what_outlives_a_test(reports):
    report = reports("workspace")
    assert report["cycles"] > 10_000
    assert report["escaped"] > 0
    left = report["allocation_count"] - report["deallocation_count"]
    assert (report["current_bytes"] == 0) == (left == 0)
    assert left < 100


def test_the_same_are_skipped_in_both(reports):
    assert reports("pool")["outcomes"] == reports("workspace")["outcomes"]


def test_none_is_skipped_that_runs_otherwise(reports):
    assert reports("none")["allocation_count"] == 0
    assert reports("pool")["outcomes"] == reports("none")["outcomes"]
