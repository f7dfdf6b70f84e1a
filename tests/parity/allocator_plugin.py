"""A plugin of pytest's: every test runs with its arrays in a pool.

The arrays that tests and fixtures make are in the pool, those of modules that are being
imported are not. At the end a report is written, as JSON, to the file that
MEMCFG_PLUGIN_REPORT names: what became of each test, and what the pool says. With
MEMCFG_PLUGIN_ALLOCATOR=0 the arrays stay where NumPy puts them.
"""

from __future__ import annotations

import gc
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from memcfg import memory

POOL = memory.tracking(memory.Pool(limit="8GiB", name="tests"), stacks=True)
IN_THE_POOL = os.environ.get("MEMCFG_PLUGIN_ALLOCATOR") != "0"
OUTCOMES: dict[str, str] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    with memory.numpy_allocator(POOL) if IN_THE_POOL else nullcontext():
        return (yield)


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
    POOL.check()
    stats = POOL.stats()
    report = {
        "outcomes": OUTCOMES,
        "allocation_count": stats.allocation_count,
        "deallocation_count": stats.deallocation_count,
        "current_bytes": stats.current_bytes,
        "peak_bytes": stats.peak_bytes,
        "left": sorted(maker(block) for block in POOL.live()),
    }
    path = Path(os.environ["MEMCFG_PLUGIN_REPORT"])
    path.write_text(json.dumps(report), encoding="utf-8")
