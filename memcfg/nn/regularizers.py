"""Penalties on weights and activations added to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg._checks import unknown
from memcfg.nn._argument_checks import nonnegative
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn._keras_names import absent
from memcfg.nn.exchange._configs import Configured, functions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.graph import Builder

__all__ = [
    "L1",
    "L1L2",
    "L2",
    "OrthogonalRegularizer",
    "Regularizer",
    "deserialize",
    "get",
    "l1",
    "l1_l2",
    "l2",
    "orthogonal_regularizer",
    "serialize",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)


_LEAST_NORM = 1e-12


class Regularizer(FixedAttributes, Configured):
    """Base class of the regularizers.

    A subclass overrides ``__call__``, which returns the penalty, a scalar made of the
    weight or the activation, a symbolic tensor, with operators and the functions of
    `memcfg.nn.ops`. It is a part of the training step.

    Examples
    --------
    >>> import memcfg as mc
    >>> class SumsToOne(mc.nn.Regularizer):
    ...     def __call__(self, x):
    ...         return (mc.nn.ops.sum(x) - 1) ** 2
    >>> layer = mc.nn.Dense(3, kernel_regularizer=SumsToOne())
    """

    __slots__ = ()

    operators: ClassVar[Any]  # the module `_operators` of layers

    def __call__(self, x: Any) -> Any:
        """Return the penalty on an array, a weight or a tensor of a function."""
        if type(self).trace is Regularizer.trace:
            raise NotImplementedError(f"{type(self).__name__} must define __call__")
        return self.operators.apply_to(self, x)

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the ops of the penalty; those of ``__call__`` by default.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        tensor : int
            Id of a weight, or of an activation.

        Returns
        -------
        int
            Id of the penalty, a scalar.
        """
        name = type(self).__name__
        made: int = self.operators.trace_whole(self, builder, name, tensor, ())
        return made


class L1L2(Regularizer):
    """The penalty ``l1 * sum(|w|) + l2 * sum(w**2)``.

    Parameters
    ----------
    l1, l2 : float, default 0.0
        The factors, zero or more.

    Raises
    ------
    TypeError
        If a factor is not a number.
    ValueError
        If a factor is negative or not finite.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.regularizers.L1L2(l2=0.01)
    L1L2(l1=0.0, l2=0.01)
    """

    __slots__ = ("l1", "l2")

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        kind = type(self).__name__
        self.l1 = nonnegative(0.0 if l1 is None else l1, f"{kind}: l1")
        self.l2 = nonnegative(0.0 if l2 is None else l2, f"{kind}: l2")

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the penalty of each element and their sum; return its id."""
        return _penalty(builder, tensor, self.l1, self.l2)


class L1(Regularizer):
    """The penalty ``l1 * sum(|w|)``.

    Parameters
    ----------
    l1 : float, default 0.01
        The factor, zero or more.

    Raises
    ------
    TypeError
        If the factor is not a number.
    ValueError
        If the factor is negative or not finite.
    """

    __slots__ = ("l1",)

    def __init__(self, l1: float = 0.01) -> None:
        self.l1 = nonnegative(0.01 if l1 is None else l1, "L1: l1")

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the penalty of each element and their sum; return its id."""
        return _penalty(builder, tensor, self.l1, 0.0)


