"""One plan compiled against an arena: instructions with addresses.

Owns the reading of a plan as a list of instructions, where each tensor lies at the
start and at the end of a run, and which inputs can be read elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg import plan as planning
from memcfg._core.engine import Arena, Counter, ScratchFile, codec_bounds
from memcfg.errors import PlanError
from memcfg.runtime._inputs import Readers
from memcfg.runtime._report import MemoryReport, TimelineEntry
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from memcfg.devices import Device, UnboundKernel
    from memcfg.graph import Graph, Op, Tensor
    from memcfg.runtime._kernels import Kernels
    from memcfg.runtime._runnable import Recipe

__all__ = ["Program", "check_actions", "tier_bytes"]

_Swap = planning.SwapOut | planning.SwapIn


def check_actions(plan: planning.Plan, device: Device) -> None:
    """Raise PlanError if the plan names a tier or a codec that there is not."""
    for action in plan.actions:
        if isinstance(action, _Swap) and action.tier not in device.tiers:
            known = ", ".join(device.tiers) or "none"
            raise PlanError(
                f"{device.name} has no tier {action.tier!r} to swap to; it has {known}"
            )
        if isinstance(action, planning.Encode) and action.codec not in codec_bounds(0):
            known = ", ".join(codec_bounds(0))
            raise PlanError(f"there is no codec {action.codec!r}; there are {known}")


def tier_bytes(graph: Graph, plan: planning.Plan, saved: int) -> dict[str, int]:
    """Return what a program takes of each tier, in bytes, the saved state included."""
    sizes = dict(planning.simulate(graph, plan).tier_peak_bytes)
    if saved:
        sizes["host"] = align_up(sizes.get("host", 0)) + saved
    return sizes


def protected(
    graph: Graph, plan: planning.Plan, kernels: Kernels, device: Device
) -> int:
    """Return the bytes of state that are saved on the host before they change.

    After the first update a copy, an encoding or a kernel that runs Python can fail;
    native kernels of a device that is not fallible do not.
    """
    copies = (planning.SwapOut, planning.SwapIn, planning.Encode, planning.Decode)
    changes = fails = False
    for action in plan.actions:
        if isinstance(action, planning.Compute):
            changes = changes or graph.ops[action.op].phase == "update"
            native = kernels.get(action.op, action.algorithm).kernel is not None
            fails = fails or (changes and not native)
        fails = fails or isinstance(action, copies)
    if not changes or not (fails or device.fallible):
        return 0
    return sum(align_up(graph.tensors[tensor].nbytes) for tensor in graph.persistent)


class Program:
    """A graph and its plan, ready to run in an arena."""

    def __init__(
        self,
        graph: Graph,
        plan: planning.Plan,
        kernels: Kernels,
        arena: Arena,
        tiers: Mapping[str, Arena | ScratchFile],
        device: Device,
        sizes: Mapping[str, int],
        saved: int,
    ) -> None:
        self.graph = graph
        self.plan = plan
        self.recipe: Recipe | None = None
        self.touched_bytes = 0  # highest end of any room that a kernel was given
        self.device = device
        self._arena: Arena | None = arena
        # On a device with memory of its own: what stands for operands, with offsets; by
        # name, and whether it is read at the end.
        self._staged: dict[tuple[str, bool], tuple[int, npt.NDArray[Any]]] = {}
        self._tiers = list(sizes)
        self._loop = device.program(arena, {tier: tiers[tier] for tier in sizes})
        self._saved = saved
        self._save_offset = sizes.get("host", 0) - self._saved
        self.instructions: dict[int, int] = {}  # by action: those of ops, copies, waits
        self._encoded: dict[int, tuple[int, int, str]] = {}  # offset, bytes, codec
        self._updates = False  # whether state has begun to change
        self._first: dict[int, int] = {}
        self._rooms: dict[int, int] = {}
        self._unguarded = set(graph.losses)
        self._op_instructions: list[int] = []
        readers = Readers(graph)
        try:
            for index, action in enumerate(plan.actions):
                self._compile(index, action, kernels, readers)
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

    def view(self, name: str, *, at_end: bool) -> npt.NDArray[Any]:
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
        return self._staging(name, self.graph.tensors[tensor], rooms[tensor], at_end)

    def _staging(
        self, name: str, tensor: Tensor, offset: int, at_end: bool
    ) -> npt.NDArray[Any]:
        """Return host memory for an operand; it holds the value of the last run."""
        device, arena = self.device, self.arena
        if (name, at_end) in self._staged:
            return self._staged[name, at_end][1]
        shape, dtype = tensor.shape or (), tensor.dtype or "uint8"
        array = device.staging(arena, offset, shape, dtype)
        if device.space != "host":
            self._staged[name, at_end] = (offset, array)
            device.read(arena, offset, array)
        return array

    @property
    def arena(self) -> Arena:
        """Where the state and all operands lie."""
        assert self._arena is not None
        return self._arena

    def bind(self, name: str, array: npt.NDArray[Any]) -> bool:
        """Have runs read an input where `array` lies; False if it must be copied."""
        if name in self._bound:
            self._unbind(name)
        if name not in self._inputs:
            self.graph.find(name)
            return False
        number, tensor = self._inputs[name]
        if (
            array.shape != tensor.shape
            or array.dtype != tensor.dtype
            or not array.flags.c_contiguous
        ):
            return False
        self._bound.add(name)  # first: whatever interrupts, `finish` undoes it
        return self._loop.bind(number, array.data)

    def run(self, *, guard: bool, counter: Counter | None = None) -> bool:
        """Run once; False if the guard stopped it at a loss that is not finite."""
        try:
            for (_, at_end), (offset, array) in self._staged.items():
                if not at_end:
                    self.device.write(self.arena, offset, array)
            ended: bool = self._loop.run(guard, counter) == -1
            for (_, at_end), (offset, array) in self._staged.items():
                if at_end:
                    self.device.read(self.arena, offset, array)
        except BaseException:
            self.finish()
            raise
        return ended

    def run_timed(self) -> list[float]:
        """Run once without the guard; seconds of each op.

        The last byte of each scratch room is written before its kernel gets it.
        """
        for (_, at_end), (offset, array) in self._staged.items():
            if not at_end:
                self.device.write(self.arena, offset, array)
        seconds = self._loop.run_timed()
        return [seconds[instruction] for instruction in self._op_instructions]

    def finish(self) -> None:
        """Let go of arrays that were read in place of inputs."""
        bound = self._bound
        while bound:
            name = next(iter(bound))
            self._loop.unbind(self._inputs[name][0])
            bound.discard(name)

    def give_back(self) -> None:
        """Do nothing: the arena is the executor's."""

    def close(self) -> None:
        """Let go of the arena."""
        del self._loop
        self._arena = None
        self._staged.clear()

    def report(
        self, name: str, device: Device, arena: Arena, *, verify: bool
    ) -> MemoryReport:
        """Tell what a step takes; with `verify`, look at the bytes that change."""
        return measure(self, name, verify=verify)

    def _unbind(self, name: str) -> None:
        self._loop.unbind(self._inputs[name][0])
        self._bound.discard(name)

    def _compile(
        self,
        index: int,
        action: planning.Action,
        kernels: Kernels,
        readers: Readers,
    ) -> None:
        match action:
            case planning.Alloc(tensor, offset):
                self._place(tensor, offset)
            case planning.Alias(output, source):
                self._place(output, self._rooms[source])
            case planning.Free(tensor):
                if self._rooms.pop(tensor, None) is None:
                    del self._encoded[tensor]
            case planning.Compute(op, algorithm, scratch):
                kernel = kernels.get(op, algorithm)
                self.instructions[index] = self._compute(
                    self.graph.ops[op], kernel, scratch, readers
                )
            case planning.SwapOut() | planning.SwapIn():
                readers.fix(action.tensor)
                self.instructions[index] = self._copy(action)
            case planning.Wait(target):
                event = self.instructions[target]
                self.instructions[index] = self._loop.wait(0, event)
            case planning.Encode():
                readers.fix(action.tensor)
                self._encode(action)
            case planning.Decode(tensor, offset):
                self._decode(tensor, offset)

    def _copy(self, action: planning.SwapOut | planning.SwapIn) -> int:
        """Start a copy on the lane of its tier and direction."""
        tier = self._tiers.index(action.tier)
        assert action.offset is not None  # every copy has been placed
        here = (0, self._rooms[action.tensor])
        there = (1 + tier, action.offset)
        nbytes = self.graph.tensors[action.tensor].nbytes
        if isinstance(action, planning.SwapOut):
            return self._loop.copy(1 + 2 * tier, here, there, nbytes)
        return self._loop.copy(2 + 2 * tier, there, here, nbytes)

    def _encode(self, action: planning.Encode) -> None:
        source = self._rooms[action.tensor]
        nbytes = self.graph.tensors[action.tensor].nbytes
        self._loop.encode(action.codec, source, nbytes, action.offset, action.nbytes)
        self._encoded[action.tensor] = (action.offset, action.nbytes, action.codec)
        self._touch(action.offset, action.nbytes)

    def _decode(self, tensor: int, offset: int) -> None:
        source, capacity, codec = self._encoded.pop(tensor)
        nbytes = self.graph.tensors[tensor].nbytes
        self._place(tensor, offset)
        self._loop.decode(codec, source, capacity, offset, nbytes)
        self._touch(offset, nbytes)

    def _touch(self, offset: int, nbytes: int) -> None:
        end = offset + align_up(nbytes, self.plan.alignment)
        self.touched_bytes = max(self.touched_bytes, end)

    def _place(self, tensor: int, offset: int) -> None:
        self._rooms[tensor] = offset
        self._first.setdefault(tensor, offset)

    def _compute(
        self, op: Op, kernel: UnboundKernel, scratch: int | None, readers: Readers
    ) -> int:
        operands = (*op.inputs, *op.outputs)
        if op.phase == "update" and not self._updates:
            self._updates = True
            self._loop.undivided()
            if self._saved:
                host = 1 + self._tiers.index("host")
                self._loop.protect(self._saved, (host, self._save_offset))
        offsets = [self._rooms[tensor] for tensor in operands]
        sizes = [self.graph.tensors[tensor].nbytes for tensor in operands]
        base = self.arena.address
        bound = kernel.instruction([base + offset for offset in offsets])
        movable = kernel.kernel is not None  # what else runs finds them there
        number = self._loop.compute(bound, offsets, sizes, scratch)
        readers.see(number, op, self._rooms, movable=movable)
        self._op_instructions.append(number)
        for offset, nbytes in zip(offsets, sizes, strict=True):
            self._touch(offset, nbytes)
        if scratch is not None:
            self._touch(scratch, kernel.scratch_bytes)
        for tensor in op.outputs:
            if tensor in self._unguarded:  # else it is computed again
                self._unguarded.discard(tensor)
                self._loop.guard(self._rooms[tensor])
        return number


