"""From an architecture to the graph of one step: training, evaluation, prediction.

Every graph of a model lists the same persistent tensors first, weights in Keras's
order and then the optimizer's state, so that all agree on where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memcfg._cached import cached_property
from memcfg.graph import Builder, Graph, gradients, hoist_updates
from memcfg.nn.layers._layer import Layer, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._network import Network
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.optimizers._optimizer import Slot
    from memcfg.nn.training._objectives import Objectives

__all__ = ["KINDS", "ProgramKey", "TraceSpec", "input_names", "trace"]

KINDS = ("train", "evaluate", "predict")


class ProgramKey(NamedTuple):
    """Which program: ``train``, ``evaluate`` or ``predict``, for how many samples."""

    kind: str
    batch_size: int
    weights: int = 0  # arrays of sample weights; one is for all outputs

    @property
    def label(self) -> str:
        """Its name for people and for the executor."""
        weighted = (
            ("", ", weighted")[self.weights]
            if self.weights < 2
            else (f", {self.weights} weights")
        )
        return f"{self.kind}, batch {self.batch_size}{weighted}"


def input_names(kind: str, count: int) -> list[str]:
    """Name the inputs of a kind, such as ``x``, ``x_1``."""
    return [f"{kind}_{i}" if i else kind for i in range(count)]


@dataclass(frozen=True)
class TraceSpec:
    """What decides a model's graphs beside the batch size."""

    name: str
    network: Network
    optimizer: Optimizer | None = None
    objectives: Objectives | None = None

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """What the optimizer keeps beside the weights that are trained."""
        if self.optimizer is None:
            return ()
        trained = [weight for weight in self.network.weights if weight.trainable]
        return tuple(self.optimizer.state(trained))

    def count_outputs(self, kind: str) -> int:
        """Count what a program computes beside the state; it is kept first."""
        if kind == "predict":
            return len(self.network.outputs)
        assert self.objectives is not None  # `compile` came first
        return self.objectives.value_count


def trace(spec: TraceSpec, key: ProgramKey) -> Graph:
    """Trace one program of a model."""
    return _Trace(spec, key).graph()


