"""Recurrent layers over sequences, images and volumes, with convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import (
    activation_name,
    check_channels_last,
    integer,
    numbers,
    padding_name,
    resolve_padding,
    unit_interval,
)
from memcfg.nn._random import fixed_seed
from memcfg.nn.initializers import Initializer, get_initializer
from memcfg.nn.layers._activated import ActivationOf
from memcfg.nn.layers._basic import activate
from memcfg.nn.layers._conv import INPUTS, convolve
from memcfg.nn.layers._layer import Layer, Scope, Shape, WeightSpec
from memcfg.nn.layers._rnn import Unrolled
from memcfg.nn.layers._steps import ForgetBias, dropped, split, times
from memcfg.ops._windows import output_length

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"]

_SLOTS = (
    "_batch_size",
    "_activation_op",
    "bias_initializer",
    "dilation_rate",
    "dropout",
    "filters",
    "go_backwards",
    "kernel_initializer",
    "kernel_size",
    "padding",
    "_recurrent_activation_op",
    "recurrent_dropout",
    "recurrent_initializer",
    "return_sequences",
    "return_state",
    "stateful",
    "strides",
    "unit_forget_bias",
    "use_bias",
)


class _ConvLSTM(Unrolled, Layer):
    """Base class: an LSTM whose state is an image, or a sequence."""

    __slots__ = _SLOTS

    activation = ActivationOf()
    _activation_op: Any
    bias_initializer: Initializer
    dilation_rate: tuple[int, ...]
    dropout: float
    filters: int
    kernel_initializer: Initializer
    kernel_size: tuple[int, ...]
    padding: str
    recurrent_activation = ActivationOf()
    _recurrent_activation_op: Any
    recurrent_dropout: float
    recurrent_initializer: Initializer
    strides: tuple[int, ...]
    unit_forget_bias: bool
    use_bias: bool
    takes_channels_first: ClassVar[bool] = False
    rank: ClassVar[int]
    zero_output_for_mask: ClassVar[bool] = False  # type: ignore[misc]
    _states: ClassVar[int] = 2

    def __init__(
        self: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
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
        *,
        name: str | None = None,
    ) -> None:
        kind, rank = type(self).__name__, self.rank
        check_channels_last(data_format, kind)
        self.filters = integer(filters, f"{kind}: filters")
        self.kernel_size = numbers(kernel_size, rank, f"{kind}: kernel_size")
        self.strides = numbers(strides, rank, f"{kind}: strides")
        self.padding = padding_name(padding, kind)
        self.dilation_rate = numbers(dilation_rate, rank, f"{kind}: dilation_rate")
        self._activation_op = activation_name(activation, kind)
        self._recurrent_activation_op = activation_name(recurrent_activation, kind)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.recurrent_initializer = get_initializer(recurrent_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        self.unit_forget_bias = bool(unit_forget_bias)
        self.dropout = unit_interval(dropout, f"{kind}: dropout")
        rate = unit_interval(recurrent_dropout, f"{kind}: recurrent_dropout")
        self.recurrent_dropout = rate
        self._settle_flags(
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
        )
        fixed = fixed_seed(seed)
        Layer.__init__(self, name)
        for argument, value in (
            ("kernel_regularizer", kernel_regularizer),
            ("recurrent_regularizer", recurrent_regularizer),
            ("bias_regularizer", bias_regularizer),
            ("activity_regularizer", activity_regularizer),
            ("kernel_constraint", kernel_constraint),
            ("recurrent_constraint", recurrent_constraint),
            ("bias_constraint", bias_constraint),
        ):
            if value is not None:
                self._take(argument, value)
        if fixed is not None:
            self._seed = fixed

    def _state_shapes(self, step: Shape) -> list[Shape]:
        how = step[:-1], self.kernel_size, self.strides, self.dilation_rate
        around = resolve_padding(self.padding, *how)
        lengths = map(output_length, *how, around)
        return [(*lengths, self.filters)] * 2

    def specs(self: Any, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel, recurrent kernel and bias."""
        wanted = INPUTS[self.rank].replace("(None", "at steps (None, steps", 1)
        self.require_rank(shapes[0], self.rank + 2, wanted)
        width, size = 4 * self.filters, self.kernel_size
        result = [
            WeightSpec(
                "kernel", (*size, shapes[0][-1], width), self.kernel_initializer
            ),
            WeightSpec(
                "recurrent_kernel",
                (*size, self.filters, width),
                self.recurrent_initializer,
            ),
        ]
        if self.use_bias:
            start = self.bias_initializer
            start = ForgetBias(start) if self.unit_forget_bias else start
            result.append(WeightSpec("bias", (width,), start))
        return (*result, *self._checked_states(shapes))

    def _convolved(
        self: Any, scope: Scope, x: int, weight: str, rate: float, use: int
    ) -> int:
        """Append the convolutions of all gates, each with a dropout mask of its own."""
        kernel = scope.weights[weight]
        how = self.padding, self.strides, self.dilation_rate
        if weight == "recurrent_kernel":
            how = "same", (1,) * self.rank, (1,) * self.rank
        shape = scope.builder.shape(x)
        masks = [dropped(self, scope, shape, rate, 4 * use + gate) for gate in range(4)]
        if masks[0] is None:
            return convolve(scope, x, kernel, *how)
        parts = zip(split(scope, kernel, 4), masks, strict=True)
        made = [
            convolve(scope, times(scope, x, mask), part, *how) for part, mask in parts
        ]
        return scope.apply("concatenate", made, {"axis": self.rank + 1})[0]

    def _trace_step(
        self: Any, scope: Scope, x: int, states: Sequence[int]
    ) -> tuple[int, list[int]]:
        hidden, carry = states
        z = self._convolved(scope, x, "kernel", self.dropout, 0)
        if self.use_bias:
            (z,) = scope.apply("bias", (z, scope.weights["bias"]))
        rate = self.recurrent_dropout
        own = self._convolved(scope, hidden, "recurrent_kernel", rate, 1)
        (total,) = scope.apply("add", (z, own))

        kinds = [self._recurrent_activation_op] * 4
        kinds[2] = self._activation_op
        parts = zip(split(scope, total, 4), kinds, strict=True)
        i, f, g, o = (activate(scope, part, kind) for part, kind in parts)
        (carry,) = scope.apply("dual_product", (f, carry, i, g))
        squashed = activate(scope, carry, self._activation_op)
        (hidden,) = scope.apply("multiply", (o, squashed))
        return hidden, [hidden, carry]


