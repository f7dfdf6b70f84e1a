"""The only door to the C++ core.

Owns the compiled modules and re-exports the engine's classes. Refuses policy.
`memcfg._core.search`, the pure packing functions, is imported by its full name.
"""

from __future__ import annotations

from memcfg._core._openmp import short_spin
from memcfg._core._stats import PoolStats

try:
    with short_spin():
        from memcfg._core.engine import (
            Arena,
            Block,
            CallbackKernel,
            Kernel,
            OneDNN,
            Pool,
            Program,
            get_num_threads,
            set_num_threads,
        )
except ImportError as _error:
    raise ImportError(
        f"memcfg's compiled core cannot be loaded ({_error}). If memcfg is installed "
        "and you are in its source folder, that folder hides the installed package: "
        "run from another one. Else install it with `pip install .`, which needs a "
        "C++17 compiler, or build it in place with "
        "`pip install --no-build-isolation -e .`"
    ) from _error

__all__ = [
    "Arena",
    "Block",
    "CallbackKernel",
    "Kernel",
    "OneDNN",
    "Pool",
    "PoolStats",
    "Program",
    "get_num_threads",
    "set_num_threads",
]
