"""The weights of a function and the programs that compute with them, in one arena."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from memcfg import config
from memcfg._core import Lock
from memcfg.graph import for_device
from memcfg.nn._model import (
    join_locks,
    moved_names,
    name_owner,
    require_values,
    state_elsewhere,
    values_elsewhere,
)
from memcfg.nn.functions._function_graph import (
    FunctionSpec,
    make_spec,
    trace_function,
)
from memcfg.runtime import Executor, FirstValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.graph import Graph
    from memcfg.nn._network import Weight
    from memcfg.nn.functions._function_graph import (
        Calls,
        OptimizerState,
    )
    from memcfg.nn.layers._layer import Layer
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.optimizers._optimizer import Slot
    from memcfg.plan import Plan, Policy
    from memcfg.runtime import MemoryReport
    from memcfg.runtime._program import Program
    from memcfg.timeline import MemoryTimeline

__all__ = ["FunctionState"]

_Array = np.ndarray[Any, Any]


class _Ready:
    """A program with views of its inputs and results."""

    def __init__(self, program: Program, spec: FunctionSpec, calls: Calls) -> None:
        self.program = program
        graph = program.graph
        views = {
            tensor.name: program.view(tensor.name, at_end=False)
            for i, tensor in enumerate(graph.tensors)
            if tensor.role == "input" and (graph.consumers[i] or i in graph.keep)
        }
        self.arguments = [
            (i, views[name])
            for i in range(len(calls.starts))
            if (name := f"argument_{i}") in views
        ]
        # Each update in the program is a step of its optimizer.
        turns = [
            (each.optimizer, number, each.turn(number))
            for each in spec.optimizers
            for number in range(calls.updates_by(each.optimizer))
        ]
        self.optimizers = [optimizer for optimizer, _, _ in turns]
        self.rates = [
            (optimizer, number, views[name])
            for optimizer, number, turn in turns
            if (name := f"{turn}learning_rate") in views
        ]
        self.iterations = [
            (optimizer, number, views[name])
            for optimizer, number, turn in turns
            if (name := f"{turn}iteration") in views
        ]
        self.step = views.get("step")
        self.outputs = [
            program.view(graph.tensors[i].name, at_end=True)
            for i in graph.keep[: len(calls.ends)]
        ]

    def feed(self, arguments: Sequence[_Array], number: int) -> None:
        """Write what the next run reads."""
        for place, view in self.arguments:
            view[...] = arguments[place]
        for optimizer, later, view in self.rates:
            view[...] = optimizer.rates_after(later) if later else optimizer.rates
        for optimizer, later, view in self.iterations:
            view[...] = optimizer._iterations.value + later
        if self.step is not None:
            self.step[...] = number


class FunctionState:
    """Owns the values of the weights of a function's layers, as a model does.

    Programs are loaded together, since all list the same state. The number of programs
    is bounded; the one that was used least recently is dropped.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        times: str,
        programs: int,
        device: str | None = None,
        model: Any = None,  # whose optimizers it may use
    ) -> None:
        self.name = name
        self._model = None if model is None else ref(model)
        self.lent = False  # whether a model has newer values of the weights
        self._policy = policy
        self._times = times
        self._programs = programs
        self._owner = name_owner(self, name)
        self._reference = ref(self)  # the one that layers have, also when dead
        self._lock = Lock(self._owner)
        self._device = config.logical_device(device).name
        self._spec: FunctionSpec | None = None
        self._calls: dict[str, Calls] = {}  # by label, least recently used first
        self._executor: Executor | None = None
        self._on_host: dict[str, _Array] = {}
        self.run_count = 0  # of runs without updates, by which layers draw
        self._names: dict[tuple[Layer, str], Weight] = {}
        self._ready: dict[str, _Ready] = {}  # programs that have run

    # What a layer asks of the owner of its values

    @property
    def _session(self) -> FunctionState:
        return self

    _config = None

    def use_lock(self, lock: Lock) -> None:
        """Use the lock of a model that shares layers."""
        self._lock = lock
        if self._executor is not None:
            self._executor.lock = lock

    def _read_weight(self, layer: Layer, name: str) -> _Array:
        """Return a copy of a weight's value."""
        return self.read(self._names[layer, name].name)

    def _write_weight(self, layer: Layer, name: str, value: _Array) -> None:
        """Replace a weight's value."""
        self.write(self._names[layer, name].name, value)

    # What an optimizer asks of the owner of its state

    def _reset_state(self, layer: Layer) -> None:
        """Reset the state of a layer that is kept between calls."""
        with self._lock.turn():
            self._gather()
            for weight in self._names.values():
                if weight.hidden and weight.layer is layer:
                    self.write(weight.name, weight.first_value())

    def _built_session(self) -> FunctionState:
        return self

    @property
    def held_weights(self) -> Sequence[Weight]:
        """The weights, whose names the state of optimizers has."""
        return list(self._names.values())

    def slots_of(self, optimizer: Optimizer) -> list[Slot]:
        """Return the state tensors of an optimizer."""
        assert self._spec is not None  # it has been loaded with the optimizer
        states = self._spec.optimizers
        return next(each.slots for each in states if each.optimizer is optimizer)

    def read(self, name: str) -> _Array:
        """Return a copy of a weight or of a state tensor."""
        with self._lock.turn():
            if name in self._resident:
                return np.asarray(self.executor.read_state(name))
            if name not in self._on_host:
                self._on_host[name] = self._first_value(name)
            return self._on_host[name].copy()

    def write(self, name: str, value: _Array) -> None:
        """Replace a weight or a state tensor."""
        with self._lock.turn():
            if name in self._resident:
                self.executor.write_state(name, value)
            else:
                self._on_host[name] = value

    def _first_value(self, name: str) -> _Array:
        state = [*self._names.values(), *(self._spec.slots if self._spec else ())]
        return next(each.first_value() for each in state if each.name == name)

    # Programs

    @property
    def executor(self) -> Executor:
        """The executor; without memory it moves to the device of its name."""
        if self._executor is None or not self._executor.nbytes:
            device = config.logical_device(self._device)
            if self._executor is None or self._executor.device is not device:
                self._executor = Executor(
                    device, name=self._owner, lock=self._lock, times=self._times
                )
        return self._executor

    @property
    def _resident(self) -> Any:
        return () if self._executor is None else self._executor.state

    def has(self, label: str) -> bool:
        """Return whether a program is loaded."""
        return self._executor is not None and self._executor.has(label)

    def load(self, calls: Calls) -> None:
        """Load a program, and those that were loaded before; all or nothing."""
        with self._lock.turn():
            self._lock.require_no_step()
            kept = {**self._calls, calls.label: calls}
            while len(kept) > self._programs:
                kept.pop(next(iter(kept)))
            spec = self._spec_of(kept.values())
            self._check_names(spec)
            self._rename(spec)
            self._take_over(spec)
            graphs = {label: self._trace(spec, each) for label, each in kept.items()}
            self._ready.clear()  # views would keep the arena from growing
            initial = self._initial(spec)
            self.executor.load(graphs, self._policy, initial)
            for name in initial:
                self._on_host.pop(name, None)
            self._spec, self._calls = spec, kept
            for each in spec.optimizers:
                each.optimizer._claim(self)

    def graph(self, calls: Calls) -> Graph:
        """Return a program's graph with the kernels' scratch; takes no memory."""
        with self._lock.turn():
            spec = self._spec_of([*self._calls.values(), calls])
            return self.executor.annotate(self._trace(spec, calls))

    def plan(self, calls: Calls, limit_bytes: int | None) -> Plan:
        """Plan a program under a limit; takes no memory."""
        with self._lock.turn():
            spec = self._spec_of([*self._calls.values(), calls])
            graph = self._trace(spec, calls)
            return self.executor.plan(graph, self._policy, limit_bytes)

    def report(self, label: str, *, verify: bool) -> MemoryReport:
        """Return what a loaded program takes."""
        with self._lock.turn():
            return self.executor.memory_report(label, verify=verify)

    def timeline(self, label: str, *, verify: bool) -> MemoryTimeline:
        """Return which tensor of a loaded program has which bytes when."""
        with self._lock.turn():
            return self.executor.memory_timeline(label, verify=verify)

    def run(
        self, calls: Calls, arguments: Sequence[_Array], *, guard: bool
    ) -> tuple[bool, list[_Array]]:
        """Run a loaded program; return if it ran to the end, and copies of results."""
        with self._lock.step():
            if self.lent:
                self._gather()
            ready = self._views(calls)
            # Updates are numbered by their optimizer, so that what is drawn for them
            # does not depend on other programs and goes on after a restart.
            ready.feed(
                arguments,
                ready.optimizers[0]._iterations.value
                if ready.optimizers
                else self.run_count,
            )
            finished = ready.program.run(guard=guard)
            self.run_count += not ready.optimizers
            for optimizer in ready.optimizers if finished else ():
                optimizer._iterations.advance()
            return finished, [np.array(each) for each in ready.outputs]

    def _views(self, calls: Calls) -> _Ready:
        """Return a loaded program with views of what it reads and returns."""
        program = self.executor.prepare(calls.label)
        ready = self._ready.get(calls.label)
        if ready is None or ready.program is not program:
            assert self._spec is not None  # a program is loaded
            ready = self._ready[calls.label] = _Ready(program, self._spec, calls)
        return ready

    def _spec_of(self, programs: Iterable[Calls]) -> FunctionSpec:
        """Return what determines the graphs of programs, with the names of a model."""
        known = self._spec
        model = None if self._model is None else self._model()
        network = None if model is None else model._network
        if known is None and network is not None:
            known = FunctionSpec(self.name, network.layers, (), {}, ())
        return make_spec(self.name, list(programs), known)

    def _trace(self, spec: FunctionSpec, calls: Calls) -> Graph:
        has = self.executor.device.kernels.has
        return for_device(trace_function(spec, calls, has), has)

    # Values

    def _check_names(self, spec: FunctionSpec) -> None:
        owned: dict[str, Layer] = {}
        for layer in spec.layers:
            if layer.weight_specs and owned.setdefault(layer.name, layer) is not layer:
                raise ValueError(
                    f"{self.name!r} calls two layers named {layer.name!r}: names must "
                    "be unique in a function"
                )
        for each in spec.optimizers:
            if not self._may_take(each.optimizer._holder()):
                each.optimizer._check_free(self)

    def _rename(self, spec: FunctionSpec) -> None:
        """Keep the values of weights whose layers were renamed, and their state."""
        before, known = (
            {key: each.name for key, each in self._names.items()},
            self._spec,
        )
        after = {(each.layer, each.spec_name): each.name for each in spec.weights}
        moved = moved_names(before, after, () if known is None else known.slots)
        if not moved:
            return
        self.close()  # the programs have the old names
        self._on_host = {moved.get(n, n): each for n, each in self._on_host.items()}
        self._spec = make_spec(self.name, (), known)
        self._names = {(w.layer, w.spec_name): w for w in self._spec.weights}

    def _take_over(self, spec: FunctionSpec) -> None:
        """Become the owner of the weights, with the values of those before."""
        require_values(spec.weights)
        join_locks(self, {weight.layer._model for weight in spec.weights})
        for name, value in values_elsewhere(spec.weights, self).items():
            if name in self._resident:
                self.executor.write_state(name, value)
            else:
                self._on_host[name] = value
        self._names = {(w.layer, w.spec_name): w for w in spec.weights}
        for state in spec.optimizers:
            self._take_state(state)
        for layer in dict.fromkeys(weight.layer for weight in spec.weights):
            if layer._model is not self:
                layer._claim(self)
        self.lent = False

    def _may_take(self, holder: Any) -> bool:
        """Return whether the model, or an earlier state of it, holds an optimizer."""
        model = None if self._model is None else self._model()
        if isinstance(holder, FunctionState):
            holder = None if holder._model is None else holder._model()
        return model is not None and holder is model

    def _take_state(self, state: OptimizerState) -> None:
        """Take over the state of an optimizer that the model had."""
        owner = state.optimizer._holder()
        if owner is None or owner is self:
            return
        weights = {weight.name: weight for weight in state.weights}
        for name, value in state_elsewhere(state.optimizer, state.slots, weights):
            if name in self._resident:
                self.executor.write_state(name, value)
            else:
                self._on_host[name] = value
        state.optimizer._claim(self)

    def _gather(self) -> None:
        assert self._spec is not None  # a program is loaded
        self._take_over(self._spec)

    def _initial(self, spec: FunctionSpec) -> dict[str, _Array | FirstValue]:
        """Return values for the state that is not in the arena yet."""
        values: dict[str, _Array | FirstValue] = {}
        state: list[Weight | Slot] = [*spec.weights, *spec.slots]
        for each in state:
            if each.name not in self._resident:
                known = self._on_host.get(each.name)
                values[each.name] = each if known is None else known
        return values

    def close(self) -> None:
        """Free the arena; values go to the host."""
        with self._lock.turn():
            for name in list(self._resident):
                self._on_host[name] = np.asarray(self.executor.read_state(name))
            self._ready.clear()
            if self._executor is not None:
                self._executor.close()
            self._calls = {}

    def __del__(self) -> None:
        for (layer, name), weight in getattr(self, "_names", {}).items():
            if layer._owner is self._reference:
                if weight.name in self._resident:
                    value = np.asarray(self.executor.read_state(weight.name))
                elif weight.name in self._on_host:
                    value = self._on_host[weight.name]
                else:
                    continue
                layer._values[name] = value
        self._ready = {}
        executor: Executor | None = getattr(self, "_executor", None)
        if executor is not None:
            executor.close()
