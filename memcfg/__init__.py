"""Train neural networks inside a hard memory limit.

A subpackage is loaded when its name is first used, so that planning a graph from a file
loads no kernel and training loads no command.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memcfg._missing import MissingModules, refuse
from memcfg._tensorflow_names import TOP
from memcfg._version import __version__

if TYPE_CHECKING:
    from memcfg import (
        config,
        data,
        devices,
        errors,
        graph,
        interop,
        memory,
        models,
        nn,
        ops,
        plan,
        runtime,
        testing,
        units,
        workspaces,
    )
    from memcfg.config import (
        AllocationPolicy,
        DebugMode,
        EscapePolicy,
        LearningPolicy,
        LocationPolicy,
        MirroringPolicy,
        ResetPolicy,
        SpillPolicy,
        WorkspaceConfig,
        device,
    )
    from memcfg.errors import (
        NoSuchWorkspaceError,
        WorkspaceConfigError,
        WorkspaceError,
        WorkspaceFullError,
        WorkspaceLeakError,
        WorkspaceLeakWarning,
        WorkspaceSpillWarning,
        WorkspaceStaleError,
        WorkspaceWarning,
    )
    from memcfg.workspaces import (
        ArrayType,
        LayerWorkspaceMgr,
        PingPong,
        RingWorkspace,
        Workspace,
        WorkspaceMode,
        WorkspaceStats,
        current_workspace,
        destroy_all_workspaces,
        detach,
        gc,
        generation_of,
        get_workspace,
        is_attached,
        is_in_scope,
        is_valid,
        leverage,
        leverage_or_detach,
        leverage_to,
        list_workspaces,
        migrate,
        scope_out,
        summary,
        workspace,
        workspace_exists,
        workspace_of,
    )

_SUBPACKAGES = (
    *("config", "data", "devices", "errors", "graph", "interop", "memory", "models"),
    *("nn", "ops", "plan", "runtime", "testing", "units", "workspaces"),
)

__all__ = [
    "AllocationPolicy",
    "ArrayType",
    "DebugMode",
    "EscapePolicy",
    "LayerWorkspaceMgr",
    "LearningPolicy",
    "LocationPolicy",
    "MirroringPolicy",
    "NoSuchWorkspaceError",
    "PingPong",
    "ResetPolicy",
    "RingWorkspace",
    "SpillPolicy",
    "Workspace",
    "WorkspaceConfig",
    "WorkspaceConfigError",
    "WorkspaceError",
    "WorkspaceFullError",
    "WorkspaceLeakError",
    "WorkspaceLeakWarning",
    "WorkspaceMode",
    "WorkspaceSpillWarning",
    "WorkspaceStaleError",
    "WorkspaceStats",
    "WorkspaceWarning",
    "__version__",
    "config",
    "current_workspace",
    "data",
    "destroy_all_workspaces",
    "detach",
    "device",
    "devices",
    "errors",
    "gc",
    "generation_of",
    "get_workspace",
    "graph",
    "interop",
    "is_attached",
    "is_in_scope",
    "is_valid",
    "leverage",
    "leverage_or_detach",
    "leverage_to",
    "list_workspaces",
    "memory",
    "migrate",
    "models",
    "nn",
    "ops",
    "plan",
    "runtime",
    "scope_out",
    "summary",
    "testing",
    "units",
    "workspace",
    "workspace_exists",
    "workspace_of",
    "workspaces",
]


def __getattr__(name: str) -> Any:
    if name == "torch":  # not in __all__: `import *` would load PyTorch
        try:
            return import_module("memcfg.torch")
        except ImportError as error:
            refuse("memcfg", name, f": {error}")
    if name not in __all__:
        why = TOP.get(name)
        refuse("memcfg", name, f", which TensorFlow has: {why}" if why else "")
    if name in _SUBPACKAGES:
        return import_module(f"memcfg.{name}")
    for room in ("errors", "config", "workspaces"):  # the first loads the least
        module = import_module(f"memcfg.{room}")
        if name in module.__all__:
            return getattr(module, name)
    raise AssertionError(f"{name!r} is listed and not defined")


sys.meta_path.append(MissingModules({"memcfg.keras": TOP["keras"]}))


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
