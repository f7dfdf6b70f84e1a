"""A program that runs op by op: room is asked for when an op is about to run.

Owns the walk over the graph with the same kernels, in the same order of the ops that
depend on each other, as a compiled program. Refuses to say where room comes from;
that is the placer's.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memcfg._core.engine import Arena, CallbackKernel, Counter, Kernel, run_as_one
from memcfg.errors import KernelError, ResourceExhaustedError
from memcfg.runtime._inputs import Elsewhere
from memcfg.runtime._report import MemoryReport, TimelineEntry
from memcfg.runtime._state import state_rooms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from memcfg._core.engine import Arena
    from memcfg.devices import Device
    from memcfg.graph import Graph, Op
    from memcfg.memory import Pool
    from memcfg.runtime._kernels import Kernels
    from memcfg.runtime._runnable import Recipe
    from memcfg.runtime._walk import Moment, Walk
    from memcfg.runtime._ways import Placer, Room

__all__ = ["Stepwise", "Watch"]

# An op's name, its kernel or what runs it, addresses, and where its scratch is.
_Action = tuple[str, Kernel | Callable[[Sequence[int], int], None], list[int], int]


class Watch(Protocol):
    """Looks on while a step runs."""

    def ready(self, moment: Moment, rooms: Mapping[int, Room], scratch: Room) -> None:
        """See what has room, just before an op runs."""

    def done(self, moment: Moment) -> None:
        """See that the op has run."""


class Stepwise:
    """A graph that is run op by op, its state in an arena.

    A step begins with the first `view` of an input, or with `run`; what it made stays
    until `finish`.
    """

    def __init__(
        self,
        walk: Walk,
        kernels: Kernels,
        placer: Placer,
        arena: Arena,
        device: Device,
        *,
        mode: str,
        needed_bytes: int,
    ) -> None:
        self.walk = walk
        self.placer = placer
        self.mode = mode
        self.recipe: Recipe | None = None
        self.predicted_bytes = walk.state_bytes + needed_bytes
        self.held_bytes = [0] * len(walk.moments)  # by the placer, in the last run
        self.top_bytes = 0  # the most in any run
        self._kernels = [kernels.get(op) for op in range(len(walk.graph.ops))]
        self._state = state_rooms(walk.graph, arena, device)
        self._ids = {tensor.name: i for i, tensor in enumerate(walk.graph.tensors)}
        self._rooms: dict[int, Room] = {}
        self._elsewhere: dict[int, Elsewhere] = {}  # in place of inputs' rooms
        self._begun = self._ran = False
        self._whole = _whole(walk)
        # One instruction of a program, so threads and forks are as for all programs.
        self._call = _Call()
        self._loop = device.program(arena, {})
        self._loop.compute(CallbackKernel(self._call), [], [], None)

    @property
    def graph(self) -> Graph:
        """The annotated graph."""
        return self.walk.graph

    def view(self, name: str, *, at_end: bool) -> npt.NDArray[Any]:
        """Return a tensor's room as an array, where it lies before or after a run.

        An input is read there again. Raises KeyError if the tensor has no room then.
        """
        tensor = self._ids.get(name, -1)
        if not at_end and tensor in self.walk.fed:
            self._feed(tensor)
            self._elsewhere.pop(tensor, None)
        room = self._state.get(tensor)
        if room is None and at_end in (False, self._ran):
            room = self._rooms.get(tensor)
        if room is None:
            when = "end" if at_end else "start"
            raise KeyError(f"tensor {name!r} is not resident at the {when} of a run")
        found = self.graph.tensors[tensor]
        return room.array(found.shape or (), found.dtype or "uint8")

    def bind(self, name: str, array: npt.NDArray[Any]) -> bool:
        """Have runs read an input where `array` lies; False if it must be copied.

        The input has room all the same: what a step takes does not depend on arrays.
        """
        tensor = self.graph.find(name)
        self._elsewhere.pop(tensor, None)
        found = Elsewhere.of(self.graph, tensor, array, self._state.values())
        if found is None or tensor not in self.walk.fed:
            return False
        self._feed(tensor)
        self._elsewhere[tensor] = found
        return True

    def run(self, *, guard: bool, counter: Counter | None = None) -> bool:
        """Run once; False if the guard stopped it at a loss that is not finite.

        The ops from the first update on run as one act, when all of them have room.
        """
        return self._run(partial(self._go, _Held(self), guard, counter, self._whole))

    def run_watched(self, watch: Watch) -> bool:
        """Run once, each op by itself, and let `watch` look on."""
        return self._run(partial(self._go, watch, False, None, len(self.walk.moments)))

    def _run(self, act: Callable[[], None]) -> bool:
        try:
            for tensor in self.walk.fed:
                self._feed(tensor)
            self._ran = True
            self._call.act = act
            self._loop.run(False)
        except _GuardStopped:
            return False
        except BaseException:
            self.finish()
            raise
        finally:
            self._call.act = None
        return True

    def finish(self) -> None:
        """Give back what the last step made; its views keep their bytes."""
        self._begun = self._ran = False
        self._elsewhere.clear()
        self._rooms.clear()
        self.placer.end()

    def give_back(self) -> None:
        """Finish, and give back what was kept for the next step too."""
        self.finish()
        self.placer.give_back()

    def close(self) -> None:
        """Give everything back, and let go of the arena."""
        self.give_back()
        self._state = {}
        del self._loop

    def report(
        self, name: str, device: Device, arena: Arena, *, verify: bool
    ) -> MemoryReport:
        """Tell what a step takes; with `verify`, run one and ask the pool."""
        return measure_stepwise(self, name, device, arena, verify=verify)

    def _feed(self, tensor: int) -> None:
        """Give an input room, in a new step if the last one has run."""
        if self._ran:
            self.finish()
        if tensor in self._rooms:
            return
        try:
            if not self._begun:
                self.placer.begin()
                self._begun = True
            self._rooms[tensor] = self.placer.make(tensor)
        except ResourceExhaustedError as error:
            self.finish()
            name = self.graph.tensors[tensor].name
            what = f"a step with input {name!r}"
            raise _explained(error, what) from error
        except BaseException:
            self.finish()
            raise

    def _go(
        self, watch: Watch, guard: bool, counter: Counter | None, whole: int
    ) -> None:
        """Run op by op to before the moment `whole`, and from there on as one act."""
        calls: list[_Action] = []
        kept: list[Room] = []  # dropped, but not run on yet
        try:
            for moment in self.walk.moments:
                call = self._room_for(moment, watch, kept)
                if moment.number < whole:
                    self._compute(call)
                    watch.done(moment)
                    if guard and not self._is_finite(moment):
                        raise _GuardStopped
                else:
                    calls.append(call)
                for tensor in moment.ends:
                    self._drop(self._rooms.pop(tensor), kept)
                self.placer.leave(moment)
                if not calls:
                    kept.clear()
            run_as_one(calls, counter)
        finally:
            kept.clear()  # the frames of an error would keep it

    def _room_for(self, moment: Moment, watch: Watch, kept: list[Room]) -> _Action:
        """Give an op room; return what runs it there."""
        placer, rooms = self.placer, self._rooms
        op, kernel = self.graph.ops[moment.op], self._kernels[moment.op]
        scratch = None
        try:
            placer.enter(moment)
            for tensor in moment.makes:
                rooms[tensor] = placer.make(tensor)
            for tensor, source in moment.aliases:
                rooms[tensor] = self._room(source)
            scratch = placer.scratch(moment)
            addresses = [self._source(tensor) for tensor in op.inputs]
            addresses += [self._room(t).address for t in op.outputs]
            watch.ready(moment, rooms, scratch)
            self._drop(scratch, kept)
        except ResourceExhaustedError as error:
            raise _explained(error, f"op {op.name!r}") from error
        else:
            return op.name, kernel.kernel or kernel.run, addresses, scratch.address
        finally:
            del scratch  # the frames of an error would keep it

    def _drop(self, room: Room, kept: list[Room]) -> None:
        """Give a room back; its bytes stay until the ops that use them have run."""
        self.placer.drop(room)
        if not self.placer.lasting:
            kept.append(room)

    def _compute(self, call: _Action) -> None:
        name, kernel, addresses, scratch = call
        try:
            if isinstance(kernel, Kernel):
                kernel.run(addresses, scratch)
            else:
                kernel(addresses, scratch)
        except KernelError as error:
            raise KernelError(f"op {name!r} failed: {error}") from error

    def _source(self, tensor: int) -> int:
        found = self._elsewhere.get(tensor)
        return (self._room(tensor) if found is None else found).address

    def _room(self, tensor: int) -> Room:
        found = self._rooms.get(tensor)
        return self._state[tensor] if found is None else found

    def _is_finite(self, moment: Moment) -> bool:
        made = self.graph.ops[moment.op].outputs
        losses = [tensor for tensor in made if tensor in self.graph.losses]
        return all(math.isfinite(self._rooms[t].array((), "float32")) for t in losses)


class _GuardStopped(Exception):  # noqa: N818  (no error: it leaves the loop)
    """The loss is not finite."""


class _Call:
    """What the loop calls: the walk, while there is one.

    The loop refers to it for good. If it referred to its program as well, nobody but
    the garbage collector could free the arena.
    """

    act: Callable[[], None] | None = None

    def __call__(self) -> None:
        assert self.act is not None
        self.act()


class _Held:
    """Notes what the placer holds."""

    def __init__(self, program: Stepwise) -> None:
        self._program = program
        self._placer = program.placer

    def ready(self, moment: Moment, rooms: Mapping[int, Room], scratch: Room) -> None:
        held = self._program.held_bytes[moment.number] = self._placer.held_bytes
        self._program.top_bytes = max(self._program.top_bytes, held)

    def done(self, moment: Moment) -> None:
        """Do nothing: nobody holds more than before."""


def _whole(walk: Walk) -> int:
    """Find the first moment that changes state, behind those of a loss."""
    losses = [
        moment.number + 1
        for moment in walk.moments
        if not set(walk.graph.losses).isdisjoint(moment.makes)
    ]
    updates = [moment.number for moment in walk.moments if moment.aliases]
    return max([min(updates, default=len(walk.moments)), *losses])


def _explained(error: ResourceExhaustedError, what: str) -> ResourceExhaustedError:
    """Say what the memory was for."""
    fields = {name: getattr(error, name) for name in ResourceExhaustedError._fields}
    fields["hint"] = (
        "Weights and optimizer are as before the step. Give memory back, raise the "
        "limit, or lower the batch size; planned programs (workspace mode 'enabled') "
        "need least."
    )
    return ResourceExhaustedError(f"There is no room for {what}.", **fields)


# -- measuring ------------------------------------------------------------------


def measure_stepwise(
    program: Stepwise, name: str, device: Device, arena: Arena, *, verify: bool
) -> MemoryReport:
    """Report on a program; with `verify`, run it and read the pool's books first."""
    state = program.walk.state_bytes
    seconds: list[float | None] = [None] * len(program.walk.moments)
    held, peak = program.held_bytes, program.top_bytes
    if verify:
        held, seconds = _verify(program, device, arena)
        peak = max(held)
    roles = list(_roles(program.walk))
    live = [sum(found.values()) for found in roles]
    return MemoryReport(
        program=name,
        device=device.name,
        limit_bytes=device.pool.limit,
        predicted_peak_bytes=program.predicted_bytes,
        measured_peak_bytes=state + peak,
        changed_peak_bytes=None,
        verified=verify,
        arena_bytes=arena.nbytes,
        by_role=dict(roles[live.index(max(live))]),
        timeline=tuple(
            TimelineEntry(op.name, op.phase, live[i], state + held[i], seconds[i])
            for i, op in enumerate(_ops(program.walk))
        ),
        mode=program.mode,
    )


