"""Where an array is: in which workspace, of which cycle, and whether that still holds.

Owns the questions, and the check that everything makes that reads an array. Refuses to
move one: `_moves` does. All look through views, at the memory below.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from memcfg._caller import outside
from memcfg._core.numpy_memory import current_scope, placement_of
from memcfg.config import EscapePolicy, get_scope_checks
from memcfg.errors import (
    WorkspaceError,
    WorkspaceLeakError,
    WorkspaceLeakWarning,
    WorkspaceStaleError,
)

if TYPE_CHECKING:
    from memcfg._core.numpy_memory import Placement
    from memcfg.workspaces._workspace import Workspace

__all__ = [
    "check_valid",
    "current_workspace",
    "generation_of",
    "is_attached",
    "is_in_scope",
    "is_valid",
    "place_of",
    "workspace_of",
]

Array = np.ndarray[Any, Any]


def current_workspace() -> Workspace | None:
    """Return the workspace that NumPy's arrays are made in now.

    Returns
    -------
    Workspace or None
        Of the running thread or task; None outside of all, and inside `scope_out`.
    """
    return cast("Workspace | None", current_scope())


def is_attached(array: Array) -> bool:
    """Tell whether an array's memory is a workspace's.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        Also true of what found no room in the page, and after the scope has closed.

    Raises
    ------
    TypeError
        If it is no array.
    """
    return place_of(array) is not None


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
    place = place_of(array)
    return None if place is None else _workspace(place)


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
    place = place_of(array)
    return None if place is None else place.generation


def is_in_scope(array: Array) -> bool:
    """Tell whether an array's cycle is running, or it belongs to none.

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
    place = place_of(array)
    return place is None or _is_running(place)


def is_valid(array: Array) -> bool:
    """Tell whether an array's bytes are its own.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    bool
        False only of an array of a workspace with ``on_escape="invalidate"``: whose
        cycle has ended, or, in a ring, whose place has been given to another array.

    Raises
    ------
    TypeError
        If it is no array.
    """
    place = place_of(array)
    return place is None or not _is_lost(place)


def check_valid(array: Array, action: str) -> None:
    """Raise, warn or do nothing if an array's bytes may be another's.

    Parameters
    ----------
    array : numpy.ndarray
        What is about to be read.
    action : str
        What is about to be done, for the message.

    Raises
    ------
    TypeError
        If it is no array.
    WorkspaceLeakError
        If it is not valid, and its workspace is closed.
    WorkspaceStaleError
        If it is not valid, and its workspace is in a later cycle.

    Warns
    -----
    WorkspaceLeakWarning
        In place of an error, after ``set_scope_checks("warn")``.
    """
    place = place_of(array)
    if place is None or not _is_lost(place):
        return
    checks = get_scope_checks()
    if checks == "error":
        raise _error(place, action)
    if checks == "warn":
        warnings.warn(
            str(_error(place, action)), WorkspaceLeakWarning, stacklevel=outside()
        )


def place_of(array: Array) -> Placement | None:
    """Find the place of an array in a workspace; None where it is in none.

    Parameters
    ----------
    array : numpy.ndarray
        An array or a view.

    Returns
    -------
    Placement or None
        What is made while a workspace is closed or disabled is in none.

    Raises
    ------
    TypeError
        If it is no array.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"not an array: {array!r}")
    place = placement_of(array)
    return None if place is None or place.kind == "outside" else place


def _workspace(place: Placement) -> Workspace | None:
    return cast("Workspace | None", place.scope)


def _is_running(place: Placement) -> bool:
    workspace = _workspace(place)
    return (
        workspace is not None
        and workspace.is_open
        and workspace.stats().generation == place.generation
    )


def _is_lost(place: Placement) -> bool:
    workspace = _workspace(place)
    if workspace is None or workspace.config.on_escape is not EscapePolicy.INVALIDATE:
        return False
    if workspace.config.circular:
        return place.kind == "overwritten"
    return not _is_running(place)


def _error(place: Placement, action: str) -> WorkspaceError:
    workspace = _workspace(place)
    assert workspace is not None, "an array of no workspace is valid"
    now = workspace.stats().generation
    advice = (
        "Call memcfg.detach(x) inside the with block that makes it, or give the "
        "workspace on_escape='retire', with which such arrays stay as they are."
    )
    if not workspace.is_open:
        return WorkspaceLeakError(
            f"cannot {action}: the array is of cycle {place.generation} of workspace "
            f"{workspace.name!r}, which is closed and uses its page again. {advice}"
        )
    return WorkspaceStaleError(
        f"cannot {action}: the array is of cycle {place.generation} of workspace "
        f"{workspace.name!r}, which is in cycle {now} and uses its page again. {advice}"
    )
