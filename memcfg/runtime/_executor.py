"""Programs of one model in the arena that they share: loaded, fed, run.

Owns loading: plan everything, check it against the device's budget, and only then take
memory. State lies at the same place in every program (plans put it first, in order), so
training, evaluation and prediction see the same weights.
"""

from __future__ import annotations

import gc
import math
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from memcfg._core import Lock, get_num_threads, trim_heap
from memcfg.errors import (
    GraphError,
    InfeasiblePlanError,
    PlanError,
    ResourceExhaustedError,
)
from memcfg.memory import owner_of
from memcfg.plan import lower_bound
from memcfg.runtime._adaptation import Adaptation
from memcfg.runtime._budget import Budget, ends_of_pages
from memcfg.runtime._kernels import Kernels
from memcfg.runtime._mapped_workspaces import MappedWorkspaces
from memcfg.runtime._packing import is_inference
from memcfg.runtime._program import Program
from memcfg.runtime._program_specs import (
    PolicyLike,
    ProgramSpec,
    contending,
    lessons_of,
    planned_again,
    planned_spec,
    program_specs,
    without_lessons,
)
from memcfg.runtime._state import (
    FirstValue,
    ModelArena,
    PackedState,
    TierMemory,
    check_load,
    read_state,
    state_offsets,
    write_state,
)
from memcfg.runtime._trial import Trial
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from memcfg._core import Counter
    from memcfg._core.engine import Arena
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.memory import Pool
    from memcfg.plan import Plan
    from memcfg.runtime._placement import ExecutionMode
    from memcfg.runtime._report import MemoryReport
    from memcfg.timeline import MemoryTimeline

__all__ = ["NO_PLAN", "Executor"]

NO_PLAN = 1 << 62  # bytes that a graph misses which no limit would give a plan

_LEAST_TOGETHER = 16 << 20  # bytes of values for which threads take less time than one

_Array = npt.NDArray[np.generic]
_Value = npt.ArrayLike | FirstValue


class _Contents(NamedTuple):
    """What an arena has; one value, so that no interrupt comes between its parts."""

    arena: Arena | None
    specs: Mapping[str, ProgramSpec]
    state: Mapping[str, int]  # offsets by name
    waiting: Mapping[str, _Value]  # values of state that are not in their place yet
    moved_in: Graph | None = None  # of programs to come: state is there, and no program

    def in_turns(self) -> tuple[list[str], list[str]]:
        """Return the names of values that wait, in the order to write them.

        First those that need arrays of their own, the largest before the others, while
        the pages of the arena behind them have not been touched.
        """
        sizes = _sizes(self.graph)
        apart = [
            name
            for name, value in self.waiting.items()
            if isinstance(value, FirstValue) and not value.draws_in_place
        ]
        apart.sort(key=sizes.__getitem__, reverse=True)
        needed = {*apart}
        return apart, [name for name in self.waiting if name not in needed]

    def read(self, device: Device, packed: PackedState, name: str) -> _Array:
        """Return a copy of a state tensor."""
        assert self.arena is not None
        raw = packed.read(device, self.arena, name)
        if raw is None:
            return read_state(device, self.arena, self.graph, name, self.state[name])
        tensor = self.graph.tensors[self.graph.find(name)]
        return raw.view(tensor.dtype or "uint8").reshape(tensor.shape or ())

    def write(self, device: Device, name: str, value: _Value) -> None:
        """Overwrite a state tensor."""
        assert self.arena is not None
        write_state(device, self.arena, self.graph, name, self.state[name], value)

    @property
    def graph(self) -> Graph:
        """One that has the state, as all have, and nothing packed."""
        return self.moved_in or next(iter(self.specs.values())).sized

    @property
    def nbytes(self) -> int:
        """The bytes of the arena that the programs, or the state alone, need."""
        if self.specs or not self.state:
            return _nbytes(self.specs)
        sizes = _sizes(self.graph)
        return max(end + align_up(sizes[name]) for name, end in self.state.items())


_NOTHING = _Contents(None, {}, {}, {})


