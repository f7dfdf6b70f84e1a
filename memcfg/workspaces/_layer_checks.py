"""Whether arrays of a layer are where they should be.

Owns the checks of `LayerWorkspaceMgr` and their words. Refuses to open workspaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.errors import WorkspaceError
from memcfg.workspaces._layer_arrays import Array, LayerArrays
from memcfg.workspaces._layer_table import checked
from memcfg.workspaces._places import (
    check_valid,
    current_workspace,
    generation_of,
    is_attached,
    is_in_scope,
    workspace_of,
)

if TYPE_CHECKING:
    from memcfg.workspaces._array_types import ArrayType
    from memcfg.workspaces._workspace import Workspace

__all__ = ["LayerChecks"]


class LayerChecks(LayerArrays):
    """The part of `LayerWorkspaceMgr` that looks at what others did."""

    def validate_array_location(
        self,
        kind: ArrayType | str,
        array: Array,
        migrate_if_invalid: bool = False,
        error_if_detached: bool = False,
    ) -> Array:
        """Check that an array is where those of its kind live.

        Parameters
        ----------
        kind : ArrayType or str
            What it is for.
        array : numpy.ndarray
            An array.
        migrate_if_invalid : bool, default False
            Whether a copy in the right place is returned instead of an error.
        error_if_detached : bool, default False
            Whether an array of no workspace is wrong where its kind has one.

        Returns
        -------
        numpy.ndarray
            The array, or the copy.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it has not been spoken of, its workspace is not open, or the array is
            elsewhere: the message names both places.
        WorkspaceLeakError, WorkspaceStaleError
            If the array's bytes may be another's by now; see `memcfg.is_valid`.
        """
        check_valid(array, "use it")
        wanted = self._open(kind)
        found = workspace_of(array)
        if not is_attached(array):
            right = wanted is None or not error_if_detached
        else:
            right = found is not None and found is wanted and is_in_scope(array)
        if right:
            return array
        if not migrate_if_invalid:
            raise WorkspaceError(_words(checked(kind), array, wanted))
        return self.dup(kind, array)

    def is_workspace_open(self, kind: ArrayType | str) -> bool:
        """Tell whether the workspace of a kind of array is open.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.

        Returns
        -------
        bool
            True where the kind has no workspace.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it has not been spoken of.
        """
        home = self._table.home(kind)
        found = None if home is None else self._source.get(home.name)
        return home is None or (found is not None and found.is_open)

    def assert_open(self, kind: ArrayType | str, message: str = "") -> None:
        """Raise unless the workspace of a kind of array is open.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        message : str, default ""
            What is being done; it begins the error.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it is not open, or has not been spoken of.
        """
        if not self.is_workspace_open(kind):
            raise WorkspaceError(
                f"{_begin(message)}workspace {self.workspace_name(kind)!r} for array "
                f"type {checked(kind).name} should be open and is not: enter it first"
            )

    def assert_not_open(self, kind: ArrayType | str, message: str = "") -> None:
        """Raise if the workspace of a kind of array is open.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        message : str, default ""
            What is being done; it begins the error.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it is open, or has not been spoken of.
        """
        name = self.workspace_name(kind)
        if name is not None and self.is_workspace_open(kind):
            raise WorkspaceError(
                f"{_begin(message)}workspace {name!r} for array type "
                f"{checked(kind).name} should not be open: close it first"
            )

    def assert_current_workspace(
        self, kind: ArrayType | str, message: str = ""
    ) -> None:
        """Raise unless the workspace of a kind of array is the innermost.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for; a kind without workspace wants none.
        message : str, default ""
            What is being done; it begins the error.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If another one is, or the kind has not been spoken of.
        """
        name, current = self.workspace_name(kind), current_workspace()
        found = None if current is None else current.name
        if found != name:
            raise WorkspaceError(
                f"{_begin(message)}{_name(name)} should be current for array type "
                f"{checked(kind).name}, but {_name(found)} is"
            )


def _begin(message: str) -> str:
    return f"{message}: " if message else ""


def _name(name: str | None) -> str:
    return "no workspace" if name is None else f"workspace {name!r}"


def _words(kind: ArrayType, array: Array, wanted: Workspace | None) -> str:
    """Say where an array is and where it should be."""
    should = "in no workspace" if wanted is None else f"in workspace {wanted.name!r}"
    found = workspace_of(array)
    if not is_attached(array):
        place = "in no workspace"
    elif found is None:
        place = "in a workspace that has gone with its thread"
    else:
        place = f"in workspace {found.name!r}"
        if found is wanted:
            place += f", of its cycle {generation_of(array)}, which has ended"
    return (
        f"an array of type {kind.name} should be {should}, but is {place}: move it "
        f"with leverage_to(ArrayType.{kind.name}, array), or pass "
        "migrate_if_invalid=True"
    )
