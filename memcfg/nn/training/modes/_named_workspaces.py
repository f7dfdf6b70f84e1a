"""The interpretation of `compile`'s argument `layer_workspaces`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memcfg.config import EscapePolicy, LocationPolicy
from memcfg.errors import WorkspaceConfigError
from memcfg.nn.training.modes._workspace_modes import Home, NamedWorkspaces
from memcfg.workspaces import ArrayType, LayerWorkspaceMgr, WorkspaceMode

if TYPE_CHECKING:
    from memcfg.config import WorkspaceConfig

__all__ = ["get_layer_workspaces"]

_PASSES = ("training", "inference")


def get_layer_workspaces(
    given: Any, training: WorkspaceMode, inference: WorkspaceMode
) -> tuple[NamedWorkspaces | None, NamedWorkspaces | None]:
    """Return the workspaces for training and for inference.

    Managers are read once, so later changes to them have no effect. Raises TypeError,
    ValueError and WorkspaceConfigError for arguments that cannot be used.
    """
    if given is None:
        return None, None
    by_pass = given if isinstance(given, Mapping) else dict.fromkeys(_PASSES, given)
    if unknown := [name for name in by_pass if name not in _PASSES]:
        raise ValueError(
            f"layer_workspaces has managers for 'training' and 'inference', not for "
            f"{unknown[0]!r}"
        )
    result = [_read(by_pass.get(name), name) for name in _PASSES]
    modes = (training, inference)
    for name, workspaces, mode in zip(_PASSES, result, modes, strict=True):
        if workspaces is not None and mode is not WorkspaceMode.ENABLED:
            raise ValueError(
                f"layer_workspaces says where the arrays of {name} lie, as does "
                f"{name}_workspace_mode={mode.value!r}: leave one of them out"
            )
    _check_together([home for each in result if each for _, home in each.homes])
    return result[0], result[1]


def _read(manager: Any, name: str) -> NamedWorkspaces | None:
    if manager is None:
        return None
    if not isinstance(manager, LayerWorkspaceMgr):
        raise TypeError(
            "layer_workspaces is a LayerWorkspaceMgr, or a dict of them for 'training' "
            f"and 'inference', not {manager!r}"
        )
    homes = tuple(
        (kind, Home(manager.workspace_name(kind), manager.configuration(kind)))
        for kind in ArrayType
        if manager.has_configuration(kind)
    )
    if not homes:
        raise ValueError(
            f"the LayerWorkspaceMgr for {name} has no workspaces: call set(kind, name),"
            " default_workspace(name) or default_no_workspace()"
        )
    return NamedWorkspaces(homes)


def _check_together(homes: list[Home]) -> None:
    """Refuse settings that planned workspaces cannot use, and conflicting names."""
    configs: dict[str, WorkspaceConfig | None] = {}
    paths: dict[str, str] = {}
    for name, config in homes:
        if name is None:
            continue
        if configs.setdefault(name, config) != config:
            raise WorkspaceConfigError(
                f"workspace {name!r} has two configurations in layer_workspaces: give "
                "it the same one everywhere"
            )
        if config is None:
            continue
        _check_config(name, config)
        if config.path is None:
            continue
        other = paths.setdefault(os.path.realpath(config.path), name)
        if other != name:
            raise WorkspaceConfigError(
                f"workspaces {other!r} and {name!r} both have the file "
                f"{config.path!r}: give each its own"
            )


def _check_config(name: str, config: WorkspaceConfig) -> None:
    if config.circular:
        what = "reset='end_of_buffer'"
    elif config.on_escape is not EscapePolicy.RETIRE:
        what = f"on_escape={config.on_escape.value!r}"
    else:
        what = ""
    if what:
        raise WorkspaceConfigError(
            f"workspace {name!r} of a model is planned, and its arrays never outlive "
            f"a step, so {what} has no meaning: leave it out"
        )
    if config.location is LocationPolicy.MMAP and not config.initial_size:
        raise WorkspaceConfigError(
            f"workspace {name!r} is in a file of unknown length: give an initial_size"
        )
