"""Keras's activations as functions of symbolic tensors; layers also take their names.

Use them in a model's call, or pass one as ``activation=`` of a layer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import activation_name, constant, integer
from memcfg.nn._keras_names import absent
from memcfg.nn.exchange._configs import (
    deserialize_keras_object,
    serialize_keras_object,
)
from memcfg.nn.layers import Activation, ReLU
from memcfg.nn.layers._activated import ActivationOf
from memcfg.nn.layers._layer import named_operation, operation
from memcfg.nn.layers._operators import AlongLast, Function, Joined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "celu",
    "deserialize",
    "elu",
    "exponential",
    "gelu",
    "get",
    "glu",
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
    "serialize",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh",
    "tanh_shrink",
    "threshold",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function, so that layers accept it in place of its name."""
    function.activation = function.__name__  # type: ignore[attr-defined]
    return named_operation(function)


@_named
def celu(x: SymbolicTensor, alpha: float = 1.0) -> Any:
    """Return x where it is positive, else ``alpha * (exp(x / alpha) - 1)``.

    The continuously differentiable exponential linear unit (Barron, arXiv:1704.07483).

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    alpha : float, default 1.0
        The limit for large negative x is ``-alpha``.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Function("celu", {"alpha": alpha})(x)


@_named
def elu(x: SymbolicTensor, alpha: float = 1.0) -> Any:
    """Return x where it is positive, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    alpha : float, default 1.0
        The limit for large negative x is ``-alpha``.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Function("elu", {"alpha": alpha})(x)


@_named
def exponential(x: SymbolicTensor) -> Any:
    """Return ``exp(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("exponential")(x)


@_named
def gelu(x: SymbolicTensor, approximate: bool = False) -> Any:
    """Return x times the standard normal distribution function of x.

    The Gaussian error linear unit (Hendrycks and Gimpel, arXiv:1606.08415).

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    approximate : bool, default False
        Whether to use the approximation with tanh instead of erf.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Function("gelu", {"approximate": approximate})(x)


def _place(x: SymbolicTensor, axis: int, name: str) -> int:
    """Return an axis that is not the batch, counted from the first."""
    rank = len(x.shape)
    place = integer(axis, f"{name}: axis", None)
    if not -rank <= place < rank or (place % rank == 0 and not x.whole):
        raise ValueError(f"{name}: {x!r} has no axis {axis} beside the batch")
    return place % rank


def _along(op: str, x: SymbolicTensor, axis: Any) -> Any:
    """Return a softmax along an axis, or along several as along one."""
    if axis is not None and not isinstance(axis, list | tuple):
        return Function(op, {"axis": axis})(x)
    rank = len(x.shape)
    axes = [_place(x, each, op) for each in (range(rank) if axis is None else axis)]
    if not axes or len({*axes}) < len(axes):
        raise ValueError(f"{op}: axes must be different ones, got {axis!r}")
    order = [*(i for i in range(rank) if i not in axes), *axes]
    shape = [*x.shape] if x.whole else [None, *x.sample_shape]
    last = rank - len(axes)
    moved = Function("transpose", {"axes": tuple(order)})(x)
    lengths = [shape[i] for i in order]
    joined = (*lengths[:last], math.prod(int(n or 1) for n in lengths[last:]))
    y = Function(op, {"axis": -1})(Function("reshape", {"shape": joined})(moved))
    y = Function("reshape", {"shape": tuple(lengths)})(y)
    back = tuple(order.index(i) for i in range(rank))
    return Function("transpose", {"axes": back})(y)


