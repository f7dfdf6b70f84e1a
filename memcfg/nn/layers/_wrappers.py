"""Layers around others: in both directions, at every step, or of one's own."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._random import next_seed
from memcfg.nn.layers._layer import (
    Layer,
    Node,
    Scope,
    Shape,
    SymbolicTensor,
    WeightSpec,
    input_layer,
    members,
)
from memcfg.nn.layers._masking import spread
from memcfg.nn.layers._rnn import StepByStep, sequences_and_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Bidirectional", "TimeDistributed", "Wrapper", "only_layer"]

_MERGES = {"sum": "add", "ave": "add", "mul": "multiply", "concat": "concatenate"}


class Bidirectional(Layer):
    """A recurrent layer run in both directions over the sequences.

    Parameters
    ----------
    layer : SimpleRNN, LSTM, GRU, ConvLSTM1D, ConvLSTM2D or RNN
        The forward layer; by default the backward layer is a copy of it.
    merge_mode : str or None, default "concat"
        ``"concat"``, ``"sum"``, ``"mul"`` or ``"ave"``; None returns both outputs.
    weights : None
        Not supported; use `set_weights`.
    backward_layer : Layer, optional
        The backward layer.
    name : str, optional
        The name, unique within a model.

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
    takes_mask: ClassVar[bool] = True
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def __init__(
        self,
        layer: Any,
        merge_mode: str | None = "concat",
        weights: None = None,
        backward_layer: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        if merge_mode is not None and merge_mode not in _MERGES:
            raise ValueError(
                f"Bidirectional: merge_mode must be one of {', '.join(_MERGES)} or "
                f"None, got {merge_mode!r}"
            )
        if weights is not None:
            raise ValueError("Bidirectional: weights must be None; use set_weights")
        for each in (layer, backward_layer or layer):
            if not isinstance(each, StepByStep):
                raise TypeError(
                    "Bidirectional expects a SimpleRNN, LSTM, GRU, ConvLSTM or RNN, "
                    f"got {each!r}"
                )
        self.forward_layer = layer
        if backward_layer is None:
            backward_layer = copy.deepcopy(layer)
            backward_layer._release()
            backward_layer.__setstate__({"go_backwards": not layer.go_backwards})
            for _, leaf in backward_layer._leaves():
                seed = next_seed()
                leaf.__setstate__({"_seed": seed, "_drawn": seed})
        if backward_layer.name == layer.name:  # weights are named after both layers
            backward_layer.__setstate__({"name": f"backward_{layer.name}"})
        self.backward_layer = backward_layer
        _check_pair(layer, backward_layer)
        self.merge_mode = merge_mode
        super().__init__(name)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create the layer; outputs of masked steps are zeros without an argument."""
        given = dict(config)
        for name in ("layer", "backward_layer"):
            inner = given.get(name)
            own = inner.get("config") if isinstance(inner, dict) else None
            if isinstance(inner, dict) and isinstance(own, dict):
                left = {k: v for k, v in own.items() if k != "zero_output_for_mask"}
                given[name] = inner | {"config": left}
        return super().from_config(given)

    def __call__(
        self,
        sequences: SymbolicTensor | Sequence[SymbolicTensor],
        initial_state: SymbolicTensor | Sequence[SymbolicTensor] | None = None,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        """Connect the layer to sequences and optional states of both directions."""
        count = 2 * self.forward_layer._states
        several = sequences_and_states(self, count, sequences, initial_state)
        for layer in (self.forward_layer, self.backward_layer):
            layer.know_batch(several[0])
        return super().__call__(several, mask=mask, training=training)

    def _arguments_of(self, node: Node) -> tuple[tuple[SymbolicTensor], dict[str, Any]]:
        """Return the sequences and the initial states."""
        return StepByStep._arguments_of(self, node)

    def reset_state(self) -> None:
        """Reset the kept states to zeros."""
        for layer in self._sublayers():
            layer.reset_state()

    reset_states = reset_state

    @property
    def layer(self) -> Any:
        """The forward layer, under the name of the constructor's argument."""
        return self.forward_layer

    @property
    def stateful(self) -> bool:
        """Whether states are kept between batches."""
        return bool(self.forward_layer.stateful)

    def _operands(self, inputs: Any) -> tuple[SymbolicTensor, ...]:
        """Check one tensor or several, whose number is already checked."""
        return super()._operands(inputs if len(inputs) > 1 else inputs * 2)[
            : len(inputs)
        ]

    def _sublayers(self) -> list[Any]:
        return [self.forward_layer, self.backward_layer]

    def _both(self, kinds: tuple[tuple[Shape, str], ...]) -> list[Node]:
        """Return the calls of both layers on sequences and states."""
        if kinds not in self._inner:
            size = self.forward_layer._batch_size
            layers = [input_layer(*kind, "sequences", size) for kind in kinds]
            starts = zip(layers, kinds, strict=True)
            x, *states = [Node(layer, (), [kind]).outputs[0] for layer, kind in starts]
            half = len(states) // 2
            made = (
                self.forward_layer(x, states[:half]),
                self.backward_layer(x, states[half:]),
            )
            ends = [each[0] if isinstance(each, tuple) else each for each in made]
            self._inner[kinds] = [end.node for end in ends]
        result: list[Node] = self._inner[kinds]
        return result

    def _infer(
        self, specs: Sequence[WeightSpec], operands: Sequence[SymbolicTensor]
    ) -> tuple[type | None, list[tuple[Shape, str]]]:
        self._both(tuple((each.sample_shape, each.sample_dtype) for each in operands))
        inner = [
            replace(spec, name=f"{path}{spec.name}")
            for path, leaf in self._leaves()
            for spec in leaf.weight_specs or ()
        ]
        return super()._infer(inner, operands)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append both layers and the op that merges them."""
        x, *states = inputs
        builder, half = scope.builder, len(states) // 2
        kinds = tuple((builder.shape(each)[1:], scope.dtype(each)) for each in inputs)
        ends = []
        rest: list[int] = []
        mask = scope.masks[0] if scope.masks else None
        layers, owns = self._sublayers(), (states[:half], states[half:])
        for layer, node, own in zip(layers, self._both(kinds), owns, strict=True):
            values = dict(zip(node.inputs, (x, *own), strict=True))
            scope.trace([node], values, {node.inputs[0]: mask})
            y, *finals = (values[each] for each in node.outputs)
            rest += finals
            ends.append(self._in_order(scope, y, layer.go_backwards))
        merged = self._merged(scope, ends)
        if self.forward_layer.return_sequences:
            scope.mask = mask if merged is not None else [mask, mask]
        result = [*(ends if merged is None else [merged]), *rest]
        return result[0] if len(result) == 1 else tuple(result)

    def _in_order(self, scope: Scope, y: int, backwards: bool) -> int:
        """Append the reversal of a sequence, with zeros at masked steps."""
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


def _check_pair(forward: Any, backward: Any) -> None:
    """Raise ValueError unless two layers differ in their direction alone."""
    for flag in ("return_sequences", "return_state", "stateful"):
        if getattr(forward, flag) != getattr(backward, flag):
            raise ValueError(f"Bidirectional: both layers must have the same {flag}")
    if forward.go_backwards == backward.go_backwards:
        raise ValueError(
            "Bidirectional: exactly one of the layers must have go_backwards=True"
        )


def only_layer(given: Any, kind: str) -> Layer:
    """Return a layer, or a model as one; TypeError for anything else."""
    layers = list(members(given))
    if len(layers) == 1:
        return layers[0]
    name = getattr(given, "__name__", None)  # only a class has one
    what = f"the class {name}" if name else repr(given)
    raise TypeError(f"{kind} expects a layer, got {what}")


class Wrapper(Layer):
    """Base class of layers around another one, which is their attribute `layer`.

    Parameters
    ----------
    layer : Layer or Model
        The layer.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError
        If `layer` is no layer.

    Examples
    --------
    >>> import memcfg as mc
    >>> class Residual(mc.nn.Wrapper):
    ...     def call(self, x):
    ...         return x + self.layer(x)
    >>> Residual(mc.nn.Dense(3))(mc.nn.Input((3,))).shape
    (None, 3)
    """

    __slots__ = ("layer",)

    def __init__(self, layer: Layer, *, name: str | None = None) -> None:
        self.layer = only_layer(layer, type(self).__name__)
        super().__init__(name)

    def _sublayers(self) -> list[Layer]:
        return list(dict.fromkeys([self.layer, *super()._sublayers()]))

    def call(self, inputs: Any) -> Any:
        """Return the layer's result; subclasses override it.

        Parameters
        ----------
        inputs : SymbolicTensor or sequence of SymbolicTensor
            The inputs. A subclass may take several arguments, and ``training``.

        Returns
        -------
        SymbolicTensor or sequence of SymbolicTensor
            The result.
        """
        return self.layer(inputs)


class TimeDistributed(Layer):
    """Apply a layer to every step of a sequence.

    Parameters
    ----------
    layer : Layer or Model
        The layer, with one input and one output and without moving averages.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.TimeDistributed(mc.nn.Conv2D(2, 3))
    >>> layer(mc.nn.Input((7, 8, 8, 3))).shape
    (None, 7, 6, 6, 2)
    """

    __slots__ = ("layer",)

    takes_mask: ClassVar[bool] = True
    supports_masking: ClassVar[bool] = True

    def __init__(self, layer: Layer, *, name: str | None = None) -> None:
        self.layer = only_layer(layer, "TimeDistributed")
        super().__init__(name)

    def _sublayers(self) -> list[Layer]:
        return [self.layer]

    def _of_step(self, shape: Shape, dtype: str) -> Node:
        """Return the inner layer's call on one step."""
        key = shape, dtype
        if key not in self._inner:
            start = input_layer(shape, dtype, "step")
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
                f"layer {self.name!r}: a sequence must have steps and features, got an "
                f"input of shape {(None, steps)}"
            )
        (y,) = self._of_step(tuple(shape), operands[0].sample_dtype).outputs
        batch = operands[0].whole_shape[:1] if self._is_whole(operands) else ()
        return None, [((*batch, steps, *y.sample_shape), y.sample_dtype)]

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the inner layer, with all steps of all samples as its batch."""
        builder = scope.builder
        batch, steps, *rest = builder.shape(inputs[0])
        node = self._of_step(tuple(rest), scope.dtype(inputs[0]))
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
            f"layer {self.name!r}: {self.layer!r} has {what} and cannot be applied "
            "step by step"
        )
