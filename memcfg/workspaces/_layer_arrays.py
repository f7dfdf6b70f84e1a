"""Arrays of a layer, made where those of their kind live.

Owns what `LayerWorkspaceMgr` does with one array. Refuses to open workspaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memcfg._core.numpy_memory import scope_out
from memcfg.errors import WorkspaceError
from memcfg.workspaces._layer_settings import LayerSettings
from memcfg.workspaces._layer_table import checked
from memcfg.workspaces._manager import get_workspace
from memcfg.workspaces._moves import detach, leverage_to
from memcfg.workspaces._places import check_valid, is_attached, workspace_of
from memcfg.workspaces._registry import names_here

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import DTypeLike, NDArray

    from memcfg.config import WorkspaceConfig
    from memcfg.workspaces._array_types import ArrayType
    from memcfg.workspaces._arrays import Shape
    from memcfg.workspaces._workspace import Workspace

__all__ = ["Array", "LayerArrays", "WorkspaceSource"]

Array = np.ndarray[Any, Any]


class WorkspaceSource(Protocol):
    """Where a manager finds workspaces by name."""

    def get(self, name: str) -> Workspace | None:
        """Return the workspace of a name; None if there is none.

        Parameters
        ----------
        name : str
            Its name.

        Returns
        -------
        Workspace or None
            The workspace.
        """

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        """Return the workspace of a name; it is made if there is none.

        Parameters
        ----------
        name : str
            Its name.
        config : WorkspaceConfig or None
            What it is to be.

        Returns
        -------
        Workspace
            The workspace.
        """


class LayerArrays(LayerSettings):
    """The part of `LayerWorkspaceMgr` that makes and moves arrays."""

    def __init__(self, source: WorkspaceSource | None = None) -> None:
        super().__init__()
        self._source: WorkspaceSource = _ThisThread() if source is None else source

    def create_uninitialized(
        self, kind: ArrayType | str, shape: Shape, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Make an array that is not initialised.

        Parameters
        ----------
        kind : ArrayType or str
            What it is for.
        shape : int or tuple of int
            Its shape.
        dtype : data-type, default float64
            Its type.

        Returns
        -------
        numpy.ndarray
            In the workspace of its kind, whichever is current; or outside of all.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it has not been spoken of, or its workspace is not open.
        ResourceExhaustedError
            If there is no room.
        """
        with self._at(kind):
            return np.empty(shape, dtype)

    empty = create_uninitialized

    def create(
        self, kind: ArrayType | str, shape: Shape, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Make an array of zeros.

        Parameters
        ----------
        kind : ArrayType or str
            What it is for.
        shape : int or tuple of int
            Its shape.
        dtype : data-type, default float64
            Its type.

        Returns
        -------
        numpy.ndarray
            Where `create_uninitialized` makes it.

        Raises
        ------
        ValueError, WorkspaceError, ResourceExhaustedError
            What `create_uninitialized` raises.
        """
        with self._at(kind):
            return np.zeros(shape, dtype)

    zeros = create

    def dup(self, kind: ArrayType | str, array: Array) -> Array:
        """Copy an array.

        Parameters
        ----------
        kind : ArrayType or str
            What the copy is for.
        array : numpy.ndarray
            Any array.

        Returns
        -------
        numpy.ndarray
            Contiguous, where `create_uninitialized` would make it.

        Raises
        ------
        ValueError, WorkspaceError, ResourceExhaustedError
            What `create_uninitialized` raises.
        WorkspaceLeakError, WorkspaceStaleError
            If the array's bytes may be another's by now; see `memcfg.is_valid`.
        """
        check_valid(array, "copy it")
        with self._at(kind):
            return array.copy(order="K")

    def cast_to(
        self,
        kind: ArrayType | str,
        array: Array,
        dtype: DTypeLike,
        *,
        dup_if_same: bool = False,
    ) -> Array:
        """Convert an array to another type.

        Parameters
        ----------
        kind : ArrayType or str
            What the result is for.
        array : numpy.ndarray
            Any array.
        dtype : data-type
            The type wanted.
        dup_if_same : bool, default False
            Whether an array that has the type already is copied.

        Returns
        -------
        numpy.ndarray
            Where `create_uninitialized` would make it; or the array itself.

        Raises
        ------
        ValueError, WorkspaceError, ResourceExhaustedError
            What `create_uninitialized` raises.
        WorkspaceLeakError, WorkspaceStaleError
            If the array's bytes may be another's by now; see `memcfg.is_valid`.
        """
        check_valid(array, "convert it")
        with self._at(kind):
            return array.astype(dtype, copy=dup_if_same)

    def leverage_to(self, kind: ArrayType | str, array: Array) -> Array:
        """Take an array to the workspace of its kind.

        Parameters
        ----------
        kind : ArrayType or str
            What it is for.
        array : numpy.ndarray
            An array.

        Returns
        -------
        numpy.ndarray
            The array itself if it is attached to none, is there already, or is of a
            workspace that `set_no_leverage_override` names. Else a copy; outside of all
            workspaces where the kind has none.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it has not been spoken of, or its workspace is not open.
        WorkspaceLeakError, WorkspaceStaleError
            If the array's bytes may be another's by now; see `memcfg.is_valid`.
        ResourceExhaustedError
            If there is no room.
        """
        if not is_attached(array) or self._is_untouched(array):
            return array
        workspace = self._open(kind)
        return detach(array) if workspace is None else leverage_to(array, workspace)

    def _is_untouched(self, array: Array) -> bool:
        workspace = workspace_of(array)
        return workspace is not None and workspace.name in self._untouched

    def _at(self, kind: ArrayType | str) -> AbstractContextManager[object]:
        """Let NumPy make its arrays where those of a kind live."""
        workspace = self._open(kind)
        return scope_out() if workspace is None else workspace.inside()

    def _open(self, kind: ArrayType | str) -> Workspace | None:
        """Return the workspace of a kind, which must be open; None for none."""
        home = self._table.home(kind)
        if home is None:
            return None
        workspace = self._source.get(home.name)
        if workspace is None or not workspace.is_open:
            raise WorkspaceError(
                f"workspace {home.name!r} for array type {checked(kind).name} is not "
                f"open: do this in `with manager.enter(ArrayType.{checked(kind).name})`"
            )
        return workspace


class _ThisThread:
    """The workspaces of the running thread."""

    def get(self, name: str) -> Workspace | None:
        return names_here().get(name)

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        return get_workspace(name, config)
