"""From the calls of a function to the graph of one of its programs.

All graphs of a function list the same persistent tensors first, weights and then the
states of optimizers, so that they agree on their offsets.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memcfg.errors import GraphError
from memcfg.graph import (
    Builder,
    Graph,
    hoist_updates,
    read_concatenations,
    simplify,
)
from memcfg.nn._constraining import constrain
from memcfg.nn._network import traverse, weights_of
from memcfg.nn.functions._assignments import Update
from memcfg.nn.functions._measures import MetricResult
from memcfg.nn.functions._readings import Reading
from memcfg.nn.layers._layer import Scope, lines_of
from memcfg.nn.training._tracing import assigned, move_averages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memcfg.nn._network import Weight
    from memcfg.nn.functions._recorder import Recording
    from memcfg.nn.layers._layer import Layer, Node, SymbolicTensor, Variable
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.optimizers._optimizer import Slot

__all__ = ["Calls", "FunctionSpec", "OptimizerState", "trace_function"]

_STEP = "step"


@dataclass(eq=False)
class Calls:
    """The calls of a function for arguments of certain shapes and values."""

    label: str
    starts: Sequence[SymbolicTensor]
    results: Sequence[SymbolicTensor | MetricResult]
    structure: Any  # of the results
    recording: Recording
    ends: list[SymbolicTensor] = field(init=False)  # results and numbers of metrics
    nodes: list[Node] = field(init=False)
    layers: tuple[Layer, ...] = field(init=False)

    def __post_init__(self) -> None:
        given = [each for each in self.results if not isinstance(each, MetricResult)]
        sums = [each for _, several in self.recording.measured for each in several]
        self.ends = [*given, *sums]
        ends = [end.node for end in self.ends]
        nodes, layers = traverse([*ends, *self.recording.calls])
        made = (node for node in nodes if node.outputs)  # not those of weights
        self.nodes = sorted(made, key=lambda node: node.order)
        own = [layer for layer, _ in self.recording.read]
        held = {leaf for layer in layers for _, leaf in layer._leaves()}
        missing = dict.fromkeys(layer for layer in own if layer not in held)
        self.layers = (*layers, *missing)

    def measured(self, values: Sequence[Any], *, finished: bool) -> list[Any]:
        """Add the numbers of metrics, which come last; return the results."""
        left = iter(values)
        given = [
            each if isinstance(each, MetricResult) else next(left)
            for each in self.results
        ]
        for metric, sums in self.recording.measured if finished else ():
            metric._add([next(left) for _ in sums])
        return [
            each.number() if isinstance(each, MetricResult) else each for each in given
        ]

    @property
    def updates(self) -> list[Update]:
        """The updates, in order."""
        layers = (node.layer for node in self.recording.calls)
        return [layer for layer in layers if isinstance(layer, Update)]

    def updates_by(self, optimizer: Optimizer) -> int:
        """Return the number of updates by an optimizer."""
        return sum(each.optimizer is optimizer for each in self.updates)


@dataclass(eq=False)
class OptimizerState:
    """The state of an optimizer for the weights that it updates."""

    prefix: str  # of the names of its tensors
    optimizer: Optimizer
    weights: list[Weight]

    def turn(self, number: int) -> str:
        """Return the prefix of what the update of this number in a program reads."""
        return f"{self.prefix}update_{number}/" if number else self.prefix

    @property
    def slots(self) -> list[Slot]:
        """The state tensors, named as in graphs."""
        return [
            slot._replace(name=f"{self.prefix}{slot.name}")
            for slot in self.optimizer.state(self.weights)
        ]


@dataclass(eq=False)
class FunctionSpec:
    """All that determines the graphs of a function."""

    name: str
    layers: Sequence[Layer]
    weights: Sequence[Weight]
    aliases: dict[str, str]
    optimizers: Sequence[OptimizerState]

    @property
    def slots(self) -> list[Slot]:
        """The state of all optimizers."""
        return [slot for each in self.optimizers for slot in each.slots]


def make_spec(
    name: str, programs: Iterable[Calls], known: FunctionSpec | None
) -> FunctionSpec:
    """Return what determines the graphs of programs; what was known comes first."""
    layers: dict[Layer, None] = dict.fromkeys(() if known is None else known.layers)
    for calls in programs:
        layers |= dict.fromkeys(calls.layers)
    weights, aliases, computed, _ = weights_of(tuple(layers))
    if computed:
        raise ValueError(
            f"{name!r} reads {', '.join(map(repr, computed))}, of which a model holds "
            "parts: a function reads plain weights, as compression.strip makes them"
        )
    names = {(each.layer, each.spec_name): each for each in weights}
    by_optimizer: dict[Optimizer, dict[Weight, None]] = {}
    for each in () if known is None else known.optimizers:
        keys = [(weight.layer, weight.spec_name) for weight in each.weights]
        by_optimizer[each.optimizer] = {names[k]: None for k in keys if k in names}
    for calls in programs:
        for update in calls.updates:
            if update.optimizer is not None:
                held = by_optimizer.setdefault(update.optimizer, {})
                for variable in update.updated:
                    held[names[variable._layer, variable.name]] = None
    states = []
    for place, (optimizer, held) in enumerate(by_optimizer.items()):
        prefix = f"optimizer_{place}/" if place else ""
        states.append(OptimizerState(prefix, optimizer, list(held)))
    return FunctionSpec(name, tuple(layers), weights, aliases, states)


def trace_function(
    spec: FunctionSpec, calls: Calls, has: Callable[[str], bool] = lambda _: False
) -> Graph:
    """Trace a program; `has` reports whether the device has a kernel for an op."""
    return _Trace(spec, calls).graph(has)


class _Trace:
    """The tracer of one program."""

    def __init__(self, spec: FunctionSpec, calls: Calls) -> None:
        self.spec = spec
        self.calls = calls
        names = [f"argument_{i}" for i in range(len(calls.starts))]
        turns = [
            each.turn(number)
            for each in spec.optimizers
            for number in range(calls.updates_by(each.optimizer))
        ]
        rates = [f"{turn}learning_rate" for turn in turns]
        steps = [f"{turn}iteration" for turn in turns]
        reserved = [*names, *rates, *steps, _STEP]
        self.builder = Builder(f"{spec.name}, {calls.label}", reserved)
        self.builder.lines = lines_of(node.layer for node in calls.nodes)
        self.builder.training = calls.recording.differentiates
        self.builder.compute_dtype = "float32"  # layers set their own
        self.weights = {
            each.name: self.builder.tensor(
                each.name, each.shape, each.dtype, role="parameter"
            )
            for each in spec.weights
        }
        self.state = {
            slot.name: self.builder.tensor(
                slot.name, slot.shape, slot.dtype, role="optimizer_state"
            )
            for slot in spec.slots
        }
        self.values: dict[SymbolicTensor, int] = {
            tensor: self._input(name, tensor.whole_shape, tensor.sample_dtype)
            for name, tensor in zip(names, calls.starts, strict=True)
        }
        self.names = {(w.layer, w.spec_name): w.name for w in spec.weights}
        self._step: int | None = None
        self._calls: dict[Layer, int] = {}  # of each layer so far
        self._turns: dict[Optimizer, int] = {}  # updates by each optimizer so far
        # The newest value of each weight and state tensor that is updated.
        self.new: dict[str, int] = {}

    def _input(self, name: str, shape: tuple[int, ...], dtype: str) -> int:
        return self.builder.tensor(name, shape, dtype, role="input")

    def step(self) -> int:
        """Return the number of the call, by which layers draw."""
        if self._step is None:
            self._step = self._input(_STEP, (), "int64")
        return self._step

    def graph(self, has: Callable[[str], bool]) -> Graph:
        outputs = self._forward()
        keep = [*outputs, *self.new.values()]
        built = self.builder.build(keep)
        graph = simplify(built, has, differentiates=self.builder.training)
        if not self.new:
            return graph
        with suppress(GraphError):  # a function may read what it has updated
            graph = hoist_updates(graph)
        return read_concatenations(graph)

    def _forward(self) -> list[int]:
        """Trace the calls in order; return the results."""
        masks: dict[SymbolicTensor, int | None] = {}
        for (layer, index), tensor in self.calls.recording.read.items():
            spec = (layer.weight_specs or ())[index]
            self.values[tensor] = self.weights[self.names[layer, spec.name]]
        scope = self._scope()
        left = list(reversed(self.calls.recording.segments))
        for node in self.calls.nodes:
            if left and node.order > left[-1][0]:
                while left and node.order > left[-1][0]:
                    _, number = left.pop()
                self._calls = {}
                scope = self._scope(number)
            if isinstance(node.layer, Reading):
                self._move(scope)
                self._read(node, node.layer.variable)
                scope = self._scope()
            elif isinstance(node.layer, Update):
                self._move(scope)
                self._update(node, node.layer)
                scope = self._scope()
                # Updates follow the forward phase, and what reads them follows them.
                self.builder.phase = "backward"
            else:
                scope.trace([node], self.values, masks)
        self._move(scope)
        return [self._output(each) for each in self.calls.ends]

    def _scope(self, number: int | None = None) -> Scope:
        """Return a scope of calls that read the newest weights.

        They draw by the number of the run, or by the one that is given.
        """

        def fixed() -> int:
            value = {"shape": (), "value": number, "dtype": "int64"}
            return self.builder.apply("fill", (), value)[0]

        newest = {name: self.new.get(name, each) for name, each in self.weights.items()}
        aliases = {other: newest[name] for other, name in self.spec.aliases.items()}
        return Scope(
            self.builder,
            "",
            newest | aliases,
            training=False,
            step=self.step if number is None else fixed,
            calls=self._calls,
        )

    def _move(self, scope: Scope) -> None:
        """Append the moving averages that calls have asked for."""
        if not self.calls.recording.moves:
            return
        moves = [
            (self.spec.aliases.get(name, name), value, momentum)
            for name, value, momentum in scope.moving
        ]
        self.new |= move_averages(self.builder, moves, self.weights | self.new)

    def _read(self, node: Node, variable: Variable) -> None:
        """Take the newest value of a weight, which is a constant for gradients."""
        name = self.names[variable._layer, variable.name]
        value = self.weights[name]
        if name in self.new:
            self.builder.phase = "backward"  # what reads an update follows it
            (value,) = self.builder.apply("stop_gradient", (self.new[name],))
        self.values[node.outputs[0]] = value

    def _output(self, end: SymbolicTensor) -> int:
        """Return a result, copied if it is an argument or a weight."""
        value = self.builder.cast(self.values[end], "float32")
        shape = self.builder.shape(value)
        if self.builder.maker(value) is None or value in self.new.values():
            (value,) = self.builder.apply("reshape", (value,), {"shape": shape})
        return value

    def _update(self, node: Node, update: Update) -> None:
        """Append the new values of weights."""
        names = [
            self.names[variable._layer, variable.name] for variable in update.updated
        ]
        given = [self.values[each] for each in node.inputs]
        if update.optimizer is None:
            (name,), (value,) = names, given
            before = self.new.get(name, self.weights[name])
            made = assigned(self.builder, before, value, f"{name}/assigned")
            self.new[name] = self.values[node.outputs[0]] = made
            return
        place = next(
            each for each in self.spec.optimizers if each.optimizer is update.optimizer
        )
        number = self._turns.get(update.optimizer, 0)
        self._turns[update.optimizer] = number + 1
        turn, shape = place.turn(number), place.optimizer.rate_shape
        rate = self._input(f"{turn}learning_rate", shape, "float32")
        step: list[int] = []

        def iteration() -> int:
            if not step:
                step.append(self._input(f"{turn}iteration", (), "int64"))
            return step[0]

        cut = len(place.prefix)
        new = update.optimizer.trace(
            self.builder,
            {name: self.new.get(name, self.weights[name]) for name in names},
            dict(zip(names, given, strict=True)),
            {
                slot.name[cut:]: self.new.get(slot.name, self.state[slot.name])
                for slot in place.slots
            },
            rate,
            iteration,
        )
        new = constrain(self.builder, new, self.spec.weights, self.weights)
        owners = {tensor: name for name, tensor in (self.weights | self.state).items()}
        for tensor in new:
            self.new[owners[self.builder.overwritten(tensor)]] = tensor
        for name, output in zip(names, node.outputs, strict=True):
            self.values[output] = self.new[name]
