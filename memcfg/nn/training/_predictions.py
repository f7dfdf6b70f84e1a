"""Where predictions are written to.

Owns the choice between plain memory and a workspace of the caller's, and the putting
together of what comes from a stream whose length nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.workspaces import Workspace, WorkspaceMode

if TYPE_CHECKING:
    from memcfg.nn.layers._symbolic import Shape
    from memcfg.nn.training._execution_modes import Modes

__all__ = ["Result", "check_workspace", "result_of"]

Floats = npt.NDArray[np.float32]


class Result(Protocol):
    """Takes predictions, batch by batch."""

    def room(self, size: int) -> Floats:
        """Return the room of the next batch.

        Parameters
        ----------
        size : int
            How many samples it has.

        Returns
        -------
        numpy.ndarray
            To be written.
        """

    def array(self) -> Floats:
        """Return all predictions.

        Returns
        -------
        numpy.ndarray
            float32, one row a sample.
        """


def result_of(samples: int | None, shape: Shape, workspace: Workspace | None) -> Result:
    """Make what predictions are written to.

    Parameters
    ----------
    samples : int or None
        How many there will be; None where that is not known.
    shape : tuple of int
        Of one prediction.
    workspace : Workspace or None
        Where the result is made; None is what NumPy uses now.

    Returns
    -------
    Result
        Where the number is known, the array is there.

    Raises
    ------
    ResourceExhaustedError
        If the workspace has no room for it.
    """
    if samples is None:
        return _Pieces(shape, workspace)
    return _Whole(samples, shape, workspace)


class _Whole:
    """The predictions of a known number of samples."""

    def __init__(self, samples: int, shape: Shape, workspace: Workspace | None) -> None:
        self._all = _made((samples, *shape), workspace)
        self._end = 0

    def room(self, size: int) -> Floats:
        """Return the rows that come next."""
        begin, self._end = self._end, self._end + size
        return self._all[begin : self._end]

    def array(self) -> Floats:
        """Return the predictions."""
        return self._all


class _Pieces:
    """The predictions of nobody knows how many samples."""

    def __init__(self, shape: Shape, workspace: Workspace | None) -> None:
        self._shape = shape
        self._workspace = workspace
        self._pieces: list[Floats] = []

    def room(self, size: int) -> Floats:
        """Return an array of its own for each batch."""
        self._pieces.append(np.empty((size, *self._shape), np.float32))
        return self._pieces[-1]

    def array(self) -> Floats:
        """Put the pieces together; each goes when it has been copied."""
        samples = sum(map(len, self._pieces))
        result = _Whole(samples, self._shape, self._workspace)
        self._pieces.reverse()
        while self._pieces:
            piece = self._pieces.pop()
            result.room(len(piece))[...] = piece
        return result.array()


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


def _made(shape: tuple[int, ...], workspace: Workspace | None) -> Floats:
    if workspace is None:
        return np.empty(shape, np.float32)
    return workspace.empty(shape, np.float32)
