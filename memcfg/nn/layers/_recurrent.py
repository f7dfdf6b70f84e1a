"""Recurrent layers: a whole sequence in one op, or unrolled step by step.

A faster fused op computes layers with Keras's defaults. Other activations, recurrent
dropout, masks with initial states and ``unroll=True`` are traced step by step, which
lets a policy recompute single steps.

See docs/decisions/0035-recurrent-layers-are-one-op.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from memcfg.graph import spend
from memcfg.nn._argument_checks import activation_name, integer, unit_interval
from memcfg.nn._random import derive_seed, fixed_seed
from memcfg.nn.initializers import Initializer, get_initializer
from memcfg.nn.layers._layer import Layer, Scope, Shape, SymbolicTensor, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

__all__ = ["GRU", "LSTM", "Recurrent", "SimpleRNN"]


class _ForgetBias(Initializer):
    """Initializer with ones for the forget gate and another one for the rest."""

    __slots__ = ("initializer",)

    def __init__(self, initializer: Initializer) -> None:
        self.initializer = initializer

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw the bias."""
        values = self.initializer.draw(shape, seed)
        units = shape[0] // 4
        values[units : 2 * units] = 1
        return values


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, got {value!r}")
    return value


_SLOTS = (
    "_batch_size",
    "activation",
    "bias_initializer",
    "dropout",
    "go_backwards",
    "kernel_initializer",
    "recurrent_dropout",
    "recurrent_initializer",
    "return_sequences",
    "return_state",
    "stateful",
    "units",
    "unroll",
    "use_bias",
)


