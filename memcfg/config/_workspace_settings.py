"""Settings that all workspaces of the process share; `reset` puts them back."""

from __future__ import annotations

from memcfg._core import _environment as process
from memcfg._core import set_bypass_everything, set_spill_everything
from memcfg.config._registry import registry
from memcfg.config._workspace_config import DebugMode, WorkspaceConfig

_DEBUG = "MEMCFG_WORKSPACE_DEBUG"
_CHECKS = ("error", "warn", "off")


def get_scope_checks() -> str:
    """Return what `set_scope_checks` was given; ``"error"`` by default."""
    return registry.options.scope_checks


def set_scope_checks(checks: str) -> str:
    """Choose what happens when an array is used whose bytes may be another's by now.

    That can only be an array of a workspace with ``on_escape="invalidate"``. `detach`,
    `leverage`, `migrate` and their like look at the arrays that they are given, and so
    do models that run in workspaces.

    Parameters
    ----------
    checks : str
        ``"error"`` raises WorkspaceLeakError or WorkspaceStaleError, ``"warn"`` gives a
        WorkspaceLeakWarning and goes on, ``"off"`` does not look.

    Returns
    -------
    str
        What was set before.

    Raises
    ------
    ValueError
        If it is none of these.
    """
    if checks not in _CHECKS:
        raise ValueError(
            f"scope checks are one of {', '.join(_CHECKS)}, not {checks!r}"
        )
    before, registry.options.scope_checks = registry.options.scope_checks, checks
    return before


def get_debug_mode() -> DebugMode:
    """Return the debug mode of all workspaces.

    Returns
    -------
    DebugMode
        What `set_debug_mode` was given, else what ``MEMCFG_WORKSPACE_DEBUG`` says, else
        DISABLED.

    Raises
    ------
    FormatError
        If the variable counts and cannot be read.
    """
    mode = registry.options.debug_mode
    if mode is None:
        text = process.value_of(_DEBUG)
        try:
            mode = DebugMode(text) if text else DebugMode.DISABLED
        except ValueError:
            raise process.unreadable(_DEBUG, _words()) from None
        _use(mode)
    return mode


def set_debug_mode(mode: DebugMode | str) -> DebugMode:
    """Set the debug mode of all workspaces.

    A fault that disappears when no arrays share a page is due to arrays that outlive
    their cycle.

    Parameters
    ----------
    mode : DebugMode or str
        "disabled"; "spill_everything": every array in a workspace gets a block of its
        own, and nothing is learned; "bypass_everything": arrays are made outside of
        workspaces, as if there were none.

    Returns
    -------
    DebugMode
        The mode before.

    Raises
    ------
    ValueError
        If it is none of these.
    FormatError
        If ``MEMCFG_WORKSPACE_DEBUG`` counted so far and cannot be read.
    """
    try:
        wanted = DebugMode(mode)
    except ValueError:
        raise ValueError(f"a debug mode is {_words()}, not {mode!r}") from None
    before = get_debug_mode()
    _use(wanted)
    return before


def get_default_workspace_config() -> WorkspaceConfig:
    """Return the configuration of workspaces that are made without one."""
    return registry.options.workspace_config


def set_default_workspace_config(config: WorkspaceConfig) -> WorkspaceConfig:
    """Set the default configuration of new workspaces, and return the one before.

    Parameters
    ----------
    config : WorkspaceConfig
        The configuration. Workspaces that exist keep theirs.

    Raises
    ------
    TypeError
        If it is no WorkspaceConfig.
    """
    if not isinstance(config, WorkspaceConfig):
        raise TypeError(f"a WorkspaceConfig is needed, not {config!r}")
    before = registry.options.workspace_config
    registry.options.workspace_config = config
    return before


def _use(mode: DebugMode) -> None:
    registry.options.debug_mode = mode
    set_spill_everything(mode is DebugMode.SPILL_EVERYTHING)
    set_bypass_everything(mode is DebugMode.BYPASS_EVERYTHING)


def _words() -> str:
    return ", ".join(repr(mode.value) for mode in DebugMode)
