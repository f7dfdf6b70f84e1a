"""Layers around layers: both directions of time, and one layer at every step."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._random import next_seed
from memcfg.nn.layers._layer import (
    InputLayer,
    Layer,
    Node,
    Scope,
    Shape,
    SymbolicTensor,
    WeightSpec,
    members,
)
from memcfg.nn.layers._masking import spread
from memcfg.nn.layers._recurrent import LSTM, Recurrent, sequences_and_states

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bidirectional", "TimeDistributed"]

_MERGES = {"sum": "add", "ave": "add", "mul": "multiply", "concat": "concatenate"}


def _named(layer: Layer, part: str, shapes: Sequence[Shape]) -> list[WeightSpec]:
    """Return an inner layer's weights under names of the outer one."""
    specs = layer._regularized(layer.specs(shapes))
    return [replace(spec, name=f"{part}{spec.name}") for spec in specs]


def _traced(scope: Scope, layer: Layer, part: str, inputs: Sequence[int]) -> Any:
    """Trace an inner layer."""
    weights = {
        name.removeprefix(part): tensor
        for name, tensor in scope.weights.items()
        if name.startswith(part)
    }
    name = f"{scope.name}/{layer.name}"
    inner = replace(scope, name=name, weights=weights, masks=scope.masks[:1])
    made = inner.run(layer, inputs)
    for weight, value, momentum in inner.moving:
        scope.move(f"{part}{weight}", value, momentum)
    return made


class Bidirectional(Layer):
    """A recurrent layer from both ends of the sequences.

    Parameters
    ----------
    layer : SimpleRNN, LSTM or GRU
        The layer that goes forwards; the other one is a copy that goes backwards.
    merge_mode : str or None, default "concat"
        ``"concat"``, ``"sum"``, ``"mul"`` or ``"ave"``; None: both outputs.
    weights : None
        Not honoured: set the model's.
    backward_layer : SimpleRNN, LSTM or GRU, optional
        The layer that goes backwards.
    name : str, optional
        Unique within a model.

    References
    ----------
    Schuster and Paliwal, "Bidirectional recurrent neural networks", IEEE Transactions
    on Signal Processing 45, 1997.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Bidirectional(mc.nn.GRU(5))(mc.nn.Input((7, 3))).shape
    (None, 10)
    """

    __slots__ = ("backward_layer", "forward_layer", "merge_mode")

    arity: ClassVar[int | None] = None

    def __init__(
        self,
        layer: Recurrent,
        merge_mode: str | None = "concat",
        weights: None = None,
        backward_layer: Recurrent | None = None,
        *,
        name: str | None = None,
    ) -> None:
        if merge_mode is not None and merge_mode not in _MERGES:
            raise ValueError(
                f"Bidirectional: merge_mode is one of {', '.join(_MERGES)} or None, "
                f"not {merge_mode!r}"
            )
        if weights is not None:
            raise ValueError("Bidirectional: weights must be None; use set_weights")
        for each in (layer, backward_layer or layer):
            if not isinstance(each, Recurrent):
                raise TypeError(
                    f"Bidirectional goes around a SimpleRNN, LSTM or GRU, not {each!r}"
                )
        self.forward_layer = layer
        if backward_layer is None:
            backward_layer = copy.copy(layer)
            other = {"go_backwards": not layer.go_backwards, "_seed": next_seed()}
            backward_layer.__setstate__(backward_layer.__getstate__() | other)
        self.backward_layer = backward_layer
        for flag in ("return_sequences", "return_state", "stateful"):
            if getattr(layer, flag) != getattr(backward_layer, flag):
                raise ValueError(f"Bidirectional: both layers have the same {flag}")
        if layer.go_backwards == backward_layer.go_backwards:
            raise ValueError("Bidirectional: one of the layers goes backwards")
        self.merge_mode = merge_mode
        super().__init__(name)

    def __call__(
        self,
        sequences: SymbolicTensor | Sequence[SymbolicTensor],
        initial_state: SymbolicTensor | Sequence[SymbolicTensor] | None = None,
        mask: None = None,
        training: bool | None = None,
    ) -> Any:
        """Join this layer to sequences, and to the states of both directions."""
        count = 2 * self.forward_layer._states
        several = sequences_and_states(self, count, sequences, initial_state)
        for layer in (self.forward_layer, self.backward_layer):
            layer.know_batch(several[0])
        return super().__call__(several, mask=mask, training=training)

    reset_state = LSTM.reset_state
    reset_states = reset_state

    @property
    def layer(self) -> Recurrent:
        """The layer that goes forwards, by the name of the argument."""
        return self.forward_layer

    @property
    def stateful(self) -> bool:
        """Whether states stay between batches."""
        return self.forward_layer.stateful

    def _operands(self, inputs: Any) -> tuple[SymbolicTensor, ...]:
        """Take one tensor or several, which are counted already."""
        return super()._operands(inputs if len(inputs) > 1 else inputs * 2)[
            : len(inputs)
        ]

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the weights of both layers."""
        x, *states = shapes
        half = len(states) // 2
        return (
            *_named(self.forward_layer, "forward_", [x, *states[:half]]),
            *_named(self.backward_layer, "backward_", [x, *states[half:]]),
        )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append both layers, and what joins them."""
        x, *states = inputs
        half = len(states) // 2
        ends = []
        rest: list[int] = []
        for layer, part, own in (
            (self.forward_layer, "forward_", states[:half]),
            (self.backward_layer, "backward_", states[half:]),
        ):
            y = _traced(scope, layer, part, [x, *own])
            if layer.return_state:
                y, *finals = y
                rest += finals
            ends.append(self._in_order(scope, y, layer.go_backwards))
        merged = self._merged(scope, ends)
        mask = scope.masks[0] if scope.masks else None
        if self.forward_layer.return_sequences:
            scope.mask = mask if merged is not None else [mask, mask]
        found = [*(ends if merged is None else [merged]), *rest]
        return found[0] if len(found) == 1 else tuple(found)

    def _in_order(self, scope: Scope, y: int, backwards: bool) -> int:
        """Give a sequence the order of the steps, and zeros where it is masked."""
        if not self.forward_layer.return_sequences:
            return y
        if backwards:
            (y,) = scope.apply("reverse", (y,), {"axes": (1,)})
        if not scope.masks or scope.masks[0] is None:
            return y
        wide = spread(scope, scope.masks[0], scope.builder.shape(y))
        return scope.apply("masked", (wide, y))[0]

    def _merged(self, scope: Scope, ends: Sequence[int]) -> int | None:
        if self.merge_mode is None:
            return None
        attributes = {"axis": -1} if self.merge_mode == "concat" else {}
        (y,) = scope.apply(_MERGES[self.merge_mode], ends, attributes)
        if self.merge_mode == "ave":
            (y,) = scope.apply("affine", (y,), {"factor": 0.5, "term": 0.0})
        return y