class Executor:
    """Run the programs of one model in one arena of a device.

    Parameters
    ----------
    device : Device
        Its pool pays for the arena, its kernels compute. On a simulated one programs
        can be planned only.
    name : str
        The owner's name in error messages and listings.
    lock : Lock, optional
        The owner's; None makes one.
    times : {"nominal", "measured"}, default "nominal"
        What seconds policies are given of ops: nominal ones, with which the same graph
        has the same plan everywhere, or those that the device takes. They are measured
        where they are not known, in memory of its pool.

    Notes
    -----
    All programs work in one arena, so only one may be at work. Every method has a turn
    of `lock`; who writes inputs, runs and reads outputs as one act has it from the
    first to the last.
    """

    def __init__(
        self,
        device: Device,
        *,
        name: str,
        lock: Lock | None = None,
        times: str = "nominal",
    ) -> None:
        self.device = device
        self.times = times
        self.name = name
        self.lock = Lock(name) if lock is None else lock
        self._arena = ModelArena(device.pool, name)
        self._tiers = TierMemory(device, name)
        self._files = MappedWorkspaces()
        self._contents = _NOTHING
        self._programs: dict[str, Program] = {}  # those that are made
        self._settled: Program | None = None  # may keep memory outside of the arena
        self._packed = PackedState()
        self.loader_bytes = 0  # that plans leave to what reads the data
        # Values of the owner, by the names of state, that `load` is given and takes.
        self.values: Mapping[str, _Value] = {}
        self._took: dict[object, float] = {}  # seconds of ops in steps, as of `Kernels`
        self._trials: dict[str, Trial] = {}  # of programs whose plans are compared

    @property
    def _loaded(self) -> _Contents:
        """What is loaded: nothing, once the arena that had it has been freed."""
        result = self._contents
        return _NOTHING if result.arena is None or result.arena.freed else result

    @property
    def _specs(self) -> Mapping[str, ProgramSpec]:
        return self._loaded.specs

    @property
    def _trains(self) -> bool:
        """Whether a loaded program changes weights, which thus lie plain."""
        return not all(is_inference(spec.source) for spec in self._specs.values())

    @property
    def sources(self) -> Mapping[str, Graph]:
        """The graph of each loaded program, as it was given to `load`."""
        return {name: spec.source for name, spec in self._specs.items()}

    @property
    def state(self) -> Collection[str]:
        """The names of the state that is loaded."""
        return self._loaded.state.keys()

    def has(self, program: str) -> bool:
        """Return whether a program is loaded.

        Parameters
        ----------
        program : str
            Its name.

        Returns
        -------
        bool
            Whether it can be run.
        """
        return program in self._loaded.specs

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plan of each loaded program that has one."""
        return {
            name: spec.plan for name, spec in self._specs.items() if spec.mode is None
        }

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """The graph of each loaded program, with its scratch sizes."""
        return {name: spec.graph for name, spec in self._specs.items()}

    @property
    def nbytes(self) -> int:
        """Size of the arena in bytes; 0 before the first load."""
        return self._arena.nbytes

    @property
    def left_bytes(self) -> int | None:
        """Bytes that the device has left or can get back; None without a limit."""
        pool = self.device.pool
        if pool.limit is None:
            return None
        return pool.limit - pool.stats().current_bytes + pool.holders.spare_bytes

    def annotate(self, graph: Graph) -> Graph:
        """Return a graph as policies are given it: with the scratch of its kernels.

        Parameters
        ----------
        graph : Graph
            A traced step.

        Returns
        -------
        Graph
            The same with an algorithm's name, scratch bytes and seconds at each op.

        Raises
        ------
        KernelError
            If the device has no kernel for an op.
        RuntimeError
            If times are to be measured, and the device is simulated.
        """
        return Kernels(graph, self.device, self.times, self._took).annotate(graph)

    def plan(
        self,
        graph: Graph,
        policy: PolicyLike,
        limit_bytes: int | None = None,
        *,
        promised: int = 0,
    ) -> Plan:
        """Plan a graph under the device's budget without taking memory.

        Parameters
        ----------
        graph : Graph
            A traced step.
        policy : Policy
            Such as ``memcfg.plan.auto()``.
        limit_bytes : int, optional
            As of `shortfall`.
        promised : int, default 0
            As of `load`.

        Returns
        -------
        Plan
            The plan that `load` would run; of a policy that learns from its first step,
            the plan that it would make of the graph behind that.

        Raises
        ------
        InfeasiblePlanError
            If nothing fits.
        RuntimeError
            As of `annotate`.
        """
        with self.lock.turn():
            self._settle()
            policy = without_lessons(policy)
            specs = program_specs(
                {"": graph},
                policy,
                {},
                self._budget(promised, limit_bytes, names=_names(graph)),
                {},
                trains=self._trains,
            )
            return specs[""].plan

    def shortfall(
        self,
        graph: Graph,
        policy: PolicyLike,
        promised: int = 0,
        limit_bytes: int | None = None,
    ) -> int:
        """Return by how many bytes a graph exceeds the device's budget.

        Parameters
        ----------
        graph : Graph
            A traced step.
        policy : Policy
            Plans it.
        promised : int, default 0
            As of `load`.
        limit_bytes : int, optional
            A limit of the device with nothing else on it, instead of its budget.

        Returns
        -------
        int
            0 if it has a plan; else what the policy, or the lower bound of any, misses.
            `NO_PLAN` if a tier is full, or the policy cannot plan such a graph.
        """
        with self.lock.turn():
            budget = self._budget(promised, limit_bytes, names=_names(graph))
            left = budget.nbytes
            missing = 0 if left is None else lower_bound(graph) - left
            if missing > 0:
                return missing
            try:
                planned_spec(
                    graph, without_lessons(policy), budget, trains=self._trains
                )
            except InfeasiblePlanError as error:
                return max(error.smallest_limit_bytes - (left or 0), 1)
            except (PlanError, GraphError):
                return NO_PLAN
            return 0

    def bound_excess(
        self, graph: Graph, promised: int = 0, limit_bytes: int | None = None
    ) -> float:
        """Return by how many bytes a graph's lower bound exceeds the device's budget.

        Parameters
        ----------
        graph : Graph
            A traced step.
        promised : int, default 0
            As of `load`.
        limit_bytes : int, optional
            As of `shortfall`.

        Returns
        -------
        float
            Negative if bytes are left; minus infinity if there is no limit.
        """
        with self.lock.turn():
            left = self._budget(promised, limit_bytes, names=_names(graph)).nbytes
            return -math.inf if left is None else lower_bound(graph) - left

    def smallest_limit(
        self, graph: Graph, policy: PolicyLike, promised: int = 0
    ) -> int | None:
        """Return the smallest limit of the device with which a graph has a plan.

        Parameters
        ----------
        graph : Graph
            A traced step.
        policy : Policy
            Plans it.
        promised : int, default 0
            As of `load`.

        Returns
        -------
        int or None
            Bytes, others' included. None if the policy has not proven it.
        """
        with self.lock.turn():
            budget = self._budget(promised, names=_names(graph))
            budget = replace(budget, lowest=True)
            try:
                planned_spec(
                    graph, without_lessons(policy), budget, trains=self._trains
                )
            except InfeasiblePlanError as error:
                result = budget.refusal("", error)
                return result.smallest_limit_bytes if result.is_smallest else None
            except (PlanError, GraphError):
                pass
            return None

    def load(
        self,
        graphs: Mapping[str, Graph],
        policy: PolicyLike,
        initial: Mapping[str, _Value],
        modes: Mapping[str, ExecutionMode] | None = None,
        *,
        promised: int = 0,
        moved: Callable[[str], object] | None = None,
    ) -> None:
        """Replace the programs by those of `graphs`.

        State that is loaded already keeps its value; state that is new takes it
        from `initial`. The arena grows or shrinks to the largest peak; it stays as
        it is while a view that `feed` or `fetch` returned is in use.

        Arrays of the device's pool are moved in one by one, where nothing is loaded:
        beside the rest of them, the pool has one more tensor at a time.

        Parameters
        ----------
        graphs : mapping of str to Graph
            Program names to graphs that list the same state, in the same order.
        policy : Policy
            Plans each of them.
        initial : mapping of str to array_like or FirstValue
            Values of new state, by tensor name; a `FirstValue` is drawn after the
            memory has been taken, one at a time.
        modes : mapping of str to ExecutionMode, optional
            How programs run that are not planned; those that it names.
        promised : int, default 0
            Bytes of the device to leave to others, in addition to what they have.
        moved : callable, optional
            Is called with the name of each value that has been moved in, and lets go of
            the array; it is loaded then also where an error follows.

        Raises
        ------
        InfeasiblePlanError
            If a graph has no plan within the budget, or its mode needs more. No memory
            was taken, and the programs are as they were.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        RuntimeError
            If the device is simulated.
        PlanError
            If the independent validator finds the policy's plan invalid, or the device
            has not the tier or the codec that it names.
        OSError
            If there is not the disk that the plan swaps to.
        ValueError
            If the graphs disagree about the state, or state has no value.
        """
        with self.lock.turn():
            check_load(self.device, graphs, {*self.state, *initial})
            self._settle()
            make = partial(
                program_specs, graphs, policy, modes or {}, known=self._specs
            )
            largest = self._largest(graphs, initial)
            names = _names(next(iter(graphs.values())))
            self.loader_bytes = 0
            given = self.device.pool.holders.spare_bytes + self._beside(names)
            try:
                specs = make(self._budget(promised, initial=largest, names=names))
                self._move_in(specs, initial, moved)
                self._replace(specs, initial)
            except ResourceExhaustedError as error:
                ends = ends_of_pages(error)
                if isinstance(error, InfeasiblePlanError):
                    again = self._collects_others()
                else:
                    again = given > 0
                if not ends and not again:
                    raise
                # Holders have given back what they can, which may be less than spare;
                # and others may hold values that were moved in.
                specs = make(
                    self._budget(promised + ends, initial=largest, names=names)
                )
                self._move_in(specs, initial, moved)
                self._replace(specs, initial)
            trim_heap()

    def read_state(self, tensor: str) -> _Array:
        """Return a copy of a state tensor.

        Parameters
        ----------
        tensor : str
            Its name.

        Returns
        -------
        ndarray
            A copy.

        Raises
        ------
        KeyError
            If nothing is loaded or no such state exists.
        """
        with self.lock.turn():
            return self._with_state(tensor).read(self.device, self._packed, tensor)

    def write_state(self, tensor: str, value: npt.ArrayLike) -> None:
        """Overwrite a state tensor.

        Parameters
        ----------
        tensor : str
            Its name.
        value : array_like
            An array of exactly its shape.

        Raises
        ------
        KeyError
            If nothing is loaded or no such state exists.
        ValueError
            If the shape differs.
        """
        with self.lock.turn():
            loaded = self._with_state(tensor)
            spec = loaded.graph.tensors[loaded.graph.find(tensor)]
            array = np.asarray(value, spec.dtype)
            if array.shape != spec.shape:
                raise ValueError(
                    f"{tensor!r} has shape {spec.shape}, not {array.shape}"
                )
            self._packed.program = None
            assert loaded.arena is not None
            self._packed.unpack(self.device, loaded.arena, tensor)
            loaded.write(self.device, tensor, array)

    def take_state(self, tensors: Collection[str]) -> dict[str, _Array]:
        """Move state out of the arena, which shrinks meanwhile; `close` is to follow.

        Copies may lie in the memory that the arena gives back. Until `close`, and after
        an error, all state is loaded as before.

        Parameters
        ----------
        tensors : collection of str
            The names of state whose values are wanted.

        Returns
        -------
        dict of str to ndarray
            Copies.

        Raises
        ------
        ResourceExhaustedError
            If there is no memory for a copy of one more tensor.
        """
        with self.lock.turn():
            self._place_state()
            self._settle()
            self._keep({})
            loaded, taken = self._loaded, dict[str, _Array]()
            if loaded.arena is None:
                return {}
            behind = sorted(loaded.state.items(), key=lambda row: -row[1])
            left = behind[0][1] + _sizes(loaded.graph)[behind[0][0]] if behind else 0
            self._arena.shrink(max(left, 1))
            for name, offset in behind:
                # All are kept, so that the programs can go on with them.
                taken[name] = loaded.read(self.device, self._packed, name)
                self._contents = loaded._replace(waiting=dict(taken))
                self._arena.shrink(max(offset, 1))
            return {name: taken[name] for name in taken if name in tensors}

    def close(self) -> None:
        """Give the arena back; the executor can be loaded again.

        Raises
        ------
        BufferError
            If a view that `feed` or `fetch` returned is still in use.
        """
        with self.lock.turn():
            self._settle()
            self._keep({})
            self._arena.free()
            self._contents = _NOTHING
            self._packed.forget_all()
            self._tiers.shrink({}, {})
            self._files.keep(())

    def feed(self, program: str, tensor: str) -> _Array:
        """Return an input's memory, to be written before each run.

        The program reads the input there, not where `bind` said.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of an input.

        Returns
        -------
        ndarray
            A view of the program's memory with the input's shape and dtype.

        Raises
        ------
        KeyError
            If there is no such program or input.
        ResourceExhaustedError
            If the program is not planned, and there is no memory for the step.
        """
        with self.lock.turn():
            return self.prepare(program).view(tensor, at_end=False)

    def bind(self, program: str, tensor: str, array: _Array) -> bool:
        """Have a program read an input where an array lies: nothing is copied.

        It holds until `finish`, the next `bind` or `feed` of that input, or a run that
        fails. What a step takes does not depend on it.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of an input.
        array : ndarray
            Its value. It is kept alive, and never written; who changes it before the
            end of the run changes what the run reads.

        Returns
        -------
        bool
            False if the array must be copied into what `feed` returns: unless it has
            the input's shape and dtype, is C-contiguous and begins at a multiple of 64,
            and no op needs the input in its place.

        Raises
        ------
        KeyError
            If there is no such program or tensor.
        ResourceExhaustedError
            If the program is not planned, and there is no memory for the step.
        """
        with self.lock.turn():
            return self.prepare(program).bind(tensor, array)

    def lend(self, program: str, tensor: str, array: _Array) -> None:
        """Have a program write a result outside of the arena into an array.

        It holds until `finish`, or a run that fails. The program cannot run without.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of a tensor in the graph's `keep` and `outside`.
        array : ndarray
            Receives the result. It is kept alive, and not counted by the device.

        Raises
        ------
        KeyError
            If there is no such program or result.
        ValueError
            Unless the array has the result's shape and dtype, is writable and
            C-contiguous, and begins at a multiple of 64 outside of the arena.
        """
        with self.lock.turn():
            self.prepare(program).lend(tensor, array)

    def run(
        self, program: str, *, guard: bool = False, counter: Counter | None = None
    ) -> bool:
        """Run a program once, when the process runs fewer programs than it may.

        Parameters
        ----------
        program : str
            A loaded program.
        guard : bool, default False
            Stop at a loss that is NaN or infinite, before any state has changed.
        counter : Counter, optional
            Advanced by a run to the end; nothing comes between the two.

        Returns
        -------
        bool
            True if it ran to the end, False if the guard stopped it.

        Raises
        ------
        KeyError
            If there is no such program.
        KernelError
            If a kernel failed.
        RuntimeError
            If a result outside of the arena has no array, see `lend`.
        ResourceExhaustedError
            If the program is not planned, and there is no memory; the state is as
            before.
        """
        with self.lock.turn():
            return self.prepare(program).run(guard=guard, counter=counter)

    def fetch(self, program: str, tensor: str) -> _Array:
        """Return a kept tensor.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of a tensor in the graph's `keep`.

        Returns
        -------
        ndarray
            A view, valid until `finish` or the next run.

        Raises
        ------
        KeyError
            If there is no such program, or the tensor is not kept.
        """
        with self.lock.turn():
            return self._program(program).view(tensor, at_end=True)

    def finish(self, program: str) -> None:
        """End a step: what was to be fetched has been fetched.

        Arrays that were bound are let go. A program that is not planned frees what it
        made.

        Parameters
        ----------
        program : str
            A program; nothing is done for one that is not loaded.
        """
        with self.lock.turn():
            if program in self._programs:
                self._programs[program].finish()

    def memory_report(self, program: str, *, verify: bool = False) -> MemoryReport:
        """Return what a program's step takes.

        Parameters
        ----------
        program : str
            A loaded program.
        verify : bool, default False
            Measure: run the program on made-up input over a canary and look for the
            highest byte that changed, scratch counted as handed over; or, without a
            plan, ask the pool at each op. State is put back.

        Returns
        -------
        MemoryReport
            Peak, bytes by role, timeline.

        Raises
        ------
        KeyError
            If there is no such program.
        """
        with self.lock.turn():
            result = self.prepare(program) if verify else self._program(program)
            return result.report(program, verify=verify)

    def memory_timeline(self, program: str, *, verify: bool = False) -> MemoryTimeline:
        """Return which tensor of a program's step has which bytes when.

        Parameters
        ----------
        program : str
            A loaded program.
        verify : bool, default False
            Measure the peak as of `memory_report`, and the times in one more step.

        Returns
        -------
        MemoryTimeline
            Boxes of the plan, and times.

        Raises
        ------
        KeyError
            If there is no such program.
        """
        with self.lock.turn():
            result = self.prepare(program) if verify else self._program(program)
            return result.timeline(program, verify=verify)

    def report_now(self, program: str) -> MemoryReport | None:
        """Return the report of a program that has run; None for others.

        No turn and no memory is taken, nothing is measured.

        Parameters
        ----------
        program : str
            Its name.

        Returns
        -------
        MemoryReport or None
            As of `memory_report`.
        """
        made = self._programs.get(program)
        return None if made is None else made.report(program, verify=False)

    def reconsider(self, name: str) -> None:
        """Compare a program's plan by its first steps with others that may be faster.

        Each of those takes its place, is `due` after some steps, and in the end the one
        of the fastest steps stays. Of a policy that learns from steps, each plan is
        made by what the one before it has shown. Views of programs are to be dropped
        before, as for `load`, and the arena may become another one. The limit holds
        meanwhile. State keeps its value, and programs that are planned later go by the
        seconds of the first plan's ops, or the least of all plans that learn.

        Parameters
        ----------
        name : str
            A program that is `due`.

        Raises
        ------
        PlanError
            If the independent validator finds a new plan invalid.
        """
        with self.lock.turn():
            made = self._program(name)
            spec = made.spec
            self._settle()
            trial = self._trials.get(name)
            if trial is None or trial.running is not spec:
                trial = self._trials[name] = self._trial(made, spec)
            else:
                trial.note(made.least_seconds)
            if isinstance(trial, Adaptation):
                self._note_seconds(made)
                trial.learn(made, self._took, self._budget())
            while (other := trial.next) is not None:
                if self._takes_place(name, other):
                    trial.run_next()
                    return
                trial.refuse_next()
            best = trial.best
            if best.plan.actions != spec.plan.actions and not (
                self._takes_place(name, best)
            ):
                best = trial.last
            self._note(name, best)
            self._trials.pop(name)

    def _trial(self, made: Program, spec: ProgramSpec) -> Trial:
        """Return the trial of a program that has run."""
        if lessons_of(spec.policy) is not None:
            self._note_seconds(made)
            return Adaptation(made, self._took)
        self._took |= made.took()
        first, others = contending(spec, self._took, self._budget())
        return Trial(spec, first, made.least_seconds, others)

    def _note_seconds(self, made: Program) -> None:
        """Have the least seconds of each op in steps so far."""
        for key, seconds in made.took().items():
            self._took[key] = min(seconds, self._took.get(key, seconds))

    def _takes_place(self, name: str, spec: ProgramSpec) -> bool:
        """Have a program of another spec, if there is memory, and disk, for it."""
        try:
            self._replace({**self._specs, name: spec}, {})
        except (ResourceExhaustedError, OSError):
            return False
        trim_heap()
        return True

    def _note(self, name: str, spec: ProgramSpec) -> None:
        """Have a program's spec that says the same of it."""
        self._contents = self._loaded._replace(specs={**self._specs, name: spec})
        if name in self._programs:
            self._programs[name].settle(spec)

    def prepare(self, name: str) -> Program:
        """Return a program that is about to run; the one before frees what it kept.

        It may be run as often as nothing else is prepared, planned, loaded or closed.

        Parameters
        ----------
        name : str
            A loaded program.

        Returns
        -------
        Program
            The program.
        """
        program = self._program(name)
        if self._settled is not program:
            self._settle()
            self._settled = program
        return program

    @property
    def kept(self) -> dict[str, int]:
        """Bytes of the buffers that are kept for the next step, by name.

        No turn is taken: they are those of one moment.
        """
        result = self._settled
        return {} if result is None else result.kept

    @property
    def is_amid_step(self) -> bool:
        """Whether a step that is not planned has begun; no turn is taken."""
        result = self._settled
        return result is not None and result.is_amid_step

    def free_kept(self) -> None:
        """Free the buffers that are kept for the next step, which takes them again."""
        with self.lock.turn():
            self._settle()

    def _settle(self) -> None:
        """Keep no memory outside of the arena."""
        if self._settled is not None:
            self._settled.give_back()
        self._settled = None

    def budget_bytes(
        self, promised: int = 0, limit_bytes: int | None = None
    ) -> int | None:
        """Return the bytes that the model may take; None without a limit.

        Parameters
        ----------
        promised : int, default 0
            As of `load`.
        limit_bytes : int, optional
            As of `shortfall`.
        """
        with self.lock.turn():
            return self._budget(promised, limit_bytes).nbytes

    def beyond(self, nbytes: int) -> int | None:
        """Return what `load` is to leave to others so that the model has some bytes.

        Parameters
        ----------
        nbytes : int
            Bytes of the device for the model.

        Returns
        -------
        int or None
            Bytes, negative if the model would have more than now; None without a limit.
        """
        with self.lock.turn():
            budget = self._budget(-self.loader_bytes).nbytes
            return None if budget is None else budget - nbytes

    def leave(self, nbytes: int) -> bool:
        """Plan the loaded programs again, to leave bytes to what reads the data.

        Views of programs are to be dropped before, as for `load`, which plans without
        regard to it again. State keeps its value.

        Parameters
        ----------
        nbytes : int
            Bytes of the device; 0 leaves none.

        Returns
        -------
        bool
            False if a program has no plan then, or is not planned; nothing has changed.
        """
        with self.lock.turn():
            self._settle()
            before, self.loader_bytes = self.loader_bytes, nbytes
            try:
                self._replace(self._planned_again(self._specs), {})
            except (ResourceExhaustedError, PlanError, GraphError, OSError):
                self.loader_bytes = before
                return False
            return True

    def slowdown(self, nbytes: int, program: str) -> float:
        """Predict how much longer steps take if `leave` leaves bytes; changes nothing.

        Parameters
        ----------
        nbytes : int
            Bytes of the device.
        program : str
            The loaded program whose steps they are; others are not planned.

        Returns
        -------
        float
            The ratio of the seconds of the plans; infinity if there is none.
        """
        with self.lock.turn():
            self._settle()
            before, self.loader_bytes = self.loader_bytes, nbytes
            try:
                then = self._planned_again([program])[program].plan.elapsed_seconds
            except (ResourceExhaustedError, PlanError, GraphError):
                return math.inf
            finally:
                self.loader_bytes = before
            now = self._specs[program].plan.elapsed_seconds
            return then / now if now else 1.0

    def _planned_again(self, names: Iterable[str]) -> dict[str, ProgramSpec]:
        """Plan loaded programs for the budget of now; PlanError if not planned."""
        specs, budget = self._specs, self._budget()
        if any(spec.mode is not None for spec in specs.values()):
            raise PlanError("programs that a workspace mode lays out have no plan")
        return {name: planned_again(specs[name], budget) for name in names}

    def _largest(
        self, graphs: Mapping[str, Graph], initial: Mapping[str, _Value]
    ) -> int:
        """Return the bytes of the largest array that is drawn for new state."""
        tensors = next(iter(graphs.values())).tensors
        sizes = {each.name: each.nbytes for each in tensors}
        return max(
            (
                sizes[name]
                for name, value in initial.items()
                if name not in self.state
                and name in sizes
                and isinstance(value, FirstValue)
                and not value.draws_in_place
            ),
            default=0,
        )

    def _beside(self, names: Collection[str] | None) -> int:
        """Return the bytes of the owner's values in the pool that `load` would take."""
        if self._specs or not self.values:
            return 0
        pool = self.device.pool
        taken = self.values.keys() - self.state
        taken = taken if names is None else taken & {*names}
        return sum(
            align_up(max(1, value.nbytes))
            for value in map(self.values.get, taken)
            if _lies_in(value, pool)
        )

    def _budget(
        self,
        promised: int = 0,
        limit_bytes: int | None = None,
        initial: int = 0,
        names: Collection[str] | None = None,
    ) -> Budget:
        """Return the budget of programs with state of these names, or with any."""
        pool = self.device.pool
        if limit_bytes is not None:
            return Budget(
                self.device,
                self.name,
                elsewhere=0,
                promised=promised,
                times=self.times,
                took=self._took,
                asked=limit_bytes,
            )
        promised += self.loader_bytes
        arena, values = self.nbytes, self._beside(names)
        return Budget(
            self.device,
            self.name,
            pool.stats().current_bytes - arena - values,
            promised,
            arena=arena,
            values=values,
            spare=pool.holders.spare_bytes,
            arrays=pool.holders.margin_bytes,
            initial=initial,
            times=self.times,
            took=self._took,
        )

    def _collects_others(self) -> bool:
        """Free what only reference cycles hold, if others hold any; whether it did."""
        before = self.device.pool.stats().current_bytes
        if before == self.nbytes:
            return False
        gc.collect()
        return self.device.pool.stats().current_bytes < before

    def _move_in(
        self,
        specs: Mapping[str, ProgramSpec],
        initial: Mapping[str, _Value],
        moved: Callable[[str], object] | None,
    ) -> None:
        """Move arrays of the pool into the arena, one by one, if nothing is loaded.

        An error leaves those there that have been moved, and the others where they are.
        """
        if moved is None or not self._beside(None):
            return
        self._place_state()
        pool, graph = self.device.pool, next(iter(specs.values())).sized
        sizes, offsets = _sizes(graph), state_offsets(graph)
        if any(offsets.get(name) != at for name, at in self._loaded.state.items()):
            return  # of other programs, whose load was interrupted
        for name, offset in offsets.items():
            if not _lies_in(initial.get(name), pool):
                continue
            self._arena.grow(offset + align_up(sizes[name]))
            arena, state = self._arena.get(), self._loaded.state
            write_state(self.device, arena, graph, name, offset, initial[name])
            self._contents = _Contents(arena, {}, {**state, name: offset}, {}, graph)
            moved(name)

    def _replace(
        self, specs: Mapping[str, ProgramSpec], initial: Mapping[str, _Value]
    ) -> None:
        """Replace the programs by those of these specs, or keep the old ones.

        State that moves waits outside of the arena until all of it is in its new place,
        however often that is interrupted. If the arena has no room to grow, all state
        waits there.
        """
        self._place_state()
        self._packed.program = None
        graph, nbytes = next(iter(specs.values())).sized, _nbytes(specs)
        before, state = self._loaded, state_offsets(graph)
        stays = self._arena.has_room(nbytes)
        if before.arena is None:
            self._packed.forget_all()
        elif _sizes(before.graph) != _sizes(graph):  # others may lie behind plain ones
            self._packed.bring(self.device, before.arena, {})
        moved = {
            name: before.read(self.device, self._packed, name)
            for name, offset in before.state.items()
            if not stays or state.get(name) != offset
        }
        waiting: dict[str, _Value] = {
            name: moved[name] if name in moved else initial[name]
            for name in state
            if name in moved or name not in before.state
        }
        made: dict[str, Program] = {}
        try:
            if stays:
                self._arena.grow(nbytes)
            else:
                self._keep({})  # they refer to the one that goes
                self._arena.replace(nbytes)
            if self._tiers.grow(*_tier_bytes(specs)):
                self._keep({})  # they refer to what was there
            arena = self._arena.get()
            for name, spec in specs.items():
                made[name] = self._made(name, spec)
            try:
                self._contents = _Contents(arena, specs, state, waiting)
                self._place_state()
            except BaseException:
                self._contents = before._replace(waiting=moved)
                raise
        except BaseException:
            self._keep(made)  # lets go of those from before, and then of these
            self._keep({})
            if not stays:
                self._contents = before._replace(arena=self._arena.get(), waiting=moved)
            self._fit()
            raise
        self._keep(made)
        self._fit()

    def _fit(self) -> None:
        """Have an arena no larger than what is loaded needs."""
        nbytes, (tiers, swapped) = self._loaded.nbytes, _tier_bytes(self._specs)
        self._files.keep(
            buffer for spec in self._specs.values() for buffer in spec.placement.buffers
        )
        if nbytes < self.nbytes or not self._tiers.fits(tiers):
            self._keep({})  # they point there; they are made when they are used
            self._arena.shrink(nbytes)
            self._tiers.shrink(tiers, swapped)

    def _place_state(self) -> None:
        """Bring the state that waits to its place."""
        loaded = self._loaded
        if loaded.waiting:
            self._packed.program = None
            self._arena.grow(loaded.nbytes)  # it may have been lost to another
            first, others = loaded.in_turns()
            for name in first:
                self._write_waiting(name)
            if first:
                trim_heap()  # the arrays of these, before other pages are touched
            self._write_together(others)
            self._contents = loaded._replace(waiting={})

    def _write_waiting(self, name: str) -> None:
        self._packed.forget(name)
        self._loaded.write(self.device, name, self._loaded.waiting[name])

    def _write_together(self, names: Collection[str]) -> None:
        """Write values that wait, in as many threads as ops have if they are large.

        Each is drawn from a seed of its own, so that their order does not matter.
        """
        sizes = _sizes(self._loaded.graph)
        threads = get_num_threads() if self.device.space == "host" else 1
        if threads == 1 or sum(sizes[name] for name in names) < _LEAST_TOGETHER:
            for name in names:
                self._write_waiting(name)
            return
        largest_first = sorted(names, key=sizes.__getitem__, reverse=True)
        with ThreadPoolExecutor(threads, "memcfg draws") as pool:
            written = [
                pool.submit(copy_context().run, self._write_waiting, name)
                for name in largest_first
            ]
            try:
                for each in written:
                    each.result()
            finally:
                for each in written:
                    each.cancel()  # what has not begun, if one failed

    def _program(self, name: str) -> Program:
        """Return a loaded program, made if need be; the state is in its place."""
        loaded = self._loaded
        if loaded.waiting:
            self._place_state()
        if name not in self._programs:
            self._tiers.grow(*_tier_bytes(loaded.specs))  # a file may have gone
        self._programs[name] = made = self._made(name, loaded.specs[name])
        return made

    def _made(self, name: str, spec: ProgramSpec) -> Program:
        result = self._programs.get(name)
        if result is not None and result.spec is spec:
            return result
        arena, tiers = self._arena.get(), self._tiers.spaces
        return Program(
            spec, arena, tiers, self.device, self.name, self._packed, self._files
        )

    def _keep(self, programs: dict[str, Program]) -> None:
        """Have these programs made and no others."""
        before, self._programs = self._programs, programs
        for program in before.values():
            if program not in programs.values():
                program.close()

    def _with_state(self, tensor: str) -> _Contents:
        self._place_state()
        if tensor not in self.state:
            raise KeyError(f"{self.name} has no state {tensor!r} loaded")
        return self._loaded


