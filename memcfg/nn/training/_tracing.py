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
    from memcfg.nn.losses import Loss
    from memcfg.nn.metrics import Metric
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.optimizers._optimizer import Slot

__all__ = ["KINDS", "ProgramKey", "TraceSpec", "trace"]

KINDS = ("train", "evaluate", "predict")
_INPUTS = ("x", "y", "learning_rate", "step")  # whatever layers call their ops


class ProgramKey(NamedTuple):
    """Which program: ``train``, ``evaluate`` or ``predict``, for how many samples."""

    kind: str
    batch_size: int

    @property
    def label(self) -> str:
        """Its name for people and for the executor."""
        return f"{self.kind}, batch {self.batch_size}"


@dataclass(frozen=True)
class TraceSpec:
    """What decides a model's graphs beside the batch size."""

    name: str
    network: Network
    optimizer: Optimizer | None = None
    loss: Loss | None = None
    metrics: tuple[Metric, ...] = ()

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
        return 1 + sum(metric.count for metric in self.metrics)


def trace(spec: TraceSpec, key: ProgramKey) -> Graph:
    """Trace one program of a model."""
    return _Trace(spec, key).graph()


class _Trace:
    """The tracing of one program."""

    def __init__(self, spec: TraceSpec, key: ProgramKey) -> None:
        self.spec = spec
        self.key = key
        self.training = key.kind == "train"
        self.builder = Builder(f"{spec.name}, {key.label}", _INPUTS)
        self.builder.training = self.training
        self.weights: dict[str, int] = {}
        self.state: dict[str, int] = {}
        self.moves: list[tuple[str, int, float]] = []
        self._declare_persistent()
        batch = key.batch_size
        self.x = self._input("x", (batch, *spec.network.input_shape), "float32")
        self._step: int | None = None

    def graph(self) -> Graph:
        outputs = self._forward()
        if self.key.kind == "predict":
            return self.builder.build(keep=outputs)
        keep = self._loss(outputs)
        if not self.training:
            return self.builder.build(keep=keep)
        keep += self._updates(loss=keep[0])
        return hoist_updates(self.builder.build(keep=keep))

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
        values = {network.inputs: self.x}
        calls: dict[Layer, int] = {}
        for node in network.nodes:
            call = calls.setdefault(node.layer, 0)
            calls[node.layer] += 1
            inputs = [values[tensor] for tensor in node.inputs] or [self.x]
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
            values[node.output] = node.layer.trace(scope, inputs)
            self.builder.group = None
            self.moves += [
                (f"{node.layer.name}/{weight}", value, momentum)
                for weight, value, momentum in scope.moving
            ]
        return [values[tensor] for tensor in network.outputs]

    def _loss(self, outputs: Sequence[int]) -> list[int]:
        loss = self.spec.loss
        assert loss is not None  # `compile` came first
        (output,) = outputs
        wanted = loss.target(self.spec.network.outputs[0])
        labels = self._input("y", (self.key.batch_size, *wanted.shape), wanted.dtype)
        # Metrics come before the loss, which may overwrite the output.
        found = [
            tensor
            for metric in self.spec.metrics
            for tensor in metric.trace(self.builder, labels, output, None)
        ]
        value = loss.trace(self.builder, labels, output, None)
        return [value, *found]

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
