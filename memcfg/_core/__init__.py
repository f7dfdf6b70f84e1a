"""The only door to the C++ core.

Owns the compiled modules and re-exports the engine's classes. Refuses policy.
`memcfg._core.search` and `rows`, which need no engine, are imported by their full
names.
"""

from __future__ import annotations

from memcfg._core._blocks import LiveBlock
from memcfg._core._live import live_arenas, live_resources
from memcfg._core._openmp import short_spin
from memcfg._core._stats import PoolStats, RegionStats
from memcfg._core._tag import current_tag

try:
    with short_spin():
        from memcfg._core.engine import (
            Arena,
            Block,
            CallbackKernel,
            Counter,
            FailureCallbackResource,
            Kernel,
            Lane,
            LimitingResource,
            Lock,
            LoggingResource,
            MappedFile,
            OneDNN,
            Pool,
            Program,
            ReplayPlan,
            Resource,
            ScratchFile,
            SimulatedResource,
            StatisticsResource,
            SystemResource,
            TrackingResource,
            WorkspaceMemory,
            arena_of,
            blocks_of,
            codec_bounds,
            fork_count,
            get_host_limits,
            get_num_threads,
            has_kernel,
            layout_of,
            resident_bytes,
            set_bypass_everything,
            set_host_limits,
            set_max_running,
            set_num_threads,
            set_spill_everything,
            tracked_bytes,
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
    "Counter",
    "FailureCallbackResource",
    "Kernel",
    "Lane",
    "LimitingResource",
    "LiveBlock",
    "Lock",
    "LoggingResource",
    "MappedFile",
    "OneDNN",
    "Pool",
    "PoolStats",
    "Program",
    "RegionStats",
    "ReplayPlan",
    "Resource",
    "ScratchFile",
    "SimulatedResource",
    "StatisticsResource",
    "SystemResource",
    "TrackingResource",
    "WorkspaceMemory",
    "arena_of",
    "blocks_of",
    "codec_bounds",
    "current_tag",
    "fork_count",
    "get_host_limits",
    "get_num_threads",
    "has_kernel",
    "layout_of",
    "live_arenas",
    "live_resources",
    "resident_bytes",
    "set_bypass_everything",
    "set_host_limits",
    "set_max_running",
    "set_num_threads",
    "set_spill_everything",
    "tracked_bytes",
]
