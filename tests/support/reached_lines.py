"""A plugin of pytest: what each test costs, and which lines and branches it reaches.

Each process writes a file to the folder ``REACHED_LINES``. Only code of memcfg that
runs in the processes of pytest is seen.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import coverage
import numpy as np
import pytest

import memcfg

FOLDER = Path(os.environ["REACHED_LINES"])
COVERAGE = coverage.Coverage(
    data_file=None,
    branch=True,
    source=[str(Path(memcfg.__file__).parent)],
    config_file=False,
)
COVERAGE.start()

_numbers: dict[tuple[str, object], int] = {}  # of arcs, by file and code of coverage
_names: list[str] = []
_seconds: list[float] = []
_reached: list[np.ndarray] = []


def _processor_seconds():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _take():
    """Return the numbers of the arcs since the last time."""
    # coverage has no public way to begin anew and to keep the tracer.
    data = COVERAGE._collector.data
    arcs = [(file, arc) for file, found in list(data.items()) for arc in list(found)]
    for found in data.values():
        found.clear()  # frames that are running keep the sets
    numbers = [_numbers.setdefault(arc, len(_numbers)) for arc in arcs]
    return np.array(numbers, np.int32)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    if sys.gettrace() is None:  # a test has traced for itself
        COVERAGE.stop()
        COVERAGE.start()
    if not _names:
        _take()  # what importing runs is reached by all
    began = _processor_seconds()
    result = yield
    _names.append(item.nodeid)
    _seconds.append(_processor_seconds() - began)
    _reached.append(_take())
    return result


def pytest_sessionfinish():
    if _names:
        arcs = [f"{file} {arc}" for file, arc in _numbers]
        np.savez_compressed(
            FOLDER / f"{os.getpid()}-{time.time_ns()}.npz",
            names=np.array(_names),
            seconds=np.array(_seconds),
            counts=np.array([len(each) for each in _reached]),
            reached=np.concatenate(_reached),
            arcs=np.array(arcs),
        )