class TimeDistributed(Layer):
    """Apply a layer to every step of a sequence.

    Parameters
    ----------
    layer : Layer or Model
        Of one input and one output, without moving averages.
    name : str, optional
        Unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.TimeDistributed(mc.nn.Conv2D(2, 3))
    >>> layer(mc.nn.Input((7, 8, 8, 3))).shape
    (None, 7, 6, 6, 2)
    """

    __slots__ = ("layer",)

    supports_masking: ClassVar[bool] = True

    def __init__(self, layer: Layer, *, name: str | None = None) -> None:
        found = list(members(layer))
        if len(found) != 1:
            raise TypeError(f"TimeDistributed goes around a layer, not {layer!r}")
        self.layer = found[0]
        super().__init__(name)

    def _sublayers(self) -> list[Layer]:
        return [self.layer]

    def _of_step(self, shape: Shape, dtype: str) -> Node:
        """Return the inner layer's call on one step."""
        key = shape, dtype
        if key not in self._inner:
            start = InputLayer(shape, dtype, "step")
            made = self.layer(Node(start, (), [key]).outputs[0])
            if not isinstance(made, SymbolicTensor):
                raise self._refused("several outputs")
            self._inner[key] = made.node
        node: Node = self._inner[key]
        return node

    def _infer(
        self, specs: Sequence[WeightSpec], operands: Sequence[SymbolicTensor]
    ) -> tuple[None, list[tuple[Shape, str]]]:
        steps, *shape = operands[0].sample_shape
        if not shape:
            raise ValueError(
                f"layer {self.name!r}: a sequence has steps and features, got an input "
                f"of shape {(None, steps)}"
            )
        (y,) = self._of_step(tuple(shape), operands[0].dtype).outputs
        return None, [((steps, *y.sample_shape), y.dtype)]

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the inner layer, of as many samples as there are steps in all."""
        builder = scope.builder
        batch, steps, *rest = builder.shape(inputs[0])
        node = self._of_step(tuple(rest), builder.dtype(inputs[0]))
        (rows,) = scope.apply("reshape", inputs, {"shape": (batch * steps, *rest)})
        values = {node.inputs[0]: rows}
        scope.trace([node], values, {})
        if scope.moving:
            raise self._refused("moving averages")
        last = node.outputs[0].sample_shape
        flat = {"shape": (batch, steps, *last)}
        return scope.apply("reshape", (values[node.outputs[0]],), flat)[0]

    def _refused(self, what: str) -> ValueError:
        return ValueError(
            f"layer {self.name!r}: {self.layer!r} has {what}, and cannot be applied "
            "step by step"
        )
