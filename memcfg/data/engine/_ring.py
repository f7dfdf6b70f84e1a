"""Blocks for batches: a ring that a background thread fills.

Owns how many blocks there are and how large they are. Refuses to know threads. That no
block is overwritten while an array in it is alive is the workspace's doing: the array
keeps the block, and the workspace gets another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.config import WorkspaceConfig
from memcfg.data.engine._block_pool import is_empty
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up, format_bytes
from memcfg.workspaces import OwnedWorkspace

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from memcfg.memory import Resource

__all__ = ["SPARE", "Ring"]

SPARE = 2  # blocks beside the buffer: the consumer's, and the one that it takes next
_RESERVE = 1.3  # of a block over the largest batch, once batches differ; as in ND4J


class Ring:
    """Workspaces, one for each batch that can be alive.

    After `fit`, a ``with`` block is a cycle: the arrays made inside are one batch. The
    first batch tells how large a block is. A batch that is larger than the blocks lies
    outside of them; each block is 1.3 times as large as it when it is used next.

    Parameters
    ----------
    name : str
        For messages and the resource's books.
    resource : Resource
        Where the blocks come from.

    Attributes
    ----------
    most_bytes : int
        The most that all blocks have taken.

    Notes
    -----
    DL4J's ring is one page of ``prefetchSize + 3`` blocks: its thread makes a batch
    before there is room for it in the queue. Blocks of their own need no room in one
    piece, and a batch that is kept keeps its own block only.
    """

    def __init__(self, name: str, resource: Resource) -> None:
        self._name = name
        self._resource = resource
        self._block_bytes = 0
        self._blocks: list[OwnedWorkspace] = []
        self._fits = 0
        self.most_bytes = 0  # of all blocks, so far
        self._open = self._learning = self._workspace(0)

    @property
    def block_bytes(self) -> int:
        """What a block takes, in bytes; 0 where no batch took anything yet."""
        return self._block_bytes

    @property
    def nbytes(self) -> int:
        """What all blocks take, in bytes."""
        return sum(block.config.initial_size for block in self._blocks)

    @property
    def fits(self) -> int:
        """For how many waiting batches there was room when there was not enough."""
        return self._fits

    def fit(self, buffer_size: int) -> None:
        """Have the blocks that are needed, if it is known how large they are.

        Parameters
        ----------
        buffer_size : int
            How many batches wait at most from now on.

        Raises
        ------
        ResourceExhaustedError
            If there is no room for them; `fits` is known then.
        """
        if not self._block_bytes:
            return
        slots = buffer_size + SPARE
        while len(self._blocks) > slots:
            self._blocks.pop().destroy()
        try:
            while len(self._blocks) < slots:
                self._blocks.append(self._workspace(self._block_bytes))
            self._choose()
            self.most_bytes = max(self.most_bytes, self.nbytes)
        except ResourceExhaustedError as error:
            raise self._explained(error, buffer_size) from error

    def destroy(self) -> None:
        """Give the blocks back; what is alive in one keeps it until it dies."""
        for block in (*self._blocks, self._learning):
            block.destroy()
        self._blocks = []

    def __enter__(self) -> Self:
        self._open = self._blocks[-1] if self._blocks else self._learning
        self._open.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)
        if error is None:
            self._learn(self._open.counters()["last_cycle_bytes"])

    def _learn(self, nbytes: int) -> None:
        if nbytes > self._block_bytes:
            larger = int(nbytes * _RESERVE) if self._block_bytes else nbytes
            self._block_bytes = align_up(larger)

    def _choose(self) -> None:
        """Put the block last that is next: one that nobody needs, used most lately.

        It may still be in the processor's caches. Where all are needed it is the one
        that was used first; its arrays keep its bytes.
        """
        blocks = self._blocks
        free = (n for n in range(len(blocks) - 1, -1, -1) if is_empty(blocks[n]))
        block = blocks.pop(next(free, 0))
        if block.config.initial_size < self._block_bytes:
            block.destroy()
            block = self._workspace(self._block_bytes)
        blocks.append(block)

    def _workspace(self, nbytes: int) -> OwnedWorkspace:
        config = WorkspaceConfig(
            initial_size=nbytes, allocation="strict", learning="none"
        )
        return OwnedWorkspace(config, self._name, resource=self._resource)

    def _explained(
        self, error: ResourceExhaustedError, buffer_size: int
    ) -> ResourceExhaustedError:
        fields = {name: getattr(error, name) for name in ResourceExhaustedError._fields}
        room = self.nbytes + (error.largest_free_bytes or 0)
        alike = all(b.config.initial_size == self._block_bytes for b in self._blocks)
        # While blocks grow, the consumer may hold a batch that is larger than now.
        most = room // self._block_bytes - SPARE - (0 if alike else 1)
        # A block is left for what is made beside the ring, if it can be.
        self._fits = most - 1 if most > 1 else most
        fields["hint"] = (
            f"buffer_size={self._fits} fits."
            if self._fits > 0
            else "No buffer fits: lower the batch size, raise the limit, or read "
            "without prefetch."
        )
        block = format_bytes(self._block_bytes)
        return ResourceExhaustedError(
            f"There is no room for a ring of {buffer_size + SPARE} blocks of {block} "
            f"(buffer_size={buffer_size}).",
            **fields,
        )
