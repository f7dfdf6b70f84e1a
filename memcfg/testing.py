"""Assertions about workspaces, for tests of programs that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.workspaces import (
    Workspace,
    current_workspace,
    generation_of,
    is_valid,
    list_workspaces,
    workspace_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "assert_current",
    "assert_no_workspaces_open",
    "assert_open",
    "assert_valid",
]


def assert_no_workspaces_open(
    message: str = "workspaces are open", allow_scoped_out: bool = False
) -> None:
    """Assert that no workspace of this thread is open.

    Parameters
    ----------
    message : str, default "workspaces are open"
        The beginning of the error's message.
    allow_scoped_out : bool, default False
        Whether they may be open inside of `scope_out`.

    Raises
    ------
    AssertionError
        If one is open; the message lists all of them.
    """
    if allow_scoped_out and current_workspace() is None:
        return
    if _open_names():
        raise AssertionError(f"{message} - Open/active workspaces: {_open_names()}")


def assert_open(workspace: Workspace | str, message: str = "") -> None:
    """Assert that a workspace is open.

    Parameters
    ----------
    workspace : Workspace or str
        The workspace, or its name in this thread.
    message : str, default ""
        The beginning of the error's message.

    Raises
    ------
    AssertionError
        If it is closed, or no workspace has this name.
    """
    live = _found(workspace)
    if live is None or not live.is_open:
        raise _failure(message, f"workspace {_name(workspace)!r} is closed")


def assert_current(workspace: Workspace | str | None, message: str = "") -> None:
    """Assert that a workspace is the one that new arrays are made in.

    Parameters
    ----------
    workspace : Workspace, str or None
        The workspace, or its name in this thread; None asserts that there is none.
    message : str, default ""
        The beginning of the error's message.

    Raises
    ------
    AssertionError
        If another one is, or none.
    """
    current = current_workspace()
    if current is not _found(workspace) or (current is None and workspace is not None):
        now = "none" if current is None else repr(current.name)
        what = f"the current workspace is {now}, not {_name(workspace)!r}"
        raise _failure(message, what)


def assert_valid(value: Any, message: str = "") -> None:
    """Assert that no bytes of arrays have been reused for others.

    Parameters
    ----------
    value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
        The arrays. Other objects in containers are ignored.
    message : str, default ""
        The beginning of the error's message.

    Raises
    ------
    AssertionError
        If an array is of a cycle that has ended, in a workspace that reuses its page.
    TypeError
        If it is neither an array nor a container.
    """
    if not isinstance(value, np.ndarray | dict | list | tuple):
        raise TypeError(f"neither an array nor a container: {value!r}")
    for array in _arrays(value):
        if not is_valid(array):
            owner = workspace_of(array)
            name = "?" if owner is None else owner.name
            raise _failure(
                message,
                f"an array is of cycle {generation_of(array)} of workspace {name!r}, "
                "which uses its page again",
            )


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _arrays(item)


def _found(workspace: Workspace | str | None) -> Workspace | None:
    if isinstance(workspace, str):
        return next((w for w in _here() if w.name == workspace), None)
    return workspace


def _name(workspace: Workspace | str | None) -> str | None:
    return workspace if isinstance(workspace, str | None) else workspace.name


def _failure(message: str, what: str) -> AssertionError:
    text = f"{message} - {what}" if message else what
    return AssertionError(f"{text}; open are: {_open_names()}")


def _open_names() -> list[str]:
    return [each.name for each in _here() if each.is_open]


def _here() -> list[Workspace]:
    """List the workspaces of this thread, without those of models."""
    return [each for each in list_workspaces() if isinstance(each, Workspace)]
