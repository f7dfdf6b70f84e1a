"""Programs: plans compiled to instructions with addresses in an arena.

Owns the compilation of a plan and its placement, the places of tensors at the start and
at the end of a run, and the inputs that can be bound to a caller's array.

See docs/decisions/0016-a-step-is-one-act.md.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg import plan as planning
from memcfg._advice import larger_limit_or
from memcfg.errors import KernelError, ResourceExhaustedError
from memcfg.ops._dtypes import array_dtype
from memcfg.ops.collectives import COLLECTIVES
from memcfg.ops.sections import BESIDE
from memcfg.plan.format._discards import choose_discards
from memcfg.runtime._caller_arrays import Readers, Results, aligned_empty
from memcfg.runtime._kernels import Copied
from memcfg.runtime._placement import ARENA
from memcfg.runtime._report import CodingEntry, MemoryReport, TimelineEntry
from memcfg.runtime._state import (
    PackedState,
    Slot,
    model_tag,
    state_bytes,
    state_offsets,
)
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from memcfg._core import Program as Loop
    from memcfg._core.engine import Arena, Counter
    from memcfg.devices import Device, TierSpace
    from memcfg.graph import Graph, Op
    from memcfg.runtime._mapped_workspaces import MappedWorkspaces
    from memcfg.runtime._program_specs import ProgramSpec
    from memcfg.timeline import MemoryTimeline

__all__ = ["Program"]

_TIMED_STEPS = 3  # more than one, since the first touches new pages
_HEADER = 64  # max. bytes by which an encoded copy exceeds the tensor
_SHORTEST = 1e-9  # seconds; the clock may measure 0
_LATE = 0.01  # fraction of a copy's time; shorter waits do not count as waits
_SOON = 1e-5  # seconds; even a wait for a finished copy may take so long

_Place = tuple[int, int]  # space, offset


class _Codes:
    """The encoding instructions of a plan."""

    def __init__(self) -> None:
        self.here: dict[int, tuple[planning.Encode, int]] = {}  # by tensor
        self.sent: dict[tuple[int, str], int] = {}  # by tensor and tier
        self.all: list[tuple[int, planning.Encode | planning.SwapOut]] = []


class Program:
    """A graph compiled with its plan and placement, to run in the arena of a model.

    State lies at the start of the arena. A placement may put other tensors into buffers
    of the pool. With buffers, a step begins with the first `view` or `bind` of an
    input, or with `run`, and its results are valid until `finish`. Results outside of
    the arena are written into arrays that are passed to `lend` before each `run`.
    """

    _staged_count = 0  # collectives whose operands are copied to the host

    def __init__(
        self,
        spec: ProgramSpec,
        arena: Arena,
        tiers: Mapping[str, TierSpace],
        device: Device,
        owner: str,
        packed: PackedState,
        files: MappedWorkspaces,
    ) -> None:
        self.spec = spec
        self._packed = packed
        self._packer: Loop | None = None  # packs weights next to the plain ones
        self.graph = spec.graph
        self.touched_bytes = 0  # highest end of a kernel's operand in the arena
        self.device = device
        self._arena: Arena | None = arena
        # On a device with its own memory: offsets and host arrays of operands, by
        # (name, whether read after the run).
        self._staged: dict[tuple[str, bool], tuple[int, npt.NDArray[Any]]] = {}
        self._tiers = list(spec.tier_bytes)
        own = {tier: tiers[tier] for tier in self._tiers}
        self._loop: Loop = device.program(arena, own, network=_any_beside(spec.graph))
        self.instructions: dict[int, int] = {}  # by action, of ops, copies and waits
        self._ops: dict[int, Op] = {}  # by instruction, of ops and allocations
        self._op_instructions: list[int] = []
        self._codes = _Codes()
        self._updates = False  # whether the first update is compiled
        self._first: dict[int, _Place] = {}
        self._places: dict[int, _Place] = {}
        self._unguarded = set(spec.graph.losses)
        self.results = Results(spec.graph)
        self._spaces: list[int] = []  # of the buffers
        self._kept_spaces: set[int] = set()  # of buffers kept for the next step
        # By index of an op's action: buffers to allocate before it and free after it.
        self._begins: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int | None, list[int]] = defaultdict(list)
        # State of a step in buffers: begun, run, and run to the end, when only buffers
        # that live until the end are still held.
        # And whether it may hold buffers kept for the next step.
        self._begun = self._ran = self._whole = self._holds = False
        self._alignment = spec.plan.alignment
        readers = Readers(spec.graph)
        try:
            self._add_buffers(owner, files)
            self._compile_plan(readers)
            if spec.packed:
                self._packer = self._compile_packer(spec)
        except BaseException:
            self.close()  # the traceback would keep the arena
            raise
        self._inputs = {
            spec.graph.tensors[tensor].name: (
                self._loop.input(operands, spec.graph.tensors[tensor].nbytes),
                tensor,
            )
            for tensor, operands in readers.movable()
        }
        self._bound: set[str] = set()
        self._untimed = _timed_steps(spec)
        self.least_seconds = math.inf  # of the fastest timed step
        self.due = False  # whether all timed steps are done

    @property
    def arena(self) -> Arena:
        """The arena of the state and, in planned programs, of all operands."""
        assert self._arena is not None
        return self._arena

    def view(self, name: str, *, at_end: bool) -> npt.NDArray[Any]:
        """Return a tensor as an array at its place before or after a run.

        An input's binding to a caller's array ends. Raises KeyError if the tensor is
        not resident then, and ResourceExhaustedError if a step cannot begin.
        """
        tensor = self.graph.find(name)
        if not at_end and name in self._bound:
            self._unbind(name)
        place = (self._places if at_end else self._first).get(tensor)
        if place is not None and place[0]:
            if not at_end:
                self._take(tensor)
            elif not self._ran:
                place = None
        if place is None:
            when = "end" if at_end else "start"
            raise KeyError(f"tensor {name!r} is not resident at the {when} of a run")
        return self._array(tensor, place, at_end=at_end)

    def _array(self, tensor: int, place: _Place, *, at_end: bool) -> npt.NDArray[Any]:
        """Return an operand, or a host array with its value of the last run."""
        device, arena, (space, offset) = self.device, self.arena, place
        result = self.graph.tensors[tensor]
        shape, dtype = result.shape or (), array_dtype(result.dtype or "uint8").str
        if space:
            buffer = self._loop.buffer(space)
            if buffer is None:  # a guard stopped the run earlier
                raise KeyError(f"tensor {result.name!r} was not computed")
            return np.ndarray(shape, dtype, memoryview(buffer), offset)
        if (result.name, at_end) in self._staged:
            return self._staged[result.name, at_end][1]
        array = device.staging(arena, offset, shape, dtype)
        if device.space != "host":
            self._staged[result.name, at_end] = (offset, array)
            device.read(arena, offset, array)
        return array

    def bind(self, name: str, array: npt.NDArray[Any]) -> bool:
        """Make runs read an input from `array`; return False if it must be copied.

        The memory of a step does not depend on it.
        """
        if name in self._bound:
            self._unbind(name)
        if name not in self._inputs:
            self.graph.find(name)
            return False
        number, tensor = self._inputs[name]
        expected = self.graph.tensors[tensor]
        if (
            array.shape != expected.shape
            or array.dtype != expected.dtype
            or not array.flags.c_contiguous
        ):
            return False
        if self._first[tensor][0]:
            self._take(tensor)
        self._bound.add(name)  # before binding, so that `finish` can undo it
        return self._loop.bind(number, array.data)

    def lend(self, name: str, array: npt.NDArray[Any]) -> None:
        """Make runs write a result outside of the arena into `array`, until `finish`.

        Raises ValueError unless the array has the result's shape and dtype, is writable
        and C-contiguous, and begins at a multiple of 64 outside of the arena.
        """
        self.results.lend(self._loop, name, array)

    def run(self, *, guard: bool, counter: Counter | None = None) -> bool:
        """Run once; return False if the guard stopped at a loss that is not finite.

        An exception ends the step and its bindings. Signal handlers do not interrupt
        the ops from the first update on. Raises RuntimeError if a result outside of the
        arena has no array.
        """
        try:
            if self.results.tensors:
                self.results.check()
            if self._staged or self._spaces:
                self._write_inputs()
            if self._packed.program is not self:
                self._pack()
            timed = self._untimed > 0
            began = time.perf_counter() if timed else 0.0
            try:
                ended: bool = self._loop.run(guard, counter, timed) == -1
            except (KernelError, ResourceExhaustedError) as error:
                self._explain(error)
                raise
            for (_, at_end), (offset, array) in self._staged.items():
                if at_end:
                    self.device.read(self.arena, offset, array)
            self._whole = ended
            if timed and ended:
                self._note(time.perf_counter() - began)
        except BaseException:
            self.finish()
            raise
        return ended

    def _note(self, seconds: float) -> None:
        """Record the seconds of a timed step, including waits."""
        self.least_seconds = min(self.least_seconds, seconds)
        self._untimed -= 1
        self.due = not self._untimed

    def least_of_instructions(self) -> list[float]:
        """Return the shortest time of each instruction in timed steps, in seconds."""
        return self._loop.least_seconds()

    def took(self) -> dict[object, float]:
        """Return the seconds of ops in the timed steps, by the kernels' keys.

        For each instruction they are the minimum over the steps, for equal ops the mean
        of these. Seconds per byte of unencoded copies are those of the slower
        direction. Seconds of collectives depend on other ranks and are not returned.
        """
        least = self.least_of_instructions()
        by_key: dict[object, list[float]] = defaultdict(list)
        for index, action in enumerate(self.spec.plan.actions):
            if isinstance(action, planning.Compute) and not self._is_beside(action):
                took = max(least[self.instructions[index]], _SHORTEST)
                by_key[self.spec.kernels.key(action.op)].append(took)
        means: dict[object, float] = {}
        means.update((key, sum(row) / len(row)) for key, row in by_key.items())
        means.update(self._copied().items())
        return means

    def _copied(self) -> dict[Copied, float]:
        """Return the seconds per byte of unencoded copies, by tier."""
        least = self.least_of_instructions()
        nbytes: dict[tuple[str, type], int] = defaultdict(int)
        seconds: dict[tuple[str, type], float] = defaultdict(float)
        coded: set[tuple[int, str]] = set()  # (tensor, tier) that are encoded
        for index, action in enumerate(self.spec.plan.actions):
            if not isinstance(action, planning.SwapOut | planning.SwapIn):
                continue
            there = action.tensor, action.tier
            if isinstance(action, planning.SwapOut):
                (coded.discard if action.codec is None else coded.add)(there)
            if there not in coded:
                way = action.tier, type(action)
                nbytes[way] += self.graph.tensors[action.tensor].nbytes
                seconds[way] += max(least[self.instructions[index]], _SHORTEST)
        result: dict[Copied, float] = {}
        for (tier, kind), moved in nbytes.items():
            if moved:
                key = Copied(tier)
                result[key] = max(result.get(key, 0.0), seconds[tier, kind] / moved)
        return result

    def rates(self) -> dict[str, float]:
        """Return the bytes per second that lanes copied in the timed steps, by tier.

        The rates are over both directions and all copies, encoded or not, for feedback
        on single copies; `took` has those of the slower direction, for planning.
        """
        least = self.least_of_instructions()
        nbytes: dict[str, int] = defaultdict(int)
        seconds: dict[str, float] = defaultdict(float)
        for index, action in enumerate(self.spec.plan.actions):
            if isinstance(action, planning.SwapOut | planning.SwapIn):
                nbytes[action.tier] += self.graph.tensors[action.tensor].nbytes
                took = least[self.instructions[index]]
                seconds[action.tier] += max(took, _SHORTEST)
        return {tier: nbytes[tier] / seconds[tier] for tier in nbytes if nbytes[tier]}

    def happened(self) -> planning.Simulation:
        """Return the timed steps as a simulation, by each instruction's shortest time.

        Waits shorter than a hundredth of the copy's time count as 0.
        """
        plan = self.spec.plan
        least = self.least_of_instructions()
        took = {index: least[each] for index, each in self.instructions.items()}
        now: dict[str, float] = defaultdict(float)
        schedule = []
        for index, queue in self._queues().items():
            action, seconds = plan.actions[index], took[index]
            begin = max(now["compute"], now[queue])
            if queue == "network" and not isinstance(action, planning.Start):
                now["compute"] = begin + seconds
            elif isinstance(action, planning.Wait):
                shortest = max(_LATE * took[action.action], _SOON)
                seconds = seconds if seconds > shortest else 0.0
            now[queue] = begin + seconds
            schedule.append(planning.Scheduled(index, queue, begin, now[queue]))
        result = planning.simulate(self.graph, plan)
        return replace(
            result, schedule=tuple(schedule), elapsed_seconds=self.least_seconds
        )

    def settle(self, spec: ProgramSpec) -> None:
        """Replace the spec by one of the same program, and end the timing of steps."""
        self.spec, self.graph = spec, spec.graph
        self._untimed, self.due = 0, False

    def _write_inputs(self) -> None:
        """Begin a step: write staged inputs and allocate the inputs' buffers."""
        for (_, at_end), (offset, array) in self._staged.items():
            if not at_end:
                self.device.write(self.arena, offset, array)
        if self._spaces:
            fed = [t for t, place in self._first.items() if place[0]]
            for tensor in fed or (None,):
                self._take(tensor)
            self._ran = True

    def forget_packed(self) -> None:
        """Make the next run pack its weights again, as the state has been written."""
        self._packed.program = None

    def pack(self) -> None:
        """Pack the weights, unless they are up to date."""
        if self._packed.program is not self:
            self._pack()

    def _pack(self) -> None:
        """Pack the weights; the run may overwrite those of another program."""
        self._packed.program = None
        self._packed.bring(self.device, self.arena, _slots(self.spec))
        if self._packer is not None:
            self._packer.run(False)
        self._packed.program = self

    def _explain(self, error: KernelError | ResourceExhaustedError) -> None:
        """Raise the error of a run again with the name of the op that failed."""
        index = self._loop.failed_at
        op = None if index is None else self._ops.get(index)
        if op is None:
            return
        if isinstance(error, KernelError):
            raise KernelError(f"op {op.name!r} failed: {error}") from error
        raise self._explained(error, f"op {op.name!r}") from error

    def _explained(
        self, error: ResourceExhaustedError, what: str
    ) -> ResourceExhaustedError:
        """Return an error that says what the memory was needed for."""
        names = ResourceExhaustedError._fields
        fields = {name: getattr(error, name) for name in names}
        ways = larger_limit_or(self.graph.batch_size, "give memory back")
        fields["hint"] = (
            f"Weights and optimizer are as before the step. {ways} Planned programs "
            "(workspace mode 'enabled') need least."
        )
        return ResourceExhaustedError(f"There is no memory for {what}.", **fields)

    def _take(self, tensor: int | None) -> None:
        """Allocate an input's buffer, if given; begin a new step if needed."""
        if self._ran:
            self.finish()
        try:
            if not self._begun:
                for space in self._kept_spaces:  # a new one if arrays use the old
                    self._holds = True
                    self._loop.take(space, shared=False)
                self._begun = True
            if tensor is not None:
                self._loop.take(self._first[tensor][0])
        except ResourceExhaustedError as error:
            self.give_back()
            what = "a step"
            if tensor is not None:
                what += f" with input {self.graph.tensors[tensor].name!r}"
            raise self._explained(error, what) from error
        except BaseException:
            self.give_back()
            raise

    def run_timed(self) -> tuple[list[float], list[int]]:
        """Run once without the guard; return the seconds and the pool's bytes by op.

        The last byte of each op's scratch is written before the kernel runs.
        """
        self._write_inputs()
        self.pack()
        try:
            seconds, in_use = self._loop.run_timed(self.device.pool)
        except (KernelError, ResourceExhaustedError) as error:
            self._explain(error)
            raise
        places = self._op_instructions
        return [seconds[i] for i in places], [in_use[i] for i in places]

    def finish(self) -> None:
        """End a step: unbind arrays, and free buffers of its results.

        Views of results keep their buffers.
        """
        bound = self._bound
        while bound:
            name = next(iter(bound))
            self._loop.unbind(self._inputs[name][0])
            bound.discard(name)
        if self.results.tensors:
            self.results.end(self._loop)
        for space in self._ends[None] if self._whole else self._spaces:
            if space not in self._kept_spaces:
                self._loop.drop(space)
        # Last, so that an interrupted call is repeated.
        self._begun = self._ran = self._whole = False

    def give_back(self) -> None:
        """End the step, and free the buffers kept for the next one, too."""
        self.finish()
        for space in self._kept_spaces:
            self._loop.drop(space)
        self._holds = False

    @property
    def is_amid_step(self) -> bool:
        """Whether a step in buffers has begun and is not finished."""
        return self._begun

    @property
    def kept(self) -> dict[str, int]:
        """Bytes of the buffers kept for the next step, by name."""
        if not self._holds:
            return {}
        buffers = self.spec.placement.buffers
        return {each.name: each.nbytes for each in buffers if each.kept}

    def close(self) -> None:
        """Release the arena and all buffers; the program cannot be used afterwards.

        Tracebacks that a caller keeps may keep the program alive, but not its memory.
        """
        self._holds = False
        del self._loop
        self._packer = None
        if self._packed.program is self:
            self._packed.program = None
        self._arena = None
        self._staged.clear()

    def _unbind(self, name: str) -> None:
        self._loop.unbind(self._inputs[name][0])
        self._bound.discard(name)

    def _compile_packer(self, spec: ProgramSpec) -> Loop:
        loop: Loop = self.device.program(self.arena, {})
        for each in spec.packed:
            tensors = (*each.weights, each.packed)
            loop.compute(
                each.kernel.instruction(),
                [self._first[tensor] for tensor in tensors],
                [self.graph.tensors[tensor].nbytes for tensor in tensors],
                None,
            )
        return loop

    def _add_buffers(self, owner: str, files: MappedWorkspaces) -> None:
        """Add the buffers of the placement, and when to allocate and free each."""
        spec, tag = self.spec, model_tag(owner)
        self.results.add_buffers(self._loop, self.device.pool, tag)
        for each in spec.placement.buffers:
            name = f"{tag}: {each.name}" if each.name else tag
            # No local variable for a file: a traceback would keep it open.
            space = self._loop.add_buffer(
                self.device.pool if each.config is None else files.get(each),
                each.nbytes,
                name,
            )
            self._spaces.append(space)
            if each.kept:
                self._kept_spaces.add(space)
        lives = spec.placement.lifetimes(spec.graph, spec.plan)
        for space, life in zip(self._spaces, lives, strict=True):
            if space not in self._kept_spaces:
                self._begins[life.first].append(space)
                self._ends[life.last].append(space)

    def _in_buffer(self, place: tuple[int, int]) -> _Place:
        buffer, offset = place
        return (0 if buffer == ARENA else self._spaces[buffer]), offset

    def _home(self, tensor: int, offset: int) -> _Place | None:
        """Return the place of an allocated tensor; None if no op reads it."""
        spec = self.spec
        if tensor in self.results.places:
            return self.results.places[tensor]
        if spec.mode is None or tensor in spec.graph.persistent:
            return 0, offset
        result = spec.placement.tensors.get(tensor)
        return None if result is None else self._in_buffer(result)

    def _scratch(self, action: planning.Compute) -> _Place | None:
        """Return the place of an op's scratch, or None."""
        result = self.spec.placement.scratch.get(action.op)
        if result is not None:
            return self._in_buffer(result)
        return None if action.scratch_offset is None else (0, action.scratch_offset)

    def _compile_plan(self, readers: Readers) -> None:
        sizes, discards = self.results.sizes, None
        if sizes:
            nbytes = sum(sizes[tensor] for tensor in self.results.tensors.values())
            discards = choose_discards(self.graph, self.spec.plan, sizes, nbytes)
        for index, action in enumerate(self.spec.plan.actions):
            if discards is not None and index == discards.action:
                for span in discards.spans:
                    self._loop.discard(*span)
            self._compile(index, action, readers)
        self.results.declare(self._loop)

    def _compile(self, index: int, action: planning.Action, readers: Readers) -> None:
        match action:
            case planning.Alloc(tensor, offset):
                self._place(tensor, self._home(tensor, offset))
            case planning.Alias(output, source):
                self._place(output, self._places[source])
            case planning.Free(tensor):
                if self._places.pop(tensor, None) is None:
                    self._codes.here.pop(tensor, None)
            case planning.Compute():
                self._take_and_compute(index, action, readers)
            case planning.SwapOut() | planning.SwapIn():
                readers.fix(action.tensor)
                self.instructions[index] = self._copy(action)
            case planning.Wait(target):
                self.instructions[index] = self._wait(target)
            case planning.Encode():
                readers.fix(action.tensor)
                self.instructions[index] = self._encode(action)
            case planning.Decode(tensor, offset):
                self.instructions[index] = self._decode(tensor, offset)

    def _take_and_compute(
        self, index: int, action: planning.Compute, readers: Readers
    ) -> None:
        """Append an op, with the buffers allocated before it and freed after it."""
        for space in self._begins[index]:
            self._ops[self._loop.allocate(space)] = self.graph.ops[action.op]
        self.instructions[index] = self._compute(action, readers)
        for space in self._ends[index]:
            self._loop.free(space)

    def _copy(self, action: planning.SwapOut | planning.SwapIn) -> int:
        """Append a copy on the lane of its tier and direction."""
        tier = self._tiers.index(action.tier)
        assert action.offset is not None  # set by `with_copies_placed`
        here = self._places[action.tensor]
        there = (1 + tier, action.offset)
        nbytes = self.graph.tensors[action.tensor].nbytes
        key, lane = (action.tensor, action.tier), 1 + 2 * tier
        if isinstance(action, planning.SwapIn):
            if key in self._codes.sent:
                return self._loop.copy_decoded(lane + 1, self._codes.sent[key], here[1])
            return self._loop.copy(lane + 1, there, here, nbytes)
        if action.codec is None:
            self._codes.sent.pop(key, None)
            return self._loop.copy(lane, here, there, nbytes)
        room = align_up(nbytes + _HEADER)
        made = self._loop.copy_encoded(lane, action.codec, here[1], nbytes, there, room)
        self._codes.sent[key] = made
        self._codes.all.append((made, action))
        return made

    def _encode(self, action: planning.Encode) -> int:
        _, source = self._places[action.tensor]
        nbytes = self.graph.tensors[action.tensor].nbytes
        code = (action.codec, source, nbytes, action.offset, action.nbytes)
        if action.tier is None:
            made = self._loop.encode(*code)
        else:
            assert action.overflow is not None  # set by `with_copies_placed`
            place = (1 + self._tiers.index(action.tier), action.overflow)
            made = self._loop.encode(*code, place)
        self._codes.here[action.tensor] = action, made
        self._codes.all.append((made, action))
        self._touch(((0, action.offset), action.nbytes))
        return made

    def _decode(self, tensor: int, offset: int) -> int:
        action, encoding = self._codes.here.pop(tensor)
        nbytes = self.graph.tensors[tensor].nbytes
        self._place(tensor, (0, offset))
        code = (action.codec, action.offset, action.nbytes, offset, nbytes)
        if action.tier is None:
            made = self._loop.decode(*code)
        else:
            made = self._loop.decode(*code, encoding)
        self._touch(((0, offset), nbytes))
        return made

    def codings(self) -> tuple[CodingEntry, ...]:
        """Return the planned and the used bytes of each encoding."""
        result = []
        for instruction, action in self._codes.all:
            runs, raw, used = self._loop.coded(instruction)
            own = self.graph.tensors[action.tensor]
            codec, planned = action.codec or "", action.nbytes or 0
            entry = (own.name, codec, own.nbytes, planned, used, runs, raw)
            result.append(CodingEntry(*entry))
        return tuple(result)

    def _touch(self, *ranges: tuple[_Place, int]) -> None:
        """Note that an op uses bytes at these places, if they are in the arena."""
        line, end = self._alignment, self.touched_bytes
        for (space, offset), nbytes in ranges:
            if space == 0:
                end = max(end, offset - (-nbytes // line) * line)
        self.touched_bytes = end

    def _place(self, tensor: int, place: _Place | None) -> None:
        if place is None:
            return
        self._places[tensor] = place
        if self.spec.mode is None or self.graph.producer[tensor] is None:
            self._first.setdefault(tensor, place)

    def _is_beside(self, action: planning.Compute) -> bool:
        """Return whether an action computes an op of the queue beside compute."""
        return self.graph.ops[action.op].type in BESIDE

    def _compute(self, action: planning.Compute, readers: Readers) -> int:
        """Append an op; a collective on the network, where all run in order."""
        op, scratch = self.graph.ops[action.op], self._scratch(action)
        if self.spec.staged_bytes and op.type in COLLECTIVES:
            scratch = self._staging()
        kernel = self.spec.kernels.get(action.op, action.algorithm)
        operands = (*op.inputs, *op.outputs)
        if op.phase == "update" and not self._updates:
            self._updates = True
            self._loop.undivided()
            saved = self.spec.saved_bytes
            if saved:
                host = 1 + self._tiers.index("host")
                behind = self.spec.tier_bytes["host"] - saved
                self._loop.protect(saved, (host, behind))
        places = [self._places[tensor] for tensor in operands]
        outside = self.results.sizes
        sizes = [
            outside[tensor] if tensor in outside else self.graph.tensors[tensor].nbytes
            for tensor in operands
        ]
        operation = (kernel.instruction(), places, sizes, scratch)
        if self._is_beside(action):  # the network is the queue behind those of tiers
            number = self._loop.compute(*operation, 1 + 2 * len(self._tiers))
        else:
            number = self._loop.compute(*operation)
        if outside:
            self.results.see(number, op)
        readers.see(number, op, self._places, native=kernel.kernel is not None)
        self._ops[number] = op
        self._op_instructions.append(number)
        self._touch(*zip(places, sizes, strict=True))
        if scratch is not None:
            self._touch((scratch, kernel.scratch_bytes))
        if not isinstance(action, planning.Start):
            if self._is_beside(action):
                self._loop.wait(0, number)
            self._guard(op)
        return number

    def _staging(self) -> _Place:
        """Return memory of the host for a collective's operands, of two in turn."""
        spec, half = self.spec, self.spec.staged_bytes // 2
        behind = spec.tier_bytes["host"] - spec.saved_bytes - spec.staged_bytes
        self._staged_count += 1
        place = behind + self._staged_count % 2 * half
        return 1 + self._tiers.index("host"), place

    def _wait(self, target: int) -> int:
        """Append the wait for a copy or a collective."""
        number: int = self._loop.wait(0, self.instructions[target])
        started = self.spec.plan.actions[target]
        if isinstance(started, planning.Start):
            self._guard(self.graph.ops[started.op])
        return number

    def _guard(self, op: Op) -> None:
        """Append the guards of the losses that an op has computed."""
        for tensor in op.outputs:
            if tensor in self._unguarded:  # guard the first computation only
                self._unguarded.discard(tensor)
                self._loop.guard(self._places[tensor])

    def report(self, name: str, *, verify: bool) -> MemoryReport:
        """Return the memory report of a step; with `verify`, of a measured one."""
        return _measure(self, name, verify=verify)

    def timeline(self, name: str, *, verify: bool) -> MemoryTimeline:
        """Return who has which bytes when; with `verify`, also by a measured step."""
        report = self.report(name, verify=verify)
        tops = [each.top_bytes for each in report.timeline]
        return planning.memory_timeline(
            self.graph,
            self.spec.plan,
            measured=_traced(self) if verify else (),
            measured_peak_bytes=report.measured_peak_bytes if verify else None,
            measured_bytes=tops if verify and self.spec.mode is not None else (),
            limit_bytes=report.limit_bytes,
            facts={"device": report.device},
        )

    def run_traced(self) -> tuple[planning.Scheduled, ...]:
        """Run once without the guard; return when each action ran, from 0 on."""
        self._write_inputs()
        self.pack()
        try:
            spans = self._loop.run_traced()
        except (KernelError, ResourceExhaustedError) as error:
            self._explain(error)
            raise
        began = min((begin for _, begin, _ in spans), default=0.0)
        schedule = []
        for index, queue in self._queues().items():
            _, begin, end = spans[self.instructions[index]]
            schedule.append(
                planning.Scheduled(index, queue, begin - began, end - began)
            )
        return tuple(schedule)

    def _queues(self) -> dict[int, str]:
        """Return the queue of each action that a simulation has in its schedule."""
        queues = {}
        for index, action in enumerate(self.spec.plan.actions):
            if index not in self.instructions:
                continue
            queues[index] = "compute"
            if isinstance(action, planning.Compute) and self._is_beside(action):
                queues[index] = "network"
            elif isinstance(action, planning.SwapOut | planning.SwapIn):
                way = "out" if isinstance(action, planning.SwapOut) else "in"
                queues[index] = f"{action.tier} {way}"
        return queues


def _any_beside(graph: Graph) -> bool:
    """Return whether a graph has ops of the queue beside compute."""
    return any(op.type in BESIDE for op in graph.ops)


def _slots(spec: ProgramSpec) -> dict[str, Slot]:
    """Return where the weights lie that are packed in their own place, by name."""
    offsets = state_offsets(spec.sized)
    result = {}
    for weight, packing in spec.in_place:
        tensor = spec.source.tensors[weight]
        result[tensor.name] = Slot(offsets[tensor.name], tensor.nbytes, packing)
    return result


def _timed_steps(spec: ProgramSpec) -> int:
    """Return the number of first steps to time."""
    if not spec.timed:
        return 0
    return 1 if spec.passive else _TIMED_STEPS


# -- measuring ------------------------------------------------------------------

# The measured peak: the arena above the state is filled with a pattern, the step runs,
# and the highest byte that differs is the peak. There are two patterns, since a step
# may write bytes equal to one of them. With each pattern the step runs twice: as usual,
# to find the bytes that kernels change, and timed, where the end of all scratch is
# marked as used. The state is restored afterwards.

_CANARIES = (0xA5, 0x3C)
_CHUNK = 1 << 20  # bytes compared at a time


class _Live(NamedTuple):
    """The bytes in use while an op runs: (space, offset), size and role."""

    op: Op
    ranges: tuple[tuple[_Place, int, str], ...]

    @property
    def live_bytes(self) -> int:
        return sum(nbytes for _, nbytes, _ in self.ranges)

    @property
    def top_bytes(self) -> int:
        """The highest end of bytes in use in the arena."""
        ends = (at + nbytes for (space, at), nbytes, _ in self.ranges if not space)
        return max(ends, default=0)


def _measure(program: Program, name: str, *, verify: bool) -> MemoryReport:
    """Return the report of a program; with `verify`, run and measure it first.

    Use of the arena is measured with canaries, that of buffers from the pool's
    statistics.
    """
    device, spec = program.device, program.spec
    live = _live_by_op(program)
    seconds: list[float | None] = [None] * len(live)
    changed = None
    if spec.mode is None:
        tops = [each.top_bytes for each in live]
        predicted, peak = spec.plan.peak_bytes, program.touched_bytes
        if verify:
            peak, changed, seconds = _verify(program, spec.plan.alignment)
    else:
        held = spec.placement.held(spec.graph, spec.plan)
        tops = [spec.arena_bytes + nbytes for nbytes, _ in held]
        predicted = max(tops)
        if verify:
            tops, seconds = _verify_buffers(program)
        peak = max(tops)
    fullest = max(live, key=lambda each: each.live_bytes)
    return MemoryReport(
        program=name,
        device=device.name,
        limit_bytes=device.pool.limit,
        predicted_peak_bytes=predicted,
        measured_peak_bytes=peak,
        changed_peak_bytes=changed,
        verified=verify,
        arena_bytes=program.arena.nbytes,
        by_role=_by_role(fullest),
        timeline=tuple(
            TimelineEntry(m.op.name, m.op.phase, m.live_bytes, top, s)
            for m, top, s in zip(live, tops, seconds, strict=True)
        ),
        mode="enabled" if spec.mode is None else spec.mode.name,
        tier_bytes=dict(spec.tier_bytes),
        saved_bytes=spec.saved_bytes,
        staged_bytes=spec.staged_bytes,
        codings=program.codings(),
    )


def _verify(program: Program, line: int) -> tuple[int, int, list[float | None]]:
    """Return the ends of bytes in use and of bytes changed, and the seconds of ops."""
    device, arena = program.device, program.arena
    program.pack()  # what is saved and put back stays in its layout
    state = state_bytes(program.graph)
    saved = np.empty(state, np.uint8)
    device.read(arena, 0, saved)
    used = changed = 0
    seconds: list[float] = []

    def plain() -> None:
        program.run(guard=False)

    def timed() -> None:
        seconds[:], _ = program.run_timed()

    try:
        for canary in _CANARIES:
            changed = max(changed, _reach(program, state, canary, plain))
            device.write(arena, 0, saved)
            used = max(used, _reach(program, state, canary, timed))
            device.write(arena, 0, saved)
    finally:
        program.finish()
        device.write(arena, 0, saved)
        program.forget_packed()
    ends = [align_up(state + reach, line) for reach in (used, changed)]
    return ends[0], ends[1], list(seconds)


def _reach(program: Program, state: int, canary: int, run: Callable[[], None]) -> int:
    """Fill the arena above the state, run, and return the end of changed bytes."""
    chunk = np.full(_CHUNK, canary, np.uint8)
    for start, stop in _chunks(program, state):
        program.device.write(program.arena, start, chunk[: stop - start])
    _feed(program)
    run()
    for start, stop in reversed(_chunks(program, state)):
        content = chunk[: stop - start]
        program.device.read(program.arena, start, content)
        changed = np.flatnonzero(content != canary)
        if changed.size:
            return start - state + int(changed[-1]) + 1
    return 0


def _chunks(program: Program, state: int) -> list[tuple[int, int]]:
    end = program.arena.nbytes
    return [(at, min(at + _CHUNK, end)) for at in range(state, end, _CHUNK)]


def _feed(program: Program) -> None:
    """Write synthetic inputs: random floats, and zeros for labels and the step.

    Results outside of the arena are written into new arrays.
    """
    rng = np.random.default_rng(0)
    for i, tensor in enumerate(program.graph.tensors):
        if tensor.role == "input" and program.graph.producer[i] is None:
            if i not in program._first:
                continue
            array = program.view(tensor.name, at_end=False)
            array[...] = 0
            if array.dtype.kind == "f" and array.ndim:
                array[...] = rng.standard_normal(array.shape, np.float32)
    for name, result in program.results.tensors.items():
        program.lend(name, aligned_empty(*program.results.form(result)))


def _live_by_op(program: Program) -> list[_Live]:
    """Return the bytes in use at each op; those of aliased tensors count once."""
    graph, plan = program.graph, program.spec.plan
    places: dict[int, _Place] = {}  # by tensor
    encoded: dict[int, tuple[_Place, int, str]] = {}  # tensor -> its encoding
    kept = _scratch_of_starts(program)
    result: list[_Live] = []
    for index, action in enumerate(plan.actions):
        match action:
            case planning.Alloc(tensor, offset):
                if (home := program._home(tensor, offset)) is not None:
                    places[tensor] = home
            case planning.Alias(output, source):
                places[output] = places[source]
            case planning.Free(tensor):
                if places.pop(tensor, None) is None:
                    encoded.pop(tensor, None)
            case planning.Encode(tensor, nbytes=nbytes, offset=offset):
                role = graph.tensors[tensor].role
                size = align_up(nbytes, plan.alignment)
                encoded[tensor] = ((0, offset), size, role)
            case planning.Decode(tensor, offset):
                places[tensor] = 0, offset
                del encoded[tensor]
            case planning.Compute():
                used = _ranges(graph, plan.alignment, places)
                used += kept[index] + _scratch_range(program, action)
                op = graph.ops[action.op]
                result.append(_Live(op, (*used, *encoded.values())))
            case _:
                pass
    return result


def _scratch_of_starts(program: Program) -> list[list[tuple[_Place, int, str]]]:
    """Return for each action the scratch of the collectives that run meanwhile."""
    started: dict[int, list[tuple[_Place, int, str]]] = {}
    result = []
    for index, action in enumerate(program.spec.plan.actions):
        result.append([*chain.from_iterable(started.values())])
        if isinstance(action, planning.Start):
            started[index] = _scratch_range(program, action)
        elif isinstance(action, planning.Wait):
            started.pop(action.action, None)
    return result


def _ranges(
    graph: Graph, line: int, places: dict[int, _Place]
) -> list[tuple[_Place, int, str]]:
    result: dict[_Place, tuple[_Place, int, str]] = {}
    for tensor, place in places.items():
        entry = graph.tensors[tensor]
        nbytes = align_up(entry.nbytes, line)
        if place not in result or nbytes > result[place][1]:
            result[place] = (place, nbytes, entry.role)
    return list(result.values())


def _scratch_range(
    program: Program, action: planning.Compute
) -> list[tuple[_Place, int, str]]:
    op, place = program.graph.ops[action.op], program._scratch(action)
    own = (a.scratch_bytes for a in op.algorithms if a.name == action.algorithm)
    nbytes = next(own, op.scratch_bytes)
    if place is None or not nbytes:
        return []
    return [(place, align_up(nbytes, program.spec.plan.alignment), "scratch")]


def _by_role(live: _Live) -> dict[str, int]:
    total: dict[str, int] = {}
    for _, nbytes, role in live.ranges:
        total[role] = total.get(role, 0) + nbytes
    return total


def _traced(program: Program) -> tuple[planning.Scheduled, ...]:
    """Run a step on synthetic input, and return when each action ran."""
    device, arena = program.device, program.arena
    if program.spec.mode is not None:
        program.give_back()
    program.pack()
    saved = np.empty(state_bytes(program.graph), np.uint8)
    device.read(arena, 0, saved)
    try:
        for _ in range(2):  # the first touches new pages
            _feed(program)
            schedule = program.run_traced()
    finally:
        program.finish()
        device.write(arena, 0, saved)
        program.forget_packed()
    return schedule


def _verify_buffers(program: Program) -> tuple[list[int], list[float | None]]:
    """Run a step on synthetic input; return the pool's bytes and the seconds by op."""
    device, arena, spec = program.device, program.arena, program.spec
    program.give_back()
    program.pack()
    before = device.pool.stats().current_bytes
    saved = np.empty(state_bytes(program.graph), np.uint8)
    device.read(arena, 0, saved)
    try:
        _feed(program)
        seconds, in_use = program.run_timed()
    finally:
        program.finish()
        device.write(arena, 0, saved)
        program.forget_packed()
    return [spec.arena_bytes + nbytes - before for nbytes in in_use], list(seconds)
