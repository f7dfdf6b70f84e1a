"""A workspace as a user meets it: a scope with a name and a configuration.

Owns what is said about a scope and the arrays that are made in it by its methods.
Refuses pages, cycles and NumPy's hooks: `memcfg._core.Scope` has them, and entering and
leaving is its own, so that a ``with`` block costs no Python.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from memcfg._core import WorkspaceMemory
from memcfg.config import (
    WorkspaceConfig,
    get_debug_mode,
    get_default_workspace_config,
)
from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.units import format_bytes
from memcfg.workspaces._arrays import ArrayMaker
from memcfg.workspaces._moves import detach
from memcfg.workspaces._notices import (
    tell_of_disabled,
    tell_of_escapes,
    tell_of_no_page,
)
from memcfg.workspaces._pages import Ground, file_of, rules_of
from memcfg.workspaces._registry import names_here
from memcfg.workspaces._stats import WorkspaceStats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from memcfg.errors import ResourceExhaustedError
    from memcfg.memory import Resource

__all__ = ["DEFAULT_NAME", "Workspace"]

T = TypeVar("T")

DEFAULT_NAME = "DefaultWorkspace"


class Workspace(ArrayMaker):
    """Memory for work in cycles: learned in the first, used again in all others.

    Each ``with`` block is a cycle. The arrays that NumPy makes inside lie one behind
    the other in a page; at the end the page is used from its start again. An array that
    is still alive then keeps its page, and the next cycle gets another one. `detach`
    takes an array out.

    Parameters
    ----------
    config : WorkspaceConfig or None, default None
        What it is to be. None is `memcfg.config.get_default_workspace_config`.
    name : str, default "DefaultWorkspace"
        Its name in this thread, for `workspace` and for messages.
    resource : Resource or None, default None
        Where its pages, and the arrays that find no room in them, come from. None is
        the pool of the device that models are placed on now (`memcfg.device`).

    Attributes
    ----------
    memory : WorkspaceMemory
        Its books, a resource like others.
    parent : Workspace or None
        What was current when it was opened.
    is_open : bool
        Whether a cycle is running.
    is_current : bool
        Whether arrays are made in it now, in this thread or task.
    enabled : bool
        Whether it takes arrays. What is made in one that is open and not enabled lies
        outside of it. It is enabled again when its cycle ends.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the name is empty, or the resource has no memory (a simulated device).
    WorkspaceConfigError
        If this thread has a workspace of this name, or the file's length contradicts
        `initial_size`.
    ResourceExhaustedError
        If there is no room for a page of `initial_size`.
    OSError
        If the file cannot be used.
    FormatError
        If ``MEMCFG_WORKSPACE_DEBUG`` cannot be read.

    Notes
    -----
    A workspace is for one thread at a time; `workspace` gives each thread its own. It
    lives as long as its thread, or until `destroy`. Re-entering one that is open counts
    only, and resets nothing.

    References
    ----------
    ND4J's MemoryWorkspace (Deeplearning4j 1.0.0-M1).

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> ws = mc.Workspace(mc.WorkspaceConfig(allocation="strict"), "example")
    >>> for _ in range(3):
    ...     with ws:
    ...         total = mc.detach(np.arange(1000.0) + 1)
    >>> ws.stats().cycles, ws.stats().size >= 16_000, mc.is_attached(total)
    (3, True, False)
    >>> ws.destroy()
    """

    _listed = True  # whether it belongs to its thread, which knows it by its name

    def __init__(
        self,
        config: WorkspaceConfig | None = None,
        name: str = DEFAULT_NAME,
        *,
        resource: Resource | None = None,
    ) -> None:
        self._config = _checked(config)
        self._name = _name(name)
        if self._listed:
            _require_free(name)
        get_debug_mode()  # what the environment says of it holds from now on
        self._ground = Ground(resource)
        self._file = file_of(self._config, name)
        memory = WorkspaceMemory(
            self._ground.resource,
            name=name,
            pages=self._file,
            **rules_of(self._config, self._file),
        )
        super().__init__(memory, capture=self._config.capture_numpy)
        self._thread_id = threading.get_ident()
        self._names = names_here().add(self) if self._listed else None

    @property
    def name(self) -> str:
        """The name in its thread."""
        return self._name

    @property
    def config(self) -> WorkspaceConfig:
        """What it was made with."""
        return self._config

    @property
    def thread_id(self) -> int:
        """The thread that made it: `threading.get_ident`."""
        return self._thread_id

    @property
    def _forgotten(self) -> bool:
        """Whether its device has gone, and no cycle needs it."""
        return self._ground.forgotten and not self.is_open

    def stats(self) -> WorkspaceStats:
        """Tell what it holds and has learned.

        Returns
        -------
        WorkspaceStats
            All of one moment.
        """
        return WorkspaceStats(**self.counters())

    @contextmanager
    def disabled(self) -> Iterator[Self]:
        """Make arrays outside of the workspace in a ``with`` block, and stay inside it.

        They are blocks of their own of `resource`, attached to nothing.

        Yields
        ------
        Workspace
            This one.
        """
        before, self.enabled = self.enabled, False
        try:
            yield self
        finally:
            self.enabled = before

    def destroy(self) -> None:
        """Give its memory back, forget what was learned, and forget its name.

        An open one is closed first. Pages with arrays that are alive go when those go.
        The object starts over if it is used again, under no name; `workspace` makes
        another one. Its file is closed, if no array needs it any more.

        Raises
        ------
        WorkspaceError
            If it is open, and this is not the thread that made it.
        OSError
            If its file cannot be flushed or removed.
        """
        elsewhere = self._listed and threading.get_ident() != self.thread_id
        if elsewhere and self.is_open:
            raise WorkspaceError(
                f"workspace {self.name!r} is open in another thread, {self.thread_id}: "
                "destroy it there, or wait until it is left"
            )
        super().destroy()
        names = None if self._names is None else self._names()
        if names is not None:
            names.drop(self)
        if self._file is not None:
            with suppress(BufferError):  # arrays are in it: it closes itself later
                self._file.close()

    def flush(self) -> None:
        """Bring the page of an "mmap" workspace onto the disk.

        Raises
        ------
        WorkspaceError
            If it is in memory, or was destroyed.
        OSError
            If the system cannot write it.
        RuntimeError
            In a forked child, which has a copy.
        """
        if self._file is None or self._file.closed:
            raise WorkspaceError(
                f"workspace {self.name!r} has no file: only one with location='mmap' "
                "has, until it is destroyed"
            )
        self._file.flush()

    def detach(self, value: T) -> T:
        """Take arrays out of all workspaces: `memcfg.detach`.

        Parameters
        ----------
        value : numpy.ndarray, or tuple, list or dict of such, nested as they may be
            Arrays, of this workspace or of others.

        Returns
        -------
        numpy.ndarray or container
            What `memcfg.detach` returns.

        Raises
        ------
        TypeError, WorkspaceError, ResourceExhaustedError, MemoryError
            What `memcfg.detach` raises.
        """
        return detach(value)

    def _escaped(self, count: int) -> None:
        """Tell that arrays are alive behind their cycle. The core calls it."""
        tell_of_escapes(self, count)

    def _spilled(self, error: ResourceExhaustedError) -> None:
        """Tell that there is no page for this cycle. The core calls it."""
        tell_of_no_page(self, error)

    def _reenabled(self) -> None:
        """Tell that a cycle ended while it took no arrays. The core calls it."""
        tell_of_disabled(self)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        size = format_bytes(self.counters()["size"])
        return f"<{type(self).__name__} {self.name!r}, {state}, {size}>"


def _checked(config: WorkspaceConfig | None) -> WorkspaceConfig:
    if config is None:
        return get_default_workspace_config()
    if not isinstance(config, WorkspaceConfig):
        raise TypeError(f"config is a WorkspaceConfig or None, not {config!r}")
    return config


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a workspace is a string, not {name!r}")
    if not name:
        raise ValueError("a workspace needs a name")
    return name


def _require_free(name: str) -> None:
    if names_here().get(name) is not None:
        raise WorkspaceConfigError(
            f"this thread has a workspace {name!r} already: use memcfg.workspace("
            f"{name!r}), destroy it, or choose another name"
        )
