"""A plugin of pytest's: Keras's own tests run with `memcfg.nn` in the place of Keras.

MEMCFG_KERAS_FOLDER is the folder in which Keras is installed. At the end a report is
written, as JSON, to the file that MEMCFG_KERAS_REPORT names: what became of each test,
and why.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
import keras_stand_in

keras_stand_in.install(os.environ["MEMCFG_KERAS_FOLDER"])
import keras_cases  # noqa: E402
import pytest  # noqa: E402

SECONDS = 60  # after which a test is given up
OUTCOMES: dict[str, tuple[str, str]] = {}


def give_up(*_):
    raise TimeoutError("the test takes too long")


def note(report, kind, text=""):
    name = report.nodeid.split("keras/src/")[-1]
    OUTCOMES[name] = kind, re.sub(r"\s+", " ", text)[:600]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    keras_cases.NEEDS.clear()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        with keras_stand_in.running():
            return (yield)
    finally:
        signal.alarm(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    report = yield
    if report.skipped:
        note(report, "skipped")
    elif report.failed:
        note(report, "failed", f"{call.excinfo.typename}: {call.excinfo.value}")
    elif report.when == "call":
        needs = ", ".join(sorted({*keras_cases.NEEDS}))
        note(report, "needs" if needs else "passed", needs)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    if report.failed:
        note(report, "failed", str(report.longrepr)[-600:])
    return report


def pytest_unconfigure():
    path = Path(os.environ["MEMCFG_KERAS_REPORT"])
    path.write_text(json.dumps(OUTCOMES), encoding="utf-8")