# -- measuring ------------------------------------------------------------------

# A predicted peak is checked against bytes: the arena above the state is filled with
# a pattern, the step runs, and the highest byte that differs tells how far it
# reached. Two patterns, since a step may write a byte that equals one of them. With
# each pattern the step runs twice: plainly, which shows what the kernels change by
# themselves, and timed, with the end of every scratch room marked as in use. State is
# put back afterwards.

_CANARIES = (0xA5, 0x3C)
_CHUNK = 1 << 20  # bytes looked at in one go


class _Moment(NamedTuple):
    """The rooms while one op runs: (offset, bytes, role)."""

    op: Op
    rooms: tuple[tuple[int, int, str], ...]

    @property
    def live_bytes(self) -> int:
        return sum(nbytes for _, nbytes, _ in self.rooms)

    @property
    def top_bytes(self) -> int:
        return max((offset + nbytes for offset, nbytes, _ in self.rooms), default=0)


def measure(program: Program, name: str, *, verify: bool) -> MemoryReport:
    """Report on a program; with `verify`, run it against a canary first."""
    device, arena = program.device, program.arena
    moments = _moments(program.graph, program.plan)
    seconds: list[float | None] = [None] * len(moments)
    peak, changed = program.touched_bytes, None
    if verify:
        peak, changed, seconds = _verify(program)
    busiest = max(moments, key=lambda moment: moment.live_bytes)
    return MemoryReport(
        program=name,
        device=device.name,
        limit_bytes=device.pool.limit,
        predicted_peak_bytes=program.plan.peak_bytes,
        measured_peak_bytes=peak,
        changed_peak_bytes=changed,
        verified=verify,
        arena_bytes=arena.nbytes,
        by_role=_by_role(busiest),
        timeline=tuple(
            TimelineEntry(m.op.name, m.op.phase, m.live_bytes, m.top_bytes, s)
            for m, s in zip(moments, seconds, strict=True)
        ),
    )