class _Recurrent:
    """Base class of the recurrent layers."""

    __slots__ = ()

    activation: str | None
    bias_initializer: Initializer
    dropout: float
    go_backwards: bool
    kernel_initializer: Initializer
    recurrent_dropout: float
    recurrent_initializer: Initializer
    return_sequences: bool
    return_state: bool
    stateful: bool
    units: int
    unroll: bool
    use_bias: bool
    arity: ClassVar[int | None] = None
    _gates: ClassVar[int]
    _states: ClassVar[int] = 1

    def __init__(
        self: Any,
        units: int,
        activation: str | None,
        use_bias: bool,
        initializers: Sequence[Any],
        penalties: dict[str, Any],
        rates: Sequence[float],
        seed: int | None,
        flags: dict[str, Any],
        name: str | None,
    ) -> None:
        kind = type(self).__name__
        for argument, value in penalties.items():
            if argument.endswith("_constraint") and value is not None:
                raise ValueError(
                    f"{kind}: {argument} is not supported and must be None, got "
                    f"{value!r}"
                )
        self.units = integer(units, f"{kind}: units")
        self.activation = activation_name(activation, kind)
        self.use_bias = bool(use_bias)
        kernel, recurrent, bias = map(get_initializer, initializers)
        self.kernel_initializer = kernel
        self.recurrent_initializer = recurrent
        self.bias_initializer = bias
        self.dropout = unit_interval(rates[0], f"{kind}: dropout")
        self.recurrent_dropout = unit_interval(rates[1], f"{kind}: recurrent_dropout")
        for flag, value in flags.items():
            setattr(self, flag, _flag(value, f"{kind}: {flag}"))
        fixed = fixed_seed(seed)
        self._batch_size: int | None = None  # size of all batches, if fixed
        Layer.__init__(self, name)
        for argument, value in penalties.items():
            if argument.endswith("_regularizer") and value is not None:
                self._take(argument, value)
        if fixed is not None:
            self._seed = fixed

    def __call__(
        self: Any,
        sequences: SymbolicTensor | Sequence[SymbolicTensor],
        initial_state: SymbolicTensor | Sequence[SymbolicTensor] | None = None,
        mask: None = None,
        training: bool | None = None,
    ) -> Any:
        """Connect the layer to sequences and, optionally, initial states."""
        several = sequences_and_states(self, self._states, sequences, initial_state)
        self.know_batch(several[0])
        return Layer.__call__(self, several, mask=mask, training=training)

    def _operands(self: Any, inputs: Any) -> tuple[SymbolicTensor, ...]:
        """Check one tensor or several, whose number is already checked."""
        several = inputs if len(inputs) > 1 else inputs * 2
        return Layer._operands(self, several)[: len(inputs)]

    def specs(self: Any, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel, recurrent kernel and bias."""
        self.require_rank(shapes[0], 2, "sequences (None, steps, features)")
        for shape in shapes[1:]:
            if shape != (self.units,):
                raise ValueError(
                    f"layer {self.name!r}: an initial state must have shape "
                    f"{(None, self.units)}, got {(None, *shape)}"
                )
        width = self._gates * self.units
        result = [
            WeightSpec("kernel", (shapes[0][-1], width), self.kernel_initializer),
            WeightSpec(
                "recurrent_kernel", (self.units, width), self.recurrent_initializer
            ),
        ]
        if self.use_bias:
            result.append(WeightSpec("bias", self._bias_shape(), self._first_bias()))
        if self.stateful:
            result += self._state_specs()
        return tuple(result)

    def _state_specs(self: Any) -> list[WeightSpec]:
        """Return the states kept between batches."""
        if self._batch_size is None:
            raise ValueError(
                f"layer {self.name!r}: stateful=True needs a fixed batch size: pass "
                "Input(shape, batch_size=...)"
            )
        zeros, shape = get_initializer("zeros"), (self._batch_size, self.units)
        return [
            WeightSpec(f"state_{i}", shape, zeros, trainable=False, hidden=True)
            for i in range(self._states)
        ]

    def know_batch(self: Any, sequences: Any) -> None:
        """Record the batch size of the input."""
        if isinstance(sequences, SymbolicTensor):
            self._batch_size = sequences.node.batch_size

    def reset_state(self: Any) -> None:
        """Reset the kept states to zeros."""
        model = None if self._owner is None else self._owner()
        if self.stateful and model is not None:
            model._reset_state(self)

    reset_states = reset_state

    def _bias_shape(self: Any) -> tuple[int, ...]:
        return (self._gates * self.units,)

    def _first_bias(self) -> Initializer:
        return self.bias_initializer

    def _is_fused(self: Any, recurrent_activation: str | None = "sigmoid") -> bool:
        """Return whether the fused op computes the layer."""
        return (
            not self.unroll
            and self.activation == "tanh"
            and recurrent_activation == "sigmoid"
        )

    def trace(self: Any, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append the steps, fused or unrolled, and the results."""
        x, *states = inputs
        builder = scope.builder
        batch, _, features = builder.shape(x)
        mask = scope.masks[0] if scope.masks else None
        if self.go_backwards and mask is not None:
            mask = _apply(scope, "reverse", mask, axes=(1,))
        scope.mask = mask if self.return_sequences else None
        given = bool(states) or self.stateful
        if self.stateful and not states:
            states = [scope.weights[f"state_{i}"] for i in range(self._states)]
            if builder.shape(states[0])[0] != batch:
                raise ValueError(
                    f"layer {self.name!r} is stateful and needs batches of "
                    f"{builder.shape(states[0])[0]} samples, got {batch}: pass this "
                    "batch_size and a multiple of as many samples"
                )
        if not given:
            zeros = _filled(scope, (batch, self.units), 0.0)
            states = [zeros] * self._states
        masked, dropped = (
            self._dropped(scope, (batch, length), rate, use)
            for use, (length, rate) in enumerate(
                ((features, self.dropout), (self.units, self.recurrent_dropout))
            )
        )
        if self._is_fused() and dropped is None and not (given and mask is not None):
            made = self._fused(scope, x, masked, states, mask)
        else:
            spend(builder.shape(x)[1])  # raises before many tensors are made
            made = self._unrolled(scope, x, masked, states, mask, dropped, given)
        sequence, last, finals = made
        y = sequence() if self.return_sequences else last
        if self.stateful:
            for i, state in enumerate(finals()):
                scope.move(f"state_{i}", state, 0.0)
        return (y, *finals()) if self.return_state else y

    def _product(self: Any, scope: Scope, x: int) -> int:
        """Append the input's product with the kernel, and the bias."""
        (z,) = scope.apply("dense", (x, scope.weights["kernel"]))
        biased: int = self._biased(scope, z)
        return biased

    def _biased(self: Any, scope: Scope, z: int) -> int:
        if not self.use_bias:
            return z
        return scope.apply("bias", (z, scope.weights["bias"]))[0]

    def _dropped(
        self: Any, scope: Scope, shape: tuple[int, ...], rate: float, use: int
    ) -> int | None:
        """Append a dropout mask for all steps; None without dropout."""
        if not rate or not scope.training or scope.step is None:
            return None
        key = derive_seed(self.seed, scope.call, use)
        operands = (_filled(scope, shape, 1.0), scope.step())
        return scope.apply("dropout", operands, {"rate": rate, "key": key})[0]

    def _recurrent_operands(self: Any, scope: Scope, batch: int) -> list[int]:
        """Return the fused op's operands after the products, before the states."""
        return [scope.weights["recurrent_kernel"]]

    def _fused(
        self: Any,
        scope: Scope,
        x: int,
        masked: int | None,
        states: Sequence[int],
        mask: int | None,
    ) -> tuple[Any, int | None, Any]:
        shape = batch, steps, features = scope.builder.shape(x)
        if self.go_backwards:
            x = _apply(scope, "reverse", x, axes=(1,))
        if masked is not None:
            column = _apply(scope, "reshape", masked, shape=(batch, 1, features))
            wide = _apply(scope, "broadcast_to", column, shape=shape)
            (x,) = scope.apply("multiply", (x, wide))
        z = self._product(scope, x)
        masks = [] if mask is None else [mask]
        outputs = scope.apply(
            self.kind_of_op,
            (z, *self._recurrent_operands(scope, batch), *states, *masks),
            {"masked": mask is not None},
        )[: self._states]

        def last(sequence: int) -> int:
            begin, end = (0, steps - 1, 0), (batch, steps, self.units)
            part = _apply(scope, "slice", sequence, begin=begin, end=end)
            return _apply(scope, "reshape", part, shape=(batch, self.units))

        y = None if self.return_sequences else last(outputs[0])

        def finals() -> tuple[int, ...]:
            return (last(outputs[0]) if y is None else y, *map(last, outputs[1:]))

        return lambda: outputs[0], y, finals

    def _unrolled(
        self: Any,
        scope: Scope,
        x: int,
        masked: int | None,
        states: Sequence[int],
        mask: int | None,
        dropped: int | None,
        given: bool,
    ) -> tuple[Any, int | None, Any]:
        """Append the steps, each with its own ops so that it can be recomputed.

        Tensors of a step have shape [batch, 1, features], as in a sequence.
        """
        batch = scope.builder.shape(x)[0]

        def narrow(step: int) -> int:
            return _apply(scope, "reshape", step, shape=(batch, self.units))

        steps, masks = _steps(scope, x), _masks(scope, mask, self.units)
        if self.go_backwards:
            steps.reverse()
        masked, dropped = (
            None if each is None else _as_step(scope, each)
            for each in (masked, dropped)
        )
        output = _filled(scope, (batch, 1, self.units), 0.0)
        begin = [_as_step(scope, each) for each in states] if given else [output] * 2
        states, outputs = begin[: len(states)], []
        for t, step in enumerate(steps):
            part = _times(scope, step(), masked)
            h = _times(scope, states[0], dropped)
            new = self._step(scope, self._product(scope, part), h, states)
            made = unmasked = new[0]
            if masks:
                keep = masks[t]()
                kept = zip(new, states, strict=True)
                new = [scope.apply("choose", (keep, *pair))[0] for pair in kept]
                made = new[0]
                if given:  # a masked first output is zeros
                    (made,) = scope.apply("choose", (keep, unmasked, output))
            states, output = new, made
            outputs.append(made)
        y = None if self.return_sequences else narrow(output)

        def sequence() -> int:
            return scope.apply("concatenate", outputs, {"axis": 1})[0]

        def finals() -> tuple[int, ...]:
            first = narrow(states[0]) if y is None or given else y
            return (first, *map(narrow, states[1:]))

        return sequence, y, finals

    @property
    def kind_of_op(self: Any) -> str:
        """The type of the fused op."""
        raise NotImplementedError

    def _step(
        self: Any, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        """Append one step: `h` is the state that the recurrent kernel reads."""
        raise NotImplementedError

    def _activated(self: Any, scope: Scope, x: int, activation: str | None) -> int:
        return x if activation is None else scope.apply(activation, (x,))[0]


def sequences_and_states(
    layer: Layer, count: int, sequences: Any, initial_state: Any
) -> list[Any]:
    """Return sequences and all initial states in one list, or sequences alone."""
    several = list(sequences) if isinstance(sequences, list | tuple) else [sequences]
    if isinstance(initial_state, list | tuple):
        several += initial_state
    elif initial_state is not None:
        several.append(initial_state)
    if len(several) not in (1, 1 + count):
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}) expects sequences and "
            f"{count} initial state{'s' * (count > 1)}, got {len(several)} tensors"
        )
    return several


