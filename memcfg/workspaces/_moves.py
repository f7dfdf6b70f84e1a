"""Queries of where arrays are, and copies into or out of workspaces.

All functions look through views at the underlying memory. An array that is already at
its destination is returned itself; any other is copied, and the copy is contiguous.
"""

from __future__ import annotations

from typing import TypeVar, cast

from memcfg._checks import flag
from memcfg._core import Scope, current_scope
from memcfg.errors import NoSuchWorkspaceError
from memcfg.workspaces._workspace import (
    Array,
    Workspace,
    is_overwritten,
    is_running,
    map_arrays,
    names_here,
    placement_in,
    put,
)

T = TypeVar("T")


def current_workspace() -> Workspace | None:
    """Return the workspace in which NumPy allocates arrays now, or None.

    It is that of the running thread or task. Inside `scope_out` there is none.
    """
    return cast("Workspace | None", current_scope())


def is_attached(array: Array) -> bool:
    """Return whether the memory of an array belongs to a workspace.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        Also True for an array that did not fit the page, and after the workspace has
        closed.

    Raises
    ------
    TypeError
        If `array` is not an array.
    """
    return placement_in(array) is not None


def workspace_of(array: Array) -> Workspace | None:
    """Return the workspace that owns the memory of an array.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    Workspace or None
        None if the array is not attached, or if the workspace was destroyed with its
        thread.

    Raises
    ------
    TypeError
        If `array` is not an array.
    """
    placement = placement_in(array)
    return None if placement is None else cast("Workspace | None", placement.scope)


def generation_of(array: Array) -> int | None:
    """Return the cycle of its workspace in which an array was created.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    int or None
        1 for the first cycle; None if the array is not attached.

    Raises
    ------
    TypeError
        If `array` is not an array.
    """
    placement = placement_in(array)
    return None if placement is None else placement.generation


def is_in_scope(array: Array) -> bool:
    """Return whether the cycle of an array is running, or the array is not attached.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        True if the array is not attached, or if its workspace is open and still in the
        cycle in which the array was created.

    Raises
    ------
    TypeError
        If `array` is not an array.
    """
    placement = placement_in(array)
    return placement is None or is_running(placement)


def is_valid(array: Array) -> bool:
    """Return whether an array still owns its bytes.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        False only for an array of a workspace with ``on_escape="invalidate"`` whose
        cycle has ended or, in a ring, whose bytes have been allocated again.

    Raises
    ------
    TypeError
        If `array` is not an array.
    """
    placement = placement_in(array)
    return placement is None or not is_overwritten(placement)


def leverage(value: T) -> T:
    """Copy arrays to the enclosing workspace, or out of all workspaces.

    Parameters
    ----------
    value : numpy.ndarray, or nested tuple, list or dict of arrays
        As for `detach`.

    Returns
    -------
    numpy.ndarray or container
        Copies in the workspace that was current when that of the array was opened. An
        array that is not attached is returned itself. Containers are new.

    Raises
    ------
    TypeError, WorkspaceLeakError, WorkspaceStaleError, MemoryError
        As `detach` raises them.
    """

    def moved(array: Array) -> Array:
        return array if not is_attached(array) else put(array, _around(array))

    return map_arrays(value, "leverage it", moved)


def leverage_to(value: T, workspace: Workspace | str) -> T:
    """Copy arrays to a workspace.

    Parameters
    ----------
    value : numpy.ndarray, or nested tuple, list or dict of arrays
        As for `detach`.
    workspace : Workspace or str
        The destination, or its name in this thread.

    Returns
    -------
    numpy.ndarray or container
        Copies. An array of the workspace's current cycle, and one that is not attached,
        is returned itself. Containers are new.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container, or `workspace` is neither a
        workspace nor a name.
    NoSuchWorkspaceError
        If this thread has no workspace of that name.
    WorkspaceError
        If the workspace is not open and an array has to be copied.
    WorkspaceLeakError, WorkspaceStaleError, MemoryError
        As `detach` raises them.

    Notes
    -----
    If the workspace is not open, ND4J returns an array that is already invalid.
    """
    target = _named(workspace)
    if target is None:
        known = ", ".join(map(repr, names_here())) or "none"
        raise NoSuchWorkspaceError(
            f"this thread has no workspace {workspace!r}; it has {known}. Make it with "
            f"memcfg.workspace({workspace!r}, config)."
        )
    return _move_attached(value, f"leverage it to {target.name!r}", target)


def leverage_or_detach(value: T, workspace: Workspace | str) -> T:
    """Copy arrays to a workspace if it is open, as `leverage_to` does, else `detach`.

    Parameters
    ----------
    value : numpy.ndarray, or nested tuple, list or dict of arrays
        As for `detach`.
    workspace : Workspace or str
        The destination, or its name; a workspace of that name need not exist.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container, or `workspace` is neither a
        workspace nor a name.
    WorkspaceLeakError, WorkspaceStaleError, MemoryError
        As `detach` raises them.
    """
    target = _named(workspace)
    if target is not None and not target.is_open:
        target = None
    return _move_attached(value, "leverage or detach it", target)


def migrate(value: T, detach: bool = False) -> T:
    """Copy arrays to the current workspace, including those that are in none.

    Parameters
    ----------
    value : numpy.ndarray, or nested tuple, list or dict of arrays
        As for `detach`.
    detach : bool, default False
        Whether arrays are copied out of all workspaces if none is current. Otherwise
        they are returned as they are.

    Returns
    -------
    numpy.ndarray or container
        Copies. An array of the current workspace's current cycle is returned itself.
        Containers are new.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container, or `detach` is not a bool.
    WorkspaceLeakError, WorkspaceStaleError, MemoryError
        As `detach` raises them.
    """
    flag(detach, "detach")
    current = current_workspace()
    stay = current is None and not detach
    return map_arrays(
        value, "migrate it", lambda array: array if stay else put(array, current)
    )


def _move_attached(value: T, action: str, target: Workspace | None) -> T:
    """Move arrays that are attached; return all others themselves."""
    return map_arrays(
        value, action, lambda array: put(array, target) if is_attached(array) else array
    )


def _around(array: Array) -> Workspace | None:
    """Return the workspace that encloses the array's, or None unless both are open."""
    workspace = workspace_of(array)
    if workspace is None or not workspace.is_open:
        return None
    parent = cast("Workspace | None", workspace.parent)
    return parent if parent is not None and parent.is_open else None


def _named(workspace: Workspace | str) -> Workspace | None:
    if isinstance(workspace, str):
        return names_here().get(workspace)
    if not isinstance(workspace, Scope):
        raise TypeError(f"a workspace or its name is needed, not {workspace!r}")
    return workspace