def _verify(program: Program) -> tuple[int, int, list[float | None]]:
    """Return the end of what is in use, of what kernels change, and seconds an op."""
    device, arena = program.device, program.arena
    state = _state_end(program)
    saved = np.empty(state, np.uint8)
    device.read(arena, 0, saved)
    used = changed = 0
    seconds: list[float] = []

    def plain() -> None:
        program.run(guard=False)

    def timed() -> None:
        seconds[:] = program.run_timed()

    try:
        for canary in _CANARIES:
            changed = max(changed, _reach(program, state, canary, plain))
            device.write(arena, 0, saved)
            used = max(used, _reach(program, state, canary, timed))
            device.write(arena, 0, saved)
    finally:
        device.write(arena, 0, saved)
    line = program.plan.alignment
    ends = [align_up(state + reach, line) for reach in (used, changed)]
    return ends[0], ends[1], list(seconds)


def _reach(program: Program, state: int, canary: int, run: Callable[[], None]) -> int:
    """Fill what lies above the state, run, and find the end of what changed there."""
    chunk = np.full(_CHUNK, canary, np.uint8)
    for start, stop in _chunks(program, state):
        program.device.write(program.arena, start, chunk[: stop - start])
    _feed(program)
    run()
    for start, stop in reversed(_chunks(program, state)):
        found = chunk[: stop - start]
        program.device.read(program.arena, start, found)
        changed = np.flatnonzero(found != canary)
        if changed.size:
            return start - state + int(changed[-1]) + 1
    return 0


