"""Element-wise ops: ONNX's own where there is one, else the op's expression.

An expression is written node by node, with what is uniform computed beforehand. The
operands keep the layout and the repeated axes that they have.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.ops import op_type
from memcfg.ops._expression import instructions, read_over
from memcfg.ops._nodes import CONDITIONS, NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.onnx._emitter import Emitter, Form
    from memcfg.onnx._symbolic_lengths import Number
    from memcfg.onnx._traced_graph import TracedOp

__all__ = ["NAMED", "elementwise"]

# Ops that ONNX has, with its attributes.
NAMED: dict[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    **{
        name: (kind, lambda _: {})
        for name, kind in {
            "add": "Add",
            "subtract": "Sub",
            "multiply": "Mul",
            "divide": "Div",
            "maximum": "Max",
            "minimum": "Min",
            "absolute": "Abs",
            "relu": "Relu",
            "sigmoid": "Sigmoid",
            "tanh": "Tanh",
            "exponential": "Exp",
            "softplus": "Softplus",
            "softsign": "Softsign",
            "mish": "Mish",
            "hard_silu": "HardSwish",
            "prelu": "PRelu",
            "erf": "Erf",
            "floor": "Floor",
            "ceil": "Ceil",
            "sign": "Sign",
            "sin": "Sin",
            "cos": "Cos",
            "tan": "Tan",
            "arcsin": "Asin",
            "arccos": "Acos",
            "arctan": "Atan",
            "sinh": "Sinh",
            "cosh": "Cosh",
            "arcsinh": "Asinh",
            "arccosh": "Acosh",
            "arctanh": "Atanh",
            "power_of": "Pow",
        }.items()
    },
    "round": ("Round", lambda _: {}),
    "selu": ("Selu", lambda _: {}),
    "leaky_relu": ("LeakyRelu", lambda a: {"alpha": a["negative_slope"]}),
    "elu": ("Elu", lambda a: {"alpha": a["alpha"]}),
    "celu": ("Celu", lambda a: {"alpha": a["alpha"]}),
    "hard_sigmoid": ("HardSigmoid", lambda _: {"alpha": 1 / 6, "beta": 0.5}),
    "gelu": (
        "Gelu",
        lambda a: {"approximate": "tanh" if a["approximate"] else "none"},
    ),
}
_CLIPS: dict[str, Callable[[Mapping[str, Any]], tuple[float, float]]] = {
    "relu6": lambda _: (0.0, 6.0),
    "hard_tanh": lambda _: (-1.0, 1.0),
    "clip": lambda a: (a["low"], a["high"]),
}
_NODES = {  # of expressions
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "negate": "Neg",
    "absolute": "Abs",
    "maximum": "Max",
    "minimum": "Min",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "erf": "Erf",
    "power": "Pow",
    "sin": "Sin",
    "cos": "Cos",
    "atan": "Atan",
    "floor": "Floor",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "equal": "Equal",
    "select": "Where",
}


def elementwise(emitter: Emitter, op: TracedOp) -> None:
    """Append an element-wise op."""
    formula = op_type(op.type).formula
    assert formula is not None
    traces = emitter.traces
    shapes = [traces.value(each).shape for each in op.inputs]
    arrays = [t for t, shape in zip(op.inputs, shapes, strict=True) if shape]
    perm = emitter.layout(arrays or op.inputs)
    forms = [
        emitter.form(tensor, perm if shape else ())
        for tensor, shape in zip(op.inputs, shapes, strict=True)
    ]
    given = formula.kernel_attributes(op.attributes)
    named = NAMED.get(op.type)
    if op.type == "prelu":  # whose slopes are spread, and not its input
        whole = emitter.full(op.inputs[0], perm)
        forms[0] = forms[0]._replace(name=whole, dims=_dims(emitter, op, perm))
    if op.type in _CLIPS:
        low, high = (emitter.constant(_float32(n)) for n in _CLIPS[op.type](given))
        names = [emitter.one("Clip", forms[0].name, low, high)]
    elif named is not None:
        kind, attributes = named
        names = [emitter.one(kind, *(f.name for f in forms), **attributes(given))]
    else:
        names = _expression(emitter, given, forms, shapes)
    dims = _joined([form.dims for form in forms if len(form.dims) == len(perm)])
    for tensor, name in zip(op.outputs, names, strict=True):
        emitter.add(tensor, name, perm, dims)


def _dims(emitter: Emitter, op: TracedOp, perm: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the lengths of a result in an order of axes."""
    shape = emitter.traces.value(op.outputs[0]).shape
    return tuple(shape[axis] for axis in perm)


