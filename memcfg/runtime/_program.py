"""One plan compiled against an arena: instructions with addresses.

Owns the reading of a plan as a list of instructions, where each tensor lies at the
start and at the end of a run, and which inputs can be read elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg import plan as planning
from memcfg._core.engine import Arena, Counter, Kernel
from memcfg._core.engine import Program as Loop
from memcfg.errors import PlanError
from memcfg.runtime._inputs import Readers, fits
from memcfg.runtime._measure import measure
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.devices import BoundlessKernel, Device
    from memcfg.graph import Graph, Op
    from memcfg.runtime._recipes import Recipe
    from memcfg.runtime._report import MemoryReport

__all__ = ["Program", "check_actions"]

_CARRIED_OUT = (planning.Alloc, planning.Free, planning.Alias, planning.Compute)


def check_actions(plan: planning.Plan) -> None:
    """Raise PlanError if the plan has actions that this runtime cannot carry out."""
    for action in plan.actions:
        if not isinstance(action, _CARRIED_OUT):
            raise PlanError(
                f"this runtime cannot carry out {type(action).__name__} yet"
            )


class Program:
    """A graph and its plan, ready to run in an arena.

    Parameters
    ----------
    graph : Graph
        The annotated graph.
    plan : Plan
        Its plan, checked by the validator and by `check_actions`.
    kernels : sequence of BoundlessKernel
        One for each op.
    arena : Arena
        At least ``plan.peak_bytes`` long.
    """

    def __init__(
        self,
        graph: Graph,
        plan: planning.Plan,
        kernels: Sequence[BoundlessKernel],
        arena: Arena,
    ) -> None:
        self.graph = graph
        self.plan = plan
        self.recipe: Recipe | None = None
        self.touched_bytes = 0  # highest end of any room that a kernel was given
        self._bytes = np.frombuffer(memoryview(arena), np.uint8)
        self._loop = Loop(arena)
        self._updates = False  # whether state has begun to change
        self._first: dict[int, int] = {}
        self._rooms: dict[int, int] = {}
        self._unguarded = set(graph.losses)
        self._is_op: list[bool] = []  # for each instruction; the others are guards
        readers = Readers(graph)
        try:
            for action in plan.actions:
                self._compile(action, kernels, readers)
        except BaseException:
            self.close()  # the frames of the error would hold the arena
            raise
        self._inputs = {
            graph.tensors[tensor].name: (
                self._loop.input(operands, graph.tensors[tensor].nbytes),
                graph.tensors[tensor],
            )
            for tensor, operands in readers.movable()
        }
        self._bound: set[str] = set()

    def view(self, name: str, *, at_end: bool) -> npt.NDArray[np.generic]:
        """Return a tensor's room as an array, where it lies before or after a run.

        An input is read there again. Raises KeyError if the tensor has no room then.
        """
        tensor = self.graph.find(name)
        if not at_end and name in self._bound:
            self._unbind(name)
        rooms = self._rooms if at_end else self._first
        if tensor not in rooms:
            when = "end" if at_end else "start"
            raise KeyError(f"tensor {name!r} is not resident at the {when} of a run")
        found = self.graph.tensors[tensor]
        room = self._bytes[rooms[tensor] : rooms[tensor] + found.nbytes]
        return np.ndarray(found.shape or (), np.dtype(found.dtype), room)

    def bind(self, name: str, array: npt.NDArray[Any]) -> bool:
        """Have runs read an input where `array` lies; False if it must be copied."""
        if name in self._bound:
            self._unbind(name)
        if name not in self._inputs:
            self.graph.find(name)
            return False
        number, tensor = self._inputs[name]
        if not fits(tensor, array):
            return False
        self._bound.add(name)  # first: whatever interrupts, `finish` undoes it
        return self._loop.bind(number, array.data)

    def run(self, *, guard: bool, counter: Counter | None = None) -> bool:
        """Run once; False if the guard stopped it at a loss that is not finite."""
        try:
            return self._loop.run(guard, counter) == -1
        except BaseException:
            self.finish()
            raise

    def run_timed(self) -> list[float]:
        """Run once without the guard; seconds of each op.

        The last byte of each scratch room is written before its kernel gets it.
        """
        seconds = self._loop.run_timed()
        return [s for s, is_op in zip(seconds, self._is_op, strict=True) if is_op]

    def finish(self) -> None:
        """Let go of arrays that were read in place of inputs."""
        while self._bound:
            self._unbind(next(iter(self._bound)))

    def give_back(self) -> None:
        """Do nothing: the arena is the executor's."""

    def close(self) -> None:
        """Let go of the arena."""
        del self._loop, self._bytes

    def report(
        self, name: str, device: Device, arena: Arena, *, verify: bool
    ) -> MemoryReport:
        """Tell what a step takes; with `verify`, look at the bytes that change."""
        return measure(self, name, device, arena, verify=verify)

    def _unbind(self, name: str) -> None:
        self._loop.unbind(self._inputs[name][0])
        self._bound.discard(name)

    def _compile(
        self,
        action: planning.Action,
        kernels: Sequence[BoundlessKernel],
        readers: Readers,
    ) -> None:
        match action:
            case planning.Alloc(tensor, offset):
                self._place(tensor, offset)
            case planning.Alias(output, source):
                self._place(output, self._rooms[source])
            case planning.Free(tensor):
                del self._rooms[tensor]
            case planning.Compute(index, _, scratch):
                self._compute(self.graph.ops[index], kernels[index], scratch, readers)

    def _place(self, tensor: int, offset: int) -> None:
        self._rooms[tensor] = offset
        self._first.setdefault(tensor, offset)

    def _compute(
        self, op: Op, kernel: BoundlessKernel, scratch: int | None, readers: Readers
    ) -> None:
        operands = (*op.inputs, *op.outputs)
        if op.phase == "update" and not self._updates:
            self._updates = True
            self._loop.undivided()
        offsets = [self._rooms[tensor] for tensor in operands]
        sizes = [self.graph.tensors[tensor].nbytes for tensor in operands]
        count = len(op.inputs)
        bound = kernel.bind(self._bytes, offsets[:count], offsets[count:])
        movable = isinstance(bound, Kernel)  # a callback's operands stay
        readers.see(len(self._loop), op, self._rooms, movable=movable)
        self._loop.compute(bound, offsets, sizes, scratch)
        self._is_op.append(True)
        ends = list(zip(offsets, sizes, strict=True))
        ends.append((scratch or 0, op.scratch_bytes))
        line = self.plan.alignment
        self.touched_bytes = max(
            self.touched_bytes, *(offset + align_up(n, line) for offset, n in ends)
        )
        for tensor in op.outputs:
            if tensor in self._unguarded:  # else it is computed again
                self._unguarded.discard(tensor)
                self._loop.guard(self._rooms[tensor])
                self._is_op.append(False)
