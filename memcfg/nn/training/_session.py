"""A model's values and its loaded programs, all in one arena of a device."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from memcfg import config
from memcfg._cached import cached_property
from memcfg.errors import InfeasiblePlanError, ResourceExhaustedError
from memcfg.graph import fuse_cross_entropy, read_wide_kernels, tile_updates
from memcfg.nn.inputs._array_checks import Field
from memcfg.nn.inputs._samples import Wanted
from memcfg.nn.training._index_tables import index_tables
from memcfg.nn.training._tracing import (
    KINDS,
    ProgramKey,
    TraceSpec,
    input_names,
    trace,
)
from memcfg.nn.training._ways_out import with_ways_out
from memcfg.plan.search._watch import planning_clock
from memcfg.runtime import Executor
from memcfg.workspaces import ModelWorkspace, workspace_holders

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from weakref import WeakMethod

    from memcfg._core import Lock
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.layers._layer import Shape
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._compile_config import Modes
    from memcfg.nn.training._objectives import Objectives
    from memcfg.plan import Plan, Policy
    from memcfg.runtime import MemoryReport
    from memcfg.runtime._program import Program

__all__ = ["Session", "device_of"]

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

_KEPT = 12  # programs of a model that stay loaded; they share one arena


class _Ready:
    """A loaded program and the views of its inputs and outputs."""

    __slots__ = ("inputs", "kind", "outputs", "program", "scalar", "size", "weights")

    def __init__(self, key: ProgramKey, program: Program) -> None:
        self.kind, self.size, self.weights = key
        self.program = program
        # Set for planned programs only: an unplanned one frees its buffers each step.
        self.inputs: dict[str, Array] | None = None
        self.outputs: tuple[Array, ...] | None = None
        self.scalar = False  # whether all outputs are scalars

    def close(self) -> None:
        """Drop the views, which an error's frames could otherwise keep alive."""
        if self.inputs is not None:
            self.inputs.clear()
        self.outputs = None


