"""The path of oneDNN's library: named by a variable, or that of its package.

The system's directories are not searched, since they may contain another build.
"""

from __future__ import annotations

import os
from pathlib import Path

from memcfg.devices._packaged_library import packaged_library
from memcfg.errors import KernelError, MissingDependencyError

_VARIABLE = "MEMCFG_ONEDNN_LIBRARY"
_PACKAGE = "onednn-cpu-gomp"
_FILE = "libdnnl.so.3"


def find_onednn() -> str:
    """Return the path of oneDNN's shared library."""
    named = os.environ.get(_VARIABLE, "")
    if named:
        if not Path(named).is_file():
            raise KernelError(f"{_VARIABLE} is {named!r}, which is not a file")
        return named
    path = packaged_library(_PACKAGE, _FILE)
    if path is not None:
        return str(Path(path).resolve().parent / _FILE)
    raise MissingDependencyError(
        f"oneDNN was not found: install it with `pip install {_PACKAGE}`, or let "
        f"{_VARIABLE} name a {_FILE}."
    )
