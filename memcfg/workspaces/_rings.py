"""Workspaces whose arrays outlive their cycle: the ring and the alternating pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._checks import count
from memcfg.config import AllocationPolicy, ResetPolicy, WorkspaceConfig
from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.workspaces._workspace import Workspace, checked_config

if TYPE_CHECKING:
    from typing import Self

    from memcfg.memory import Resource


class RingWorkspace(Workspace):
    """A workspace whose cycles use the blocks of a ring in turn.

    None of the next ``slots - 1`` cycles overwrites the arrays of a cycle. This serves
    a queue of batches, each created in its own cycle. A batch that lives longer keeps
    its bytes, and the ring gets another page.

    Parameters
    ----------
    slots : int
        Number of blocks of the ring after learning, at least 2.
    config : WorkspaceConfig or None, default None
        The configuration, of which `reset`, `allocation` and `overallocation` are
        replaced. None uses `memcfg.config.get_default_workspace_config`.
    name : str, default "RingWorkspace"
        Name in this thread.
    resource : Resource or None, default None
        Source of its memory, as for `Workspace`.

    Raises
    ------
    TypeError
        If an argument has a wrong type.
    WorkspaceConfigError
        If there are fewer than 2 slots, or the configuration reclaims.
    WorkspaceConfigError, ValueError, ResourceExhaustedError, OSError
        As raised by `Workspace`.

    Notes
    -----
    Equivalent to ``reset="end_of_buffer", overallocation=slots - 1``. Each block holds
    1.3 times the bytes of the largest cycle so far.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> ring = mc.RingWorkspace(slots=4, name="batches")
    >>> with ring:
    ...     batch = np.ones(1000)
    >>> ring.stats().size == 4 * ring.stats().block_size > 4 * 8000
    True
    >>> ring.destroy()
    """

    def __init__(
        self,
        slots: int,
        config: WorkspaceConfig | None = None,
        name: str = "RingWorkspace",
        *,
        resource: Resource | None = None,
    ) -> None:
        super().__init__(_ring(config, slots), name, resource=resource)

    @property
    def slots(self) -> int:
        """The number of blocks of the ring after learning."""
        return self.config.ring_blocks


class PingPong:
    """Two alternating workspaces: the arrays of one turn survive the next turn.

    This serves chains in which each step reads the result of the previous one, as
    layers do. Both workspaces are open at the same time, and each is reopened every
    other turn.

    Parameters
    ----------
    name : str
        The workspaces are ``name + "_1"`` and ``name + "_2"``.
    config : WorkspaceConfig or None, default None
        Configuration of both, as for `Workspace`.
    resource : Resource or None, default None
        Source of their memory, as for `Workspace`.

    Raises
    ------
    WorkspaceConfigError
        If the configuration is circular or has a path, or this thread already has a
        workspace of either name.
    TypeError, ValueError, ResourceExhaustedError
        As raised by `Workspace`.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> x = np.ones((2, 3))
    >>> act = mc.workspaces.PingPong("act")
    >>> with act:
    ...     for layer in range(5):
    ...         workspace = act.turn()
    ...         x = x + layer
    ...     y = mc.detach(x)
    >>> float(y[0, 0]), workspace.name
    (11.0, 'act_1')
    >>> act.destroy()
    """

    def __init__(
        self,
        name: str,
        config: WorkspaceConfig | None = None,
        *,
        resource: Resource | None = None,
    ) -> None:
        if config is not None and (config.circular or config.path is not None):
            raise WorkspaceConfigError(
                "each of the two workspaces needs its own memory: the configuration "
                "must not be a ring or have a path"
            )
        first = Workspace(config, f"{name}_1", resource=resource)
        try:
            second = Workspace(config, f"{name}_2", resource=resource)
        except BaseException:
            first.destroy()
            raise
        self._pair = (first, second)
        self._turns = 0
        self._entered = False

    @property
    def workspaces(self) -> tuple[Workspace, Workspace]:
        """The two workspaces, in the order of their turns."""
        return self._pair

    def turn(self) -> Workspace:
        """Begin a turn; arrays of the turn before the last may be overwritten.

        Returns
        -------
        Workspace
            The workspace of this turn. It is current until the next turn or the end of
            the ``with`` block.

        Raises
        ------
        WorkspaceError
            If called outside of a ``with`` block.
        """
        if not self._entered:
            raise WorkspaceError("call turn() inside of `with` the pair")
        workspace = self._pair[self._turns % 2]
        if workspace.is_open:
            workspace.close()
        workspace.open()
        self._turns += 1
        return workspace

    def destroy(self) -> None:
        """Release the memory of both workspaces and drop their names.

        Raises
        ------
        WorkspaceError
            If one is open and this is not the thread that created them.
        """
        for workspace in self._pair:
            workspace.destroy()

    def __enter__(self) -> Self:
        if self._entered:
            raise WorkspaceError("the pair is already entered")
        self._entered = True
        self._turns = 0
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._entered = False
        last = self._pair[(self._turns - 1) % 2]
        other = self._pair[self._turns % 2]
        try:
            if last.is_open:
                last.close()
        finally:
            if other.is_open:
                other.close()


def _ring(config: WorkspaceConfig | None, slots: int) -> WorkspaceConfig:
    if count(slots, "slots", None) < 2:
        raise WorkspaceConfigError(f"a ring has at least 2 slots, not {slots}")
    return checked_config(config).replace(
        reset=ResetPolicy.ENDOFBUFFER_REACHED,
        allocation=AllocationPolicy.OVERALLOCATE,
        overallocation=slots - 1,
    )
