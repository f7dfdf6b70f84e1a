"""Keras's own tests, of the installed package, with `memcfg.nn` in the place of Keras.

`python tests/keras_record.py` records which of them pass, and why others do not: in
``bench/results/keras_suite.md``, and by name in ``tests/support/keras_outcomes.json``.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import keras_suite
import pytest

pytestmark = pytest.mark.parity

# Those that take the most processor time are left to a release, as are those of rooms
# of which memcfg has little.
QUICK = (
    *("activations", "constraints", "initializers", "losses", "metrics", "optimizers"),
    *("random", "regularizers", "ops/core_test.py"),
    *(
        f"layers/{room}"
        for room in (
            *("activations", "convolutional", "core", "merging", "reshaping"),
            *("normalization", "pooling", "regularization"),
        )
    ),
)


def installed():
    try:
        return version("keras")
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(
    installed() != keras_suite.recorded()["keras"],
    reason="another version of Keras was recorded, or none is installed",
)
@pytest.mark.parametrize(
    "paths",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(keras_suite.FOLDERS, id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.always
def test_what_is_recorded_happens(tmp_path, paths):
    modules = {
        name: entry
        for name, entry in keras_suite.recorded()["modules"].items()
        if any(name == path or name.startswith(f"{path}/") for path in paths)
    }
    outcomes = keras_suite.run(tmp_path, paths)
    worse, better = [], []
    for name in sorted(modules.keys() | outcomes.keys()):
        tests = outcomes.get(name, {})
        found = keras_suite.kinds(keras_suite.by_reason(tests))
        entry = modules.get(name)
        wanted = {} if entry is None else keras_suite.kinds(entry)
        for test in sorted(wanted.keys() | found.keys()):
            before, now = wanted.get(test, "no"), found.get(test, "no")
            if before != now:
                line = f"{name}::{test}: {before} -> {now} {tests.get(test, '')}"
                (better if now == "passed" else worse).append(line)
    again = "run python tests/keras_record.py, and look at what it changes"
    assert not worse, "\n".join([*worse, f"if that is meant, {again}"])
    assert not better, "\n".join([*better, f"more pass: {again}"])


def test_most_of_what_is_here_passes():
    entries = keras_suite.recorded()["modules"].values()
    passed = sum(len(keras_suite.kinds(entry)) for entry in entries)
    different = sum(len(t) for e in entries for t in e["different"].values())
    assert passed > 2900
    assert passed / (passed + different) > 0.85