def _sizes(graph: Graph) -> dict[str, int]:
    """Bytes of each state tensor, in the order in which they lie."""
    states = (graph.tensors[tensor] for tensor in graph.persistent)
    return {tensor.name: tensor.nbytes for tensor in states}


def _lies_in(value: object, pool: Pool) -> TypeGuard[_Array]:
    """Return whether a value is an array of a pool."""
    return isinstance(value, np.ndarray) and owner_of(value) is pool


def _names(graph: Graph) -> list[str]:
    """Return the names of a graph's state."""
    return [graph.tensors[tensor].name for tensor in graph.persistent]


def _nbytes(specs: Mapping[str, ProgramSpec]) -> int:
    """Bytes of the arena that programs need."""
    return align_up(max((spec.arena_bytes for spec in specs.values()), default=0))


def _tier_bytes(
    specs: Mapping[str, ProgramSpec],
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each tier that programs need: one of them runs at a time.

    All of them, and those of swapped tensors alone.
    """
    sizes: dict[str, int] = {}
    swapped: dict[str, int] = {}
    for spec in specs.values():
        for tier, nbytes in spec.tier_bytes.items():
            saved = spec.saved_bytes + spec.staged_bytes if tier == "host" else 0
            sizes[tier] = max(sizes.get(tier, 0), align_up(nbytes))
            swapped[tier] = max(swapped.get(tier, 0), nbytes - saved)
    return sizes, swapped
