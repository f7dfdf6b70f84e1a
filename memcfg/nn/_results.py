"""Where predictions are written to.

Owns the choice between plain memory and a workspace of the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.workspaces import Workspace, WorkspaceMode

if TYPE_CHECKING:
    from memcfg.nn._ways import Modes

__all__ = ["check_workspace", "make_result"]


def check_workspace(workspace: Workspace | None, modes: Modes) -> None:
    """Refuse a workspace that predictions cannot go into.

    Parameters
    ----------
    workspace : Workspace or None
        What was given.
    modes : Modes
        The model's.

    Raises
    ------
    TypeError
        If it is no workspace.
    WorkspaceError
        If it is not open.
    WorkspaceConfigError
        If the model infers without workspaces.
    """
    if workspace is None:
        return
    if not isinstance(workspace, Workspace):
        raise TypeError(
            f"workspace is a Workspace or None, not {workspace!r}: pass "
            "memcfg.workspace(name)"
        )
    if modes.inference is WorkspaceMode.NONE:
        raise WorkspaceConfigError(
            "the model was compiled with inference_workspace_mode='none', which is no "
            f"workspaces at all, so its output cannot go into {workspace.name!r}: "
            "compile it with another mode, or copy the output: workspace.array(output)"
        )
    if not workspace.is_open:
        raise WorkspaceError(
            f"workspace {workspace.name!r} is not open: call predict inside of `with` "
            "it, and use what it returns there"
        )


def make_result(
    shape: tuple[int, ...], workspace: Workspace | None
) -> npt.NDArray[np.float32]:
    """Make the array that predictions are written to.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    workspace : Workspace or None
        Where it is made; None is what NumPy uses now.

    Returns
    -------
    numpy.ndarray
        float32.

    Raises
    ------
    ResourceExhaustedError
        If the workspace has no room for it.
    """
    if workspace is None:
        return np.empty(shape, np.float32)
    return workspace.empty(shape, np.float32)