def _apply(scope: Scope, kind: str, tensor: int, **attributes: Any) -> int:
    """Append an op of one input and one output."""
    return scope.apply(kind, (tensor,), attributes)[0]


def _filled(scope: Scope, shape: tuple[int, ...], value: float) -> int:
    attributes = {"shape": shape, "value": value, "dtype": "float32"}
    return scope.apply("fill", (), attributes)[0]


def _split(scope: Scope, tensor: int, parts: int, axis: int = -1) -> tuple[int, ...]:
    length = scope.builder.shape(tensor)[axis] // parts
    return scope.apply("split", (tensor,), {"axis": axis, "lengths": (length,) * parts})


def _as_step(scope: Scope, tensor: int) -> int:
    """Append a reshape to a step [batch, 1, features]."""
    batch, features = scope.builder.shape(tensor)
    return _apply(scope, "reshape", tensor, shape=(batch, 1, features))


def _times(scope: Scope, x: int, factors: int | None) -> int:
    return x if factors is None else scope.apply("multiply", (x, factors))[0]


def _masks(scope: Scope, mask: int | None, units: int) -> list[Callable[[], int]]:
    """Return a function for each step of a mask; empty without one."""
    if mask is None:
        return []
    batch, steps = scope.builder.shape(mask)
    column = _apply(scope, "reshape", mask, shape=(batch, steps, 1))
    shape = batch, 1, units

    def wide(step: Callable[[], int]) -> int:
        return _apply(scope, "broadcast_to", step(), shape=shape)

    return [partial(wide, step) for step in _steps(scope, column)]