class Session:
    """The state of a model and the programs that use it."""

    def __init__(
        self,
        spec: TraceSpec,
        policy: Policy,
        times: str,
        modes: Modes,
        device: str | None,
        lock: Lock,
        owner: str,
        values: Mapping[str, Floats] | None,
        gather: WeakMethod[Callable[[], None]],
    ) -> None:
        self._spec = spec
        self._owner = owner  # the name its memory is listed under
        self._policy = policy
        self._times = times
        self._modes = modes
        self._unplanned = {kind for kind in KINDS if not modes.is_planned(kind)}
        self._device = device
        self.lock = lock
        self.lent = False  # whether another model has newer values of shared layers
        self._gather = gather  # copies the newer values back
        self._superseded = False
        self._draws = 0  # batches outside of training that drew noise
        self._weights = {weight.name: weight for weight in spec.network.weights}
        self.slots = spec.slots
        self._slots = {slot.name: slot for slot in spec.slots}
        self._on_host: dict[str, Floats] = dict(values or {})
        # least recently used first; not all are loaded
        self._used: dict[ProgramKey, None] = {}
        self._ready: dict[ProgramKey, _Ready] = {}  # planned programs that have run
        self._active: _Ready | None = None  # the last program run, if planned
        self._open: _Ready | None = None  # the program whose step has not ended
        self._lead: ProgramKey | None = None
        self._executor: Executor | None = None
        self._debug_mode = config.get_debug_mode()  # when programs were loaded
        # The thread that ran the last step. A reference, since identifiers are reused.
        self._user: ref[threading.Thread] | None = None
        workspace_holders.add(self)

    # The executor alone knows what is loaded: it replaces its programs atomically,
    # so an interrupt cannot leave a second record out of date.

    @property
    def _graphs(self) -> dict[ProgramKey, Graph]:
        """The graphs of the loaded programs, least recently used first."""
        graphs = {} if self._executor is None else self._executor.sources
        return {key: graphs[key.label] for key in self._used if key.label in graphs}

    @property
    def _resident(self) -> Collection[str]:
        """The names of the state in the arena; host copies of it are out of date."""
        return () if self._executor is None else self._executor.state

    @property
    def _training(self) -> bool:
        """Whether the optimizer's state is in the arena."""
        return not self._weights.keys() >= set(self._resident) or any(
            key.kind == "train" for key in self._graphs
        )

    def _is_loaded(self, key: ProgramKey) -> bool:
        return self._executor is not None and self._executor.has(key.label)

    def _is_current(self, key: ProgramKey) -> bool:
        """Return whether a program is loaded for the debug mode of workspaces."""
        return self._is_loaded(key) and (
            key.kind not in self._unplanned
            or self._debug_mode is config.get_debug_mode()
        )

    @property
    def lead(self) -> ProgramKey | None:
        """The program that reports describe: the last training step loaded."""
        result = self._lead
        return None if result is None or not self._is_loaded(result) else result

    @property
    def executor(self) -> Executor:
        """The executor.

        While it has no memory, it moves to the device that its name now refers to.
        """
        with self.lock.turn():
            if self._executor is None or not self._executor.nbytes:
                device = device_of(self._spec.name, self._device)
                if self._executor is None or self._executor.device is not device:
                    self._executor = Executor(
                        device, name=self._owner, lock=self.lock, times=self._times
                    )
            return self._executor

    def use_lock(self, lock: Lock) -> None:
        """Use the lock of a model that shares layers with this one."""
        self.lock = lock
        if self._executor is not None:
            self._executor.lock = lock

    @property
    def objectives(self) -> Objectives:
        """The losses and metrics of a step; RuntimeError before `compile`."""
        result = self._spec.objectives
        if result is None:
            raise RuntimeError(
                "a loss needs a compiled model: call compile(optimizer, loss) first"
            )
        return result

    @property
    def frozen(self) -> frozenset[str]:
        """The names of the weights that are not trained."""
        return self._spec.frozen

    def wanted(self, *, labelled: bool = True) -> Wanted:
        """Return what a batch must contain, with or without y."""
        return self._labelled if labelled else self._unlabelled

    @cached_property
    def _unlabelled(self) -> Wanted:
        network = self._spec.network
        names = input_names("x", len(network.inputs))
        tables = index_tables(self._spec)
        xs = tuple(
            Field(
                name, tensor.sample_shape, tensor.sample_dtype, table=tables.get(name)
            )
            for name, tensor in zip(names, network.inputs, strict=True)
        )
        return Wanted(xs, (), network.takes, network.gives)

    @cached_property
    def _labelled(self) -> Wanted:
        targets = self.objectives.targets
        ys = tuple(
            Field(name, *target)
            for name, target in zip(
                input_names("y", len(targets)), targets.values(), strict=True
            )
        )
        outputs = self._spec.network.outputs
        return self._unlabelled._replace(
            ys=ys,
            places=tuple(targets),
            steps=tuple(outputs[place].sample_shape[:-1] for place in targets),
        )

    # Values

    def read(self, name: str) -> Floats:
        """Return a copy of a value, drawing its initial value if it has none yet."""
        with self.lock.turn():
            if name in self._resident:
                return np.asarray(self.executor.read_state(name))
            if name not in self._on_host:
                self._on_host[name] = self._first_value(name)()
            return self._on_host[name].copy()

    def write(self, name: str, value: Floats) -> None:
        """Overwrite a weight; the caller must not change the array afterwards."""
        with self.lock.turn():
            if name in self._resident:
                self.executor.write_state(name, value)
            else:
                self._on_host[name] = value

    def is_finite(self) -> bool:
        """Return whether no weight is NaN or infinite."""
        return all(np.isfinite(self.read(name)).all() for name in self._weights)

    def values(self) -> dict[str, Floats]:
        """Return copies of all values, taken between two steps."""
        with self.lock.turn():
            names = dict.fromkeys([*self._weights, *self._on_host, *self._resident])
            return {name: self.read(name) for name in names}

    def known_values(self) -> dict[str, Floats]:
        """Copy all values to the host; weights not yet drawn are missing."""
        with self.lock.turn():
            for name in self._resident:
                self._on_host[name] = self.read(name)
            return dict(self._on_host)

    def _initial(self, graph: Graph) -> dict[str, Floats | Callable[[], Array]]:
        """Return values for the state that is not in the arena yet."""
        values: dict[str, Floats | Callable[[], Array]] = {}
        for tensor in (graph.tensors[i] for i in graph.persistent):
            if tensor.name in self._resident:
                continue
            if tensor.name in self._on_host:
                values[tensor.name] = self._on_host[tensor.name]
            else:
                values[tensor.name] = self._first_value(tensor.name)
        return values

    def _first_value(self, name: str) -> Callable[[], Array]:
        """Return a function that makes the initial value of a weight or slot."""
        held = self._slots[name] if name in self._slots else self._weights[name]
        return held.first_value

    # Memory

    def retire(self) -> None:
        """Bring all values to the host and free the arena."""
        with self.lock.turn():
            self.known_values()
            self.close()

    def workspaces(self, *, of_this_thread: bool = False) -> list[ModelWorkspace]:
        """List the workspaces kept for the next step, without taking the lock."""
        executor = self._executor
        kept = {} if executor is None else executor.kept
        if executor is None or not kept:
            return []
        thread = None if self._user is None else self._user()
        if thread is threading.current_thread():
            is_open = self._is_amid_step()
        elif of_this_thread:
            return []
        else:  # other threads do not survive a fork
            running = thread is not None and thread.is_alive()
            is_open = running and executor.is_amid_step
        number = None if thread is None else thread.ident
        return [
            ModelWorkspace(name, self._owner, nbytes, number, is_open)
            for name, nbytes in kept.items()
        ]

    def _is_amid_step(self) -> bool:
        """Return whether the current thread is inside a step."""
        try:
            self.lock.require_no_step()
        except RuntimeError:
            return True
        return False

    def free_workspaces(self) -> None:
        """Free the kept workspaces; RuntimeError inside a step of this thread."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._end_step()
            if self._executor is not None:
                self._executor.free_kept()

    def supersede(self) -> None:
        """Close permanently: calls of other threads that still use this raise."""
        with self.lock.turn():
            self._superseded = True
            self.close()

    def close(self) -> None:
        """Free the arena and lose its values."""
        with self.lock.turn():
            self._drop_programs()
            if self._executor is not None:
                self._executor.close()

    def _drop_programs(self) -> None:
        """End the last step and drop all views into the loaded programs."""
        self._end_step()
        ready, self._ready, self._active = self._ready, {}, None
        for each in ready.values():
            each.close()

    def _check_current(self) -> None:
        if self._superseded:
            raise RuntimeError(
                f"another thread compiled or built {self._spec.name!r} again: retry"
            )

    # Programs

    def require(self, wanted: Sequence[ProgramKey], promised: int = 0) -> None:
        """Load programs, the most important first; if one is missing, load them all."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._require(wanted, promised)

    def _ensure(self, key: ProgramKey) -> None:
        """Load a program if it is not loaded, or was evicted by another thread."""
        self._check_current()
        if self._is_current(key):
            self._use(key)
            return
        lead = self.lead
        self._require([key], 0)
        if lead is not None and self._is_loaded(lead):  # reports still describe it
            self._lead = lead

    def _require(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        self._check_current()
        for key in reversed(wanted):
            self._use(key)
        loaded = all(map(self._is_current, wanted))
        if not loaded or not self._leaves(promised):
            training = self._training or any(key.kind == "train" for key in wanted)
            self._load(wanted, training, promised)
        if wanted[0].kind == "train" or self.lead is None or not self._training:
            self._lead = wanted[0]

    def _use(self, key: ProgramKey) -> None:
        """Mark a program as the most recently used."""
        self._used.pop(key, None)
        self._used[key] = None

    def plan(self, key: ProgramKey) -> Plan:
        """Plan a program without taking memory; RuntimeError if it is not planned."""
        with self.lock.turn():
            self.lock.require_no_step()
            self._check_planned(key)
            training = self._training or key.kind == "train"
            graph = self._trace(self._spec_for(training), key)
            began = planning_clock()
            try:
                return self.executor.plan(graph, self._policy)
            except InfeasiblePlanError as error:
                refusal = self._ways_out(error, [key], training, 0, began)
            raise refusal

    def graph(self, key: ProgramKey) -> Graph:
        """Return a program's graph as policies see it, with the kernels' scratch."""
        with self.lock.turn():
            self.lock.require_no_step()
            training = self._training or key.kind == "train"
            return self.executor.annotate(self._trace(self._spec_for(training), key))

    def loaded_plan(self, key: ProgramKey) -> Plan:
        """Return the plan of a loaded program; RuntimeError if it is not planned."""
        self._check_planned(key)
        return self.executor.plans[key.label]

    def _check_planned(self, key: ProgramKey) -> None:
        if key.kind in self._unplanned:
            mode = self._modes.execution(key.kind, self._debug_mode)
            assert mode is not None  # an unplanned kind has a mode
            raise RuntimeError(
                f"{key.label!r} has no plan: it runs in workspace mode {mode.name!r}. "
                "memory_report() says what it takes; compile with mode 'enabled', and "
                "without layer_workspaces, to have it planned"
            )

    def _trace(self, spec: TraceSpec, key: ProgramKey) -> Graph:
        """Trace a program for the device."""
        kernels = self.executor.device.kernels
        graph = trace(spec, key, kernels.has)
        if kernels.has("dense_cross_entropy"):
            graph = fuse_cross_entropy(graph)
        return read_wide_kernels(tile_updates(graph, kernels.has), kernels.has)

    def _spec_for(self, training: bool) -> TraceSpec:
        return self._spec if training else replace(self._spec, optimizer=None)

    def _leaves(self, promised: int) -> bool:
        """Return whether the loaded programs leave `promised` bytes free."""
        left = self.executor.left_bytes if promised else None
        return left is None or left >= promised

    def _load(
        self, wanted: Sequence[ProgramKey], training: bool, promised: int
    ) -> None:
        """Load `wanted` next to the loaded programs, or alone if they do not fit."""
        others = [key for key in reversed(self._graphs) if key not in wanted]
        lead = self.lead
        if lead in others:
            others.remove(lead)
            others.insert(0, lead)
        others = others[: max(0, _KEPT - len(wanted))]
        if others:
            with suppress(ResourceExhaustedError):
                self._load_exactly([*wanted, *others], training, promised)
                return
        began = planning_clock()
        try:
            self._load_exactly(wanted, training, promised)
        except InfeasiblePlanError as error:
            refusal = self._ways_out(error, wanted, training, promised, began)
        else:
            return
        raise refusal

    def _ways_out(
        self,
        error: InfeasiblePlanError,
        wanted: Sequence[ProgramKey],
        training: bool,
        promised: int,
        began: float,
    ) -> InfeasiblePlanError:
        """Return the error with alternatives that fit, if the program is planned."""
        by_label = {key.label: key for key in wanted}
        key = by_label.get(error.program, wanted[0])
        is_known = key.label == error.program or len(wanted) == 1
        if not is_known or key.kind in self._unplanned:
            return error
        return with_ways_out(
            error,
            self.executor,
            self._policy,
            self._trace,
            self._spec_for(training),
            key,
            promised,
            planning_clock() - began,
        )

    def _load_exactly(
        self, keys: Sequence[ProgramKey], training: bool, promised: int
    ) -> None:
        spec = self._spec_for(training)
        known = self._graphs if training == self._training else {}
        graphs = {key: known.get(key) or self._trace(spec, key) for key in keys}
        initial = self._initial(graphs[keys[0]])
        self._drop_programs()
        debug_mode = config.get_debug_mode()
        modes = {key.label: self._modes.execution(key.kind, debug_mode) for key in keys}
        self.executor.load(
            {key.label: graph for key, graph in graphs.items()},
            self._policy,
            initial,
            {label: mode for label, mode in modes.items() if mode is not None},
            promised=promised,
        )
        self._debug_mode = debug_mode
        for name in initial:
            self._on_host.pop(name, None)

    def memory_report(self, key: ProgramKey, *, verify: bool) -> MemoryReport:
        """Measure a loaded program; the caller holds the lock and is not in a step."""
        self._active = None
        self._user = ref(threading.current_thread())
        return self.executor.memory_report(key.label, verify=verify)

    # Steps

    def is_ready(self, kind: str, size: int, weights: tuple[Shape, ...]) -> bool:
        """Return whether the last program run is this planned one, still loaded."""
        result = self._active
        return (
            result is not None
            and result.kind == kind
            and result.size == size
            and result.weights == weights
            and (kind != "train" or self._lead == (kind, size, weights))
        )

    def step(
        self,
        kind: str,
        batch: Batch,
        optimizer: Optimizer | None = None,
        *,
        guard: bool = False,
        results: Sequence[Array] = (),
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a program on a batch, copying its outputs into `results` if given.

        Returns whether the program ran to the end; with `guard`, a loss that is not
        finite stops it. Without `results`, the second value holds the losses, which
        are means, and the sums of the metrics; with `results`, it is empty.
        """
        counter = None if optimizer is None else optimizer._iterations
        with self.lock.step():
            gather = self._gather() if self.lent else None
            if gather is not None:
                gather()
            ready = self._active
            if (
                ready is None
                or ready.size != batch.size
                or ready.kind != kind
                or (ready.weights != batch.weights and kind != "predict")
            ):
                weights = () if kind == "predict" else batch.weights
                ready = self._activate(ProgramKey(kind, batch.size, weights))
            if ready.program.due and _begins_a_window(self._spec.optimizer):
                ready = self._reconsider(ready)
            if self._open is not None:  # the end of the previous step was interrupted
                self._end_step()
            try:
                try:
                    if ready.inputs is None:
                        self._open = ready
                    self._feed(ready, batch, optimizer)
                    finished = ready.program.run(guard=guard, counter=counter)
                    if results or ready.outputs is None or not ready.scalar:
                        return finished, self._collect(ready, results)
                    return finished, tuple(map(float, ready.outputs))
                finally:
                    if self._open is not None:
                        self._end_step()
            except BaseException:
                if self._open is not None:
                    self._end_step()
                raise

    def _activate(self, key: ProgramKey) -> _Ready:
        """Load a program if necessary and prepare it to run."""
        self._active = None
        self._user = ref(threading.current_thread())
        self._ensure(key)
        program = self.executor.prepare(key.label)
        ready = self._ready.get(key)
        if ready is None or ready.program is not program:
            ready = _Ready(key, program)
        if key.kind not in self._unplanned:
            if ready.inputs is None:
                ready.outputs = self._outputs(ready)
                ready.scalar = not any(output.ndim for output in ready.outputs)
                ready.inputs = self._inputs(ready)
            self._ready[key] = self._active = ready
        return ready

    def _reconsider(self, ready: _Ready) -> _Ready:
        """Let the executor revise the plan from the times of its first steps."""
        key = ProgramKey(ready.kind, ready.size, ready.weights)
        self._drop_programs()
        self.executor.reconsider(key.label)
        return self._activate(key)

    def _end_step(self) -> None:
        """Release what a step has bound and, if it is unplanned, its buffers."""
        if self._open is not None:
            self._open.program.finish()
            self._open = None

    def _feed(self, ready: _Ready, batch: Batch, optimizer: Optimizer | None) -> None:
        inputs = self._inputs(ready) if ready.inputs is None else ready.inputs
        try:
            bound: set[str] = set()
            if batch.in_place:
                self._open = ready
                for column in batch.columns:
                    if column.in_place and ready.program.bind(
                        column.name, column.array[batch.rows]
                    ):
                        bound.add(column.name)
            batch.write(inputs, bound)
            if optimizer is not None:
                if "learning_rate" in inputs:
                    inputs["learning_rate"][...] = optimizer.learning_rate
                if "step" in inputs:
                    inputs["step"][...] = optimizer._iterations.value
            elif "step" in inputs:  # read by layers that also draw outside of training
                inputs["step"][...] = self._draws
                self._draws += 1
        finally:
            del inputs  # an error's frames would keep the views alive

    def _collect(self, ready: _Ready, results: Sequence[Array]) -> tuple[Any, ...]:
        found = self._outputs(ready) if ready.outputs is None else ready.outputs
        for result, output in zip(results, found, strict=False):
            result[...] = output
        if results:
            return ()
        return tuple(np.array(each) if each.ndim else float(each) for each in found)

    def _inputs(self, ready: _Ready) -> dict[str, Array]:
        """Return views of the inputs that a program reads, by name."""
        graph = ready.program.graph
        names = [
            tensor.name
            for i, tensor in enumerate(graph.tensors)
            if tensor.role == "input" and (graph.consumers[i] or i in graph.keep)
        ]
        return {name: ready.program.view(name, at_end=False) for name in names}

    def _outputs(self, ready: _Ready) -> tuple[Array, ...]:
        """Return views of a program's outputs, without the state."""
        graph = ready.program.graph
        kept = graph.keep[: self._spec.count_outputs(ready.kind)]
        return tuple(
            ready.program.view(graph.tensors[i].name, at_end=True) for i in kept
        )


def _begins_a_window(optimizer: Optimizer | None) -> bool:
    """Return whether no accumulated gradients are waiting for an update.

    Without an optimizer, or without accumulation, none ever are.
    """
    steps = None if optimizer is None else optimizer.gradient_accumulation_steps
    if optimizer is None or steps is None:
        return True
    return optimizer._iterations.value % steps == 0


def device_of(model: str, name: str | None) -> Device:
    """Return a model's device; RuntimeError if it is not configured any more."""
    try:
        return config.logical_device(name)
    except ValueError as error:
        raise RuntimeError(
            f"{model!r} was compiled for {name}, which is no longer configured: "
            f"compile it again ({error})"
        ) from error
