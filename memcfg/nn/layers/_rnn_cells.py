"""Cells: layers that compute one step of a sequence, for `RNN`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import activation_name, integer
from memcfg.nn.layers._batch_size import BatchSize
from memcfg.nn.layers._layer import (
    Layer,
    Scope,
    Shape,
    Variable,
    WeightSpec,
    are_arrays,
    current_call,
    show_shape,
)
from memcfg.nn.layers._operators import Filled
from memcfg.nn.layers._steps import (
    GatedStep,
    LongStep,
    SimpleStep,
    Step,
    dropped,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "GRUCell",
    "LSTMCell",
    "SimpleRNNCell",
    "StackedRNNCells",
    "check_cell",
    "initial_state",
    "zero_states",
]

_SLOTS = (
    "_activation_op",
    "bias_initializer",
    "dropout",
    "kernel_initializer",
    "recurrent_dropout",
    "recurrent_initializer",
    "units",
    "use_bias",
)


class _Cell(Step):
    """Base class of the cells."""

    __slots__ = ()

    arity: ClassVar[int | None] = None

    @property
    def state_size(self) -> int | list[int]:
        """The length of the state, or a list of the lengths of several."""
        return self.units if self._states == 1 else [self.units] * self._states

    @property
    def output_size(self) -> int:
        """The length of the output."""
        return self.units

    def get_initial_state(self, batch_size: int | None = None) -> list[Any]:
        """Return zeros for each state.

        Parameters
        ----------
        batch_size : int, optional
            The number of samples. None, in a `call`: that of the batch.

        Returns
        -------
        list of numpy.ndarray or SymbolicTensor
            The states, of shape ``(batch_size, units)``.

        Raises
        ------
        ValueError
            If `batch_size` is None outside of a `call`.
        """
        return zero_states([self.units] * self._states, batch_size)

    def __call__(
        self: Any, inputs: Any, states: Any, training: bool | None = None
    ) -> tuple[Any, list[Any]]:
        """Return the output of a step and the next states."""
        given = list(states) if isinstance(states, list | tuple) else [states]
        if len(given) != self._states:
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) expects "
                f"{self._states} state{'s' * (self._states > 1)}, got {len(given)}"
            )
        if are_arrays(inputs, given):
            mode = {"training": training}
            return Variable.functions.at_once(self, (inputs, given), mode)  # type: ignore[no-any-return]
        output, *new = Layer.__call__(self, [inputs, *given], training=training)
        return output, new

    def specs(self: Any, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel, recurrent kernel and bias."""
        self.require_rank(shapes[0], 1, "steps (None, features)")
        for shape in shapes[1:]:
            if shape != (self.units,):
                raise ValueError(
                    f"layer {self.name!r}: a state must have shape "
                    f"{show_shape((self.units,))}, got {show_shape(shape)}"
                )
        return tuple(self._own_specs(shapes[0][-1]))

    def trace(self: Any, scope: Scope, inputs: Sequence[int]) -> tuple[int, ...]:
        """Append the step; its output is the first of the next states."""
        x, *states = inputs
        rates = self.dropout, self.recurrent_dropout
        masks = [
            dropped(self, scope, scope.builder.shape(each), rate, use)
            for use, (each, rate) in enumerate(zip((x, states[0]), rates, strict=True))
        ]
        z = self._product(scope, times(scope, x, masks[0]))
        new = self._step(scope, z, times(scope, states[0], masks[1]), states)
        return (new[0], *new)


class SimpleRNNCell(SimpleStep, _Cell, Layer):
    """A step of `SimpleRNN`: ``cell(inputs, [state])``.

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
    bias_regularizer : str or Regularizer, optional
        A penalty on the bias.
    kernel_constraint, recurrent_constraint : str or Constraint, optional
        What is done to the kernels after each update.
    bias_constraint : str or Constraint, optional
        What is done to the bias after each update.
    dropout, recurrent_dropout : float, default 0.0
        The fraction of the input's and of the state's features to drop while training,
        the same at all steps of an `RNN`.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = _SLOTS

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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self._settle(
            units,
            activation,
            use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            {
                "kernel_regularizer": kernel_regularizer,
                "recurrent_regularizer": recurrent_regularizer,
                "bias_regularizer": bias_regularizer,
                "kernel_constraint": kernel_constraint,
                "recurrent_constraint": recurrent_constraint,
                "bias_constraint": bias_constraint,
            },
            (dropout, recurrent_dropout),
            seed,
            name,
        )


class LSTMCell(LongStep, _Cell, Layer):
    """A step of `LSTM`: ``cell(inputs, [state, carry])``.

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
    bias_regularizer : str or Regularizer, optional
        A penalty on the bias.
    kernel_constraint, recurrent_constraint : str or Constraint, optional
        What is done to the kernels after each update.
    bias_constraint : str or Constraint, optional
        What is done to the bias after each update.
    dropout, recurrent_dropout : float, default 0.0
        The fraction of the input's and of the state's features to drop while training,
        the same at all steps of an `RNN`.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x, h, c = (mc.nn.Input((n,)) for n in (3, 5, 5))
    >>> mc.nn.LSTMCell(5)(x, [h, c])[0].shape
    (None, 5)
    """

    __slots__ = (
        "_recurrent_activation_op",
        "unit_forget_bias",
        *_SLOTS,
    )

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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self._recurrent_activation_op = activation_name(
            recurrent_activation, "LSTMCell"
        )
        self.unit_forget_bias = bool(unit_forget_bias)
        self._settle(
            units,
            activation,
            use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            {
                "kernel_regularizer": kernel_regularizer,
                "recurrent_regularizer": recurrent_regularizer,
                "bias_regularizer": bias_regularizer,
                "kernel_constraint": kernel_constraint,
                "recurrent_constraint": recurrent_constraint,
                "bias_constraint": bias_constraint,
            },
            (dropout, recurrent_dropout),
            seed,
            name,
        )


class GRUCell(GatedStep, _Cell, Layer):
    """A step of `GRU`: ``cell(inputs, [state])``.

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
    bias_regularizer : str or Regularizer, optional
        A penalty on the bias.
    kernel_constraint, recurrent_constraint : str or Constraint, optional
        What is done to the kernels after each update.
    bias_constraint : str or Constraint, optional
        What is done to the bias after each update.
    dropout, recurrent_dropout : float, default 0.0
        The fraction of the input's and of the state's features to drop while training,
        the same at all steps of an `RNN`.
    reset_after : bool, default True
        Whether to apply the reset gate after the product with the recurrent kernel.
    seed : int, optional
        The seed of dropout, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = (
        "_recurrent_activation_op",
        "reset_after",
        *_SLOTS,
    )

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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self._recurrent_activation_op = activation_name(recurrent_activation, "GRUCell")
        self.reset_after = bool(reset_after)
        self._settle(
            units,
            activation,
            use_bias,
            (kernel_initializer, recurrent_initializer, bias_initializer),
            {
                "kernel_regularizer": kernel_regularizer,
                "recurrent_regularizer": recurrent_regularizer,
                "bias_regularizer": bias_regularizer,
                "kernel_constraint": kernel_constraint,
                "recurrent_constraint": recurrent_constraint,
                "bias_constraint": bias_constraint,
            },
            (dropout, recurrent_dropout),
            seed,
            name,
        )


