"""Memory blocks of batches: a thread's ring, and pools that threads share.

A block is not overwritten while an array in it is alive: the array keeps the block, and
the workspace gets a new one.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from memcfg._core import fork_count
from memcfg._core._holders import (
    GivingOrder,
    is_budgeted,
    list_holder,
    sparing_models,
    undemanding,
)
from memcfg.config import WorkspaceConfig
from memcfg.data.engine._run import free_bytes
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up, format_bytes
from memcfg.workspaces import OwnedWorkspace

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from memcfg.data.engine._run import Run
    from memcfg.memory import Resource

SPARE = 2  # blocks added to the buffer: the consumer's, and the one that it takes next
_RESERVE = 1.3  # block size over the largest batch, once sizes differ; as in ND4J
_PERIOD = 64  # calls of `borrow` between two releases of unneeded blocks
_SLACK = 2  # blocks that are kept in addition to those needed
_LEAST = SPARE + 1  # blocks that a ring keeps: one batch waits
_PATIENCE, _MAX_PATIENCE = 16, 4096  # batches until a ring tries to grow again


class Ring:
    """Workspaces, one for each batch that can be alive, filled by one thread.

    After `fit`, a ``with`` block is a cycle: the arrays made inside are one batch. The
    first batch sets the size of a block. A larger batch lies outside of the blocks, and
    each block is replaced by one of 1.3 times its size at the next use.

    Where memory is short, empty blocks are given back, but for `_LEAST`. The ring grows
    again block by block, where memory is free. Other threads remove blocks from
    `_blocks`, one operation each, so a block that is about to be opened is not there.
    """

    def __init__(self, name: str, resource: Resource) -> None:
        self._name = name
        self._resource = resource
        self._most: int | None = None  # blocks; None: no bound
        self._cycles, self._patience = 0, _PATIENCE
        self._forks = fork_count()
        self._chosen: OwnedWorkspace | None = None  # for the next cycle
        self._fitting = False  # it would give what it takes
        self.block_bytes = 0  # of a block; 0: not known yet
        self.fits = 0  # waiting batches that fit, after a failed allocation
        self.max_bytes = 0  # of all blocks, so far
        self._blocks: list[OwnedWorkspace] = []
        self._open = self._learning = self._workspace(0)
        list_holder(resource, self, GivingOrder.READ_AHEAD)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.config.initial_size for block in self._all)

    @property
    def _all(self) -> list[OwnedWorkspace]:
        chosen = self._chosen
        return [*self._blocks, *(() if chosen is None else (chosen,))]

    @property
    def max_waiting(self) -> float:
        """The number of waiting batches that the allowed blocks can hold."""
        return float("inf") if self._most is None else max(1, self._most - SPARE)

    def fit(self, buffer_size: int) -> None:
        """Allocate blocks for `buffer_size` waiting batches, once their size is known.

        ResourceExhaustedError: there is no memory for them, and `fits` is set.
        """
        if not self.block_bytes:
            return
        chosen, self._chosen = self._chosen, None
        if chosen is not None:
            self._blocks.append(chosen)
        slots = self._slots(buffer_size + SPARE)
        while len(self._blocks) > slots:
            block = self._taken()
            if block is not None:
                block.destroy()
        self._fitting = True
        try:
            self._fill(slots)
            self._choose()
            self.max_bytes = max(self.max_bytes, self.nbytes)
        except ResourceExhaustedError as error:
            raise self._explained(error, buffer_size) from error
        finally:
            self._fitting = False

    def _fill(self, slots: int) -> None:
        """Add blocks; with a budget, as many as there is memory for."""
        while len(self._blocks) < slots:
            needed = len(self._blocks) < _LEAST
            try:
                with nullcontext() if needed else sparing_models():
                    self._blocks.append(self._workspace(self.block_bytes))
            except ResourceExhaustedError:
                if needed or not is_budgeted(self._resource):
                    raise
                self._most = len(self._blocks)
                return

    def destroy(self) -> None:
        """Release the blocks; a live array keeps its block."""
        blocks, self._blocks, self._chosen = self._all, [], None
        for block in (*blocks, self._learning):
            block.destroy()

    @property
    def spare_bytes(self) -> int:
        """Bytes of the blocks that can be given back."""
        if self._gives_nothing:
            return 0
        free = [
            each.config.initial_size for each in self._blocks.copy() if _is_idle(each)
        ]
        return sum(free[: max(0, len(self._all) - _LEAST)])

    def give_back(self, nbytes: int) -> int:
        """Release empty blocks now, and others once their batches are consumed."""
        given = 0
        if self._gives_nothing:
            return given
        for block in self._blocks.copy():
            if given >= nbytes or len(self._all) <= _LEAST:
                break
            with suppress(ValueError):  # another thread has taken it
                if _is_idle(block):
                    self._blocks.remove(block)
                    given += block.config.initial_size
                    block.destroy()
        if self.block_bytes:
            missing = -(-max(0, nbytes - given) // self.block_bytes)
            self._most = max(_LEAST, len(self._all) - missing)
            self._cycles, self._patience = 0, min(2 * self._patience, _MAX_PATIENCE)
        return given

    @property
    def _gives_nothing(self) -> bool:
        """Whether it is allocating blocks, or belongs to the parent of a fork."""
        return self._fitting or fork_count() != self._forks

    def _slots(self, wanted: int) -> int:
        """Return how many blocks there may be, one more from time to time."""
        if self._most is None or self._most >= wanted:
            self._most = None
            return wanted
        self._cycles += 1
        if self._cycles >= self._patience:
            self._cycles = 0
            try:
                with undemanding():
                    self._blocks.append(self._workspace(self.block_bytes))
                self._most += 1
            except ResourceExhaustedError:
                self._patience = min(2 * self._patience, _MAX_PATIENCE)
        return self._most

    def __enter__(self) -> Self:
        chosen = self._chosen
        self._open = self._learning if chosen is None else chosen
        self._open.open()
        if chosen is not None:
            self._blocks.append(chosen)
            self._chosen = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)
        nbytes = self._open.counters()["last_cycle_bytes"]
        if kind is None and nbytes > self.block_bytes:
            larger = int(nbytes * _RESERVE) if self.block_bytes else nbytes
            self.block_bytes = align_up(larger)

    def _choose(self) -> None:
        """Choose the next block: the last used empty one.

        It may still be in the processor's caches. If no block is empty, the least
        recently used is taken: its live arrays keep its memory.
        """
        block = self._taken()
        if block is not None and block.config.initial_size < self.block_bytes:
            block.destroy()
            block = None
        self._chosen = self._workspace(self.block_bytes) if block is None else block

    def _taken(self) -> OwnedWorkspace | None:
        """Remove the next block from the list; return None if there is none."""
        blocks = self._blocks
        for block in reversed(blocks.copy()):
            if _is_empty(block):
                with suppress(ValueError):
                    blocks.remove(block)
                    return block
        return blocks.pop(0) if blocks else None

    def _workspace(self, nbytes: int) -> OwnedWorkspace:
        return _block(nbytes, self._name, self._resource)

    def _explained(
        self, error: ResourceExhaustedError, buffer_size: int
    ) -> ResourceExhaustedError:
        fields = {name: getattr(error, name) for name in ResourceExhaustedError._fields}
        available = self.nbytes + (error.largest_free_bytes or 0)
        alike = all(b.config.initial_size == self.block_bytes for b in self._blocks)
        # While blocks are replaced, the consumer may hold one of another size.
        limit = available // self.block_bytes - SPARE - (0 if alike else 1)
        # If possible, leave the bytes of a block for arrays outside of the ring.
        self.fits = limit - 1 if limit > 1 else limit
        fields["hint"] = (
            f"buffer_size={self.fits} fits."
            if self.fits > 0
            else "No buffer fits: lower the batch size, raise the limit, or read "
            "without prefetch."
        )
        block = format_bytes(self.block_bytes)
        return ResourceExhaustedError(
            f"There is no memory for a ring of {buffer_size + SPARE} blocks of {block} "
            f"(buffer_size={buffer_size}).",
            **fields,
        )


class _Spares:
    """A stack of workspaces that are not borrowed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._free: list[OwnedWorkspace] = []
        self._closed = False

    def release(self, workspace: OwnedWorkspace) -> None:
        self._free.append(workspace)
        if self._closed:
            self.trim()

    def trim(self) -> None:
        """Release the workspaces that are not borrowed; live arrays keep theirs."""
        free, self._free = self._free, []
        for workspace in free.copy():
            workspace.destroy()

    def close(self) -> None:
        """Release all workspaces; borrowed ones when they are returned."""
        self._closed = True
        self.trim()


