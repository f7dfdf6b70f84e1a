"""Sequences that a cell processes step by step.

Each step has ops of its own, so that policies may recompute some. See
docs/decisions/0035-recurrent-layers-are-one-op.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.graph import spend
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._layer import (
    LENGTHS,
    Layer,
    Node,
    Place,
    Scope,
    Shape,
    SymbolicTensor,
    WeightSpec,
    filled_in,
    input_layer,
    pattern,
    show_shape,
)
from memcfg.nn.layers._rnn_cells import StackedRNNCells, check_cell, initial_state
from memcfg.nn.layers._steps import apply, filled

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RNN", "StepByStep", "Unrolled", "sequences_and_states"]


def _flag(value: Any, what: str) -> bool:
    """Return a bool; TypeError for anything else."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, got {value!r}")
    return value


def sequences_and_states(
    layer: Layer, count: int, sequences: Any, initial_state: Any
) -> list[Any]:
    """Return sequences and all initial states in one list, or sequences alone."""
    several = list(sequences) if isinstance(sequences, list | tuple) else [sequences]
    if initial_state is not None:
        several += _flat(initial_state)
    if len(several) not in (1, 1 + count):
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}) expects sequences and "
            f"{count} initial state{'s' * (count > 1)}, got {len(several)} tensors"
        )
    return several


def _flat(nested: Any) -> list[Any]:
    if not isinstance(nested, list | tuple):
        return [nested]
    return [leaf for each in nested for leaf in _flat(each)]