@named_operation
def glu(x: SymbolicTensor, axis: int = -1) -> Any:
    """Return the first half along an axis times the sigmoid of the second.

    The gated linear unit (Dauphin et al., arXiv:1612.08083).

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    axis : int, default -1
        The axis, of an even length; axis 0 is the batch.

    Returns
    -------
    SymbolicTensor
        The result, half as long along the axis.

    Raises
    ------
    ValueError
        If the axis is the batch, or of an odd length.
    """
    before = (slice(None),) * _place(x, axis, "glu")
    length = int(x.shape[len(before)] or 1)
    if length % 2:
        raise ValueError(f"glu: axis {axis} of {x!r} has no halves: {length} elements")
    first = x[(*before, slice(0, length // 2))]
    return first * sigmoid(x[(*before, slice(length // 2, length))])


@_named
def hard_shrink(x: SymbolicTensor, threshold: float = 0.5) -> Any:
    """Return x where ``abs(x) > threshold``, else 0.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    threshold : float, default 0.5
        The largest absolute value that becomes 0.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Function("hard_shrink", {"threshold": threshold})(x)


@_named
def hard_sigmoid(x: SymbolicTensor) -> Any:
    """Return ``x / 6 + 0.5``, clipped to [0, 1].

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("hard_sigmoid")(x)


@_named
def hard_silu(x: SymbolicTensor) -> Any:
    """Return ``x * hard_sigmoid(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("hard_silu")(x)


@_named
def hard_tanh(x: SymbolicTensor) -> Any:
    """Return x clipped to [-1, 1].

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("hard_tanh")(x)


@_named
def leaky_relu(x: SymbolicTensor, negative_slope: float = 0.2) -> Any:
    """Return x where it is positive, else ``negative_slope * x``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    negative_slope : float, default 0.2
        The slope for negative x.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Function("leaky_relu", {"negative_slope": negative_slope})(x)


@_named
def linear(x: SymbolicTensor) -> Any:
    """Return x.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return x


@_named
def log_sigmoid(x: SymbolicTensor) -> Any:
    """Return ``log(sigmoid(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("log_sigmoid")(x)


@_named
def log_softmax(x: SymbolicTensor, axis: Any = -1) -> Any:
    """Return ``log(softmax(x))`` along an axis, or several.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    axis : int or sequence of int, default -1
        The axis, or the axes; axis 0 is the batch. None: all of a tensor without one.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return _along("log_softmax", x, axis)


@_named
def mish(x: SymbolicTensor) -> Any:
    """Return ``x * tanh(softplus(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("mish")(x)


@_named
def relu(
    x: SymbolicTensor,
    negative_slope: float = 0.0,
    max_value: float | None = None,
    threshold: float = 0.0,
) -> Any:
    """Return ``max(x, 0)``, or the generalized form of `ReLU`.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    negative_slope : float, default 0.0
        The slope below the threshold.
    max_value : float, optional
        The maximum of the result; by default there is none.
    threshold : float, default 0.0
        The start of the linear part.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return ReLU(max_value, negative_slope, threshold)(x)


@_named
def relu6(x: SymbolicTensor) -> Any:
    """Return x clipped to [0, 6].

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("relu6")(x)


@_named
def selu(x: SymbolicTensor) -> Any:
    """Return the scaled exponential linear unit (Klambauer et al., NIPS 2017).

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("selu")(x)


@_named
def sigmoid(x: SymbolicTensor) -> Any:
    """Return ``1 / (1 + exp(-x))``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("sigmoid")(x)


@_named
def silu(x: SymbolicTensor) -> Any:
    """Return ``x * sigmoid(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("silu")(x)


@_named
def soft_shrink(x: SymbolicTensor, threshold: float = 0.5) -> Any:
    """Return x moved towards 0 by the threshold, and 0 within the threshold.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    threshold : float, default 0.5
        The distance, and the largest absolute value that becomes 0.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Function("soft_shrink", {"threshold": threshold})(x)


@_named
def softmax(x: SymbolicTensor, axis: Any = -1) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along an axis, or several.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    axis : int or sequence of int, default -1
        The axis, or the axes; axis 0 is the batch. None: all of a tensor without one.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return _along("softmax", x, axis)


@_named
def softplus(x: SymbolicTensor) -> Any:
    """Return ``log(1 + exp(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("softplus")(x)


@_named
def softsign(x: SymbolicTensor) -> Any:
    """Return ``x / (1 + abs(x))``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("softsign")(x)


@_named
def sparse_plus(x: SymbolicTensor) -> Any:
    """Return 0 up to -1, x from 1, and ``(x + 1)**2 / 4`` between.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("sparse_plus")(x)


@_named
def sparse_sigmoid(x: SymbolicTensor) -> Any:
    """Return ``(x + 1) / 2``, clipped to [0, 1].

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("sparse_sigmoid")(x)


@named_operation
def sparsemax(x: SymbolicTensor, axis: int = -1) -> Any:
    """Project onto the probabilities along an axis; many become 0.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    axis : int, default -1
        The axis; axis 0 is the batch.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.

    Raises
    ------
    ValueError
        If the axis is the batch.

    References
    ----------
    Martins and Astudillo, "From softmax to sparsemax", ICML 2016.
    """
    place, last = _place(x, axis, "sparsemax"), len(x.shape) - 1
    order = [each for each in range(last + 1) if each != place]
    if place != last:
        x = Function("transpose", {"axes": (*order, place)})(x)
    length = int(x.shape[-1] or 1)
    over = {"axes": (last,), "keepdims": True}
    x = x - Function("stop_gradient", {})(Function("reduce_max", over)(x))
    places = Function("order", {"descending": 1})(x)
    ordered = sums = AlongLast("take_along")([x, places])
    by = 1
    while by < length:  # each is added to what is `by` before it
        later = sums[..., by:] + sums[..., :-by]
        sums = Joined(last)([sums[..., :by], later])
        by *= 2
    counts = np.arange(1, length + 1, dtype=np.float32)
    within = Function("stop_gradient", {})(1.0 + ordered * counts > sums)
    count = Function("reduce_sum", over)(within)
    total = Function("reduce_sum", over)(ordered * within)
    result = relu(x - (total - 1.0) / count)
    if place == last:
        return result
    back = sorted(range(last + 1), key=[*order, place].__getitem__)
    return Function("transpose", {"axes": tuple(back)})(result)


@_named
def squareplus(x: SymbolicTensor, b: float = 4) -> Any:
    """Return ``(x + sqrt(x**2 + b)) / 2``, a smooth `relu`.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    b : float, default 4
        How smooth the bend at 0 is.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Function("squareplus", {"b": float(b)})(x)


@_named
def tanh(x: SymbolicTensor) -> Any:
    """Return the hyperbolic tangent of x.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("tanh")(x)


@_named
def tanh_shrink(x: SymbolicTensor) -> Any:
    """Return ``x - tanh(x)``.

    Parameters
    ----------
    x : SymbolicTensor
        The input.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    return Activation("tanh_shrink")(x)


@named_operation
def threshold(x: SymbolicTensor, threshold: float, default_value: float) -> Any:
    """Return x where it is above the threshold, else the default value.

    Parameters
    ----------
    x : SymbolicTensor
        The input.
    threshold : float
        The bound.
    default_value : float
        What replaces the others.

    Returns
    -------
    SymbolicTensor
        The result, of the shape of x.
    """
    given = {
        "threshold": constant(threshold, "threshold: threshold"),
        "default_value": constant(default_value, "threshold: default_value"),
    }
    return Function("threshold", given)(x)


hard_swish, swish = hard_silu, silu
_NO_ACTIVATIONS = {"deserialize", "get", "serialize"}
_BY_OP = {
    activation_name(each, ""): each
    for each in map(globals().__getitem__, {*__all__} - _NO_ACTIVATIONS)
    if hasattr(each, "activation")
}
_registered: dict[str, Callable[..., Any]] = {}  # functions of ops of programs


def _of_registered_op(name: str) -> Callable[..., Any]:
    """Return the function of an op that a program has registered."""
    if name not in _registered:

        def function(x: Any) -> Any:
            return Activation(name)(x)

        function.__name__ = function.__qualname__ = name
        function.activation = name  # type: ignore[attr-defined]
        _registered.setdefault(name, operation(function))
    return _registered[name]


def _function_of(op: Any) -> Callable[..., Any]:
    """Return the function of an op, or a function as it is."""
    if op is not None and not isinstance(op, str):
        result: Callable[..., Any] = op
        return result
    return _BY_OP[op] if op in _BY_OP else _of_registered_op(str(op))


ActivationOf.function_of = _function_of


def get(identifier: Any) -> Callable[..., Any]:
    """Return the activation function with a given name.

    Parameters
    ----------
    identifier : str, callable or None
        A name of this module. A callable is returned as it is; None means `linear`.

    Returns
    -------
    callable
        A function of a symbolic tensor.

    Raises
    ------
    ValueError
        If no activation has the name.
    """
    if identifier is None:
        return linear
    if callable(identifier):
        result: Callable[..., Any] = identifier
        return result
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if identifier not in __all__ or identifier in _NO_ACTIVATIONS:
        raise unknown(
            "activation", str(identifier), sorted({*__all__} - _NO_ACTIVATIONS)
        )
    result = globals()[identifier]
    assert callable(result)
    return result


def serialize(activation: Callable[..., Any]) -> Any:
    """Return the name of an activation, or a function of yours as a configuration.

    Parameters
    ----------
    activation : callable
        A function of this module, or a named function.

    Returns
    -------
    str or dict
        What `deserialize` reads.

    Raises
    ------
    TypeError
        If the function is a lambda.
    """
    result = serialize_keras_object(activation)
    return result["config"] if result["module"] == "builtins" else result


def deserialize(
    config: Any, custom_objects: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return the activation of a name or a configuration.

    Parameters
    ----------
    config : str or dict
        What `serialize` returned.
    custom_objects : mapping of str to callable, optional
        Your own functions by name.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    FormatError, ValueError
        If no activation has the name.
    """
    return get(deserialize_keras_object(config, custom_objects))