class StackedRNNCells(Layer):
    """Cells one after the other, each on the output of the one before, as one cell.

    Parameters
    ----------
    cells : sequence of Layer
        The cells.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError
        If one is no cell.
    ValueError
        If there is none.
    """

    __slots__ = ("cells",)

    def __init__(self, cells: Sequence[Layer], *, name: str | None = None) -> None:
        for each in cells:
            check_cell(each, "StackedRNNCells")
        if not cells:
            raise ValueError("StackedRNNCells needs a cell")
        self.cells: list[Any] = list(cells)
        super().__init__(name)

    @property
    def state_size(self) -> list[Any]:
        """The lengths of the states of each cell."""
        return [each.state_size for each in self.cells]

    @property
    def output_size(self) -> Any:
        """The length of the last cell's output."""
        last = self.cells[-1]
        size = getattr(last, "output_size", last.state_size)
        return size[0] if isinstance(size, list | tuple) else size

    def get_initial_state(self, batch_size: int | None = None) -> list[Any]:
        """Return zeros for each state of each cell.

        Parameters
        ----------
        batch_size : int, optional
            The number of samples. None, in a `call`: that of the batch.

        Returns
        -------
        list
            What ``get_initial_state`` of each cell returns, or zeros for the state of a
            cell of one's own.

        Raises
        ------
        ValueError
            If `batch_size` is None outside of a `call`.
        """
        return [initial_state(each, batch_size) for each in self.cells]

    def _sublayers(self) -> list[Layer]:
        return list(dict.fromkeys(self.cells))

    def call(  # type: ignore[override]
        self, inputs: Any, states: Any
    ) -> tuple[Any, list[Any]]:
        """Call each cell on the output of the one before.

        Parameters
        ----------
        inputs : SymbolicTensor
            One step of sequences.
        states : sequence
            The state or the list of states of each cell.

        Returns
        -------
        tuple
            The output of the last cell, and the next states of each.
        """
        new = []
        for cell, own in zip(self.cells, states, strict=True):
            several = isinstance(own, list | tuple)
            inputs, made = cell(inputs, list(own) if several else [own])
            one = isinstance(made, list | tuple) and len(made) == 1 and not several
            new.append(made[0] if one else made)
        return inputs, new


def check_cell(cell: Any, what: str) -> None:
    """Raise TypeError if a value is no cell."""
    if not isinstance(cell, Layer) or not hasattr(cell, "state_size"):
        raise TypeError(
            f"{what} expects a cell, a layer with the attribute state_size and "
            f"call(inputs, states), got {cell!r}"
        )
    own = getattr(type(cell), "get_initial_state", None)
    if own not in (None, _Cell.get_initial_state, StackedRNNCells.get_initial_state):
        raise TypeError(
            f"{what}: the cell {cell!r} has a get_initial_state, which is not called: "
            "states begin with zeros, or are passed as initial_state"
        )


def initial_state(cell: Any, batch_size: int | None) -> Any:
    """Return zeros for the states of a cell, nested as it takes them."""
    if hasattr(cell, "get_initial_state"):
        return cell.get_initial_state(batch_size)
    size = cell.state_size
    return zero_states(size if isinstance(size, list | tuple) else [size], batch_size)


def zero_states(sizes: Sequence[int], batch_size: Any) -> list[Any]:
    """Return zeros for states of some lengths; None for the batch of a `call`."""
    if isinstance(batch_size, BatchSize):
        like, rows = batch_size.like, batch_size.rows
        return [Filled(0.0, "float32", (size,), rows)(like) for size in sizes]
    if batch_size is not None:
        samples = integer(batch_size, "batch_size")
        return [np.zeros((samples, size), np.float32) for size in sizes]
    call = current_call()
    if call is None:
        raise ValueError("get_initial_state needs a batch_size outside of a `call`")
    return [Filled(0.0, "float32", (size,))(call.starts[0]) for size in sizes]
