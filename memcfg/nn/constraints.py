"""Projections of weights after each update of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn._keras_names import absent
from memcfg.nn.exchange._configs import Configured, functions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Builder

__all__ = [
    "Constraint",
    "MaxNorm",
    "MinMaxNorm",
    "NonNeg",
    "UnitNorm",
    "max_norm",
    "min_max_norm",
    "non_neg",
    "unit_norm",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_EPSILON = 1e-7  # Keras's backend.epsilon()


class Constraint(FixedAttributes, Configured):
    """Base class of the constraints.

    A subclass overrides ``__call__``, which returns the constrained weight, made of the
    weight, a symbolic tensor, with operators and the functions of `memcfg.nn.ops`. It
    is a part of the training step: it is traced once, and its memory is planned.

    Examples
    --------
    >>> import memcfg as mc
    >>> class Bounded(mc.nn.Constraint):
    ...     def __call__(self, w):
    ...         return mc.nn.ops.clip(w, -1, 1)
    >>> mc.nn.Dense(3, kernel_constraint=Bounded()).get_config()["kernel_constraint"][
    ...     "class_name"]
    'Bounded'
    """

    __slots__ = ()

    operators: ClassVar[Any]  # the module `_operators` of layers

    def __call__(self, w: Any) -> Any:
        """Return a constrained array, weight or tensor of a function.

        Subclasses override it; by default it returns its argument.
        """
        if type(self).trace is Constraint.trace:
            return w
        return self.operators.apply_to(self, w)

    def trace(self, builder: Builder, tensor: int) -> int | None:
        """Append the ops of the constraint; those of ``__call__`` by default.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        tensor : int
            Id of the weight after its update.

        Returns
        -------
        int, optional
            Id of the constrained weight; None if ``__call__`` says what it is.
        """
        del builder, tensor
        return None


class NonNeg(Constraint):
    """Set negative elements to zero."""

    __slots__ = ()

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the op; return its result's id."""
        return builder.apply("maximum_number", (tensor,), {"number": 0.0})[0]


class _OfNorms(Constraint):
    """Base class of the constraints of norms along axes."""

    __slots__ = ("axis",)

    def __init__(self, axis: int | Sequence[int]) -> None:
        what = f"{type(self).__name__}: axis"
        if isinstance(axis, list | tuple):
            self.axis: Any = tuple(integer(each, what, None) for each in axis)
        else:
            self.axis = integer(axis, what, None)

    def _wanted(self, builder: Builder, norms: int) -> int:
        """Append the norms that there are to be; return their id."""
        raise NotImplementedError

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the ops; return the result's id."""
        shape = builder.shape(tensor)
        given = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        rank = len(shape)
        axes = sorted({each % rank for each in given if -rank <= each < rank})
        if len(axes) < len(given):
            raise ValueError(
                f"{self!r} names an axis that a weight of shape {shape} does not have"
            )
        (squares,) = builder.apply("multiply", (tensor, tensor))
        over = {"axes": tuple(axes), "keepdims": True}
        (total,) = builder.apply("reduce_sum", (squares,), over)
        (norms,) = builder.apply("root", (total,), {"term": -0.0})
        wanted = self._wanted(builder, norms)
        raised = {"factor": 1.0, "term": _EPSILON}
        (divisor,) = builder.apply("affine", (norms,), raised)
        (factor,) = builder.apply("divide", (wanted, divisor))
        (wide,) = builder.apply("broadcast_to", (factor,), {"shape": shape})
        return builder.apply("multiply", (tensor, wide))[0]


class MaxNorm(_OfNorms):
    """Scale down what is longer than a norm.

    Parameters
    ----------
    max_value : float, default 2
        The largest norm, zero or more.
    axis : int or sequence of int, default 0
        The axes along which norms are: 0 for the inputs of each unit of a `Dense`, and
        ``[0, 1, 2]`` for each filter of a `Conv2D`.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """

    __slots__ = ("max_value",)

    def __init__(self, max_value: float = 2, axis: int | Sequence[int] = 0) -> None:
        self.max_value = nonnegative(max_value, "MaxNorm: max_value")
        super().__init__(axis)

    def _wanted(self, builder: Builder, norms: int) -> int:
        bounds = {"low": 0.0, "high": self.max_value}
        return builder.apply("clip", (norms,), bounds)[0]


