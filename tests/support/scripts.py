"""The scripts of `tests/`, which is not on the path: it has a folder `torch`."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def script(name):
    """Import a script by its name."""
    if name not in sys.modules:
        spec = spec_from_file_location(name, FOLDER / f"{name}.py")
        sys.modules[name] = made = module_from_spec(spec)
        spec.loader.exec_module(made)
    return sys.modules[name]


def ends_in_silence(*words):
    """Run Python, for which warnings are errors; it ends well and has told nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
