"""The losses of regularizers and of `add_loss`, as tensors of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn.functions._recorder import recorded
from memcfg.nn.layers._layer import Layer, Node, Scope, Variable
from memcfg.nn.training._tracing import penalty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = ["losses_of"]


class LossesOfCall(Layer):
    """The sum of what a call adds to the loss, and of penalties on weights."""

    __slots__ = ("node", "regularizers")

    arity: ClassVar[int | None] = None

    def __init__(self, call: Node, regularizers: Sequence[Any]) -> None:
        super().__init__()
        self.node = call
        self.regularizers = regularizers

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the sum; inputs are the results of the call, and the weights."""
        builder, batch = scope.builder, scope.builder.shape(inputs[0])[0]
        terms = [
            penalty(builder, *each, batch)
            for each in scope.penalties[scope.spans.get(self.node, slice(0))]
        ]
        weights = inputs[len(self.node.outputs) :]
        for regularizer, weight in zip(self.regularizers, weights, strict=True):
            terms.append(regularizer.trace(builder, weight))
        if not terms:
            value = {"shape": (), "value": 0.0, "dtype": "float32"}
            terms = list(scope.apply("fill", (), value))
        total = terms[0]
        for term in terms[1:]:
            (total,) = scope.apply("add", (total, term))
        return total


def losses_of(model: Any) -> list[SymbolicTensor]:
    """Return the losses of a model's last call in a function, as one sum."""
    recording = recorded(f"{type(model).__name__}.losses")
    calls = [call for each in model._as_layer()._calls if (call := each()) is not None]
    if not calls or not calls[-1].outputs[0].whole:
        return []
    call, network = calls[-1], model._built_network()
    frozen = network.frozen()
    penalised = [
        (weight.regularizer, Variable(weight.layer, index, weight.name))
        for weight in network.weights
        for index, spec in enumerate(weight.layer.weight_specs or ())
        if spec.name == weight.spec_name
        and weight.regularizer is not None
        and weight.name not in frozen
    ]
    layers = [leaf for layer in network.layers for _, leaf in layer._leaves()]
    if not penalised and not any(map(_adds, layers)) and not network.losses:
        return []
    symbols = [recording.symbol(variable) for _, variable in penalised]
    layer = LossesOfCall(call, [regularizer for regularizer, _ in penalised])
    inputs = (*call.outputs, *symbols)
    return list(Node(layer, inputs, [((), "float32")], whole=True).outputs)


def _adds(layer: Layer) -> bool:
    """Return whether a layer may add to the loss."""
    if layer.activity_regularizer is not None:
        return True
    return any(getattr(inner, "losses", ()) for inner in layer._inner.values())