def _steps(scope: Scope, x: int) -> list[Callable[[], int]]:
    """Return a function for each step that appends it, [batch, 1, features].

    Steps of a concatenation are its operands, so that in stacked layers no step waits
    for the whole sequence of the layer before.
    """
    batch, steps, features = scope.builder.shape(x)
    maker = scope.builder.maker(x)
    if (
        maker is not None
        and maker.type == "concatenate"
        and maker.attributes["axis"] == 1
        and len(maker.inputs) == steps
    ):
        return [partial(int, part) for part in maker.inputs]

    def step(t: int) -> int:
        ends = {"begin": (0, t, 0), "end": (batch, t + 1, features)}
        return _apply(scope, "slice", x, **ends)

    return [partial(step, t) for t in range(steps)]


class SimpleRNN(_Recurrent, Layer):
    """Simple recurrent layer.

    ``h = activation(x @ kernel + h @ recurrent_kernel + bias)``

    Parameters
    ----------
    units : int
        The length of the state.
    activation : str or None, default "tanh"
        The activation of the state.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel, of shape ``(features, units)``.
    recurrent_initializer : str or Initializer, default "orthogonal"
        The initializer of the recurrent kernel, of shape ``(units, units)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    kernel_regularizer, recurrent_regularizer : str or Regularizer, optional
        Penalties on the kernels added to the loss.
    bias_regularizer, activity_regularizer : str or Regularizer, optional
        Penalties on the bias and on the output.
    kernel_constraint, recurrent_constraint, bias_constraint : None
        Not supported.
    dropout, recurrent_dropout : float, default 0.0
        The fraction of the input's and of the state's features to drop while training,
        the same at all steps.
    return_sequences : bool, default False
        Whether to return the outputs of all steps, instead of the last.
    return_state : bool, default False
        Whether to return the last state as well.
    go_backwards : bool, default False
        Whether to process the steps in reverse, which also reverses the outputs.
    stateful : bool, default False
        Whether the last states of a batch are the initial states of the next batch.
    unroll : bool, default False
        Whether to trace each step separately, so that policies may recompute some.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = _SLOTS

    _gates = 1
    kind_of_op = "simple_rnn"

    def __init__(
        self,
        units: int,
        activation: str | None = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: None = None,
        recurrent_constraint: None = None,
        bias_constraint: None = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(
            units,
            activation,
            use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            {
                "kernel_regularizer": kernel_regularizer,
                "recurrent_regularizer": recurrent_regularizer,
                "bias_regularizer": bias_regularizer,
                "activity_regularizer": activity_regularizer,
                "kernel_constraint": kernel_constraint,
                "recurrent_constraint": recurrent_constraint,
                "bias_constraint": bias_constraint,
            },
            (dropout, recurrent_dropout),
            seed,
            {
                "return_sequences": return_sequences,
                "return_state": return_state,
                "go_backwards": go_backwards,
                "stateful": stateful,
                "unroll": unroll,
            },
            name,
        )

    def _step(
        self, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        (product,) = scope.apply("dense", (h, scope.weights["recurrent_kernel"]))
        (total,) = scope.apply("add", (z, product))
        return (self._activated(scope, total, self.activation),)


class LSTM(_Recurrent, Layer):
    """Long short-term memory.

    Parameters
    ----------
    units : int
        The length of the state.
    activation : str or None, default "tanh"
        The activation of the candidate and of the cell.
    recurrent_activation : str or None, default "sigmoid"
        The activation of the gates.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel, of shape ``(features, 4 * units)``: the gates i,
        f, c, o.
    recurrent_initializer : str or Initializer, default "orthogonal"
        The initializer of the recurrent kernel, of shape ``(units, 4 * units)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    unit_forget_bias : bool, default True
        Whether to initialise the forget gate's bias to ones.
    kernel_regularizer, recurrent_regularizer : str or Regularizer, optional
        Penalties on the kernels added to the loss.
    bias_regularizer, activity_regularizer : str or Regularizer, optional
        Penalties on the bias and on the output.
    kernel_constraint, recurrent_constraint, bias_constraint : None
        Not supported.
    dropout, recurrent_dropout : float, default 0.0
        The fraction of the input's and of the state's features to drop while training,
        the same at all steps.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    return_sequences : bool, default False
        Whether to return the outputs of all steps, instead of the last.
    return_state : bool, default False
        Whether to return the last state and cell as well.
    go_backwards : bool, default False
        Whether to process the steps in reverse, which also reverses the outputs.
    stateful : bool, default False
        Whether the last states of a batch are the initial states of the next batch.
    unroll : bool, default False
        Whether to trace each step separately, so that policies may recompute some.
    use_cudnn : str or bool, default "auto"
        Accepted and ignored; the device chooses its kernels.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9, 1997.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.LSTM(5, return_sequences=True)(mc.nn.Input((7, 3))).shape
    (None, 7, 5)
    """

    __slots__ = ("recurrent_activation", "unit_forget_bias", *_SLOTS)

    _gates = 4
    _states = 2
    kind_of_op = "lstm"

    def __init__(
        self,
        units: int,
        activation: str | None = "tanh",
        recurrent_activation: str | None = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: None = None,
        recurrent_constraint: None = None,
        bias_constraint: None = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        use_cudnn: str | bool = "auto",
        *,
        name: str | None = None,
    ) -> None:
        self.recurrent_activation = activation_name(recurrent_activation, "LSTM")
        self.unit_forget_bias = bool(unit_forget_bias)
        _check_cudnn(use_cudnn, "LSTM")
        super().__init__(
            units,
            activation,
            use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            {
                "kernel_regularizer": kernel_regularizer,
                "recurrent_regularizer": recurrent_regularizer,
                "bias_regularizer": bias_regularizer,
                "activity_regularizer": activity_regularizer,
                "kernel_constraint": kernel_constraint,
                "recurrent_constraint": recurrent_constraint,
                "bias_constraint": bias_constraint,
            },
            (dropout, recurrent_dropout),
            seed,
            {
                "return_sequences": return_sequences,
                "return_state": return_state,
                "go_backwards": go_backwards,
                "stateful": stateful,
                "unroll": unroll,
            },
            name,
        )

    def _first_bias(self) -> Initializer:
        start = self.bias_initializer
        return _ForgetBias(start) if self.unit_forget_bias else start

    def _is_fused(self, recurrent_activation: str | None = "sigmoid") -> bool:
        return super()._is_fused(self.recurrent_activation)

    def _step(
        self, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        (product,) = scope.apply("dense", (h, scope.weights["recurrent_kernel"]))
        (total,) = scope.apply("add", (z, product))
        kinds = [self.recurrent_activation] * 4
        kinds[2] = self.activation
        i, f, g, o = (
            self._activated(scope, part, kind)
            for part, kind in zip(_split(scope, total, 4), kinds, strict=True)
        )
        (c,) = scope.apply("dual_product", (f, states[1], i, g))
        squashed = self._activated(scope, c, self.activation)
        (new,) = scope.apply("multiply", (o, squashed))
        return new, c


class GRU(_Recurrent, Layer):
    """Gated recurrent unit.

    Parameters
    ----------
    units : int
        The length of the state.
    activation : str or None, default "tanh"
        The activation of the candidate.
    recurrent_activation : str or None, default "sigmoid"
        The activation of the gates.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel, of shape ``(features, 3 * units)``: the gates z,
        r, h.
    recurrent_initializer : str or Initializer, default "orthogonal"
        The initializer of the recurrent kernel, of shape ``(units, 3 * units)``.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias, of shape ``(2, 3 * units)`` with `reset_after`.
    kernel_regularizer, recurrent_regularizer : str or Regularizer, optional
        Penalties on the kernels added to the loss.
    bias_regularizer, activity_regularizer : str or Regularizer, optional
        Penalties on the bias and on the output.
    kernel_constraint, recurrent_constraint, bias_constraint : None
        Not supported.
    dropout, recurrent_dropout : float, default 0.0
        The fraction of the input's and of the state's features to drop while training,
        the same at all steps.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    return_sequences : bool, default False
        Whether to return the outputs of all steps, instead of the last.
    return_state : bool, default False
        Whether to return the last state as well.
    go_backwards : bool, default False
        Whether to process the steps in reverse, which also reverses the outputs.
    stateful : bool, default False
        Whether the last states of a batch are the initial states of the next batch.
    unroll : bool, default False
        Whether to trace each step separately, so that policies may recompute some.
    reset_after : bool, default True
        Whether to apply the reset gate after the product with the recurrent kernel.
    use_cudnn : str or bool, default "auto"
        Accepted and ignored; the device chooses its kernels.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Cho et al., "Learning phrase representations using RNN encoder-decoder for
    statistical machine translation", arXiv:1406.1078, 2014.
    """

    __slots__ = ("recurrent_activation", "reset_after", *_SLOTS)

    _gates = 3
    kind_of_op = "gru"

    def __init__(
        self,
        units: int,
        activation: str | None = "tanh",
        recurrent_activation: str | None = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: None = None,
        recurrent_constraint: None = None,
        bias_constraint: None = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        reset_after: bool = True,
        use_cudnn: str | bool = "auto",
        *,
        name: str | None = None,
    ) -> None:
        self.recurrent_activation = activation_name(recurrent_activation, "GRU")
        self.reset_after = bool(reset_after)
        _check_cudnn(use_cudnn, "GRU")
        super().__init__(
            units,
            activation,
            use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            {
                "kernel_regularizer": kernel_regularizer,
                "recurrent_regularizer": recurrent_regularizer,
                "bias_regularizer": bias_regularizer,
                "activity_regularizer": activity_regularizer,
                "kernel_constraint": kernel_constraint,
                "recurrent_constraint": recurrent_constraint,
                "bias_constraint": bias_constraint,
            },
            (dropout, recurrent_dropout),
            seed,
            {
                "return_sequences": return_sequences,
                "return_state": return_state,
                "go_backwards": go_backwards,
                "stateful": stateful,
                "unroll": unroll,
            },
            name,
        )

    def _bias_shape(self) -> tuple[int, ...]:
        shape = super()._bias_shape()
        return (2, *shape) if self.reset_after else shape

    def _is_fused(self, recurrent_activation: str | None = "sigmoid") -> bool:
        return self.reset_after and super()._is_fused(self.recurrent_activation)

    def _biased(self, scope: Scope, z: int) -> int:
        if not (self.use_bias and self.reset_after):
            return super()._biased(scope, z)
        return scope.apply("bias", (z, self._bias(scope, 0)))[0]

    def _bias(self, scope: Scope, row: int) -> int:
        """Append the slice of the bias of the input, 0, or of the recurrence, 1."""
        width = 3 * self.units
        bias = scope.weights["bias"]
        part = _apply(scope, "slice", bias, begin=(row, 0), end=(row + 1, width))
        return _apply(scope, "reshape", part, shape=(width,))

    def _recurrent_operands(self, scope: Scope, batch: int) -> list[int]:
        width = (3 * self.units,)
        bias = self._bias(scope, 1) if self.use_bias else _filled(scope, width, 0.0)
        return [*super()._recurrent_operands(scope, batch), bias]

    def _step(
        self, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        recurrent, units = scope.weights["recurrent_kernel"], self.units
        xz, xr, xh = _split(scope, z, 3)
        if self.reset_after:
            (product,) = scope.apply("dense", (h, recurrent))
            if self.use_bias:
                (product,) = scope.apply("bias", (product, self._bias(scope, 1)))
            rz, rr, inner = _split(scope, product, 3)
        else:
            gates, last = (
                _apply(scope, "slice", recurrent, begin=(0, a), end=(units, b))
                for a, b in ((0, 2 * units), (2 * units, 3 * units))
            )
            (product,) = scope.apply("dense", (h, gates))
            rz, rr = _split(scope, product, 2)
        update, reset = (
            self._activated(
                scope, scope.apply("add", pair)[0], self.recurrent_activation
            )
            for pair in ((xz, rz), (xr, rr))
        )
        if self.reset_after:
            (inner,) = scope.apply("multiply", (reset, inner))
        else:
            (held,) = scope.apply("multiply", (reset, h))
            (inner,) = scope.apply("dense", (held, last))
        (total,) = scope.apply("add", (xh, inner))
        candidate = self._activated(scope, total, self.activation)
        return scope.apply("mix", (update, states[0], candidate))


Recurrent: TypeAlias = SimpleRNN | LSTM | GRU


def _check_cudnn(use_cudnn: Any, kind: str) -> None:
    if use_cudnn not in ("auto", True, False):
        raise ValueError(
            f"{kind}: use_cudnn must be 'auto', True or False, got {use_cudnn!r}"
        )