def _joined(dims: Sequence[Sequence[Number]]) -> list[Number]:
    """Return the lengths of a result of operands, of which some have length 1."""
    return [
        next((each for each in lengths if each != 1), 1)
        for lengths in zip(*dims, strict=True)
    ]


class _Shaped:
    """What `read_over` asks of an operand: whether it is one number."""

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = shape


def _expression(
    emitter: Emitter,
    attributes: Mapping[str, Any],
    forms: Sequence[Form],
    shapes: Sequence[tuple[Any, ...]],
) -> list[str]:
    """Append the nodes of an expression; return the names of its results."""
    text = attributes["expression"]
    outputs = read_over(text, [_Shaped(shape) for shape in shapes], attributes)
    rows, places = instructions(outputs)
    values: list[Any] = []  # numbers that are known, or names
    for node, arguments in rows:
        if node.kind in ("operand", "scalar"):
            values.append(forms[int(node.value)].name)
        elif node.kind == "constant":
            values.append(float(node.value))
        else:
            values.append(_node(emitter, node.kind, [values[i] for i in arguments]))
    whole = max(range(len(forms)), key=lambda i: len(forms[i].dims))
    return [_as_array(emitter, values[i], forms[whole]) for i in places]


def _as_array(emitter: Emitter, value: Any, like: Form) -> str:
    """Return the name of a result; one that is a number is spread."""
    if isinstance(value, str):
        return value
    zero = emitter.one("Mul", like.name, emitter.constant(0.0))
    return emitter.one("Add", zero, emitter.constant(value))


def _node(emitter: Emitter, kind: str, arguments: list[Any]) -> Any:
    known = [each for each in arguments if not isinstance(each, str)]
    if kind == "rounded" and known:
        return float(np.float32(arguments[0]))
    if kind == "rounded":
        return arguments[0]
    if len(known) == len(arguments):
        with np.errstate(all="ignore"):
            value = NODES[kind].numpy(*arguments)
        return bool(value) if kind in CONDITIONS else float(value)
    same = _simplified(emitter, kind, arguments)
    if same is not None:
        return same
    names = [
        each if isinstance(each, str) else emitter.constant(_float32(each))
        for each in arguments
    ]
    if kind == "expm1":  # tanh(x / 2) * (exp(x) + 1), accurate near 0
        half = emitter.one("Mul", names[0], emitter.constant(0.5))
        power = emitter.one("Exp", names[0])
        more = emitter.one("Add", power, emitter.constant(1.0))
        return emitter.one("Mul", emitter.one("Tanh", half), more)
    if kind == "log1p":
        return emitter.one("Log", emitter.one("Add", names[0], emitter.constant(1.0)))
    if kind == "fmod":
        return emitter.one("Mod", *names, fmod=1)
    return emitter.one(_NODES[kind], *names)


def _simplified(emitter: Emitter, kind: str, arguments: list[Any]) -> Any:
    """Return the result of a node that needs less than its own ONNX node, or None."""
    a, *rest = arguments
    b = rest[0] if rest else None
    if kind == "select" and isinstance(a, bool):
        return b if a else rest[1]
    if (kind == "add" and b == 0) or (kind == "multiply" and b == 1):
        return a
    if (kind == "add" and a == 0) or (kind == "multiply" and a == 1):
        return b
    if kind == "power" and b == 2:
        return emitter.one("Mul", a, a)
    if kind == "power" and b == 0.5:
        return emitter.one("Sqrt", a)
    return None


def _float32(value: Any) -> Any:
    """Return a number that float32 has, or an infinite one."""
    with np.errstate(over="ignore"):
        result = float(np.float32(value))
    return result if not math.isnan(result) else math.nan