class BlockPool(_Spares):
    """Blocks for batches made by several threads, as many as are alive at a time."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run)
        self.budgeted = False  # whether AUTOTUNE's budget bounds it
        self.max_bytes = 0  # of all blocks, so far
        self._borrowed = 0  # bytes
        self._name = f"data {name}"
        self._times = 0
        self._needed = 0  # max. blocks in use at a time, in this period

    @property
    def nbytes(self) -> int:
        free = sum(block.config.initial_size for block in self._free.copy())
        return free + self._borrowed

    def borrow(self, nbytes: int) -> OwnedWorkspace | None:
        """Return an empty block; None if there is no memory for one."""
        free = self._free  # another thread may close the pool meanwhile
        self._drop_small(free, nbytes)
        for index in range(len(free) - 1, -1, -1):
            if _is_empty(free[index]):
                block = free.pop(index)
                self._note_need(free, len(free) - index + 1)
                self._borrowed += block.config.initial_size
                return block
        self._note_need(free, len(free) + 1)
        if free_bytes(self._run.resource) < 2 * nbytes or self._is_spent(nbytes):
            return None
        try:
            made = _block(max(1, nbytes), self._name, self._run.resource)
        except ResourceExhaustedError:  # another thread took the memory
            return None
        self._borrowed += made.config.initial_size
        return made

    def _is_spent(self, nbytes: int) -> bool:
        """Return whether the budget lacks room for two more blocks."""
        if not self.budgeted:
            return False
        return self.nbytes + 2 * nbytes > self._run.budget.available(self)

    def release(self, workspace: OwnedWorkspace) -> None:
        size = workspace.config.initial_size
        self._borrowed -= size
        nbytes = self.nbytes + size
        self.max_bytes = max(self.max_bytes, nbytes)
        self._run.budget.set_held(self, nbytes)
        super().release(workspace)

    def _drop_small(self, free: list[OwnedWorkspace], nbytes: int) -> None:
        for block in free.copy():
            if block.config.initial_size < nbytes:
                free.remove(block)
                block.destroy()

    def _note_need(self, free: list[OwnedWorkspace], count: int) -> None:
        """Record the blocks in use; once a period, release those not needed in it."""
        self._times += 1
        self._needed = max(self._needed, count)
        if self._times < _PERIOD:
            return
        for block in free[: -self._needed - _SLACK]:
            if _is_empty(block):
                free.remove(block)
                block.destroy()
        self._times = self._needed = 0


class ScratchPool(_Spares):
    """Workspaces for temporaries, one for each thread that needs one."""

    _size = 0  # bytes, learned by the last workspace returned

    def borrow(self) -> OwnedWorkspace:
        with suppress(IndexError):
            return self._free.pop()
        with suppress(ResourceExhaustedError):
            return scratch(self._run, self._size)
        return scratch(self._run)

    def release(self, workspace: OwnedWorkspace) -> None:
        self._size = workspace.counters()["size"]
        super().release(workspace)


def _block(nbytes: int, name: str, resource: Resource) -> OwnedWorkspace:
    config = WorkspaceConfig(initial_size=nbytes, allocation="strict", learning="none")
    return OwnedWorkspace(config, name, resource=resource)


def scratch(run: Run, size: int = 0) -> OwnedWorkspace:
    """Make a workspace for the temporaries of an element."""
    config = WorkspaceConfig(
        initial_size=size, allocation="strict", spill="reallocate", reclaim=True
    )
    return OwnedWorkspace(config, "data scratch", resource=run.resource)


def _is_idle(block: OwnedWorkspace) -> bool:
    return not block.is_open and _is_empty(block)


def _is_empty(block: OwnedWorkspace) -> bool:
    """Return whether no live array lies in a block."""
    return not block.counters()["live_arrays"]