class _Trace:
    """The tracing of one program."""

    def __init__(self, spec: TraceSpec, key: ProgramKey) -> None:
        self.spec = spec
        self.key = key
        self.training = key.kind == "train"
        network, batch = spec.network, key.batch_size
        self.names = input_names("x", len(network.inputs))
        self.builder = Builder(f"{spec.name}, {key.label}", self._reserved())
        self.builder.training = self.training
        self.weights: dict[str, int] = {}
        self.state: dict[str, int] = {}
        self.moves: list[tuple[str, int, float]] = []
        self._declare_persistent()
        self.xs = {
            tensor: self._input(name, (batch, *tensor.sample_shape), tensor.dtype)
            for name, tensor in zip(self.names, network.inputs, strict=True)
        }
        self._step: int | None = None

    def _reserved(self) -> list[str]:
        """Name the inputs, whatever layers call their ops."""
        return [
            *self.names,
            *input_names("y", len(self.spec.network.outputs)),
            *input_names("sample_weight", self.key.weights),
            "learning_rate",
            "step",
        ]

    def graph(self) -> Graph:
        outputs = self._forward()
        keep = outputs if self.key.kind == "predict" else self._loss(outputs)
        updated = self._updates(loss=keep[0]) if self.training else self._move()
        graph = self.builder.build(keep=[*keep, *updated])
        return hoist_updates(graph) if updated else graph

    def _declare_persistent(self) -> None:
        for weight in self.spec.network.weights:
            self.weights[weight.name] = self.builder.tensor(
                weight.name, weight.shape, weight.dtype, role="parameter"
            )
        for slot in self.spec.slots:
            self.state[slot.name] = self.builder.tensor(
                slot.name, slot.shape, slot.dtype, role="optimizer_state"
            )

    def _input(self, name: str, shape: tuple[int, ...], dtype: str) -> int:
        return self.builder.tensor(name, shape, dtype, role="input")

    def step(self) -> int:
        if self._step is None:
            self._step = self._input("step", (), "int64")
        return self._step

    def _forward(self) -> list[int]:
        """Trace the layers in the order in which they were called."""
        network = self.spec.network
        values = dict(self.xs)
        calls: dict[Layer, int] = {}
        for node in network.nodes:
            call = calls.setdefault(node.layer, 0)
            calls[node.layer] += 1
            if node.outputs[0] in self.xs:
                continue
            inputs = [values[tensor] for tensor in node.inputs]
            scope = Scope(
                self.builder,
                node.layer.name,
                {
                    spec.name: self.weights[f"{node.layer.name}/{spec.name}"]
                    for spec in node.layer.weight_specs or ()
                },
                training=self.training,
                call=call,
                step=self.step if self.training else None,
            )
            self.builder.group = node.layer.name
            made = node.layer.trace(scope, inputs)
            self.builder.group = None
            several = [made] if isinstance(made, int) else made
            values |= zip(node.outputs, several, strict=True)
            self.moves += [
                (f"{node.layer.name}/{weight}", value, momentum)
                for weight, value, momentum in scope.moving
            ]
        return [values[tensor] for tensor in network.outputs]

    def _loss(self, outputs: Sequence[int]) -> list[int]:
        """Trace metrics and losses; the number to minimise is the first."""
        objectives, batch = self.spec.objectives, self.key.batch_size
        assert objectives is not None  # `compile` came first
        names = input_names("y", len(objectives.targets))
        ys = {
            output: self._input(name, (batch, *wanted.shape), wanted.dtype)
            for name, (output, wanted) in zip(
                names, objectives.targets.items(), strict=True
            )
        }
        weights = self._sample_weights(list(objectives.targets))
        # Metrics come before the loss, which may overwrite the output.
        measured = [
            tensor
            for gauge in objectives.gauges
            for tensor in gauge.metric.trace(
                self.builder,
                ys[gauge.output],
                outputs[gauge.output],
                weights.get(gauge.output) if gauge.weighted else None,
            )
        ]
        losses = [
            term.loss.trace(
                self.builder,
                ys[term.output],
                outputs[term.output],
                weights.get(term.output),
            )
            for term in objectives.terms
        ]
        total = self._total(losses, [term.weight for term in objectives.terms])
        return [total, *(losses if objectives.several else ()), *measured]

    def _sample_weights(self, outputs: Sequence[int]) -> dict[int, int]:
        """Declare the weights of samples; one array is for all outputs."""
        count = self.key.weights
        names = input_names("sample_weight", count)
        found = [self._input(n, (self.key.batch_size,), "float32") for n in names]
        if count == 1:
            return dict.fromkeys(outputs, found[0])
        return dict(zip(outputs, found, strict=True)) if found else {}

    def _total(self, losses: Sequence[int], weights: Sequence[float | None]) -> int:
        terms = []
        for loss, weight in zip(losses, weights, strict=True):
            if weight is not None:
                value = {"shape": (), "value": weight, "dtype": "float32"}
                (by,) = self.builder.apply("fill", (), value, name="loss_weight")
                (loss,) = self.builder.apply("multiply", (loss, by), name="weighted")
            terms.append(loss)
        total = terms[0]
        for term in terms[1:]:
            (total,) = self.builder.apply("add", (total, term), name="total_loss")
        return total

    def _updates(self, loss: int) -> list[int]:
        """Trace backward, the optimizer and the moving averages."""
        optimizer = self.spec.optimizer
        if optimizer is None:
            raise RuntimeError("a training program needs an optimizer")
        new = self._move()
        trained = [weight for weight in self.spec.network.weights if weight.trainable]
        found = gradients(self.builder, loss, [self.weights[w.name] for w in trained])
        for weight in trained:
            if self.weights[weight.name] not in found:
                raise ValueError(
                    f"the loss does not depend on the weight {weight.name!r}: an op on "
                    "its way has no slope, and it cannot be trained"
                )
        if not found:
            return new
        weights = {weight.name: self.weights[weight.name] for weight in trained}
        updated = optimizer.trace(
            self.builder,
            weights,
            {name: found[tensor] for name, tensor in weights.items()},
            self.state,
            self._input("learning_rate", (), "float32"),
            self.step,
        )
        return new + updated

    def _move(self) -> list[int]:
        """Trace the moving averages; a layer called twice moves them twice."""
        current: dict[str, int] = {}
        for name, value, momentum in self.moves:
            before = current.get(name, self.weights[name])
            (current[name],) = self.builder.apply(
                "moving_average",
                (before, value),
                {"momentum": momentum},
                name=f"{name}/moved",
                phase="update",
            )
        return list(current.values())
