"""Room in workspaces, for programs that run op by op.

Owns the workspaces of one program: they belong to the model, not to a thread, so they
have no name among a thread's. Refuses to choose what lives where; the layout says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.config import DebugMode, WorkspaceConfig, get_debug_mode
from memcfg.nn.training._layout import FEEDING
from memcfg.runtime import NO_ROOM
from memcfg.workspaces import LayerWorkspaceMgr, OwnedWorkspace, Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.memory import Pool
    from memcfg.nn.training._layout import Layout, Table
    from memcfg.runtime import Moment, Room, Walk

__all__ = ["WorkspacePlacer"]


class WorkspacePlacer:
    """Gives a program's tensors room in its workspaces; see `memcfg.runtime.Placer`.

    Their sizes are known, so nothing is learned and nothing spills. All pages are there
    before a step begins: no op of it can run out of memory.

    Parameters
    ----------
    walk : Walk
        The program's walk.
    layout : Layout
        What lives where.
    sizes : mapping of str to int
        How large each workspace is, in bytes.
    pool : Pool
        Pays for the pages.
    owner : str
        The model's name; it is before those of the workspaces.
    """

    def __init__(
        self,
        walk: Walk,
        layout: Layout,
        sizes: Mapping[str, int],
        pool: Pool,
        owner: str,
    ) -> None:
        self.held_bytes = 0
        self._walk = walk
        self._layout = layout
        self._sizes = sizes
        self._pool = pool
        self._owner = owner
        self._spaces = _Spaces()
        managers = [self._manager(table) for table in layout.tables]
        self._managers = {at: managers[i] for at, i in layout.table_of.items()}
        self._moment = FEEDING
        self._spill = ""

    @property
    def lasting(self) -> bool:
        """Whether arrays are in pages, which are held, and not outside of them."""
        return get_debug_mode() is DebugMode.DISABLED

    def begin(self) -> None:
        """Take the pages that are not there, and open what the step begins with."""
        self.end()  # what an interrupted end left open
        if self._spill != _spill():
            self.give_back()
        if not self._spaces.by_name:
            self._take()
        for space in self._spaces.by_name.values():
            with space:  # a page that arrays kept is replaced now, or the step refused
                pass
        self._moment = FEEDING
        self._open(FEEDING)

    def make(self, tensor: int) -> Room:
        """Make a tensor where its maker's table says."""
        kind = self._layout.type_of[tensor]
        nbytes = self._walk.graph.tensors[tensor].nbytes
        made = self._managers[self._moment].empty(kind, nbytes, np.uint8)
        return _ArrayRoom(made)

    def enter(self, moment: Moment) -> None:
        """Open what a moment begins with."""
        self._moment = moment.number
        self._open(moment.number)

    def scratch(self, moment: Moment) -> Room:
        """Make an op's scratch in the working memory of its layer."""
        nbytes = self._walk.graph.ops[moment.op].scratch_bytes
        if not nbytes:
            return NO_ROOM
        kind = self._layout.scratch_of[moment.number]
        made = self._managers[moment.number].empty(kind, nbytes, np.uint8)
        return _ArrayRoom(made)

    def drop(self, room: Room) -> None:
        """Do nothing: pages are held whatever is in them."""

    def leave(self, moment: Moment) -> None:
        """Close what a moment ends."""
        for name in self._layout.closes.get(moment.number, ()):
            self._spaces.by_name[name].close()

    def end(self) -> None:
        """Close everything that is open, also what another thread has left open."""
        for space in self._spaces.by_name.values():
            space.abort()

    def give_back(self) -> None:
        """Give the pages back."""
        spaces, self._spaces.by_name = self._spaces.by_name, {}
        self.held_bytes = 0
        for space in spaces.values():
            space.destroy()

    def _open(self, moment: int) -> None:
        for name in self._layout.opens.get(moment, ()):
            self._spaces.by_name[name].open()

    def _manager(self, table: Table) -> LayerWorkspaceMgr:
        manager = LayerWorkspaceMgr(self._spaces)
        for kind, name in table.items():
            manager.set(kind, name)
        return manager

    def _take(self) -> None:
        self._spill = _spill()
        try:
            for name, nbytes in self._sizes.items():
                config = WorkspaceConfig(
                    initial_size=nbytes,
                    allocation="strict",
                    learning="none",
                    spill=self._spill,
                    reclaim=name in self._layout.stacks,
                    capture_numpy=False,
                )
                self._spaces.by_name[name] = OwnedWorkspace(
                    config, f"{self._owner}: {name}", resource=self._pool
                )
        except BaseException:
            self.give_back()
            raise
        spaces = self._spaces.by_name.values()
        self.held_bytes = sum(space.counters()["size"] for space in spaces)


def _spill() -> str:
    """Refuse to spill, unless all workspaces are told to."""
    told = get_debug_mode() is DebugMode.SPILL_EVERYTHING
    return "external" if told else "fail"


class _Spaces:
    """The workspaces of one program, by their names in its layout."""

    def __init__(self) -> None:
        self.by_name: dict[str, OwnedWorkspace] = {}

    def get(self, name: str) -> Workspace | None:
        return self.by_name.get(name)

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        return self.by_name[name]


class _ArrayRoom:
    """An array of bytes in a workspace."""

    __slots__ = ("_bytes", "address", "nbytes")

    def __init__(self, cells: npt.NDArray[np.uint8]) -> None:
        self._bytes = cells
        self.address: int = cells.__array_interface__["data"][0]
        self.nbytes = cells.nbytes

    def array(self, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        return self._bytes.view(dtype).reshape(shape)
