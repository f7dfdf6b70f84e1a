"""Where arrays are, and copies of them in another workspace or outside of all.

All look through views, at the memory below. An array that is where it should be stays
itself; any other is copied, and the copy is contiguous.
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
    """Return the workspace that NumPy's arrays are made in now, if there is one.

    It is the running thread's or task's; inside `scope_out` there is none.
    """
    return cast("Workspace | None", current_scope())


def is_attached(array: Array) -> bool:
    """Return whether an array's memory is a workspace's.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        Also true of what did not fit the page, and after the scope has closed.

    Raises
    ------
    TypeError
        If it is no array.
    """
    return placement_in(array) is not None


def workspace_of(array: Array) -> Workspace | None:
    """Return the workspace whose memory an array is.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    Workspace or None
        None of an array that is not attached, and where the workspace has gone with
        its thread.

    Raises
    ------
    TypeError
        If it is no array.
    """
    placement = placement_in(array)
    return None if placement is None else cast("Workspace | None", placement.scope)


def generation_of(array: Array) -> int | None:
    """Return the cycle of its workspace that an array was made in.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    int or None
        1 for the first cycle; None of an array that is not attached.

    Raises
    ------
    TypeError
        If it is no array.
    """
    placement = placement_in(array)
    return None if placement is None else placement.generation


def is_in_scope(array: Array) -> bool:
    """Return whether an array's cycle is running, or it belongs to none.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        True of an array that is not attached, and of one whose workspace is open and in
        the cycle that the array was made in.

    Raises
    ------
    TypeError
        If it is no array.
    """
    placement = placement_in(array)
    return placement is None or is_running(placement)


def is_valid(array: Array) -> bool:
    """Return whether an array's bytes are its own.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        False only of an array of a workspace with ``on_escape="invalidate"``: whose
        cycle has ended, or, in a ring, whose bytes have been allocated again.

    Raises
    ------
    TypeError
        If it is no array.
    """
    placement = placement_in(array)
    return placement is None or not is_overwritten(placement)


def leverage(value: T) -> T:
    """Copy arrays to the workspace around theirs, or out of all if there is none.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        As for `detach`.

    Returns
    -------
    numpy.ndarray or container
        Copies, in the workspace that was current when the array's was opened; an array
        that is not attached is itself. Containers are new ones.

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
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        As for `detach`.
    workspace : Workspace or str
        Where to, or its name in this thread.

    Returns
    -------
    numpy.ndarray or container
        Copies; an array of that workspace's present cycle, and one that is not
        attached, is itself. Containers are new ones.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container, or `workspace` no workspace and
        no name.
    NoSuchWorkspaceError
        If this thread has no workspace of that name.
    WorkspaceError
        If it is not open, and an array is to be copied.
    WorkspaceLeakError, WorkspaceStaleError, MemoryError
        As `detach` raises them.

    Notes
    -----
    ND4J returns an array that is invalid already where the workspace is not open.
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
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        As for `detach`.
    workspace : Workspace or str
        Where to, or its name; there need be none of this name.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container, or `workspace` no workspace and
        no name.
    WorkspaceLeakError, WorkspaceStaleError, MemoryError
        As `detach` raises them.
    """
    target = _named(workspace)
    if target is not None and not target.is_open:
        target = None
    return _move_attached(value, "leverage or detach it", target)


def migrate(value: T, detach: bool = False) -> T:
    """Copy arrays to the current workspace, also those that are in none.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        As for `detach`.
    detach : bool, default False
        Whether arrays are copied out of all workspaces where none is current. Else they
        stay as they are then.

    Returns
    -------
    numpy.ndarray or container
        Copies; an array of the current workspace's present cycle is itself. Containers
        are new ones.

    Raises
    ------
    TypeError
        If it is neither an array nor a container, or `detach` is not a bool.
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
    """Move what is in a workspace; what is in none stays itself."""
    return map_arrays(
        value, action, lambda array: put(array, target) if is_attached(array) else array
    )


def _around(array: Array) -> Workspace | None:
    """Return the workspace that was current when the array's was opened, if open."""
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
