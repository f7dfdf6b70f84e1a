"""Settings that all workspaces of the process share; `reset` puts them back."""

from __future__ import annotations

from memcfg._core import _environment as process
from memcfg._core import set_bypass_everything, set_spill_everything
from memcfg.config._registry import registry
from memcfg.config._workspace_config import DebugMode, WorkspaceConfig

_DEBUG = "MEMCFG_WORKSPACE_DEBUG"
_CHECKS = ("error", "warn", "off")


def get_scope_checks() -> str:
    """Return the setting of `set_scope_checks`; ``"error"`` initially."""
    return registry.options.scope_checks


def set_scope_checks(checks: str) -> str:
    """Set the reaction to the use of arrays whose bytes may have been overwritten.

    Only arrays of workspaces with ``on_escape="invalidate"`` can be overwritten.
    Functions such as `detach`, `leverage` and `migrate`, and models that run in
    workspaces, check their arguments.

    Parameters
    ----------
    checks : str
        ``"error"`` raises WorkspaceLeakError or WorkspaceStaleError, ``"warn"`` gives a
        WorkspaceLeakWarning and continues, ``"off"`` does not check.

    Returns
    -------
    str
        The previous setting.

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
        The mode of `set_debug_mode` if it was called, else that of
        ``MEMCFG_WORKSPACE_DEBUG``, else DISABLED.

    Raises
    ------
    FormatError
        If the variable applies and cannot be parsed.
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
        "disabled"; "spill_everything": each array in a workspace gets its own block,
        and no size is learned; "bypass_everything": arrays are created outside of
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
        If ``MEMCFG_WORKSPACE_DEBUG`` has applied so far and cannot be parsed.
    """
    try:
        wanted = DebugMode(mode)
    except ValueError:
        raise ValueError(f"a debug mode is {_words()}, not {mode!r}") from None
    before = get_debug_mode()
    _use(wanted)
    return before


def get_default_workspace_config() -> WorkspaceConfig:
    """Return the default configuration of new workspaces."""
    return registry.options.workspace_config


def set_default_workspace_config(config: WorkspaceConfig) -> WorkspaceConfig:
    """Set the default configuration of new workspaces, and return the previous one.

    Parameters
    ----------
    config : WorkspaceConfig
        The configuration. Existing workspaces keep theirs.

    Raises
    ------
    TypeError
        If `config` is not a WorkspaceConfig.
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