class UnitNorm(_OfNorms):
    """Scale to a norm of 1.

    Parameters
    ----------
    axis : int or sequence of int, default 0
        The axes along which norms are, as for `MaxNorm`.

    Raises
    ------
    TypeError, ValueError
        If the axis is invalid.
    """

    __slots__ = ()

    def __init__(self, axis: int | Sequence[int] = 0) -> None:
        super().__init__(axis)

    def _wanted(self, builder: Builder, norms: int) -> int:
        one = {"shape": builder.shape(norms), "value": 1.0, "dtype": "float32"}
        return builder.apply("fill", (), one)[0]


class MinMaxNorm(_OfNorms):
    """Scale towards norms between two bounds.

    Parameters
    ----------
    min_value, max_value : float, default 0.0 and 1.0
        The bounds, zero or more.
    rate : float, default 1.0
        The share of the way to the bounds that is gone at each step, in ``[0, 1]``.
    axis : int or sequence of int, default 0
        The axes along which norms are, as for `MaxNorm`.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """

    __slots__ = ("max_value", "min_value", "rate")

    def __init__(
        self,
        min_value: float = 0.0,
        max_value: float = 1.0,
        rate: float = 1.0,
        axis: int | Sequence[int] = 0,
    ) -> None:
        self.min_value = nonnegative(min_value, "MinMaxNorm: min_value")
        self.max_value = nonnegative(max_value, "MinMaxNorm: max_value")
        if self.min_value > self.max_value:
            raise ValueError(
                f"MinMaxNorm: min_value must not exceed max_value, got {min_value} and "
                f"{max_value}"
            )
        self.rate = real(rate, "MinMaxNorm: rate")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"MinMaxNorm: rate must be in [0, 1], got {rate!r}")
        super().__init__(axis)

    def _wanted(self, builder: Builder, norms: int) -> int:
        bounds = {"low": self.min_value, "high": self.max_value}
        (within,) = builder.apply("clip", (norms,), bounds)
        parts = [
            builder.apply("affine", (part,), {"factor": share, "term": -0.0})[0]
            for part, share in ((within, self.rate), (norms, 1 - self.rate))
        ]
        return builder.apply("add", parts)[0]


max_norm, min_max_norm, non_neg, unit_norm = MaxNorm, MinMaxNorm, NonNeg, UnitNorm

_CONSTRAINTS: dict[str, type[Any]] = {
    **{each.__name__: each for each in (MaxNorm, MinMaxNorm, NonNeg, UnitNorm)},
    "max_norm": MaxNorm,
    "min_max_norm": MinMaxNorm,
    "non_neg": NonNeg,
    "unit_norm": UnitNorm,
}


def get_constraint(constraint: Any) -> Constraint | None:
    """Return the constraint of a layer's argument; None if the argument is None."""
    if constraint is None or isinstance(constraint, Constraint):
        return constraint
    if isinstance(constraint, str) and constraint in _CONSTRAINTS:
        made: Constraint = _CONSTRAINTS[constraint]()
        return made
    if isinstance(constraint, type) and issubclass(constraint, Constraint):
        return constraint()
    if isinstance(constraint, dict):
        return get_constraint(deserialize(constraint))
    names = [name for name in _CONSTRAINTS if name.islower()]
    if isinstance(constraint, str):
        raise unknown("constraint", constraint, names)
    raise TypeError(
        "a constraint must be MaxNorm(...), another of nn.constraints, a subclass of "
        f"Constraint or a name, got {constraint!r}"
    )


serialize, deserialize, get = functions_of("constraints", Constraint, get_constraint)
