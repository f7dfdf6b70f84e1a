"""Expressions over the elements of arrays: evaluation, derivatives and serialization.

A leaf is an element of an operand, the number of an operand of shape (), an attribute
or a constant. A node that depends on no array is *uniform*: it is computed once, in
double precision, and rounded to the arrays' dtype where it is combined with an element.
Equal expressions are one object, so that common subexpressions are computed once. The
C++ core evaluates the text of an expression (``_native/src/kernels/expression.cpp``).

See docs/decisions/0007-elementwise-expressions.md.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from memcfg.ops._nodes import CONDITIONS, NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Expression",
    "atan",
    "attribute",
    "clip",
    "cos",
    "count_flops",
    "derivative",
    "equal",
    "erf",
    "evaluate",
    "evaluate_over",
    "exp",
    "expm1",
    "floor",
    "fmod",
    "instructions",
    "leaves",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "number",
    "operand",
    "read",
    "read_over",
    "rounded",
    "scalar",
    "select",
    "sigmoid",
    "sin",
    "sqrt",
    "tanh",
    "write",
]

Number: TypeAlias = int | float

_NONE: Mapping[str, Any] = MappingProxyType({})  # attributes


class Expression:
    """A node of an expression; operators and this module's functions make new ones.

    Supported are ``+ - * /``, ``**``, ``abs`` and the comparisons ``< <= > >=``, whose
    results are conditions for `select`. Comparisons follow IEEE 754, and powers `pow`
    of C and NumPy; ``x**0.5`` is the square root, and integer exponents from 1 to 16
    are products. A product with the constant 0 is 0 and a sum with it is the other
    term, even if that is NaN or infinite. A quotient by 1 + exp(-x) is a product with
    sigmoid(x), whose derivative is finite where exp(-x) is not.
    """

    __slots__ = ("__weakref__", "arguments", "kind", "uniform", "value")

    def __init__(
        self, kind: str, arguments: tuple[Expression, ...], value: float | str
    ) -> None:
        self.kind = kind
        self.arguments = arguments
        self.value = value
        self.uniform: bool = kind != "operand" and all(
            each.uniform for each in arguments
        )

    @property
    def condition(self) -> bool:
        """Whether it is a condition, and not a number."""
        return self.kind in CONDITIONS

    def __add__(self, other: Expression | Number) -> Expression:
        return _add(self, _lift(other))

    def __radd__(self, other: Number) -> Expression:
        return _add(_lift(other), self)

    def __sub__(self, other: Expression | Number) -> Expression:
        return _subtract(self, _lift(other))

    def __rsub__(self, other: Number) -> Expression:
        return _subtract(_lift(other), self)

    def __mul__(self, other: Expression | Number) -> Expression:
        return _multiply(self, _lift(other))

    def __rmul__(self, other: Number) -> Expression:
        return _multiply(_lift(other), self)

    def __truediv__(self, other: Expression | Number) -> Expression:
        return _divide(self, _lift(other))

    def __rtruediv__(self, other: Number) -> Expression:
        return _divide(_lift(other), self)

    def __pow__(self, other: Expression | Number) -> Expression:
        return _power(self, _lift(other))

    def __rpow__(self, other: Number) -> Expression:
        return _power(_lift(other), self)

    def __neg__(self) -> Expression:
        return self.arguments[0] if self.kind == "negate" else _node("negate", self)

    def __abs__(self) -> Expression:
        return _node("absolute", self)

    def __lt__(self, other: Expression | Number) -> Expression:
        return _node("less", self, _lift(other))

    def __le__(self, other: Expression | Number) -> Expression:
        return _node("less_equal", self, _lift(other))

    def __gt__(self, other: Expression | Number) -> Expression:
        return _node("less", _lift(other), self)

    def __ge__(self, other: Expression | Number) -> Expression:
        return _node("less_equal", _lift(other), self)

    def __bool__(self) -> bool:
        raise TypeError("an expression is not true or false: use memcfg.ops.select")

    def __repr__(self) -> str:
        if not self.arguments:
            return str(self.value)
        return f"{self.kind}({', '.join(map(repr, self.arguments))})"


_known: WeakValueDictionary[Any, Expression] = WeakValueDictionary()


def _leaf(kind: str, value: float | str) -> Expression:
    return _intern(kind, (), value)


def _intern(
    kind: str, arguments: tuple[Expression, ...], value: float | str
) -> Expression:
    mark = value.hex() if isinstance(value, float) else value  # -0.0 is not 0.0
    key = (kind, mark, *map(id, arguments))
    return _known.setdefault(key, Expression(kind, arguments, value))


def _node(kind: str, *arguments: Expression) -> Expression:
    """Make a node over numbers; evaluate it now if all arguments are constants."""
    for each in arguments:
        if each.condition:
            raise TypeError(f"{kind} takes numbers, and {each!r} is true or false")
    if kind in ("rounded", *CONDITIONS) or any(
        each.kind != "constant" for each in arguments
    ):
        return _intern(kind, arguments, "")
    with np.errstate(all="ignore"):
        return number(float(NODES[kind].numpy(*(each.value for each in arguments))))


def _lift(value: Expression | Number) -> Expression:
    return value if isinstance(value, Expression) else number(value)


def operand(name: str) -> Expression:
    """Make a leaf for an element of an array."""
    return _leaf("operand", name)


def scalar(name: str) -> Expression:
    """Make a leaf for the number of an operand of shape ()."""
    return _leaf("scalar", name)


def attribute(name: str) -> Expression:
    """Make a leaf for an attribute of the op, a number."""
    return _leaf("attribute", name)


def number(value: Number) -> Expression:
    """Make a constant."""
    if not isinstance(value, int | float | np.number):
        raise TypeError(f"expressions are made of numbers, not {value!r}")
    return _leaf("constant", float(value))


def _is(node: Expression, *values: float) -> bool:
    return node.kind == "constant" and node.value in values


def _add(a: Expression, b: Expression) -> Expression:
    if _is(a, 0):
        return b
    return a if _is(b, 0) else _node("add", a, b)


def _subtract(a: Expression, b: Expression) -> Expression:
    if _is(b, 0):
        return a
    return -b if _is(a, 0) else _node("subtract", a, b)


def _multiply(a: Expression, b: Expression) -> Expression:
    for one, other in ((a, b), (b, a)):
        if _is(one, 0):
            return number(0)
        if _is(one, 1):
            return other
        if _is(one, -1):
            return -other
        # The product with a select of 0, 1/2 or 1 is a select without multiplication.
        if one.kind == "select" and _is_slope(one):
            condition, yes, no = one.arguments
            return _select(condition, yes * other, no * other)
    return _node("multiply", a, b)


def _is_slope(node: Expression) -> bool:
    """Return whether a node is 0, ±1/2 or ±1, or selects among these."""
    if node.kind == "select":
        return all(map(_is_slope, node.arguments[1:]))
    return _is(node, -1, -0.5, 0, 0.5, 1)


def _divide(a: Expression, b: Expression) -> Expression:
    if _is(a, 0) or _is(b, 1):
        return a
    if b.kind == "add" and not b.uniform:  # 1 + exp(-x), in either order
        one, power = sorted(b.arguments, key=lambda each: each.kind != "constant")
        if _is(one, 1) and power.kind == "exp":
            return a * sigmoid(-power.arguments[0])
    return _node("divide", a, b)


def _power(a: Expression, b: Expression) -> Expression:
    if a.uniform and b.uniform:
        return _node("power", a, b)
    if _is(b, 0):
        return number(1)
    if _is(b, 0.5):
        return sqrt(a)
    if _is(b, -1):
        return 1 / a
    if not _is(b, *range(1, 17)):
        return _node("power", a, b)
    result = a
    for bit in bin(int(b.value))[3:]:
        result = result * result * (a if bit == "1" else 1)
    return result


def _select(condition: Expression, yes: Expression, no: Expression) -> Expression:
    return yes if yes is no else _intern("select", (condition, yes, no), "")


def _public(kind: str, *values: Expression | Number) -> Expression:
    return _node(kind, *map(_lift, values))


def exp(x: Expression | Number) -> Expression:
    """Compute the exponential function.

    Parameters
    ----------
    x : Expression or float
        The exponent.

    Returns
    -------
    Expression
        e to the power of `x`.
    """
    return _public("exp", x)


def log(x: Expression | Number) -> Expression:
    """Compute the natural logarithm.

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        The logarithm; -inf for 0, NaN below.
    """
    return _public("log", x)


def expm1(x: Expression | Number) -> Expression:
    """Compute exp(x) - 1, accurately near 0.

    Parameters
    ----------
    x : Expression or float
        The exponent.

    Returns
    -------
    Expression
        exp(x) - 1.
    """
    return _public("expm1", x)


def log1p(x: Expression | Number) -> Expression:
    """Compute log(1 + x), accurately near 0.

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        The logarithm; -inf for -1, NaN below.
    """
    return _public("log1p", x)


def sqrt(x: Expression | Number) -> Expression:
    """Compute the square root.

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        The root; NaN below 0.
    """
    return _public("sqrt", x)


def tanh(x: Expression | Number) -> Expression:
    """Compute the hyperbolic tangent.

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        A number in [-1, 1].
    """
    return _public("tanh", x)


def sigmoid(x: Expression | Number) -> Expression:
    """Compute the logistic function, 1 / (1 + exp(-x)).

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        A number in [0, 1], whose derivative is finite.
    """
    return _public("sigmoid", x)


def erf(x: Expression | Number) -> Expression:
    """Compute the error function.

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        A number in [-1, 1].
    """
    return _public("erf", x)


def maximum(a: Expression | Number, b: Expression | Number) -> Expression:
    """Return the greater of two numbers; NaN if one is NaN.

    Parameters
    ----------
    a, b : Expression or float
        The numbers.

    Returns
    -------
    Expression
        The greater one.
    """
    return _public("maximum", a, b)


def minimum(a: Expression | Number, b: Expression | Number) -> Expression:
    """Return the smaller of two numbers; NaN if one is NaN.

    Parameters
    ----------
    a, b : Expression or float
        The numbers.

    Returns
    -------
    Expression
        The smaller one.
    """
    return _public("minimum", a, b)


def equal(a: Expression | Number, b: Expression | Number) -> Expression:
    """Compare two numbers.

    Parameters
    ----------
    a, b : Expression or float
        The numbers.

    Returns
    -------
    Expression
        A condition for `select`.
    """
    return _public("equal", a, b)


def floor(x: Expression | Number) -> Expression:
    """Round down to an integer.

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        The largest integer that is not above `x`.
    """
    return _public("floor", x)


def fmod(x1: Expression | Number, x2: Expression | Number) -> Expression:
    """Compute the exact remainder of a division whose quotient is cut towards 0.

    Parameters
    ----------
    x1, x2 : Expression or float
        The dividend and the divisor.

    Returns
    -------
    Expression
        The remainder, of the sign of `x1`, as NumPy's `fmod`.
    """
    return _public("fmod", x1, x2)


def sin(x: Expression | Number) -> Expression:
    """Compute the sine.

    Parameters
    ----------
    x : Expression or float
        The angle in radians; accurate below 2**28.

    Returns
    -------
    Expression
        A number in [-1, 1]; NaN if the angle is not finite.
    """
    return _public("sin", x)


def cos(x: Expression | Number) -> Expression:
    """Compute the cosine.

    Parameters
    ----------
    x : Expression or float
        The angle in radians; accurate below 2**28.

    Returns
    -------
    Expression
        A number in [-1, 1]; NaN if the angle is not finite.
    """
    return _public("cos", x)


def atan(x: Expression | Number) -> Expression:
    """Compute the inverse of the tangent.

    Parameters
    ----------
    x : Expression or float
        The argument.

    Returns
    -------
    Expression
        An angle between -pi/2 and pi/2.
    """
    return _public("atan", x)


def rounded(x: Expression | Number) -> Expression:
    """Round a uniform number to the dtype of the arrays.

    Parameters
    ----------
    x : Expression or float
        A number that depends on no array.

    Returns
    -------
    Expression
        The rounded number.
    """
    x = _lift(x)
    if not x.uniform:
        raise TypeError("elements already have the dtype of their arrays")
    return _node("rounded", x)


def select(
    condition: Expression, yes: Expression | Number, no: Expression | Number
) -> Expression:
    """Select between two numbers by a condition; both are computed.

    Parameters
    ----------
    condition : Expression
        A comparison, such as ``x < 0``.
    yes, no : Expression or float
        The numbers where the condition is true and where it is false.

    Returns
    -------
    Expression
        The selected number.
    """
    if not isinstance(condition, Expression) or not condition.condition:
        raise TypeError(f"select takes a comparison such as x < 0, not {condition!r}")
    yes, no = _lift(yes), _lift(no)
    if yes.condition or no.condition:
        raise TypeError("select chooses between numbers")
    return _select(condition, yes, no)


def clip(
    x: Expression, low: Expression | Number, high: Expression | Number
) -> Expression:
    """Clip x from below, then from above; the derivative at a bound is 1."""
    raised = select(x < low, low, x)
    return select(raised > high, high, raised)


def derivative(node: Expression, wrt: Expression) -> Expression:
    """Return the derivative of a node by a leaf; at kinks as in PyTorch.

    The derivative of a `select` is that of the selected branch, so that the comparison
    in a formula decides to which side a kink belongs. The derivative of abs at 0 is 0,
    and where the operands of maximum or minimum are equal each gets half. A comparison
    with NaN is false.
    """
    slopes: dict[Expression, Expression] = {}
    for each in _ordered([node]):
        # By value: a leaf made in another thread is another object.
        same = (each.kind, each.value) == (wrt.kind, wrt.value)
        slopes[each] = number(1) if same else _slope(each, slopes)
    return slopes[node]


def _slope(node: Expression, slopes: Mapping[Expression, Expression]) -> Expression:
    if not node.arguments or node.condition:
        return number(0)
    a, *rest = node.arguments
    da = slopes[a]
    if rest:
        return _slope_of_several(node, [slopes[each] for each in node.arguments])
    if _is(da, 0):
        return da
    return da * _SLOPES[node.kind](a, node)


# Derivatives of functions of one argument, as functions of argument and value.
_SLOPES: dict[str, Callable[[Expression, Expression], Expression]] = {
    "negate": lambda _a, _y: number(-1),
    "absolute": lambda a, _y: select(a < 0, -1, select(a > 0, 1, 0)),
    "sqrt": lambda _a, y: 0.5 / y,
    "exp": lambda _a, y: y,
    "expm1": lambda a, _y: exp(a),
    "log": lambda a, _y: 1 / a,
    "log1p": lambda a, _y: 1 / (1 + a),
    "tanh": lambda _a, y: 1 - y * y,
    "sigmoid": lambda _a, y: y * (1 - y),
    "erf": lambda a, _y: 2 / math.sqrt(math.pi) * exp(-(a * a)),
    "sin": lambda a, _y: cos(a),
    "cos": lambda a, _y: -sin(a),
    "atan": lambda a, _y: 1 / (1 + a * a),
    "floor": lambda _a, _y: number(0),
    "rounded": lambda _a, _y: number(1),
}


def _slope_of_several(node: Expression, slopes: Sequence[Expression]) -> Expression:
    a, b, *_ = node.arguments
    da, db, *_ = slopes
    match node.kind:
        case "add":
            return da + db
        case "subtract":
            return da - db
        case "multiply":
            return da * b + a * db
        case "divide":
            return (da - node * db) / b
        case "maximum":
            return _slope_at_tie(a, b, _select(b < a, da, db), da, db)
        case "minimum":
            return _slope_at_tie(a, b, _select(a < b, da, db), da, db)
        case "fmod":
            return da - db * _truncated(a / b)
        case "select":
            return _select(a, slopes[1], slopes[2])
    return da * _slope_of_base(a, b) + db * _slope_of_exponent(a, b, node)  # power


def _truncated(a: Expression) -> Expression:
    """Return a number rounded towards 0."""
    below = _node("floor", abs(a))
    return select(a < 0, -below, below)


def _slope_at_tie(
    a: Expression, b: Expression, other: Expression, da: Expression, db: Expression
) -> Expression:
    return other if da is db else _select(equal(a, b), 0.5 * (da + db), other)


def _slope_of_base(a: Expression, b: Expression) -> Expression:
    """Return the derivative of a**b by a: 0 where b is 0, even if a is 0 or NaN."""
    slope = b * a ** (b - 1)
    return slope if b.kind == "constant" else _select(equal(b, 0), number(0), slope)


def _slope_of_exponent(a: Expression, b: Expression, power: Expression) -> Expression:
    """Return the derivative of a**b by b: 0 where a is 0 and b is not negative."""
    slope = power * log(a)
    at_zero = select(b < 0, slope, 0)
    return _select(equal(a, 0), at_zero, slope)


def _ordered(outputs: Sequence[Expression]) -> list[Expression]:
    """List all nodes, each after its arguments."""
    seen: dict[Expression, None] = {}

    def visit(node: Expression) -> None:
        if node not in seen:
            for each in node.arguments:
                visit(each)
            seen[node] = None

    for output in outputs:
        visit(output)
    return list(seen)


def leaves(outputs: Sequence[Expression], kind: str) -> set[str]:
    """Return the names of the leaves of a kind that expressions read."""
    return {str(node.value) for node in _ordered(outputs) if node.kind == kind}


def count_flops(outputs: Sequence[Expression]) -> int:
    """Count the floating-point operations per element, as `NODES` defines them."""
    return sum(
        NODES[node.kind].flops
        for node in _ordered(outputs)
        if not node.uniform
        if node.arguments
    )


def evaluate(
    outputs: Sequence[Expression], values: Mapping[tuple[str, str], Any], dtype: Any
) -> list[Any]:
    """Evaluate with NumPy; `values` has the value of each leaf by (kind, name)."""
    results: dict[Expression, Any] = {}
    for node in _ordered(outputs):
        arguments = [results[each] for each in node.arguments]
        if node.kind == "constant":
            value = node.value
        elif not arguments:
            value = values[node.kind, str(node.value)]
        elif node.kind == "rounded":
            value = float(dtype.type(arguments[0]))
        elif node.uniform:
            value = NODES[node.kind].numpy(*arguments)
            value = bool(value) if node.condition else float(value)
        else:
            if node.kind == "select":  # Python numbers alone would give float64
                arguments[1:] = [np.asarray(each, dtype) for each in arguments[1:]]
            value = NODES[node.kind].numpy(*arguments)
            if node.kind == "erf":
                value = value.astype(dtype)
        results[node] = value
    return [results[output] for output in outputs]


def instructions(
    outputs: Sequence[Expression],
) -> tuple[list[tuple[Expression, tuple[int, ...]]], list[int]]:
    """List all nodes with the indices of their arguments, and the outputs' indices."""
    nodes = _ordered(outputs)
    places = {node: place for place, node in enumerate(nodes)}
    rows = [(node, tuple(map(places.__getitem__, node.arguments))) for node in nodes]
    return rows, [places[output] for output in outputs]


