"""Keras's own tests with `memcfg.nn` in the place of Keras: runs, and what is recorded.

They are read where Keras is installed. `keras_stand_in` answers their imports,
`keras_cases` is the base class of theirs, and `keras_reasons` says why a test does not
pass.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from keras_reasons import SKIPPED, reason_of

PEERS = Path(__file__).parents[1] / "peers"
RECORD = Path(__file__).with_name("keras_outcomes.json")
# The folders whose tests are run.
FOLDERS = (
    *("activations", "callbacks", "constraints", "initializers", "layers", "losses"),
    *("metrics", "models", "ops", "optimizers", "random", "regularizers", "trainers"),
    *("utils", "applications/imagenet_utils_test.py"),
)


def keras_folder():
    """Return the folder in which Keras is installed, without importing it; or None."""
    spec = find_spec("keras")
    return None if spec is None else Path(spec.origin).parents[1]


def run(folder, paths, *options):
    """Run the tests of paths of Keras's sources; return outcomes by module and test.

    `folder` is for what the tests write. An outcome is a kind and a text.
    """
    place, report = keras_folder(), folder / "report.json"
    settings = folder / "pytest.ini"  # none of ours, wherever Keras is installed
    settings.write_text("[pytest]\n", encoding="utf-8")
    environment = os.environ | {
        "MEMCFG_KERAS_FOLDER": str(place),
        "MEMCFG_KERAS_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(PEERS), os.environ.get("PYTHONPATH", "")))
        ),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings)]
    command += [f"--rootdir={place}", "--tb=no", "-W", "ignore", *options]
    command += ["--continue-on-collection-errors", "-p", "keras_plugin"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [str(place / "keras" / "src" / each) for each in paths]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1, 5), done.stdout[-5000:] + done.stderr[-5000:]
    outcomes = collections.defaultdict(dict)
    found = json.loads(report.read_text(encoding="utf-8"))
    for name, (kind, text) in sorted(found.items()):
        module, _, test = name.partition("::")
        outcomes[module][test or "(collection)"] = kind, text
    return dict(outcomes)


def recorded():
    """Return what `record` wrote."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def by_reason(outcomes):
    """Return what is recorded of the tests of a module.

    Names of those that pass, of those that pass but for a need, and of those in which
    memcfg does otherwise; numbers of those that need what is absent.
    """
    result = {"passed": [], "but for": {}, "different": {}, "absent": {}}
    for test, (kind, text) in outcomes.items():
        if kind == "passed":
            result["passed"].append(test)
        elif kind == "needs":
            result["but for"].setdefault(text, []).append(test)
        elif kind == "skipped":
            result["absent"][SKIPPED] = result["absent"].get(SKIPPED, 0) + 1
        else:
            reason, absent = reason_of(text)
            if absent:
                result["absent"][reason] = result["absent"].get(reason, 0) + 1
            else:
                result["different"].setdefault(reason, []).append(test)
    return result


def kinds(entry):
    """Return the tests of an entry that pass, or pass but for a need, by name."""
    needs = {
        test: f"passed but for {n}" for n, t in entry["but for"].items() for test in t
    }
    return needs | dict.fromkeys(entry["passed"], "passed")
