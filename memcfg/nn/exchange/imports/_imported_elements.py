"""Nodes that compute each element by itself, and conversions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.nn import activations, layers, ops
from memcfg.nn.exchange.imports._axis_views import (
    Known,
    Rounded,
    UnsupportedError,
    View,
    aligned,
)

if TYPE_CHECKING:
    from memcfg.nn.exchange.imports._imported_node import Node, Rule, Value

__all__ = ["RULES", "combined"]

Function: TypeAlias = Callable[..., Any]


def combined(node: Node, values: list[View | Known], function: Function) -> View:
    """Return the result of a function of elements."""
    laid, axes, batch = aligned(values)
    operands = [node.operand(x) if isinstance(x, Known) else x for x in laid]
    return View(function(*operands), axes, batch)


def _of_elements(function: Function, numpy: Function) -> Rule:
    """Return the rule of a node that computes elements of one or more values."""

    def rule(node: Node) -> Value:
        if node.all_known():
            with np.errstate(all="ignore"):
                return Known.of(numpy(*node.arrays()))
        values = [node.value(i) for i in range(len(node.inputs))]
        return combined(node, values, function)

    return rule


def _unary(function: Function, numpy: Function | None = None) -> Rule:
    """Return the rule of a node of one value, which keeps its layout."""

    def rule(node: Node) -> Value:
        if node.all_known():
            if numpy is None:
                raise UnsupportedError("has a constant input")
            with np.errstate(all="ignore"):
                return Known.of(numpy(*node.arrays()[:1]))
        view = node.view(0)
        return replace(view, x=function(view.x))

    return rule


def _with(make: Callable[[Node], Function]) -> Rule:
    """Return the rule of an activation that has attributes."""

    def rule(node: Node) -> Value:
        view = node.view(0)
        return replace(view, x=make(node)(view.x))

    return rule


def _folded(function: Function, numpy: Function) -> Rule:
    """Return the rule of a node of any number of values."""

    def rule(node: Node) -> Value:
        if node.all_known():
            arrays = node.arrays()
            result = arrays[0]
            for array in arrays[1:]:
                result = numpy(result, array)
            return Known.of(result)
        value = node.value(0)
        for place in range(1, len(node.inputs)):
            value = combined(node, [value, node.value(place)], function)
        return value

    return rule


def _divided(a: Any, b: Any) -> Any:
    """Divide as ONNX does: integers towards 0."""
    if np.asarray(a).dtype.kind in "iu" and np.asarray(b).dtype.kind in "iu":
        return np.trunc(np.true_divide(a, b)).astype(np.asarray(a).dtype)
    return np.true_divide(a, b)


def _divide(a: Any, b: Any) -> Any:
    kinds = [getattr(each, "sample_dtype", None) for each in (a, b)]
    if "int32" in kinds and "float32" not in kinds:
        raise UnsupportedError("divides integers that are computed")
    return ops.divide(a, b)


def _mod(node: Node) -> Value:
    is_c = bool(node.get("fmod", 0))
    numpy, function = (np.fmod, ops.fmod) if is_c else (np.mod, ops.mod)
    return _of_elements(function, numpy)(node)  # type: ignore[no-any-return]


def _clip(node: Node) -> Value:
    low = node.setting("min", 1, -np.inf)
    high = node.setting("max", 2, np.inf)
    if isinstance(node.value(0), Known):
        return Known.of(np.clip(node.known(0).array(), low, high))
    view = node.view(0)
    if (low, high) == (0, np.inf):
        return replace(view, x=layers.ReLU(name=_name(node))(view.x))
    if (low, high) == (0, 6):
        return replace(view, x=layers.ReLU(6.0, name=_name(node))(view.x))
    return replace(view, x=ops.clip(view.x, low, high))


def _name(node: Node) -> str:
    return str(node.importer.unique(node.label()))


def _cast(node: Node) -> Value:
    code = int(node.get("to", 1))
    kinds = {1: "f4", 10: "f4", 11: "f4", 2: "u1", 3: "i1", 5: "i2"}
    kinds |= {6: "i4", 7: "i8", 9: "?", 12: "u4", 13: "u8", 16: "f4"}
    if code not in kinds:
        raise UnsupportedError(f"converts to the dtype {code}")
    dtype = np.dtype(kinds[code])
    value = node.value(0)
    if isinstance(value, Known):
        made = value.changed(value.shape, lambda array: array.astype(dtype))
        return replace(made, dtype=str(dtype))
    if dtype.kind == "f":
        return replace(value, x=ops.cast(value.x, "float32"))
    if dtype.kind == "b":
        return replace(value, x=ops.not_equal(value.x, 0))
    return replace(value, x=ops.cast(value.x, "int32"))


def _cast_like(node: Node) -> Value:
    value, like = node.value(0), node.value(1)
    dtype = np.dtype(like.dtype)
    if isinstance(value, Known):
        made = value.changed(value.shape, lambda array: array.astype(dtype))
        return replace(made, dtype=str(dtype))
    target = "float32" if dtype.kind == "f" else "int32"
    return replace(value, x=ops.cast(value.x, target))


def _identity(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _dropout(node: Node) -> list[Value]:
    value = node.value(0)
    rate = float(node.setting("ratio", 1, 0.5))
    if isinstance(value, View) and 0 < rate < 1:
        layer = layers.Dropout(rate, name=_name(node))
        value = replace(value, x=layer(value.x))
    return [value]


def _where(node: Node) -> Value:
    if node.all_known():
        return Known.of(np.where(*node.arrays()))
    values = [node.value(i) for i in range(3)]
    return combined(node, values, ops.where)


def _prelu(node: Node) -> Value:
    values = [node.view(0), node.value(1)]

    def function(x: Any, slope: Any) -> Any:
        return ops.maximum(x, 0.0) + slope * ops.minimum(x, 0.0)

    return combined(node, values, function)


def _scales(node: Node, rank: int) -> tuple[Known, Known | None]:
    """Return scale and zero point in shapes that broadcast along their axis."""
    found: list[Known | None] = []
    for place in (1, 2):
        if not node.has(place):
            found.append(None)
            continue
        value = node.known(place)
        if value.shape and value.size > 1:
            axis = node.axis(1, rank)
            shape = tuple(value.size if i == axis else 1 for i in range(rank))
            value = value.reshaped(shape)
        else:
            value = value.reshaped(())
        found.append(value)
    scale, zero = found
    assert scale is not None
    return scale, zero


def _quantize(node: Node) -> Value:
    view = node.view(0)
    scale, zero = _scales(node, len(view.shape))
    if scale.shape:
        raise UnsupportedError("rounds with a scale for each channel")
    kind = np.dtype("uint8" if zero is None else zero.dtype)
    if kind.kind not in "iu":
        raise UnsupportedError(f"rounds to {kind}")
    by = float(scale.array())
    if not by > 0:
        raise ValueError(f"a scale of {by}")
    point = 0.0 if zero is None else float(zero.array())
    low, high = np.iinfo(kind).min - point, np.iinfo(kind).max - point
    numbers = ops.clip(ops.round(view.x / by), low, high)
    return Rounded(view, replace(view, x=numbers), by)


def _dequantize(node: Node) -> Value:
    value = node.inputs[0]
    if isinstance(value, Rounded):
        by = float(node.known(1).array().reshape(()))
        if by != value.scale:
            raise UnsupportedError("has another scale than that it was rounded with")
        x = value.value.x
        # The gradient is that of the numbers as they were: the straight-through one.
        near = x + ops.stop_gradient(value.numbers.x * by - x)
        return replace(value.value, x=near)
    known = node.known(0)
    scale, zero = _scales(node, len(known.shape))

    def change(array: Any) -> Any:
        whole = array.astype(np.float32)
        if zero is not None:
            whole = whole - zero.array().astype(np.float32)
        return (whole * scale.array()).astype(np.float32)

    return replace(known.changed(known.shape, change), dtype="float32")


def _shape(node: Node) -> Value:
    shape = node.value(0).shape
    start, end = node.get("start", 0), node.get("end", len(shape))
    return Known.of(np.array(shape[start:end], np.int64))


def _constant(node: Node) -> Value:
    for name, value in node.of.attributes.items():
        if name == "value":
            return Known.of(value)
        if name in ("value_float", "value_floats"):
            return Known.of(np.array(value, np.float32))
        if name in ("value_int", "value_ints"):
            return Known.of(np.array(value, np.int64))
    raise UnsupportedError("has no value of numbers")


def _elu(node: Node) -> Function:
    alpha = float(node.get("alpha", 1.0))
    return lambda x: activations.elu(x, alpha)


def _selu(node: Node) -> Function:
    alpha = node.get("alpha", 1.6732632), node.get("gamma", 1.0507010)
    if not np.allclose(alpha, (1.6732632, 1.0507010), atol=1e-5):
        raise UnsupportedError(f"has other constants than selu: {alpha}")
    return activations.selu


def _hard_sigmoid(node: Node) -> Function:
    alpha, beta = float(node.get("alpha", 0.2)), float(node.get("beta", 0.5))
    return lambda x: ops.clip(x * alpha + beta, 0.0, 1.0)


def _gelu(node: Node) -> Function:
    approximate = node.get("approximate", "none") == "tanh"
    return lambda x: ops.gelu(x, approximate=approximate)


def _leaky(node: Node) -> Function:
    slope = float(node.get("alpha", 0.01))
    return layers.LeakyReLU(slope, name=_name(node))


def _celu(node: Node) -> Function:
    alpha = float(node.get("alpha", 1.0))
    return lambda x: ops.celu(x, alpha)


def _relu(node: Node) -> Function:
    return layers.ReLU(name=_name(node))


def _threshold(node: Node) -> Function:
    alpha = float(node.get("alpha", 1.0))
    return lambda x: ops.where(ops.greater(x, alpha), x, 0.0)


def _shrink(node: Node) -> Function:
    bias, limit = float(node.get("bias", 0.0)), float(node.get("lambd", 0.5))
    if bias == limit:
        return lambda x: ops.soft_shrink(x, limit)
    if not bias:
        return lambda x: ops.hard_shrink(x, limit)
    raise UnsupportedError(f"has a bias of {bias} and a threshold of {limit}")


RULES: dict[str, Rule] = {
    "Abs": _unary(ops.absolute, np.abs),
    "Acos": _unary(ops.arccos, np.arccos),
    "Acosh": _unary(ops.arccosh, np.arccosh),
    "Add": _of_elements(ops.add, np.add),
    "And": _of_elements(ops.logical_and, np.logical_and),
    "Asin": _unary(ops.arcsin, np.arcsin),
    "Asinh": _unary(ops.arcsinh, np.arcsinh),
    "Atan": _unary(ops.arctan, np.arctan),
    "Atanh": _unary(ops.arctanh, np.arctanh),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _unary(ops.ceil, np.ceil),
    "Celu": _with(_celu),
    "Clip": _clip,
    "Constant": _constant,
    "Cos": _unary(ops.cos, np.cos),
    "Cosh": _unary(ops.cosh, np.cosh),
    "DequantizeLinear": _dequantize,
    "Div": _of_elements(_divide, _divided),
    "Dropout": _dropout,
    "Elu": _with(_elu),
    "Equal": _of_elements(ops.equal, np.equal),
    "Erf": _unary(ops.erf),
    "Exp": _unary(ops.exp, np.exp),
    "Floor": _unary(ops.floor, np.floor),
    "Gelu": _with(_gelu),
    "Greater": _of_elements(ops.greater, np.greater),
    "GreaterOrEqual": _of_elements(ops.greater_equal, np.greater_equal),
    "HardSigmoid": _with(_hard_sigmoid),
    "HardSwish": _unary(ops.hard_silu),
    "Identity": _identity,
    "IsInf": _unary(ops.isinf, np.isinf),
    "IsNaN": _unary(ops.isnan, np.isnan),
    "LeakyRelu": _with(_leaky),
    "Less": _of_elements(ops.less, np.less),
    "LessOrEqual": _of_elements(ops.less_equal, np.less_equal),
    "Log": _unary(ops.log, np.log),
    "Max": _folded(ops.maximum, np.maximum),
    "Min": _folded(ops.minimum, np.minimum),
    "Mish": _unary(activations.mish),
    "Mod": _mod,
    "Mul": _of_elements(ops.multiply, np.multiply),
    "Neg": _unary(ops.negative, np.negative),
    "Not": _unary(ops.logical_not, np.logical_not),
    "Or": _of_elements(ops.logical_or, np.logical_or),
    "PRelu": _prelu,
    "Pow": _of_elements(ops.power, np.power),
    "QuantizeLinear": _quantize,
    "Reciprocal": _unary(ops.reciprocal, np.reciprocal),
    "Relu": _with(_relu),
    "Round": _unary(ops.round, np.rint),
    "Selu": _with(_selu),
    "Shape": _shape,
    "Shrink": _with(_shrink),
    "Sigmoid": _unary(ops.sigmoid),
    "Sign": _unary(ops.sign, np.sign),
    "Sin": _unary(ops.sin, np.sin),
    "Sinh": _unary(ops.sinh, np.sinh),
    "Softplus": _unary(ops.softplus),
    "Softsign": _unary(ops.softsign),
    "Sqrt": _unary(ops.sqrt, np.sqrt),
    "Sub": _of_elements(ops.subtract, np.subtract),
    "Sum": _folded(ops.add, np.add),
    "Swish": _unary(ops.silu),
    "Tan": _unary(ops.tan, np.tan),
    "Tanh": _unary(ops.tanh, np.tanh),
    "ThresholdedRelu": _with(_threshold),
    "Where": _where,
    "Xor": _of_elements(ops.logical_xor, np.logical_xor),
}
