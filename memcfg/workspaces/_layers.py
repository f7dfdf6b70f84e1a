"""The workspaces of a layer, by what its arrays are for.

Owns the manager that layers ask for memory, and how it opens workspaces. Refuses to
choose them: whoever runs the layers does, in the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from memcfg._core.numpy_memory import scope_out
from memcfg.workspaces._layer_checks import LayerChecks
from memcfg.workspaces._layer_scopes import LayerScopes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Self

    from memcfg.workspaces._array_types import ArrayType

__all__ = ["LayerWorkspaceMgr"]


class LayerWorkspaceMgr(LayerChecks):
    """Gives layers memory by what it is for: each `ArrayType` has a workspace or none.

    The settings are `set`, `no_workspace_for` and the two defaults; each returns the
    manager. A kind of array with "no workspace" is made outside of all, in the memory
    that NumPy uses there.

    Parameters
    ----------
    source : WorkspaceSource or None, default None
        Where workspaces are found by name. None: `memcfg.workspace`, the running
        thread's.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.workspace.LayerWorkspaceMgr``.

    Examples
    --------
    >>> import memcfg as mc
    >>> kinds = mc.ArrayType
    >>> manager = mc.LayerWorkspaceMgr().set(kinds.ACTIVATIONS, "activations")
    >>> manager = manager.default_workspace("working memory")
    >>> with manager.enter(kinds.ACTIVATIONS, kinds.FF_WORKING_MEM):
    ...     y = manager.zeros(kinds.FF_WORKING_MEM, (2, 3))
    ...     y = manager.leverage_to(kinds.ACTIVATIONS, y + 1)
    ...     print(mc.workspace_of(y).name)
    activations
    >>> mc.destroy_all_workspaces()
    """

    _nobodys: ClassVar[LayerWorkspaceMgr | None] = None

    @classmethod
    def no_workspaces(cls) -> Self:
        """Return a manager that makes every array outside of all workspaces.

        Returns
        -------
        LayerWorkspaceMgr
            A new one, to be changed if need be.
        """
        return cls().default_no_workspace()

    @staticmethod
    def no_workspaces_immutable() -> LayerWorkspaceMgr:
        """Return such a manager that everybody shares and nobody can change.

        Returns
        -------
        LayerWorkspaceMgr
            The same one each time.
        """
        if LayerWorkspaceMgr._nobodys is None:
            made = LayerWorkspaceMgr.no_workspaces()
            made._table.freeze()
            LayerWorkspaceMgr._nobodys = made
        return LayerWorkspaceMgr._nobodys

    def enter(self, *kinds: ArrayType | str) -> LayerScopes:
        """Open the workspaces of kinds of arrays for a ``with`` block.

        Parameters
        ----------
        *kinds : ArrayType or str
            What the arrays are for. Workspaces that do not exist are made. Where a kind
            has no workspace, the block is outside of all.

        Returns
        -------
        LayerScopes
            To be entered.

        Raises
        ------
        ValueError
            If a kind is unknown.
        WorkspaceError
            If one has not been spoken of.
        WorkspaceConfigError
            If a workspace exists and has another configuration.
        ResourceExhaustedError
            If there is no room for a page of its initial size.
        """
        homes = list(dict.fromkeys(self._table.home(kind) for kind in kinds))
        return LayerScopes(
            [
                scope_out() if home is None else self._source.make(*home)
                for home in homes
            ]
        )

    def notify_scope_entered(self, *kinds: ArrayType | str) -> LayerScopes:
        """Open the workspaces of kinds of arrays now.

        Parameters
        ----------
        *kinds : ArrayType or str
            What the arrays are for.

        Returns
        -------
        LayerScopes
            To be closed, by `close` or at the end of a ``with`` block.

        Raises
        ------
        ValueError, WorkspaceError, WorkspaceConfigError, ResourceExhaustedError
            What `enter` raises.
        """
        return self.enter(*kinds).open()

    def borrow(self, kind: ArrayType | str) -> AbstractContextManager[object]:
        """Make the workspace of a kind of array current again for a ``with`` block.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.

        Returns
        -------
        context manager
            To be entered. It raises WorkspaceError then if the workspace is lent
            already. Where the kind has no workspace, the block is outside of all.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it has not been spoken of, or its workspace is not open.
        """
        workspace = self._open(kind)
        if workspace is None:
            return cast("AbstractContextManager[object]", scope_out())
        return cast("AbstractContextManager[object]", workspace.borrow())