def _chunks(program: Program, state: int) -> list[tuple[int, int]]:
    end = program.arena.nbytes
    return [(at, min(at + _CHUNK, end)) for at in range(state, end, _CHUNK)]


def _state_end(program: Program) -> int:
    state = program.graph.persistent
    sizes = (align_up(program.graph.tensors[tensor].nbytes) for tensor in state)
    return sum(sizes)  # every plan places state first, without gaps


def _feed(program: Program) -> None:
    """Write made-up input: small numbers, labels and step zero."""
    rng = np.random.default_rng(0)
    for i, tensor in enumerate(program.graph.tensors):
        if tensor.role == "input" and program.graph.producer[i] is None:
            room = program.view(tensor.name, at_end=False)
            room[...] = 0
            if room.dtype.kind == "f" and room.ndim:
                room[...] = rng.standard_normal(room.shape, np.float32)


def _moments(graph: Graph, plan: planning.Plan) -> list[_Moment]:
    """Walk the plan; an aliased tensor shares its room, which counts once."""
    rooms: dict[int, int] = {}  # tensor -> offset
    encoded: dict[int, tuple[int, int, str]] = {}  # tensor -> its encoding
    moments: list[_Moment] = []
    for action in plan.actions:
        match action:
            case planning.Alloc(tensor, offset):
                rooms[tensor] = offset
            case planning.Alias(output, source):
                rooms[output] = rooms[source]
            case planning.Free(tensor):
                if rooms.pop(tensor, None) is None:
                    del encoded[tensor]
            case planning.Encode(tensor, _, nbytes, offset):
                role = graph.tensors[tensor].role
                encoded[tensor] = (offset, align_up(nbytes, plan.alignment), role)
            case planning.Decode(tensor, offset):
                rooms[tensor] = offset
                del encoded[tensor]
            case planning.Compute(index, algorithm, scratch):
                op = graph.ops[index]
                nbytes = next(
                    (a.scratch_bytes for a in op.algorithms if a.name == algorithm),
                    op.scratch_bytes,
                )
                own = None if scratch is None else (scratch, nbytes)
                moment = _moment(graph, plan.alignment, op, rooms, own)
                both = (*moment.rooms, *encoded.values())
                moments.append(moment._replace(rooms=both))
            case _:
                pass
    return moments


def _moment(
    graph: Graph,
    line: int,
    op: Op,
    rooms: dict[int, int],
    scratch: tuple[int, int] | None,
) -> _Moment:
    found: dict[int, tuple[int, int, str]] = {}
    for tensor, offset in rooms.items():
        entry = graph.tensors[tensor]
        if offset not in found or align_up(entry.nbytes, line) > found[offset][1]:
            found[offset] = (offset, align_up(entry.nbytes, line), entry.role)
    used = list(found.values())
    if scratch is not None and scratch[1]:
        used.append((scratch[0], align_up(scratch[1], line), "scratch"))
    return _Moment(op, tuple(used))


def _by_role(moment: _Moment) -> dict[str, int]:
    total: dict[str, int] = {}
    for _, nbytes, role in moment.rooms:
        total[role] = total.get(role, 0) + nbytes
    return total
