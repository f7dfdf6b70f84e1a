"""Several workspaces of a layer, opened and closed as one.

Owns the order, and that none stays open when another one cannot be opened.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

__all__ = ["LayerScopes"]


class LayerScopes:
    """A ``with`` block in which workspaces are open, or `open` and `close`.

    Made by `LayerWorkspaceMgr.enter`. The workspace that was named last is current.
    """

    def __init__(self, scopes: Sequence[AbstractContextManager[object]]) -> None:
        self._scopes = scopes
        self._opened: ExitStack | None = None

    def open(self) -> Self:
        """Open all of them.

        Returns
        -------
        LayerScopes
            This one.

        Raises
        ------
        WorkspaceError
            If one of them must be open and is not, or is lent already.
        ResourceExhaustedError
            If one of them must have a page and there is no room for it.
        """
        if self._opened is None:
            with ExitStack() as stack:
                for scope in self._scopes:
                    stack.enter_context(scope)
                self._opened = stack.pop_all()
        return self

    def close(self) -> None:
        """Close them, the last one first; nothing if they are closed.

        Raises
        ------
        WorkspaceLeakError
            If arrays outlive one with ``on_escape="error"``; the others are closed.
        """
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.__exit__(kind, error, trace)
