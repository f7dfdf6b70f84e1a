"""Every tensor a block of its own, freed when its last reader is done.

Owns the way `OwnBlocks`. Refuses to keep anything between two ops that a later op
does not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.runtime._state import model_tag
from memcfg.runtime._walk import Moment, Walk, updates_last
from memcfg.runtime._ways import NO_ROOM, Room, with_margin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg._core import Block
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.memory import Pool

__all__ = ["OwnBlocks"]


@dataclass(frozen=True)
class OwnBlocks:
    """The way without plans and without workspaces.

    Each tensor and each op's scratch is one allocation of the device's pool. Updates
    of the state come last: no allocation, which could fail, follows them.

    Parameters
    ----------
    name : str, default "none"
        What reports call it.
    """

    name: str = "none"

    def order(self, graph: Graph) -> Sequence[int]:
        """Choose the order of the ops.

        Parameters
        ----------
        graph : Graph
            A program's graph.

        Returns
        -------
        sequence of int
            That of the graph, with updates of the state at the end.
        """
        return updates_last(graph)

    def needed_bytes(self, walk: Walk) -> int:
        """Tell what a step takes beside the state.

        Parameters
        ----------
        walk : Walk
            A program's walk.

        Returns
        -------
        int
            The most bytes that are live at a moment, scratch included.
        """
        return max(nbytes for nbytes, _ in _live(walk))

    def enough_bytes(self, walk: Walk) -> int:
        """Tell under which limit a step never fails.

        Parameters
        ----------
        walk : Walk
            A program's walk.

        Returns
        -------
        int
            `needed_bytes`, and what the ends of pages may cost.
        """
        return max(with_margin(*live) for live in _live(walk))

    def placer(self, walk: Walk, device: Device, owner: str) -> _BlockPlacer:
        """Make a program's placer.

        Parameters
        ----------
        walk : Walk
            The program's walk.
        device : Device
            Whose pool pays.
        owner : str
            The tag of all its blocks.

        Returns
        -------
        Placer
            The placer.
        """
        return _BlockPlacer(walk, device.pool, owner)


def _live(walk: Walk) -> Iterator[tuple[int, int]]:
    """Bytes and blocks that are live at each moment."""
    live = [walk.rounded(tensor) for tensor in walk.fed]
    nbytes, blocks = sum(live), len(live)
    for moment in walk.moments:
        scratch = walk.scratch(moment)
        nbytes += sum(walk.rounded(tensor) for tensor in moment.makes)
        blocks += len(moment.makes)
        yield nbytes + scratch, blocks + (scratch > 0)
        nbytes -= sum(walk.rounded(tensor) for tensor in moment.ends)
        blocks -= len(moment.ends)


class _BlockRoom:
    """A block of a pool."""

    __slots__ = ("_block", "address", "nbytes")

    def __init__(self, block: Block) -> None:
        self._block = block
        self.address = block.address
        self.nbytes = block.nbytes

    def array(self, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        """Return the block as an array, which keeps it."""
        return np.ndarray(shape, np.dtype(dtype), memoryview(self._block))


class _BlockPlacer:
    """Asks the pool for each room; see `Placer`."""

    lasting = False

    def __init__(self, walk: Walk, pool: Pool, owner: str) -> None:
        self._walk = walk
        self._pool = pool
        self._owner = owner
        self.held_bytes = 0

    def begin(self) -> None:
        self.held_bytes = 0

    def make(self, tensor: int) -> Room:
        return self._room(self._walk.graph.tensors[tensor].nbytes)

    def enter(self, moment: Moment) -> None:
        """Do nothing: there is nothing to open."""

    def scratch(self, moment: Moment) -> Room:
        nbytes = self._walk.graph.ops[moment.op].scratch_bytes
        return self._room(nbytes) if nbytes else NO_ROOM

    def drop(self, room: Room) -> None:
        self.held_bytes -= room.nbytes

    def leave(self, moment: Moment) -> None:
        """Do nothing: there is nothing to close."""

    def end(self) -> None:
        self.held_bytes = 0

    def give_back(self) -> None:
        """Do nothing: no block outlives its step."""

    def _room(self, nbytes: int) -> Room:
        room = _BlockRoom(self._pool.allocate(nbytes, tag=model_tag(self._owner)))
        self.held_bytes += room.nbytes
        return room