def write(outputs: Sequence[Expression], operands: Sequence[str]) -> str:
    """Serialize expressions as text for the C++ core, one instruction per node."""
    rows, places = instructions(outputs)
    lines = []
    for node, arguments in rows:
        if node.kind in ("operand", "scalar"):
            lines.append(f"{node.kind} {operands.index(str(node.value))}")
        elif node.kind == "constant":
            bits = np.float64(node.value).view(np.uint64)
            lines.append(f"constant {bits}")  # bits are exact in any locale
        elif node.kind == "attribute":
            lines.append(f"attribute {node.value}")
        else:
            lines.append(" ".join([node.kind, *map(str, arguments)]))
    lines.append(" ".join(["output", *map(str, places)]))
    return "; ".join(lines)


def read(
    text: str, operands: Sequence[Expression], attributes: Mapping[str, Any]
) -> tuple[Expression, ...]:
    """Parse the text of `write`, with these operands, and attributes as constants."""
    nodes: list[Expression] = []
    for line in text.split("; "):
        kind, *words = line.split(" ")
        if kind == "output":
            break
        if kind in ("operand", "scalar"):
            nodes.append(operands[int(words[0])])
        elif kind == "constant":
            nodes.append(number(float(np.uint64(words[0]).view(np.float64))))
        elif kind == "attribute":
            nodes.append(number(float(attributes[words[0]])))
        else:
            nodes.append(_intern(kind, tuple(nodes[int(each)] for each in words), ""))
    return tuple(nodes[int(each)] for each in words)


def read_over(
    text: str, operands: Sequence[Any], attributes: Mapping[str, Any] = _NONE
) -> tuple[Expression, ...]:
    """Parse the text of `write`; operands of shape () become scalar leaves."""
    leaves = [
        operand(str(i)) if each.shape else scalar(str(i))
        for i, each in enumerate(operands)
    ]
    return read(text, leaves, attributes)


def evaluate_over(
    text: str, arrays: Sequence[Any], dtype: Any, attributes: Mapping[str, Any] = _NONE
) -> list[Any]:
    """Evaluate the text of `write` with NumPy on these arrays."""
    values: dict[tuple[str, str], Any] = {}
    for i, array in enumerate(arrays):
        kind = "operand" if array.shape else "scalar"
        values[kind, str(i)] = array if array.shape else float(array)
    return evaluate(read_over(text, arrays, attributes), values, dtype)