class StepByStep:
    """Base class of the layers that carry states through the steps of sequences."""

    __slots__ = ()

    go_backwards: bool
    return_sequences: bool
    return_state: bool
    stateful: bool
    _batch_size: int | None
    _takes: ClassVar[str] = "sequences (None, steps, features)"
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    arity: ClassVar[int | None] = None
    takes_mask: ClassVar[bool] = True

    def _settle_flags(self: Any, **flags: bool) -> None:
        """Check and set flags."""
        for name, value in flags.items():
            setattr(self, name, _flag(value, f"{type(self).__name__}: {name}"))
        self._batch_size = None  # size of all batches, if fixed

    def __call__(
        self: Any,
        sequences: SymbolicTensor | Sequence[SymbolicTensor],
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        """Connect the layer to sequences and, optionally, initial states and a mask."""
        several = sequences_and_states(self, self._states, sequences, initial_state)
        self.know_batch(several[0])
        return Layer.__call__(self, several, mask=mask, training=training)

    def _arguments_of(
        self: Any, node: Node
    ) -> tuple[tuple[SymbolicTensor], dict[str, Any]]:
        """Return the sequences and the initial states."""
        _, options = node.details or ((), {})
        sequences, *states = node.inputs
        if states:
            return (sequences,), {**options, "initial_state": states}
        return (sequences,), dict(options)

    def _operands(self: Any, inputs: Any) -> tuple[SymbolicTensor, ...]:
        """Check one tensor or several, whose number is already checked."""
        several = inputs if len(inputs) > 1 else inputs * 2
        return Layer._operands(self, several)[: len(inputs)]

    def know_batch(self: Any, sequences: Any) -> None:
        """Record the batch size of the input."""
        if isinstance(sequences, SymbolicTensor):
            whole = sequences.whole  # of a function, whose shapes are known
            size = sequences.shape[0] if whole else sequences.node.batch_size
            self._batch_size = size

    def reset_state(self: Any) -> None:
        """Reset the kept states to zeros."""
        model = None if self._owner is None else self._owner()
        if self.stateful and model is not None:
            model._reset_state(self)

    reset_states = reset_state

    def _kept_states(self: Any, shapes: Sequence[Shape]) -> list[WeightSpec]:
        """Return the states kept between batches."""
        if not self.stateful:
            return []
        if self._batch_size is None:
            raise ValueError(
                f"layer {self.name!r}: stateful=True needs a fixed batch size: pass "
                "Input(shape, batch_size=...)"
            )
        zeros, batch = get_initializer("zeros"), self._batch_size
        return [
            WeightSpec(f"state_{i}", (batch, *shape), zeros, False, hidden=True)
            for i, shape in enumerate(shapes)
        ]

    def _first_states(
        self: Any, scope: Scope, batch: int, states: Sequence[int]
    ) -> list[int] | None:
        """Return the states that are given or kept; None if they are zeros."""
        if states or not self.stateful:
            return list(states) or None
        kept = [scope.weights[f"state_{i}"] for i in range(self._states)]
        known = scope.builder.shape(kept[0])[0]
        if known != batch:
            raise ValueError(
                f"layer {self.name!r} is stateful and needs batches of {known} "
                f"samples, got {batch}: pass this batch_size and a multiple of as many "
                "samples"
            )
        return kept

    def _mask_of_steps(self: Any, scope: Scope) -> int | None:
        """Return the mask in the order of the steps, and set that of the result.

        The result's mask is in the order of the input, as in Keras, also backwards.
        """
        mask = scope.masks[0] if scope.masks else None
        scope.mask = mask if self.return_sequences else None
        if self.go_backwards and mask is not None:
            mask = apply(scope, "reverse", mask, axes=(1,))
        return mask

    def _keep(self: Any, scope: Scope, states: Sequence[int]) -> None:
        """Request that states are kept for the next batch."""
        if self.stateful:
            for i, state in enumerate(states):
                scope.move(f"state_{i}", state, 0.0)


class Unrolled(StepByStep):
    """Base class of the layers of which each step has its own ops."""

    __slots__ = ()

    zero_output_for_mask: bool

    def _state_shapes(self, step: Shape) -> list[Shape]:
        """Return the shapes of the states for steps of a shape."""
        raise NotImplementedError

    def _trace_step(
        self, scope: Scope, x: int, states: Sequence[int]
    ) -> tuple[int, list[int]]:
        """Append a step [batch, ...]; return its output and the next states."""
        raise NotImplementedError

    def _infer(
        self: Any, specs: Sequence[WeightSpec], operands: Sequence[SymbolicTensor]
    ) -> tuple[type | None, list[tuple[Shape, str]]]:
        """Trace the layer; a single step where their number stands for any."""
        first, *states = operands
        steps, *step = first.sample_shape
        if steps not in LENGTHS:
            return Layer._infer(self, specs, operands)
        kind = (1, *step), first.sample_dtype
        start = input_layer(*kind, "step", first.node.batch_size)
        (short,) = Node(start, (), [kind]).outputs
        structure, results = Layer._infer(self, specs, [short, *states])
        if self.return_sequences:
            (_, *shape), dtype = results[0]
            results[0] = (steps, *shape), dtype
        return structure, results

    def _checked_states(self: Any, shapes: Sequence[Shape]) -> list[WeightSpec]:
        """Check the shapes of initial states; return the states that are kept."""
        wanted = self._state_shapes(shapes[0][1:])
        for shape, known in zip(shapes[1:], wanted, strict=False):
            if shape != known:
                raise ValueError(
                    f"layer {self.name!r}: an initial state must have shape "
                    f"{show_shape(known)}, got {show_shape(shape)}"
                )
        result: list[WeightSpec] = self._kept_states(wanted)
        return result

    def trace(self: Any, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append the steps and the results."""
        x, *given = inputs
        batch, count, *sample = scope.builder.shape(x)
        spend(count)  # raises before many tensors are made
        scope.sequence = scope.call
        mask = self._mask_of_steps(scope)
        states = self._first_states(scope, batch, given) or [
            filled(scope, (batch, *shape), 0.0)
            for shape in self._state_shapes(tuple(sample))
        ]
        places = range(count)
        outputs: list[int] = []
        for t, place in enumerate(reversed(places) if self.go_backwards else places):
            step = _part(scope, x, place)
            output, new = self._trace_step(scope, step, states)
            if mask is not None:
                keep = _part(scope, mask, t)
                known = bool(outputs) and not self.zero_output_for_mask
                output = _kept(scope, keep, output, outputs[-1] if known else None)
                pairs = zip(new, states, strict=True)
                new = [_kept(scope, keep, *pair) for pair in pairs]
            states = new
            outputs.append(output)
        y = outputs[-1]
        if self.return_sequences:
            steps = [_with_step(scope, each) for each in outputs]
            y = steps[0]
            if len(steps) > 1:
                (y,) = scope.apply("concatenate", steps, {"axis": 1})
        self._keep(scope, states)
        return (y, *states) if self.return_state else y


def _part(scope: Scope, x: int, place: int) -> int:
    """Append one step of sequences: [batch, ...], or [batch, 1] of a mask."""
    shape = batch, _, *sample = scope.builder.shape(x)
    begin = (0, place, *(0 for _ in sample))
    end = (batch, place + 1, *sample)
    if shape[1] > 1:
        x = apply(scope, "slice", x, begin=begin, end=end)
    if not sample:
        return x
    return apply(scope, "reshape", x, shape=(batch, *sample))


def _with_step(scope: Scope, x: int) -> int:
    batch, *sample = scope.builder.shape(x)
    return apply(scope, "reshape", x, shape=(batch, 1, *sample))


def _kept(scope: Scope, keep: int, new: int, old: int | None) -> int:
    """Append the choice of the old value, or of zeros, where a step is masked."""
    shape = scope.builder.shape(new)
    column = apply(scope, "reshape", keep, shape=(shape[0], *(1 for _ in shape[1:])))
    wide = apply(scope, "broadcast_to", column, shape=shape)
    if old is None:
        return scope.apply("masked", (wide, new))[0]
    return scope.apply("choose", (wide, new, old))[0]


class RNN(Unrolled, Layer):
    """Carry states through the steps of sequences by a cell.

    A cell is a layer with the attribute `state_size`, the length of its state or a list
    of lengths, and ``call(inputs, states)``, which returns the output of a step and the
    list of the next states. States begin with zeros, unless others are passed.

    Parameters
    ----------
    cell : Layer, or sequence of Layer
        The cell; several are those of `StackedRNNCells`.
    return_sequences : bool, default False
        Whether to return the outputs of all steps, instead of the last.
    return_state : bool, default False
        Whether to return the last states as well.
    go_backwards : bool, default False
        Whether to process the steps in reverse, which also reverses the outputs.
    stateful : bool, default False
        Whether the last states of a batch are the initial states of the next batch.
    unroll : bool, default False
        Has no effect: each step is traced separately, so that policies may recompute
        some.
    zero_output_for_mask : bool, default False
        Whether the output of a masked step is zeros, instead of the output before.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError
        If the cell is no layer, or has no `state_size`.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.RNN([mc.nn.LSTMCell(8), mc.nn.GRUCell(5)])(mc.nn.Input((7, 3))).shape
    (None, 5)
    """

    unroll: bool

    __slots__ = (
        "_batch_size",
        "cell",
        "go_backwards",
        "return_sequences",
        "return_state",
        "stateful",
        "unroll",
        "zero_output_for_mask",
    )

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        if isinstance(cell, list | tuple):
            cell = StackedRNNCells(cell)
        check_cell(cell, "RNN")
        self.cell = cell
        self._settle_flags(
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
            unroll=unroll,
            zero_output_for_mask=zero_output_for_mask,
        )
        super().__init__(name)

    def get_initial_state(self, batch_size: int | None = None) -> list[Any]:
        """Return zeros for each state, as the layer takes them for `initial_state`.

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
        return list(initial_state(self.cell, batch_size))

    @property
    def _states(self) -> int:
        return len(self._lengths[1])

    @property
    def _lengths(self) -> tuple[Any, list[int]]:
        """The structure of the states that the cell takes, and their lengths."""
        size = self.cell.state_size
        lengths: list[int] = []
        size = list(size) if isinstance(size, list | tuple) else [size]
        return pattern(size, lengths, int), lengths

    def _state_shapes(self, step: Shape) -> list[Shape]:
        del step
        return [(length,) for length in self._lengths[1]]

    def _connect(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Connect the layer; states are nested as the cell's are."""
        made = super()._connect(inputs, *more, **options)
        if not self.return_state:
            return made
        y, *states = made
        return (y, *filled_in(self._lengths[0], states))

    def _sublayers(self) -> list[Layer]:
        return [self.cell]

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the states that are kept between batches."""
        if len(shapes[0]) < 2:
            self.require_rank(shapes[0], 2, self._takes)
        return tuple(self._checked_states(shapes))

    def _of_step(self, shape: Shape, dtype: str) -> tuple[Node, Any]:
        """Return the cell's call on one step, and the places of its results."""
        key = shape, dtype
        if key not in self._inner:
            structure, lengths = self._lengths
            kinds = [key, *(((length,), "float32") for length in lengths)]
            x, *states = (
                Node(input_layer(*kind, "step"), (), [kind]).outputs[0]
                for kind in kinds
            )
            leaves: list[SymbolicTensor] = []
            made = pattern(self.cell(x, filled_in(structure, states)), leaves)
            wanted: list[Place] = []
            count = self._checked(made, wanted)
            if count != len(lengths):
                raise self._refused(f"{count} states")
            self._inner[key] = leaves[0].node, wanted
        result: tuple[Node, Any] = self._inner[key]
        return result

    def _checked(self, made: Any, places: list[Place]) -> int:
        """Collect the places of the output and the states; return how many states."""
        pair = isinstance(made, list | tuple) and not isinstance(made, Place)
        if not pair or len(made) != 2:
            raise self._refused("no pair of an output and states")
        output, states = made
        pattern([output, states], places, Place)
        if not isinstance(output, Place):
            raise self._refused("several outputs")
        return len(places) - 1

    def _refused(self, what: str) -> ValueError:
        return ValueError(
            f"layer {self.name!r}: the cell {self.cell!r}, whose state_size is "
            f"{self.cell.state_size}, returns {what}: return output, [states]"
        )

    def _infer(
        self, specs: Sequence[WeightSpec], operands: Sequence[SymbolicTensor]
    ) -> tuple[type | None, list[tuple[Shape, str]]]:
        _, *step = operands[0].sample_shape
        self._of_step(tuple(step), operands[0].sample_dtype)
        inner = [
            replace(spec, name=f"{path}{spec.name}")
            for path, leaf in self._leaves()
            if leaf is not self
            for spec in leaf.weight_specs or ()
        ]
        return super()._infer([*specs, *inner], operands)

    def _trace_step(
        self, scope: Scope, x: int, states: Sequence[int]
    ) -> tuple[int, list[int]]:
        shape = scope.builder.shape(x)[1:]
        node, places = self._of_step(shape, scope.dtype(x))
        values = dict(zip(node.inputs, (x, *states), strict=True))
        scope.trace([node], values, {})
        made = [values[node.outputs[place.number]] for place in places]
        return made[0], made[1:]
