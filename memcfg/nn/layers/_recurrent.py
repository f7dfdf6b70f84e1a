"""Recurrent layers: a whole sequence in one op, or unrolled step by step.

A faster fused op computes layers with Keras's defaults. Other activations, recurrent
dropout, masks with initial states and ``unroll=True`` are traced step by step, which
lets a policy recompute single steps.

See docs/decisions/0035-recurrent-layers-are-one-op.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from memcfg.graph import spend
from memcfg.nn._argument_checks import activation_name
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec
from memcfg.nn.layers._rnn import StepByStep
from memcfg.nn.layers._rnn_cells import zero_states
from memcfg.nn.layers._steps import (
    GatedStep,
    LongStep,
    SimpleStep,
    Step,
    apply,
    dropped,
    filled,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GRU", "LSTM", "SimpleRNN"]


_SLOTS = (
    "_batch_size",
    "_activation_op",
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


class _Recurrent(StepByStep, Step):
    """Base class of the recurrent layers."""

    __slots__ = ()

    unroll: bool

    def __init__(self: Any, *settings: Any, flags: dict[str, Any]) -> None:
        self._settle_flags(**flags)
        self._settle(*settings)

    def get_initial_state(self: Any, batch_size: int | None = None) -> list[Any]:
        """Return zeros for each state; see `LSTMCell.get_initial_state`."""
        return zero_states([self.units] * self._states, batch_size)

    def specs(self: Any, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel, recurrent kernel and bias."""
        self.require_rank(shapes[0], 2, "sequences (None, steps, features)")
        for shape in shapes[1:]:
            if shape != (self.units,):
                raise ValueError(
                    f"layer {self.name!r}: an initial state must have shape "
                    f"{(None, self.units)}, got {(None, *shape)}"
                )
        result = self._own_specs(shapes[0][-1])
        kept = self._kept_states([(self.units,)] * self._states)
        return (*result, *kept)

    def _is_fused(self: Any, recurrent_activation: Any = "sigmoid") -> bool:
        """Return whether the fused op computes the layer."""
        return (
            not self.unroll
            and self._activation_op == "tanh"
            and recurrent_activation == "sigmoid"
        )

    def trace(self: Any, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append the steps, fused or unrolled, and the results."""
        x, *states = inputs
        builder = scope.builder
        batch, _, features = builder.shape(x)
        mask = self._mask_of_steps(scope)
        states = self._first_states(scope, batch, states)
        given = states is not None
        if states is None:
            zeros = filled(scope, (batch, self.units), 0.0)
            states = [zeros] * self._states
        masked, held = (
            dropped(self, scope, (batch, length), rate, use)
            for use, (length, rate) in enumerate(
                ((features, self.dropout), (self.units, self.recurrent_dropout))
            )
        )
        if self._is_fused() and held is None and not (given and mask is not None):
            made = self._fused(scope, x, masked, states, mask)
        else:
            spend(builder.shape(x)[1])  # raises before many tensors are made
            made = self._unrolled(scope, x, masked, states, mask, held, given)
        sequence, last, finals = made
        y = sequence() if self.return_sequences else last
        if self.stateful:
            self._keep(scope, finals())
        return (y, *finals()) if self.return_state else y

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
            x = apply(scope, "reverse", x, axes=(1,))
        if masked is not None:
            column = apply(scope, "reshape", masked, shape=(batch, 1, features))
            wide = apply(scope, "broadcast_to", column, shape=shape)
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
            part = apply(scope, "slice", sequence, begin=begin, end=end)
            return apply(scope, "reshape", part, shape=(batch, self.units))

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
        held: int | None,
        given: bool,
    ) -> tuple[Any, int | None, Any]:
        """Append the steps, each with its own ops so that it can be recomputed.

        Tensors of a step have shape [batch, 1, features], as in a sequence.
        """
        batch = scope.builder.shape(x)[0]

        def narrow(step: int) -> int:
            return apply(scope, "reshape", step, shape=(batch, self.units))

        steps, masks = _steps(scope, x), _masks(scope, mask, self.units)
        if self.go_backwards:
            steps.reverse()
        masked, held = (
            None if each is None else _as_step(scope, each) for each in (masked, held)
        )
        output = filled(scope, (batch, 1, self.units), 0.0)
        begin = [_as_step(scope, each) for each in states] if given else [output] * 2
        states, outputs = begin[: len(states)], []
        for t, step in enumerate(steps):
            part = times(scope, step(), masked)
            h = times(scope, states[0], held)
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


def _as_step(scope: Scope, tensor: int) -> int:
    """Append a reshape to a step [batch, 1, features]."""
    batch, features = scope.builder.shape(tensor)
    return apply(scope, "reshape", tensor, shape=(batch, 1, features))


def _masks(scope: Scope, mask: int | None, units: int) -> list[Callable[[], int]]:
    """Return a function for each step of a mask; empty without one."""
    if mask is None:
        return []
    batch, steps = scope.builder.shape(mask)
    column = apply(scope, "reshape", mask, shape=(batch, steps, 1))
    shape = batch, 1, units

    def wide(step: Callable[[], int]) -> int:
        return apply(scope, "broadcast_to", step(), shape=shape)

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
        return apply(scope, "slice", x, **ends)

    return [partial(step, t) for t in range(steps)]


class SimpleRNN(SimpleStep, _Recurrent, Layer):
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
    kernel_constraint, recurrent_constraint : str or Constraint, optional
        What is done to the kernels after each update.
    bias_constraint : str or Constraint, optional
        What is done to the bias after each update.
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

    kind_of_op = "simple_rnn"

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
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
            name,
            flags={
                "return_sequences": return_sequences,
                "return_state": return_state,
                "go_backwards": go_backwards,
                "stateful": stateful,
                "unroll": unroll,
            },
        )


class LSTM(LongStep, _Recurrent, Layer):
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
    kernel_constraint, recurrent_constraint : str or Constraint, optional
        What is done to the kernels after each update.
    bias_constraint : str or Constraint, optional
        What is done to the bias after each update.
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

    __slots__ = ("_recurrent_activation_op", "unit_forget_bias", *_SLOTS)

    kind_of_op = "lstm"

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
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
        self._recurrent_activation_op = activation_name(recurrent_activation, "LSTM")
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
            name,
            flags={
                "return_sequences": return_sequences,
                "return_state": return_state,
                "go_backwards": go_backwards,
                "stateful": stateful,
                "unroll": unroll,
            },
        )

    def _is_fused(self, recurrent_activation: Any = "sigmoid") -> bool:
        return super()._is_fused(self._recurrent_activation_op)


class GRU(GatedStep, _Recurrent, Layer):
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
    kernel_constraint, recurrent_constraint : str or Constraint, optional
        What is done to the kernels after each update.
    bias_constraint : str or Constraint, optional
        What is done to the bias after each update.
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

    __slots__ = ("_recurrent_activation_op", "reset_after", *_SLOTS)

    kind_of_op = "gru"

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
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
        self._recurrent_activation_op = activation_name(recurrent_activation, "GRU")
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
            name,
            flags={
                "return_sequences": return_sequences,
                "return_state": return_state,
                "go_backwards": go_backwards,
                "stateful": stateful,
                "unroll": unroll,
            },
        )

    def _is_fused(self, recurrent_activation: Any = "sigmoid") -> bool:
        return self.reset_after and super()._is_fused(self._recurrent_activation_op)

    def _recurrent_operands(self, scope: Scope, batch: int) -> list[int]:
        width = (3 * self.units,)
        bias = self._bias(scope, 1) if self.use_bias else filled(scope, width, 0.0)
        return [*super()._recurrent_operands(scope, batch), bias]


def _check_cudnn(use_cudnn: Any, kind: str) -> None:
    if use_cudnn not in ("auto", True, False):
        raise ValueError(
            f"{kind}: use_cudnn must be 'auto', True or False, got {use_cudnn!r}"
        )
