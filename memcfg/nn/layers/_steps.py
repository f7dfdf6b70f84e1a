"""One step of the recurrent layers, which cells and whole layers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import activation_name, integer, unit_interval
from memcfg.nn._random import derive_seed, fixed_seed
from memcfg.nn.initializers import Initializer, get_initializer
from memcfg.nn.layers._activated import ActivationOf
from memcfg.nn.layers._basic import activate
from memcfg.nn.layers._layer import Layer, Scope, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = [
    "GatedStep",
    "LongStep",
    "SimpleStep",
    "Step",
    "apply",
    "dropped",
    "filled",
    "times",
]


class ForgetBias(Initializer):
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


def apply(scope: Scope, kind: str, tensor: int, **attributes: Any) -> int:
    """Append an op of one input and one output."""
    return scope.apply(kind, (tensor,), attributes)[0]


def filled(scope: Scope, shape: tuple[int, ...], value: float) -> int:
    attributes = {"shape": shape, "value": value, "dtype": "float32"}
    return scope.apply("fill", (), attributes)[0]


def split(scope: Scope, tensor: int, parts: int, axis: int = -1) -> tuple[int, ...]:
    length = scope.builder.shape(tensor)[axis] // parts
    return scope.apply("split", (tensor,), {"axis": axis, "lengths": (length,) * parts})


def times(scope: Scope, x: int, factors: int | None) -> int:
    return x if factors is None else scope.apply("multiply", (x, factors))[0]


def dropped(
    layer: Any, scope: Scope, shape: tuple[int, ...], rate: float, use: int
) -> int | None:
    """Append a dropout mask for all steps; None without dropout."""
    if not rate or not scope.training or scope.step is None:
        return None
    call = scope.call if scope.sequence is None else scope.sequence
    key = derive_seed(layer._seed, call, use)
    operands = (filled(scope, shape, 1.0), scope.step())
    return scope.apply("dropout", operands, {"rate": rate, "key": key})[0]


class Step:
    """Base class: the weights of a step, and what it computes."""

    __slots__ = ()

    activation = ActivationOf()
    _activation_op: Any
    bias_initializer: Initializer
    dropout: float
    kernel_initializer: Initializer
    recurrent_activation = ActivationOf()
    _recurrent_activation_op: Any
    recurrent_dropout: float
    recurrent_initializer: Initializer
    units: int
    use_bias: bool
    _gates: ClassVar[int]
    _states: ClassVar[int] = 1

    def _settle(
        self: Any,
        units: int,
        activation: Any,
        use_bias: bool,
        initializers: Sequence[Any],
        penalties: dict[str, Any],
        rates: Sequence[float],
        seed: int | None,
        name: str | None,
    ) -> None:
        """Check and set the arguments that cells and layers share."""
        kind = type(self).__name__
        self.units = integer(units, f"{kind}: units")
        self._activation_op = activation_name(activation, kind)
        self.use_bias = bool(use_bias)
        kernel, recurrent, bias = map(get_initializer, initializers)
        self.kernel_initializer = kernel
        self.recurrent_initializer = recurrent
        self.bias_initializer = bias
        self.dropout = unit_interval(rates[0], f"{kind}: dropout")
        self.recurrent_dropout = unit_interval(rates[1], f"{kind}: recurrent_dropout")
        fixed = fixed_seed(seed)
        Layer.__init__(self, name)
        for argument, value in penalties.items():
            if value is not None:
                self._take(argument, value)
        if fixed is not None:
            self._seed = fixed

    def _own_specs(self: Any, features: int) -> list[WeightSpec]:
        """Return kernel, recurrent kernel and bias."""
        width = self._gates * self.units
        result = [
            WeightSpec("kernel", (features, width), self.kernel_initializer),
            WeightSpec(
                "recurrent_kernel", (self.units, width), self.recurrent_initializer
            ),
        ]
        if self.use_bias:
            result.append(WeightSpec("bias", self._bias_shape(), self._first_bias()))
        return result

    def _bias_shape(self: Any) -> tuple[int, ...]:
        return (self._gates * self.units,)

    def _first_bias(self) -> Initializer:
        return self.bias_initializer

    def _product(self: Any, scope: Scope, x: int) -> int:
        """Append the input's product with the kernel, and the bias."""
        (z,) = scope.apply("dense", (x, scope.weights["kernel"]))
        biased: int = self._biased(scope, z)
        return biased

    def _biased(self: Any, scope: Scope, z: int) -> int:
        if not self.use_bias:
            return z
        return scope.apply("bias", (z, scope.weights["bias"]))[0]

    def _step(
        self: Any, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        """Append one step: `h` is the state that the recurrent kernel reads."""
        raise NotImplementedError


class SimpleStep(Step):
    """A step of `SimpleRNN`."""

    __slots__ = ()

    _gates = 1

    def _step(
        self, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        (product,) = scope.apply("dense", (h, scope.weights["recurrent_kernel"]))
        (total,) = scope.apply("add", (z, product))
        return (activate(scope, total, self._activation_op),)


class LongStep(Step):
    """A step of `LSTM`."""

    __slots__ = ()

    unit_forget_bias: bool
    _gates = 4
    _states = 2

    def _first_bias(self) -> Initializer:
        start = self.bias_initializer
        return ForgetBias(start) if self.unit_forget_bias else start

    def _step(
        self, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        (product,) = scope.apply("dense", (h, scope.weights["recurrent_kernel"]))
        (total,) = scope.apply("add", (z, product))
        kinds = [self._recurrent_activation_op] * 4
        kinds[2] = self._activation_op
        i, f, g, o = (
            activate(scope, part, kind)
            for part, kind in zip(split(scope, total, 4), kinds, strict=True)
        )
        (c,) = scope.apply("dual_product", (f, states[1], i, g))
        squashed = activate(scope, c, self._activation_op)
        (new,) = scope.apply("multiply", (o, squashed))
        return new, c


class GatedStep(Step):
    """A step of `GRU`."""

    __slots__ = ()

    reset_after: bool
    _gates = 3

    def _bias_shape(self) -> tuple[int, ...]:
        shape = super()._bias_shape()
        return (2, *shape) if self.reset_after else shape

    def _biased(self, scope: Scope, z: int) -> int:
        if not (self.use_bias and self.reset_after):
            return super()._biased(scope, z)
        return scope.apply("bias", (z, self._bias(scope, 0)))[0]

    def _bias(self, scope: Scope, row: int) -> int:
        """Append the slice of the bias of the input, 0, or of the recurrence, 1."""
        width = 3 * self.units
        bias = scope.weights["bias"]
        part = apply(scope, "slice", bias, begin=(row, 0), end=(row + 1, width))
        return apply(scope, "reshape", part, shape=(width,))

    def _step(
        self, scope: Scope, z: int, h: int, states: Sequence[int]
    ) -> Sequence[int]:
        recurrent, units = scope.weights["recurrent_kernel"], self.units
        xz, xr, xh = split(scope, z, 3)
        if self.reset_after:
            (product,) = scope.apply("dense", (h, recurrent))
            if self.use_bias:
                (product,) = scope.apply("bias", (product, self._bias(scope, 1)))
            rz, rr, inner = split(scope, product, 3)
        else:
            gates, last = (
                apply(scope, "slice", recurrent, begin=(0, a), end=(units, b))
                for a, b in ((0, 2 * units), (2 * units, 3 * units))
            )
            (product,) = scope.apply("dense", (h, gates))
            rz, rr = split(scope, product, 2)
        update, reset = (
            activate(scope, scope.apply("add", pair)[0], self._recurrent_activation_op)
            for pair in ((xz, rz), (xr, rr))
        )
        if self.reset_after:
            (inner,) = scope.apply("multiply", (reset, inner))
        else:
            (held,) = scope.apply("multiply", (reset, h))
            (inner,) = scope.apply("dense", (held, last))
        (total,) = scope.apply("add", (xh, inner))
        candidate = activate(scope, total, self._activation_op)
        return scope.apply("mix", (update, states[0], candidate))