class _Books:
    """Reads the pool's books and the clock around each op."""

    def __init__(self, pool: Pool, others: int, count: int) -> None:
        self._pool = pool
        self._others = others
        self.held = [0] * count
        self.seconds: list[float | None] = [None] * count
        self._began = 0.0

    def ready(self, moment: Moment, rooms: Mapping[int, Room], scratch: Room) -> None:
        self.held[moment.number] = self._pool.stats().current_bytes - self._others
        self._began = time.perf_counter()

    def done(self, moment: Moment) -> None:
        self.seconds[moment.number] = time.perf_counter() - self._began


def _verify(
    program: Stepwise, device: Device, arena: Arena
) -> tuple[list[int], list[float | None]]:
    """Run a step on made-up input: bytes beside the arena, and seconds, for each op."""
    program.give_back()
    pool = device.pool
    watch = _Books(pool, pool.stats().current_bytes, len(program.walk.moments))
    cells = device.staging(arena, 0, (program.walk.state_bytes,), "uint8")
    saved = cells.copy()
    try:
        _feed(program)
        program.run_watched(watch)
    finally:
        program.finish()
        cells[:] = saved
    return watch.held, watch.seconds


def _feed(program: Stepwise) -> None:
    """Write made-up input: small numbers, labels and step zero."""
    rng = np.random.default_rng(0)
    for tensor in program.walk.fed:
        room = program.view(program.graph.tensors[tensor].name, at_end=False)
        room[...] = 0
        if room.dtype.kind == "f" and room.ndim:
            room[...] = rng.standard_normal(room.shape, np.float32)


def _ops(walk: Walk) -> Iterator[Op]:
    return (walk.graph.ops[moment.op] for moment in walk.moments)


def _roles(walk: Walk) -> Iterator[collections.Counter[str]]:
    """Bytes in use by role at each moment."""
    tensors = walk.graph.tensors
    live: collections.Counter[str] = collections.Counter()
    for tensor in (*walk.graph.persistent, *walk.fed):
        live[tensors[tensor].role] += walk.rounded(tensor)
    for moment in walk.moments:
        for tensor in moment.makes:
            live[tensors[tensor].role] += walk.rounded(tensor)
        yield live + collections.Counter(scratch=walk.scratch(moment))
        for tensor in moment.ends:
            live[tensors[tensor].role] -= walk.rounded(tensor)