class ConvLSTM1D(_ConvLSTM):
    """Long short-term memory over steps of sequences, with convolutions as products.

    Parameters
    ----------
    filters : int
        The number of channels of the state and of the output.
    kernel_size : int
        The length of both kernels' windows.
    strides : int, default 1
        The strides of the window over the input.
    padding : str, default "valid"
        ``"valid"`` or ``"same"``, of the input; the state is padded by ``"same"``.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    dilation_rate : int, default 1
        The distance of the kernel's elements in the input; 1 is dense.
    activation : str or None, default "tanh"
        The activation of the candidate and of the cell.
    recurrent_activation : str or None, default "sigmoid"
        The activation of the gates.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel, of shape ``(K, C, 4 * filters)``: the gates
        i, f, c, o.
    recurrent_initializer : str or Initializer, default "orthogonal"
        The initializer of the recurrent kernel, of shape ``(K, filters, 4 *
        filters)``.
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
        The fraction of the input's and of the state's elements to drop while training,
        for each gate, the same at all steps.
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
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Shi et al., "Convolutional LSTM network: a machine learning approach for
    precipitation nowcasting", NeurIPS 2015.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.ConvLSTM1D(8, 3, padding="same")(mc.nn.Input((5, 16, 2))).shape
    (None, 16, 8)
    """

    __slots__ = ()

    rank = 1


class ConvLSTM2D(_ConvLSTM):
    """Long short-term memory over steps of images, with convolutions as products.

    Parameters
    ----------
    filters : int
        The number of channels of the state and of the output.
    kernel_size : int or tuple of two int
        The height and width of both kernels' windows.
    strides : int or tuple of two int, default 1
        The strides of the window over the input.
    padding : str, default "valid"
        ``"valid"`` or ``"same"``, of the input; the state is padded by ``"same"``.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    dilation_rate : int or tuple of two int, default 1
        The distance of the kernel's elements in the input; 1 is dense.
    activation : str or None, default "tanh"
        The activation of the candidate and of the cell.
    recurrent_activation : str or None, default "sigmoid"
        The activation of the gates.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel, of shape ``(KH, KW, C, 4 * filters)``: the gates
        i, f, c, o.
    recurrent_initializer : str or Initializer, default "orthogonal"
        The initializer of the recurrent kernel, of shape ``(KH, KW, filters, 4 *
        filters)``.
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
        The fraction of the input's and of the state's elements to drop while training,
        for each gate, the same at all steps.
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
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Shi et al., "Convolutional LSTM network: a machine learning approach for
    precipitation nowcasting", NeurIPS 2015.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.ConvLSTM2D(8, 3, padding="same")(mc.nn.Input((5, 16, 12, 2))).shape
    (None, 16, 12, 8)
    """

    __slots__ = ()

    rank = 2


class ConvLSTM3D(_ConvLSTM):
    """Long short-term memory over steps of volumes, with convolutions as products.

    Parameters
    ----------
    filters : int
        The number of channels of the state and of the output.
    kernel_size : int or tuple of three int
        The depth, height and width of both kernels' windows.
    strides : int or tuple of three int, default 1
        The strides of the window over the input.
    padding : str, default "valid"
        ``"valid"`` or ``"same"``, of the input; the state is padded by ``"same"``.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    dilation_rate : int or tuple of three int, default 1
        The distance of the kernel's elements in the input; 1 is dense.
    activation : str or None, default "tanh"
        The activation of the candidate and of the cell.
    recurrent_activation : str or None, default "sigmoid"
        The activation of the gates.
    use_bias : bool, default True
        Whether to add a bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel, of shape ``(KD, KH, KW, C, 4 * filters)``: the
        gates i, f, c, o.
    recurrent_initializer : str or Initializer, default "orthogonal"
        The initializer of the recurrent kernel, of shape ``(KD, KH, KW, filters,
        4 * filters)``.
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
        The fraction of the input's and of the state's elements to drop while training,
        for each gate, the same at all steps.
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
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Shi et al., "Convolutional LSTM network: a machine learning approach for
    precipitation nowcasting", NeurIPS 2015.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.ConvLSTM3D(8, 3, padding="same")(mc.nn.Input((5, 4, 4, 4, 2))).shape
    (None, 4, 4, 4, 8)
    """

    __slots__ = ()

    rank = 3
