"""Take arrays from one workspace to another, or out of all of them.

Owns where each move leads, and how nested containers are gone through. An array that is
where it is to be stays itself; any other is copied, and the copy is contiguous.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from memcfg._core.numpy_memory import Scope, scope_out
from memcfg.errors import NoSuchWorkspaceError, WorkspaceError
from memcfg.workspaces._places import (
    Array,
    check_valid,
    current_workspace,
    is_in_scope,
    place_of,
    workspace_of,
)
from memcfg.workspaces._registry import names_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from memcfg.workspaces._workspace import Workspace

__all__ = ["detach", "leverage", "leverage_or_detach", "leverage_to", "migrate"]

T = TypeVar("T")


def detach(value: T) -> T:
    """Take arrays out of all workspaces.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        Arrays. Other things in containers, and NumPy's scalars, are passed on.

    Returns
    -------
    numpy.ndarray or container
        Copies, in the memory that NumPy uses outside of workspaces; an array that is
        not attached is itself. Containers are made anew, of the same type.

    Raises
    ------
    TypeError
        If it is neither an array nor a container.
    WorkspaceLeakError, WorkspaceStaleError
        If the bytes of an array may be another's by now; see `is_valid`.
    ResourceExhaustedError, MemoryError
        If there is no memory for a copy.

    Notes
    -----
    What the elements of an array of objects refer to stays where it is. A masked array
    takes its mask along.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> with mc.workspace("example") as ws:
    ...     kept = mc.detach({"mean": np.ones((2, 3)).mean(axis=0), "count": 2})
    >>> kept
    {'mean': array([1., 1., 1.]), 'count': 2}
    >>> ws.destroy()
    """
    return _move(value, "detach it", lambda array: None)


def leverage(value: T) -> T:
    """Take arrays to the workspace around theirs, or out of all if there is none.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        Arrays. Other things in containers, and NumPy's scalars, are passed on.

    Returns
    -------
    numpy.ndarray or container
        Copies, in the workspace that was current when the array's was opened; an array
        that is not attached is itself. Containers are made anew.

    Raises
    ------
    TypeError
        If it is neither an array nor a container.
    WorkspaceLeakError, WorkspaceStaleError
        If the bytes of an array may be another's by now; see `is_valid`.
    ResourceExhaustedError, MemoryError
        If there is no memory for a copy.
    """
    return _move(value, "leverage it", _around)


def leverage_to(value: T, workspace: Workspace | str) -> T:
    """Take arrays to a workspace.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        Arrays. Other things in containers, and NumPy's scalars, are passed on.
    workspace : Workspace or str
        Where to, or its name in this thread.

    Returns
    -------
    numpy.ndarray or container
        Copies; an array of that workspace's present cycle, and one that is not
        attached, is itself. Containers are made anew.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container, or `workspace` no workspace and
        no name.
    NoSuchWorkspaceError
        If this thread has no workspace of that name.
    WorkspaceError
        If it is not open, and an array is to be copied.
    WorkspaceLeakError, WorkspaceStaleError
        If the bytes of an array may be another's by now; see `is_valid`.
    ResourceExhaustedError, MemoryError
        If there is no memory for a copy.

    Notes
    -----
    ND4J returns an array that is invalid already where the workspace is not open.
    """
    target = _named(workspace)
    if target is None:
        raise _missing(workspace)
    return _move(value, f"leverage it to {target.name!r}", lambda array: target)


def leverage_or_detach(value: T, workspace: Workspace | str) -> T:
    """Take arrays to a workspace if it is open, else out of all.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        Arrays. Other things in containers, and NumPy's scalars, are passed on.
    workspace : Workspace or str
        Where to, or its name; there need be none of this name.

    Returns
    -------
    numpy.ndarray or container
        What `leverage_to` returns, or `detach`.

    Raises
    ------
    TypeError
        If `value` is neither an array nor a container, or `workspace` no workspace and
        no name.
    WorkspaceLeakError, WorkspaceStaleError
        If the bytes of an array may be another's by now; see `is_valid`.
    ResourceExhaustedError, MemoryError
        If there is no memory for a copy.
    """
    target = _named(workspace)
    if target is not None and not target.is_open:
        target = None
    return _move(value, "leverage or detach it", lambda array: target)


def migrate(value: T, detach: bool = False) -> T:
    """Take arrays to the current workspace, also those that are in none.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        Arrays. Other things in containers, and NumPy's scalars, are passed on.
    detach : bool, default False
        Whether arrays are taken out of all workspaces where none is current. Else they
        stay as they are then.

    Returns
    -------
    numpy.ndarray or container
        Copies; an array of the current workspace's present cycle is itself. Containers
        are made anew.

    Raises
    ------
    TypeError
        If it is neither an array nor a container, or `detach` is no bool.
    WorkspaceLeakError, WorkspaceStaleError
        If the bytes of an array may be another's by now; see `is_valid`.
    ResourceExhaustedError, MemoryError
        If there is no memory for a copy.
    """
    if not isinstance(detach, bool):
        raise TypeError(f"detach is True or False, not {detach!r}")
    current = current_workspace()
    if current is None and not detach:
        return _each(value, lambda array: _checked(array, "migrate it"))
    return _move(value, "migrate it", lambda array: current, everywhere=True)


def _move(
    value: T,
    action: str,
    target_of: Callable[[Array], Workspace | None],
    *,
    everywhere: bool = False,  # also what is not attached
) -> T:
    def moved(array: Array) -> Array:
        _checked(array, action)
        if place_of(array) is None and not everywhere:
            return array
        return _put(array, target_of(array))

    return _each(value, moved)


def _put(array: Array, target: Workspace | None) -> Array:
    """Return the array if it is there, else a copy that is; None is outside of all."""
    if target is None:
        there: AbstractContextManager[object] = scope_out()
        if place_of(array) is None:
            return array
    elif workspace_of(array) is target and is_in_scope(array):
        return array
    elif not target.is_open:
        raise WorkspaceError(
            f"workspace {target.name!r} is not open, so an array in it would be lost "
            f"at once: open it around this call, or use memcfg.detach"
        )
    else:
        there = target.inside()
    with there:
        return array.copy(order="K")


def _around(array: Array) -> Workspace | None:
    workspace = workspace_of(array)
    if workspace is None or not workspace.is_open:
        return None
    parent = cast("Workspace | None", workspace.parent)
    return parent if parent is not None and parent.is_open else None


def _checked(array: Array, action: str) -> Array:
    check_valid(array, action)
    return array


def _named(workspace: Workspace | str) -> Workspace | None:
    if isinstance(workspace, str):
        return names_here().get(workspace)
    if not isinstance(workspace, Scope):
        raise TypeError(f"a workspace or its name is needed, not {workspace!r}")
    return workspace


def _missing(workspace: object) -> NoSuchWorkspaceError:
    known = ", ".join(repr(each.name) for each in names_here().all()) or "none"
    return NoSuchWorkspaceError(
        f"this thread has no workspace {workspace!r}; it has {known}. Make it with "
        f"memcfg.workspace({workspace!r}, config)."
    )


def _each(value: T, act: Callable[[Array], Array]) -> T:
    if not isinstance(value, np.ndarray | np.generic | tuple | list | dict):
        raise TypeError(
            f"an array is needed, or a tuple, list or dict of arrays, not {value!r}"
        )
    return cast("T", _through(value, act, {}))


def _through(value: Any, act: Callable[[Array], Array], done: dict[int, Any]) -> Any:
    """Apply `act` to each array once, however often it is in there."""
    if isinstance(value, np.ndarray):
        if id(value) not in done:
            done[id(value)] = act(value)
        return done[id(value)]
    if isinstance(value, tuple):
        items = [_through(item, act, done) for item in value]
        make = getattr(type(value), "_make", type(value))  # of a named tuple
        return make(items)
    if isinstance(value, list):
        made = copy.copy(value)  # of the same class
        made[:] = [_through(item, act, done) for item in value]
        return made
    if isinstance(value, dict):
        anew = copy.copy(value)
        anew.update((key, _through(item, act, done)) for key, item in value.items())
        return anew
    return value
