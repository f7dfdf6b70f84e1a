"""Workspaces that threads borrow: one for each batch that is alive.

Owns which of them nobody uses. Refuses to know what lies in them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from memcfg.config import WorkspaceConfig
from memcfg.data.engine._budgets import free_bytes
from memcfg.errors import ResourceExhaustedError
from memcfg.workspaces import OwnedWorkspace

if TYPE_CHECKING:
    from memcfg.data.engine._run import Run

__all__ = ["Blocks", "Scratches", "is_empty", "scratch"]

PERIOD = 64  # times that a block is borrowed between two looks at what is needed
SLACK = 2  # blocks that are kept beside those


class Blocks:
    """Blocks for batches that several threads make, as many as are alive at a time.

    A block is borrowed, a batch's arrays are made in it, and it is returned; it is lent
    again when the last of these arrays is gone. One thread at a time borrows.

    Parameters
    ----------
    run : Run
        The pass.
    name : str
        For messages and the resource's books.

    Attributes
    ----------
    budgeted : bool
        Whether they stay within the budget of AUTOTUNE.
    most_bytes : int
        The most that all have taken.
    """

    def __init__(self, run: Run, name: str) -> None:
        self.budgeted = False
        self.most_bytes = 0  # of all, so far
        self._lent = 0  # bytes of those that are borrowed
        self._run = run
        self._name = f"data {name}"
        self._free: list[OwnedWorkspace] = []  # the one that was returned last is last
        self._times = 0
        self._needed = 0  # at a time, in this period
        self._closed = False

    @property
    def nbytes(self) -> int:
        """What all blocks take, in bytes."""
        free = sum(block.config.initial_size for block in self._free.copy())
        return free + self._lent

    def borrow(self, nbytes: int) -> OwnedWorkspace | None:
        """Take a block that no array is in.

        Parameters
        ----------
        nbytes : int
            What is to lie in it.

        Returns
        -------
        OwnedWorkspace or None
            To be returned. None: there is none, and no room for another one and for as
            much beside it, where what is to lie in it is made.
        """
        free = self._free  # another thread may close meanwhile
        self._drop_small(free, nbytes)
        for place in range(len(free) - 1, -1, -1):
            if is_empty(free[place]):
                block = free.pop(place)
                self._note_need(free, len(free) - place + 1)
                self._lent += block.config.initial_size
                return block
        self._note_need(free, len(free) + 1)
        if free_bytes(self._run.resource) < 2 * nbytes or self._is_spent(nbytes):
            return None
        config = WorkspaceConfig(
            initial_size=max(1, nbytes), allocation="strict", learning="none"
        )
        try:
            made = OwnedWorkspace(config, self._name, resource=self._run.resource)
        except ResourceExhaustedError:  # another thread was quicker
            return None
        self._lent += config.initial_size
        return made

    def _is_spent(self, nbytes: int) -> bool:
        """Tell whether there is no budget for one more, and for one made elsewhere."""
        room = self._run.budget.room(self) if self.budgeted else None
        return room is not None and self.nbytes + 2 * nbytes > room

    def give_back(self, block: OwnedWorkspace) -> None:
        """Return a block.

        Parameters
        ----------
        block : OwnedWorkspace
            What was borrowed, and is not open any more.
        """
        self._lent -= block.config.initial_size
        self._free.append(block)
        nbytes = self.nbytes
        self.most_bytes = max(self.most_bytes, nbytes)
        self._run.budget.hold(self, nbytes)
        if self._closed:
            self.close()

    def _drop_small(self, free: list[OwnedWorkspace], nbytes: int) -> None:
        for block in free.copy():
            if block.config.initial_size < nbytes:
                free.remove(block)
                block.destroy()

    def _note_need(self, free: list[OwnedWorkspace], count: int) -> None:
        """Note how many blocks are in use, and let go of those that no period needs."""
        self._times += 1
        self._needed = max(self._needed, count)
        if self._times < PERIOD:
            return
        for block in free[: -self._needed - SLACK]:
            if is_empty(block):
                free.remove(block)
                block.destroy()
        self._times = self._needed = 0

    def close(self) -> None:
        """Let go of all blocks; arrays in them keep them until they are gone."""
        self._closed = True
        free, self._free = self._free, []
        for block in free.copy():
            block.destroy()


class Scratches:
    """Workspaces for what is made on the way, one for each thread that needs one.

    Parameters
    ----------
    run : Run
        The pass.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._free: list[OwnedWorkspace] = []
        self._size = 0  # that one has learned
        self._closed = False

    def borrow(self) -> OwnedWorkspace:
        """Take one that nobody has.

        Returns
        -------
        OwnedWorkspace
            To be returned.
        """
        with suppress(IndexError):
            return self._free.pop()
        with suppress(ResourceExhaustedError):
            return scratch(self._run, self._size)
        return scratch(self._run)

    def give_back(self, workspace: OwnedWorkspace) -> None:
        """Return one.

        Parameters
        ----------
        workspace : OwnedWorkspace
            What was borrowed, and is not open any more.
        """
        self._size = workspace.counters()["size"]
        self._free.append(workspace)
        if self._closed:
            self.close()

    def trim(self) -> None:
        """Let go of those that nobody has borrowed."""
        free, self._free = self._free, []
        for workspace in free.copy():
            workspace.destroy()

    def close(self) -> None:
        """Let go of all; those that are borrowed follow when they are returned."""
        self._closed = True
        self.trim()


def scratch(run: Run, size: int = 0) -> OwnedWorkspace:
    """Make a workspace for what is made on the way to an element.

    Parameters
    ----------
    run : Run
        The pass.
    size : int, default 0
        What it begins with, in bytes.

    Returns
    -------
    OwnedWorkspace
        It learns its size, grows when that is too little, and uses the room of what was
        made last again as soon as that is gone.
    """
    config = WorkspaceConfig(
        initial_size=size, allocation="strict", spill="reallocate", reclaim=True
    )
    return OwnedWorkspace(config, "data scratch", resource=run.resource)


def is_empty(block: OwnedWorkspace) -> bool:
    """Tell whether no array that is alive lies in a block.

    Parameters
    ----------
    block : OwnedWorkspace
        The block.

    Returns
    -------
    bool
        Whether it may be used again.
    """
    return not block.counters()["live_arrays"]
