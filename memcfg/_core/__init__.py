"""The only interface to the C++ core.

Owns the compiled modules and re-exports the engine's classes. It contains no policy.
`memcfg._core.search` and `rows`, which need no engine, are imported by their full
names.

See docs/decisions/0006-one-extension-owns-the-core.md.
"""

from __future__ import annotations

from memcfg._core._blocks import LiveBlock as LiveBlock
from memcfg._core._live import live_arenas as live_arenas
from memcfg._core._live import live_resources as live_resources
from memcfg._core._malloc import trim_heap as trim_heap
from memcfg._core._openmp import short_spin
from memcfg._core._stats import PoolStats as PoolStats
from memcfg._core._stats import RegionStats as RegionStats

try:
    with short_spin():
        from memcfg._core.engine import *  # noqa: F403
except ImportError as _error:
    raise ImportError(
        f"memcfg's compiled core cannot be loaded ({_error}). If memcfg is installed "
        "and you are in its source folder, that folder hides the installed package: "
        "run from another one. Else install it with `pip install .`, which needs a "
        "C++17 compiler, or build it in place with "
        "`pip install --no-build-isolation -e .`"
    ) from _error
