"""Train neural networks inside a hard memory limit.

A subpackage is loaded when its name is first used: planning a graph from a file loads
no kernel, and training loads no command.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memcfg._missing import MissingModules, refuse
from memcfg._tensorflow_names import TOP
from memcfg._version import __version__

if TYPE_CHECKING:
    from memcfg import (
        compression,
        config,
        data,
        devices,
        errors,
        evaluation,
        graph,
        interop,
        memory,
        models,
        nn,
        ops,
        parallel,
        plan,
        runtime,
        testing,
        timeline,
        units,
        workspaces,
    )
    from memcfg.config import (
        WorkspaceConfig,
        budget,
        device,
    )
    from memcfg.memory import crash_report
    from memcfg.nn.functions import GradientTape, function, grad, value_and_grad
    from memcfg.workspaces import (
        RingWorkspace,
        Workspace,
        WorkspaceMode,
        destroy_all_workspaces,
        detach,
        gc,
        is_attached,
        list_workspaces,
        scope_out,
        workspace,
        workspace_of,
    )

_SUBPACKAGES = (
    *("compression", "config", "data", "devices", "errors", "evaluation", "graph"),
    *("interop", "memory", "models", "nn", "ops", "parallel", "plan", "runtime"),
    *("testing", "timeline", "units", "workspaces"),
)

# Packages of names that used to be at the top level; these warn until 1.0.
_MOVED = {
    **dict.fromkeys(
        (
            "AllocationPolicy",
            "DebugMode",
            "EscapePolicy",
            "LearningPolicy",
            "LocationPolicy",
            "MirroringPolicy",
            "ResetPolicy",
            "SpillPolicy",
        ),
        "config",
    ),
    **dict.fromkeys(
        (
            "NoSuchWorkspaceError",
            "WorkspaceConfigError",
            "WorkspaceError",
            "WorkspaceFullError",
            "WorkspaceLeakError",
            "WorkspaceLeakWarning",
            "WorkspaceSpillWarning",
            "WorkspaceStaleError",
            "WorkspaceWarning",
        ),
        "errors",
    ),
    **dict.fromkeys(
        (
            "ArrayType",
            "LayerWorkspaceMgr",
            "PingPong",
            "WorkspaceStats",
            "current_workspace",
            "generation_of",
            "get_workspace",
            "is_in_scope",
            "is_valid",
            "leverage",
            "leverage_or_detach",
            "leverage_to",
            "migrate",
            "summary",
            "workspace_exists",
        ),
        "workspaces",
    ),
}

__all__ = [
    "GradientTape",
    "RingWorkspace",
    "Workspace",
    "WorkspaceConfig",
    "WorkspaceMode",
    "__version__",
    "budget",
    "compression",
    "config",
    "crash_report",
    "data",
    "destroy_all_workspaces",
    "detach",
    "device",
    "devices",
    "errors",
    "evaluation",
    "function",
    "gc",
    "grad",
    "graph",
    "interop",
    "is_attached",
    "list_workspaces",
    "memory",
    "models",
    "nn",
    "ops",
    "parallel",
    "plan",
    "runtime",
    "scope_out",
    "testing",
    "timeline",
    "units",
    "value_and_grad",
    "workspace",
    "workspace_of",
    "workspaces",
]


def __getattr__(name: str) -> Any:
    if name == "torch":  # not in __all__, since `import *` would load PyTorch
        try:
            return import_module("memcfg.torch")
        except ImportError as error:
            refuse("memcfg", name, f": {error}")
    if name in _MOVED:
        place = f"memcfg.{_MOVED[name]}"
        warnings.warn(
            f"memcfg.{name} will be removed in 1.0: use {place}.{name}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module(place), name)
    if name not in __all__:
        why = TOP.get(name)
        if why:
            refuse("memcfg", name, f", which TensorFlow has: {why}")
        rooms = () if name.startswith("_") else (*_SUBPACKAGES, "nn.models")
        places = [r for r in rooms if name in import_module(f"memcfg.{r}").__all__]
        where = " and ".join(f"memcfg.{each}" for each in places)
        refuse("memcfg", name, f": it is in {where}" if where else "")
    if name in _SUBPACKAGES:
        return import_module(f"memcfg.{name}")
    # the first is the fastest to load
    for room in ("errors", "memory", "config", "workspaces", "nn.functions"):
        module = import_module(f"memcfg.{room}")
        if name in module.__all__:
            return getattr(module, name)
    raise AssertionError(f"{name!r} is listed and not defined")


sys.meta_path.append(MissingModules({"memcfg.keras": TOP["keras"]}))


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
