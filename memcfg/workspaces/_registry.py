"""Which workspaces there are: by name in each thread, and all of them.

Owns the two lists. Refuses to make or end a workspace. Nothing of a thread outlives it:
its names go with it, and what is known of all threads are weak references.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import ref

from memcfg._core._live import Living

if TYPE_CHECKING:
    from memcfg.workspaces._workspace import Workspace

__all__ = ["Names", "all_names", "names_here"]


class Names:
    """The workspaces of one thread, by name, in the order they were made in.

    Each operation on the dictionary is one of the interpreter's own, so another thread
    that reads meets names of one moment.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Workspace] = {}
        _everywhere.add(self)

    def get(self, name: str) -> Workspace | None:
        """Find a workspace; None where there is none of this name."""
        return self._by_name.get(name)

    def add(self, workspace: Workspace) -> ref[Names]:
        """Note a workspace, and tell it where."""
        self._by_name[workspace.name] = workspace
        return ref(self)

    def drop(self, workspace: Workspace) -> None:
        """Forget a workspace, unless the name is another one's by now."""
        if self._by_name.get(workspace.name) is workspace:
            self._by_name.pop(workspace.name, None)

    def all(self) -> list[Workspace]:
        """List the workspaces."""
        return list(self._by_name.values())


class _Here(threading.local):
    """What each thread sees of its own."""

    def __init__(self) -> None:
        self.names = Names()


_everywhere: Living[Names] = Living()
_here = _Here()


def names_here() -> Names:
    """Return the names of the running thread."""
    return _here.names


def all_names() -> list[Names]:
    """List the names of every thread that has made a workspace and lives."""
    return _everywhere.alive()
