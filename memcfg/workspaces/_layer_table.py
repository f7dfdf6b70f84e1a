"""Which kind of array lives in which workspace.

Owns the table and the rules by which it is filled. Refuses to open a workspace or to
make an array: `LayerWorkspaceMgr` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.config import WorkspaceConfig
from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.workspaces._array_types import ArrayType

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Home", "LayerTable", "checked"]


class Home(NamedTuple):
    """A workspace by its name, and what it is to be if it has to be made.

    Parameters
    ----------
    name : str
        Its name.
    config : WorkspaceConfig or None
        Its configuration; None takes it as it is.
    """

    name: str
    config: WorkspaceConfig | None


class LayerTable:
    """Kinds of arrays to workspaces, or to none."""

    def __init__(self) -> None:
        self._homes: dict[ArrayType, Home | None] = {}
        self._frozen = False

    def freeze(self) -> None:
        """Refuse all changes from now on."""
        self._frozen = True

    def set(
        self, kinds: Iterable[object], name: str | None, config: WorkspaceConfig | None
    ) -> None:
        """Give kinds of arrays a workspace, or none."""
        self.check_open_to_change()
        known = [checked(kind) for kind in kinds]
        self._homes |= dict.fromkeys(known, self._made(name, config))

    def fill(self, name: str | None, config: WorkspaceConfig | None) -> None:
        """Give the kinds that have no entry a workspace, or none."""
        self.check_open_to_change()
        home = self._made(name, config)
        for kind in ArrayType:
            self._homes.setdefault(kind, home)

    def check_open_to_change(self) -> None:
        """Raise WorkspaceError if the table is frozen."""
        if self._frozen:
            raise WorkspaceError(
                "this LayerWorkspaceMgr is shared by everybody and cannot be changed: "
                "make one with LayerWorkspaceMgr.no_workspaces() and change that"
            )

    def knows(self, kind: ArrayType | str) -> bool:
        """Whether a kind has an entry."""
        return checked(kind) in self._homes

    def home(self, kind: ArrayType | str) -> Home | None:
        """Return a kind's workspace; WorkspaceError if it has no entry."""
        found = checked(kind)
        if found not in self._homes:
            raise WorkspaceError(
                f"no workspace has been named for array type {found.name}: call "
                f"set(ArrayType.{found.name}, name, config), "
                f"no_workspace_for(ArrayType.{found.name}), or one of the defaults"
            )
        return self._homes[found]

    def _made(self, name: str | None, config: WorkspaceConfig | None) -> Home | None:
        """Make an entry; one workspace has one configuration."""
        if name is None:
            return None
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a workspace is a string, not {name!r}")
        if config is not None and not isinstance(config, WorkspaceConfig):
            raise TypeError(f"config is a WorkspaceConfig or None, not {config!r}")
        for other in self._homes.values():
            if other is not None and other.name == name and other.config != config:
                raise WorkspaceConfigError(
                    f"workspace {name!r} has another configuration for other array "
                    "types here: give it the same one for all, or another name"
                )
        return Home(name, config)


def checked(kind: object) -> ArrayType:
    """Return the kind that a word means; ValueError if there is none."""
    if isinstance(kind, ArrayType):
        return kind
    try:
        return ArrayType(kind)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(repr(each.value) for each in ArrayType)
        raise ValueError(f"an array type is one of {known}, not {kind!r}") from None