class L2(Regularizer):
    """The penalty ``l2 * sum(w**2)``.

    Parameters
    ----------
    l2 : float, default 0.01
        The factor, zero or more.

    Raises
    ------
    TypeError
        If the factor is not a number.
    ValueError
        If the factor is negative or not finite.
    """

    __slots__ = ("l2",)

    def __init__(self, l2: float = 0.01) -> None:
        self.l2 = nonnegative(0.01 if l2 is None else l2, "L2: l2")

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the penalty of each element and their sum; return its id."""
        return _penalty(builder, tensor, 0.0, self.l2)


class OrthogonalRegularizer(Regularizer):
    """The mean absolute cosine of the angles between rows, or columns, of a matrix.

    Parameters
    ----------
    factor : float, default 0.01
        The factor of the mean, zero or more.
    mode : {"rows", "columns"}, default "rows"
        Whether rows or columns are to be orthogonal.

    Raises
    ------
    TypeError
        If the factor is not a number.
    ValueError
        If an argument is out of its range; when it is used, if a weight is no matrix.
    """

    __slots__ = ("factor", "mode")

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        self.factor = nonnegative(factor, "OrthogonalRegularizer: factor")
        if mode not in ("rows", "columns"):
            raise ValueError(
                f"OrthogonalRegularizer: mode must be 'rows' or 'columns', got {mode!r}"
            )
        self.mode = mode

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the cosines of all pairs and their mean; return its id."""
        shape = builder.shape(tensor)
        if len(shape) != 2:
            raise ValueError(
                f"{self!r} is for matrices, and a weight has shape {shape}"
            )

        def apply(kind: str, inputs: Sequence[int], **settings: Any) -> int:
            label = f"regularization/{kind}"
            return builder.apply(kind, inputs, settings, name=label)[0]

        rows = self.mode == "rows"
        size, axis = (shape[0], 1) if rows else (shape[1], 0)
        squares = apply("multiply", (tensor, tensor))
        squares = apply("reduce_sum", (squares,), axes=(axis,), keepdims=True)
        factors = apply("inverse_root", (squares,), least=_LEAST_NORM**2)
        factors = apply("broadcast_to", (factors,), shape=shape)
        unit = apply("multiply", (tensor, factors))
        ways = {"transpose_b": True} if rows else {"transpose_a": True}
        cosines = apply("absolute", (apply("matmul", (unit, unit), **ways),))
        # Equal numbers are in the order of their places.
        zeros = apply("fill", (), shape=(size,), value=0.0, dtype="float32")
        same = apply("one_hot", (apply("order", (zeros,)),), depth=size)
        others = apply("affine", (same,), factor=-1.0, term=1.0)
        pairs = apply("multiply", (cosines, others))
        total = apply("reduce_sum", (pairs,), axes=(0, 1), keepdims=False)
        share = self.factor / max(size * (size - 1), 1)
        return apply("affine", (total,), factor=share, term=-0.0)


l1, l1_l2, l2 = L1, L1L2, L2
orthogonal_regularizer = OrthogonalRegularizer


def _penalty(builder: Builder, tensor: int, l1: float, l2: float) -> int:
    factors, name = {"l1": l1, "l2": l2}, "regularization"
    (each,) = builder.apply("l1_l2", (tensor,), factors, name=f"{name}/each")
    axes = {"axes": tuple(range(len(builder.shape(tensor)))), "keepdims": False}
    return builder.apply("reduce_sum", (each,), axes, name=name)[0]


_REGULARIZERS: dict[str, type[L1 | L2 | L1L2 | OrthogonalRegularizer]] = {
    "L1": L1,
    "L2": L2,
    "L1L2": L1L2,
    "l1": L1,
    "l2": L2,
    "l1l2": L1L2,  # Keras's name of the class in lower case
    "l1_l2": L1L2,  # as in Keras, it penalises nothing
    "OrthogonalRegularizer": OrthogonalRegularizer,
    "orthogonal_regularizer": OrthogonalRegularizer,
}


class OfFunction(Regularizer):
    """A function of a symbolic tensor that returns the penalty."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, x: Any) -> Any:
        """Call the function."""
        return self.function(x)


def get_regularizer(regularizer: Any) -> Regularizer | None:
    """Return the regularizer of a layer's argument; None if the argument is None."""
    if regularizer is None or isinstance(regularizer, Regularizer):
        return regularizer
    if isinstance(regularizer, str) and regularizer in _REGULARIZERS:
        return _REGULARIZERS[regularizer]()
    if isinstance(regularizer, type) and issubclass(regularizer, Regularizer):
        made: Regularizer = regularizer()
        return made
    if callable(regularizer) and not isinstance(regularizer, type):
        return OfFunction(regularizer)
    if isinstance(regularizer, dict):
        return get_regularizer(deserialize(regularizer))
    if isinstance(regularizer, str):
        names = [name for name in _REGULARIZERS if name.islower() and name != "l1l2"]
        raise unknown("regularizer", regularizer, names)
    raise TypeError(
        "a regularizer must be L1(...), L2(...), a name or a function, got "
        f"{regularizer!r}"
    )


serialize, deserialize, get = functions_of("regularizers", Regularizer, get_regularizer)
