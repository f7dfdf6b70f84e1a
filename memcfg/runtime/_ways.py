"""How a program runs op by op: the contract between the walk and who gives room.

Owns three protocols. Refuses to know any way: rooms may be blocks of a pool, arrays
in workspaces, or anything else that has an address.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.runtime._walk import Moment, Walk

__all__ = ["NO_ROOM", "Placer", "Room", "Way", "with_margin"]

_PAGE = mmap.PAGESIZE
_LINE = 64  # bytes; the size and the place of each block are multiples of it


class Room(Protocol):
    """Bytes of a device that hold one tensor or one op's scratch.

    The bytes stay while the room or an array of it is referred to.
    """

    @property
    def address(self) -> int:
        """The address of the first byte; a multiple of 64."""

    @property
    def nbytes(self) -> int:
        """What it takes, in bytes."""

    def array(self, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        """Return the bytes as an array.

        Parameters
        ----------
        shape : tuple of int
            Its shape.
        dtype : str
            Its NumPy dtype name.

        Returns
        -------
        ndarray
            A view that keeps the bytes.
        """


class Placer(Protocol):
    """Gives room to one program's tensors, step after step.

    A step is `begin`, a `make` for each input, then for each op `enter`, a `make` for
    each output, `scratch`, a `drop` for each tensor that ends, and `leave`; then `end`.
    After a failure `end` comes at once.
    """

    @property
    def held_bytes(self) -> int:
        """Bytes of the device's pool that the placer has now."""

    @property
    def lasting(self) -> bool:
        """Whether the bytes of rooms that are dropped stay the program's in a step."""

    def begin(self) -> None:
        """Make ready for a step.

        Raises
        ------
        ResourceExhaustedError
            If there is not the memory for it; nothing was taken.
        """

    def make(self, tensor: int) -> Room:
        """Give a tensor room.

        Parameters
        ----------
        tensor : int
            Its id in the graph.

        Returns
        -------
        Room
            At least as large as the tensor.

        Raises
        ------
        ResourceExhaustedError
            If there is no room.
        """

    def enter(self, moment: Moment) -> None:
        """Make ready for an op.

        Parameters
        ----------
        moment : Moment
            When it runs.
        """

    def scratch(self, moment: Moment) -> Room:
        """Give an op its scratch.

        Parameters
        ----------
        moment : Moment
            When it runs.

        Returns
        -------
        Room
            As large as the op's scratch; without scratch, `NO_ROOM`.

        Raises
        ------
        ResourceExhaustedError
            If there is no room.
        """

    def drop(self, room: Room) -> None:
        """Take note that a room is no longer in use; the caller forgets it.

        Parameters
        ----------
        room : Room
            A tensor's or an op's.
        """

    def leave(self, moment: Moment) -> None:
        """Close what only this op needed.

        Parameters
        ----------
        moment : Moment
            When it ran.
        """

    def end(self) -> None:
        """Close everything: the step is over, no room of it is in use."""

    def give_back(self) -> None:
        """Give back what was kept for the next step."""


class Way(Protocol):
    """A way to run programs op by op; a value that can be compared."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def order(self, graph: Graph) -> Sequence[int]:
        """Choose the order of the ops.

        Parameters
        ----------
        graph : Graph
            A program's graph, with its kernels' scratch.

        Returns
        -------
        sequence of int
            The indices of all ops.
        """

    def needed_bytes(self, walk: Walk) -> int:
        """Tell what a step takes beside the state.

        Parameters
        ----------
        walk : Walk
            A program's walk.

        Returns
        -------
        int
            The most bytes of the pool that its placer ever holds.
        """

    def enough_bytes(self, walk: Walk) -> int:
        """Tell under which limit a step never fails.

        Parameters
        ----------
        walk : Walk
            A program's walk.

        Returns
        -------
        int
            `needed_bytes`, and what the ends of pages may cost; see `with_margin`.
        """

    def placer(self, walk: Walk, device: Device, owner: str) -> Placer:
        """Make a program's placer; it takes no memory yet.

        Parameters
        ----------
        walk : Walk
            The program's walk.
        device : Device
            Whose pool pays.
        owner : str
            Who holds the memory, for the pool's books.

        Returns
        -------
        Placer
            The placer.
        """


def with_margin(nbytes: int, blocks: int) -> int:
    """Return a limit under which a pool surely has some blocks, beside an arena.

    Parameters
    ----------
    nbytes : int
        The sum of the blocks' sizes.
    blocks : int
        How many there are.

    Returns
    -------
    int
        In bytes, the arena not counted.

    Notes
    -----
    The pages of a pool never exceed its limit by more than a page. A block of n lines
    is in at most n / 64 + 2 pages of 64 lines, and an arena begins with a page.
    """
    ends = blocks * (2 * _PAGE - _LINE) + (_PAGE - _LINE) - _PAGE
    return nbytes + max(ends, 0)


class _NoRoom:
    """The scratch of an op that needs none."""

    address = 0
    nbytes = 0

    def array(self, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        """Return an array of no bytes; ValueError for any other."""
        return np.ndarray(shape, np.dtype(dtype), b"")


NO_ROOM: Room = _NoRoom()
