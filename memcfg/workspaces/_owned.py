"""Workspaces that belong to an object, not to a thread.

Owns that they have no name among a thread's workspaces: nobody finds them there, and
`destroy_all_workspaces` leaves them alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.workspaces._workspace import Workspace

if TYPE_CHECKING:
    from memcfg.config import WorkspaceConfig
    from memcfg.memory import Resource

__all__ = ["OwnedWorkspace"]


class OwnedWorkspace(Workspace):
    """A workspace that lives as long as the object that refers to it.

    One thread at a time uses it; it need not be the one that made it. Its name is for
    messages and for the pool's books.

    Parameters
    ----------
    config : WorkspaceConfig or None
        As for `Workspace`.
    name : str
        As for `Workspace`.
    resource : Resource
        Where its pages come from.
    """

    _listed = False

    def __init__(
        self, config: WorkspaceConfig | None, name: str, *, resource: Resource
    ) -> None:
        super().__init__(config, name, resource=resource)

    def abort(self) -> None:
        """End its cycle, if one is on, in whichever thread or task it began."""
        self._abort()
