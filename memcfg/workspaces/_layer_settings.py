"""What a manager of layer workspaces is told before it works.

Owns the settings of `LayerWorkspaceMgr`: the table, the overrides, what helpers share.
Refuses to open workspaces and to make arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.workspaces._layer_table import LayerTable

if TYPE_CHECKING:
    from typing import Self

    from memcfg.config import WorkspaceConfig
    from memcfg.workspaces._array_types import ArrayType

__all__ = ["LayerSettings"]


class LayerSettings:
    """The part of `LayerWorkspaceMgr` that is set; each setter returns the manager."""

    def __init__(self) -> None:
        self._table = LayerTable()
        self._untouched: set[str] = set()
        self._helpers: dict[str, Any] = {}

    def set(
        self, kind: ArrayType | str, name: str, config: WorkspaceConfig | None = None
    ) -> Self:
        """Name the workspace of a kind of array.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        name : str
            The workspace.
        config : WorkspaceConfig or None, default None
            What it is to be when `enter` makes it. None takes it as it is.

        Returns
        -------
        LayerWorkspaceMgr
            This one.

        Raises
        ------
        TypeError
            If the name is no string, or the configuration is none.
        ValueError
            If the kind is unknown.
        WorkspaceConfigError
            If the same workspace has another configuration here.
        WorkspaceError
            If the manager cannot be changed.
        """
        self._table.set([kind], name, config)
        return self

    with_ = set  # noqa: A003  (the method above)

    def no_workspace_for(self, *kinds: ArrayType | str) -> Self:
        """Have arrays of these kinds made outside of all workspaces.

        Parameters
        ----------
        *kinds : ArrayType or str
            What the arrays are for.

        Returns
        -------
        LayerWorkspaceMgr
            This one.

        Raises
        ------
        ValueError
            If a kind is unknown.
        WorkspaceError
            If the manager cannot be changed.
        """
        self._table.set(kinds, None, None)
        return self

    def default_workspace(
        self, name: str, config: WorkspaceConfig | None = None
    ) -> Self:
        """Name the workspace of all kinds that have not been spoken of yet.

        Parameters
        ----------
        name : str
            The workspace.
        config : WorkspaceConfig or None, default None
            What it is to be when `enter` makes it. None takes it as it is.

        Returns
        -------
        LayerWorkspaceMgr
            This one.

        Raises
        ------
        WorkspaceConfigError
            If the same workspace has another configuration here.
        WorkspaceError
            If the manager cannot be changed.
        """
        self._table.fill(name, config)
        return self

    def default_no_workspace(self) -> Self:
        """Have arrays of all kinds that have not been spoken of yet made outside.

        Returns
        -------
        LayerWorkspaceMgr
            This one.

        Raises
        ------
        WorkspaceError
            If the manager cannot be changed.
        """
        self._table.fill(None, None)
        return self

    def set_no_leverage_override(self, name: str) -> Self:
        """Leave arrays of a workspace where they are: `leverage_to` copies none of it.

        Parameters
        ----------
        name : str
            The workspace, such as that of an iterator's batches.

        Returns
        -------
        LayerWorkspaceMgr
            This one.

        Raises
        ------
        WorkspaceError
            If the manager cannot be changed.
        """
        self._table.check_open_to_change()
        self._untouched.add(name)
        return self

    def set_helper_workspace(self, key: str, value: object) -> Self:
        """Keep something that helpers share, such as scratch that grows.

        Parameters
        ----------
        key : str
            Its name.
        value : object
            What is kept, as long as the manager is; None forgets it.

        Returns
        -------
        LayerWorkspaceMgr
            This one.

        Raises
        ------
        WorkspaceError
            If the manager cannot be changed.
        """
        self._table.check_open_to_change()
        self._helpers[key] = value
        return self

    def get_helper_workspace(self, key: str) -> Any:
        """Return what `set_helper_workspace` was given.

        Parameters
        ----------
        key : str
            Its name.

        Returns
        -------
        object
            None if there is none.
        """
        return self._helpers.get(key)

    def has_configuration(self, kind: ArrayType | str) -> bool:
        """Tell whether a kind of array has been spoken of.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.

        Returns
        -------
        bool
            Also True for "no workspace".

        Raises
        ------
        ValueError
            If the kind is unknown.
        """
        return self._table.knows(kind)

    def workspace_name(self, kind: ArrayType | str) -> str | None:
        """Return the workspace of a kind of array.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.

        Returns
        -------
        str or None
            Its name; None for no workspace.

        Raises
        ------
        ValueError
            If the kind is unknown.
        WorkspaceError
            If it has not been spoken of.
        """
        home = self._table.home(kind)
        return None if home is None else home.name
