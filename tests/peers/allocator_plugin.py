"""A plugin of pytest's: every test runs with its arrays where memcfg puts them.

MEMCFG_PLUGIN_ALLOCATOR says where: "pool"; "workspace", whose cycles the tests are; or
"none", where NumPy puts them. The arrays that tests and fixtures make are there, those
of modules that are being imported are not. At the end a report is written, as JSON, to
the file that MEMCFG_PLUGIN_REPORT names: what became of each test, and what the pool
says.
"""

from __future__ import annotations

import gc
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from memcfg import Workspace, WorkspaceConfig, memory

POOL = memory.tracking(memory.Pool(limit="8GiB", name="tests"), stacks=True)
CHOICE = os.environ["MEMCFG_PLUGIN_ALLOCATOR"]
WORKSPACE = Workspace(
    WorkspaceConfig(spill="reallocate", max_size="64MiB"), "tests", resource=POOL
)
OUTCOMES: dict[str, str] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    with place():
        return (yield)


def place():
    if CHOICE == "workspace":
        return WORKSPACE
    return memory.numpy_allocator(POOL) if CHOICE == "pool" else nullcontext()


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.nodeid] = report.outcome


def maker(block):
    """Name the test that made what is left."""
    functions = [function for _, _, function in block.stack]
    tests = [each for each in functions if each.split(".")[-1].startswith("test_")]
    return tests[-1] if tests else repr(functions)


def pytest_unconfigure():
    gc.collect()
    WORKSPACE.memory.check()
    POOL.check()
    cycles = WORKSPACE.stats()
    stats = WORKSPACE.memory.stats() if CHOICE == "workspace" else POOL.stats()
    WORKSPACE.destroy()
    report = {
        "outcomes": OUTCOMES,
        "allocation_count": stats.allocation_count,
        "deallocation_count": stats.deallocation_count,
        "current_bytes": POOL.stats().current_bytes,
        "peak_bytes": stats.peak_bytes,
        "cycles": cycles.cycles,
        "escaped": cycles.escaped_arrays,
        "left": sorted(maker(block) for block in POOL.live()),
    }
    path = Path(os.environ["MEMCFG_PLUGIN_REPORT"])
    path.write_text(json.dumps(report), encoding="utf-8")
