"""Keras's activations as functions of symbolic tensors; layers take their names too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg._checks import unknown
from memcfg.nn._keras_names import absent
from memcfg.nn.layers import Activation, ReLU
from memcfg.nn.layers._layer import operation
from memcfg.nn.layers._operators import Function

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "celu",
    "elu",
    "exponential",
    "gelu",
    "get",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
    "tanh_shrink",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let layers take a function of this module for its name."""
    function.activation = function.__name__  # type: ignore[attr-defined]
    return operation(function)


@_named
def celu(x: SymbolicTensor, alpha: float = 1.0) -> Any:
    """Return the continuous exponential linear unit (Barron, arXiv:1704.07483).

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    alpha : float, default 1.0
        Where it falls to is ``-alpha``.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("celu", {"alpha": alpha})(x)


@_named
def elu(x: SymbolicTensor, alpha: float = 1.0) -> Any:
    """Return x where it is positive, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    alpha : float, default 1.0
        Where it falls to is ``-alpha``.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("elu", {"alpha": alpha})(x)


@_named
def exponential(x: SymbolicTensor) -> Any:
    """Return ``exp(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("exponential")(x)


@_named
def gelu(x: SymbolicTensor, approximate: bool = False) -> Any:
    """Return x times its normal distribution function (Hendrycks and Gimpel, 2016).

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    approximate : bool, default False
        Whether to take the formula with tanh.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("gelu", {"approximate": approximate})(x)


@_named
def hard_shrink(x: SymbolicTensor, threshold: float = 0.5) -> Any:
    """Return x, or 0 within the threshold.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    threshold : float, default 0.5
        What is no larger becomes 0.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("hard_shrink", {"threshold": threshold})(x)


@_named
def hard_sigmoid(x: SymbolicTensor) -> Any:
    """Return ``x / 6 + 0.5``, between 0 and 1.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("hard_sigmoid")(x)


@_named
def hard_silu(x: SymbolicTensor) -> Any:
    """Return ``x * hard_sigmoid(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("hard_silu")(x)


@_named
def hard_tanh(x: SymbolicTensor) -> Any:
    """Return x between -1 and 1.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("hard_tanh")(x)


@_named
def leaky_relu(x: SymbolicTensor, negative_slope: float = 0.2) -> Any:
    """Return x where it is positive, else ``negative_slope * x``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    negative_slope : float, default 0.2
        The slope below 0.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("leaky_relu", {"negative_slope": negative_slope})(x)


@_named
def linear(x: SymbolicTensor) -> Any:
    """Return x.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return x


@_named
def log_sigmoid(x: SymbolicTensor) -> Any:
    """Return ``log(sigmoid(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("log_sigmoid")(x)


@_named
def log_softmax(x: SymbolicTensor, axis: int = -1) -> Any:
    """Return ``log(softmax(x))`` along an axis.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    axis : int, default -1
        The axis, counting the batch.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("log_softmax", {"axis": axis})(x)


@_named
def mish(x: SymbolicTensor) -> Any:
    """Return ``x * tanh(softplus(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("mish")(x)


@_named
def relu(
    x: SymbolicTensor,
    negative_slope: float = 0.0,
    max_value: float | None = None,
    threshold: float = 0.0,
) -> Any:
    """Return ``max(x, 0)``, with a slope, a ceiling and a threshold as `ReLU` has.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    negative_slope : float, default 0.0
        The slope below the threshold.
    max_value : float, optional
        The ceiling.
    threshold : float, default 0.0
        Where the unit begins.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return ReLU(max_value, negative_slope, threshold)(x)


@_named
def relu6(x: SymbolicTensor) -> Any:
    """Return x between 0 and 6.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("relu6")(x)


@_named
def selu(x: SymbolicTensor) -> Any:
    """Return the scaled exponential linear unit (Klambauer et al., NIPS 2017).

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("selu")(x)


@_named
def sigmoid(x: SymbolicTensor) -> Any:
    """Return ``1 / (1 + exp(-x))``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("sigmoid")(x)


@_named
def silu(x: SymbolicTensor) -> Any:
    """Return ``x * sigmoid(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("silu")(x)


@_named
def soft_shrink(x: SymbolicTensor, threshold: float = 0.5) -> Any:
    """Return x moved towards 0 by the threshold.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    threshold : float, default 0.5
        How far.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("soft_shrink", {"threshold": threshold})(x)


@_named
def softmax(x: SymbolicTensor, axis: int = -1) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along an axis.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.
    axis : int, default -1
        The axis, counting the batch.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Function("softmax", {"axis": axis})(x)


@_named
def softplus(x: SymbolicTensor) -> Any:
    """Return ``log(1 + exp(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("softplus")(x)


@_named
def softsign(x: SymbolicTensor) -> Any:
    """Return ``x / (1 + abs(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("softsign")(x)


@_named
def tanh(x: SymbolicTensor) -> Any:
    """Return the hyperbolic tangent.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("tanh")(x)


@_named
def tanh_shrink(x: SymbolicTensor) -> Any:
    """Return ``x - tanh(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        What it is applied to.

    Returns
    -------
    SymbolicTensor
        Of the shape of x.
    """
    return Activation("tanh_shrink")(x)


hard_swish, swish = hard_silu, silu


def get(identifier: Any) -> Callable[..., Any]:
    """Return the function of a name.

    Parameters
    ----------
    identifier : str, callable or None
        A name of this module, or what is returned as it is. None: `linear`.

    Returns
    -------
    callable
        A function of a symbolic tensor.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    if identifier is None:
        return linear
    if callable(identifier):
        result: Callable[..., Any] = identifier
        return result
    if identifier not in __all__ or identifier == "get":
        raise unknown("activation", str(identifier), sorted(set(__all__) - {"get"}))
    result = globals()[identifier]
    assert callable(result)
    return result
