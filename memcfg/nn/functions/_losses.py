"""The losses of regularizers and of `add_loss`, as tensors of a function."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn.functions._eager_tape import active_tape
from memcfg.nn.functions._recorder import current, recorded, resumed
from memcfg.nn.layers._layer import Layer, Node, Scope, Variable
from memcfg.nn.layers._operators import Applied
from memcfg.nn.training._tracing import penalty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.functions._recorder import Recording
    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = ["adds_losses", "keep_added", "keep_loss", "losses_of", "with_losses"]


class LossesOfCall(Layer):
    """The sum of what a call adds to the loss, or the last call of a layer within."""

    __slots__ = ("node",)

    arity: ClassVar[int | None] = None

    def __init__(self, call: Node | Layer) -> None:
        super().__init__()
        self.node = call

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the sum; inputs are the results of the call."""
        builder, batch = scope.builder, scope.builder.shape(inputs[0])[0]
        terms = [
            penalty(builder, *each, batch)
            for each in scope.penalties[scope.spans.get(self.node, slice(0))]
        ]
        if not terms:
            value = {"shape": (), "value": 0.0, "dtype": "float32"}
            terms = list(scope.apply("fill", (), value))
        total = terms[0]
        for term in terms[1:]:
            (total,) = scope.apply("add", (total, term))
        return total


def losses_of(model: Any) -> list[Any]:
    """Return the losses of the last call of a model or a layer.

    What the call adds is one sum, and each regularizer of a weight is another loss. If
    only parts of the model are called, these are the losses of the last call of each.
    Outside of a function they are numbers.
    """
    tape = active_tape()
    if current() is None and tape is not None:
        with resumed(tape.recording):
            found = losses_of(model)
        return tape.computed(found)
    own = model if isinstance(model, Layer) else model._as_layer()
    if current() is None:
        penalties = [
            regularizer(leaf._read(index))
            for (leaf, index), regularizer in _penalised(own).items()
        ]
        return [*_added.get(own, ()), *penalties]
    recording = recorded(f"{type(model).__name__}.losses")
    around = _around(own, recording)
    if around is not None and _last(own, recording) is None:
        return [*_added_by(own, around), *_penalties_of(own, recording)]
    parts = [own] if _last(own, recording) else own._sublayers()
    losses = [loss for part in parts for loss in _losses_of_part(part, recording)]
    return [*recording.added.get(own, ()), *losses]


def keep_loss(model: Layer, loss: SymbolicTensor) -> None:
    """Note a loss that a model's `call` adds in a function."""
    recorded("add_loss").added.setdefault(model, []).append(loss)


def adds_losses(model: Any) -> bool:
    """Return whether calls of a model's layers, or the model, add to the loss."""
    network = model._built_network()
    leaves = (leaf for layer in network.layers for _, leaf in layer._leaves())
    return bool(network.losses) or any(map(_adds, leaves))


def _last(layer: Layer, recording: Recording) -> Node | None:
    """Return the last call of a layer in a function, or None."""
    calls = [call for each in layer._calls if (call := each()) is not None]
    if not calls or calls[-1].order <= recording.begin or not calls[-1].outputs:
        return None
    return calls[-1] if calls[-1].outputs[0].whole else None


def _losses_of_part(layer: Layer, recording: Recording) -> list[SymbolicTensor]:
    """Return the losses of the last call of a layer or model."""
    call = _last(layer, recording)
    if call is None:
        return []
    return [*_added_by(layer, call), *_penalties_of(layer, recording)]


def _around(layer: Layer, recording: Recording) -> Node | None:
    """Return the last call in a function of what calls a layer; None without one."""
    for node in reversed(recording.noted):
        if node.layer is not layer and any(
            leaf is layer for _, leaf in node.layer._leaves()
        ):
            return node
    return None


def _penalties_of(layer: Layer, recording: Recording) -> list[SymbolicTensor]:
    """Return the losses of the regularizers of a layer's weights."""
    return [
        Applied(regularizer)(recording.symbol(Variable(leaf, index, leaf.name)))
        for (leaf, index), regularizer in _penalised(layer).items()
    ]


def _penalised(layer: Layer) -> dict[tuple[Layer, int], Any]:
    """Return the regularizers of the weights of a layer that train."""
    return {
        (leaf, index): spec.regularizer
        for _, leaf in layer._leaves()
        for index, spec in enumerate(leaf.weight_specs or ())
        if spec.regularizer is not None and spec.trainable and leaf.trainable
    }


def _added_by(layer: Layer, call: Node) -> list[SymbolicTensor]:
    """Return the sum of what a call adds to the loss, or nothing."""
    model = getattr(layer, "model", None)
    added = () if model is None else model._built_network().losses
    if not (added or any(_adds(leaf) for _, leaf in layer._leaves())):
        return []
    scalar, of = [((), "float32")], call if call.layer is layer else layer
    return [*Node(LossesOfCall(of), call.outputs, scalar, whole=True).outputs]


# What the last call of a layer on arrays has added.
_added: weakref.WeakKeyDictionary[Layer, list[Any]] = weakref.WeakKeyDictionary()


def with_losses(layer: Layer) -> Callable[..., Any]:
    """Return a function of a layer's results, and of what the call adds."""

    def call(*args: Any, **options: Any) -> Any:
        results = layer(*args, **options)
        found = _last(layer, recorded("a call"))
        return results, [] if found is None else _added_by(layer, found)

    call.__name__ = layer.name
    return call


def keep_added(layer: Layer, losses: list[Any]) -> None:
    """Keep what a call on arrays has added, for `losses`."""
    if losses or layer in _added:
        _added[layer] = losses


def _adds(layer: Layer) -> bool:
    """Return whether a layer may add to the loss."""
    if layer.activity_regularizer is not None:
        return True
    return any(getattr(inner, "losses", ()) for inner in layer._inner.values())
