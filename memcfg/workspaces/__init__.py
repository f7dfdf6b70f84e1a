"""Workspaces: reusable memory for cyclic work, whose size is learned.

The design follows ND4J with one difference: an array that outlives its cycle is never
overwritten unless ``on_escape="invalidate"`` requests it.

Examples
--------
>>> import numpy as np
>>> import memcfg as mc
>>> config = mc.WorkspaceConfig(allocation="strict")
>>> for step in range(3):
...     with mc.workspace("loop", config) as ws:
...         a = ws.full(1000, step, float)
...         last = ws.detach(a)
...         del a
>>> ws.stats().size, ws.stats().live_arrays, float(last[0])
(8000, 0, 2.0)
>>> mc.destroy_all_workspaces()
"""

from __future__ import annotations

from memcfg._core import scope_out
from memcfg.workspaces import gc
from memcfg.workspaces._layer_workspaces import (
    ArrayType,
    LayerWorkspaceMgr,
    WorkspaceMode,
    WorkspaceSource,
)
from memcfg.workspaces._model_workspaces import (
    ModelWorkspace,
    WorkspaceHolder,
    workspace_holders,
)
from memcfg.workspaces._moves import (
    current_workspace,
    generation_of,
    is_attached,
    is_in_scope,
    is_valid,
    leverage,
    leverage_or_detach,
    leverage_to,
    migrate,
    workspace_of,
)
from memcfg.workspaces._named import (
    destroy_all_workspaces,
    get_workspace,
    list_workspaces,
    summary,
    workspace,
    workspace_exists,
)
from memcfg.workspaces._rings import PingPong, RingWorkspace
from memcfg.workspaces._workspace import (
    OwnedWorkspace,
    Workspace,
    WorkspaceStats,
    check_valid,
    detach,
)

__all__ = [
    "ArrayType",
    "LayerWorkspaceMgr",
    "ModelWorkspace",
    "OwnedWorkspace",
    "PingPong",
    "RingWorkspace",
    "Workspace",
    "WorkspaceHolder",
    "WorkspaceMode",
    "WorkspaceSource",
    "WorkspaceStats",
    "check_valid",
    "current_workspace",
    "destroy_all_workspaces",
    "detach",
    "gc",
    "generation_of",
    "get_workspace",
    "is_attached",
    "is_in_scope",
    "is_valid",
    "leverage",
    "leverage_or_detach",
    "leverage_to",
    "list_workspaces",
    "migrate",
    "scope_out",
    "summary",
    "workspace",
    "workspace_exists",
    "workspace_holders",
    "workspace_of",
]
