"""Penalties on weights and activations added to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from memcfg._checks import unknown
from memcfg.nn._argument_checks import nonnegative
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn._keras_names import absent
from memcfg.nn.exchange._configs import Configured, functions_of

if TYPE_CHECKING:
    from memcfg.graph import Builder

__all__ = [
    "L1",
    "L1L2",
    "L2",
    "OrthogonalRegularizer",
    "Regularizer",
    "deserialize",
    "get",
    "serialize",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)


class Regularizer(FixedAttributes, Configured):
    """Base class of the regularizers."""

    __slots__ = ()

    def __call__(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Raise TypeError: a training step calls `trace`."""
        raise TypeError(
            f"{type(self).__name__} cannot be called: pass it to a layer, as in "
            "kernel_regularizer="
        )

    def trace(self, builder: Builder, tensor: int) -> int:
        """Append the ops of the penalty.

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
        raise NotImplementedError


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
    """Keras's penalty on weights that are not orthogonal; not supported.

    Parameters
    ----------
    factor : float, default 0.01
        As in Keras.
    mode : str, default "rows"
        As in Keras.

    Raises
    ------
    ValueError
        Always; the message names alternatives.
    """

    __slots__ = ()

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> NoReturn:
        raise ValueError(
            f"OrthogonalRegularizer({factor!r}, {mode!r}) is not supported: use the "
            "Orthogonal initializer, L2, or a subclass of Regularizer"
        )


def _penalty(builder: Builder, tensor: int, l1: float, l2: float) -> int:
    factors, name = {"l1": l1, "l2": l2}, "regularization"
    (each,) = builder.apply("l1_l2", (tensor,), factors, name=f"{name}/each")
    axes = {"axes": tuple(range(len(builder.shape(tensor)))), "keepdims": False}
    return builder.apply("reduce_sum", (each,), axes, name=name)[0]


_REGULARIZERS: dict[str, type[L1 | L2 | L1L2]] = {
    "L1": L1,
    "L2": L2,
    "L1L2": L1L2,
    "l1": L1,
    "l2": L2,
    "l1_l2": L1L2,  # as in Keras, it penalises nothing
}


def get_regularizer(regularizer: Any) -> Regularizer | None:
    """Return the regularizer of a layer's argument; None if the argument is None."""
    if regularizer is None or isinstance(regularizer, Regularizer):
        return regularizer
    if isinstance(regularizer, str) and regularizer in _REGULARIZERS:
        return _REGULARIZERS[regularizer]()
    if isinstance(regularizer, dict):
        return get_regularizer(deserialize(regularizer))
    if isinstance(regularizer, str):
        raise unknown("regularizer", regularizer, ["l1", "l2", "l1_l2"])
    raise TypeError(
        "a regularizer must be L1(...), L2(...), L1L2(...) or a name, got "
        f"{regularizer!r}"
    )


serialize, deserialize, get = functions_of("regularizers", Regularizer, get_regularizer)
