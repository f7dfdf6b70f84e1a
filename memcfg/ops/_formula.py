"""`elementwise`: element-wise op types and their gradients from one expression."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from memcfg._cached import cached_property
from memcfg.errors import GraphError
from memcfg.ops._expression import (
    Expression,
    attribute,
    count_flops,
    derivative,
    evaluate,
    instructions,
    leaves,
    number,
    operand,
    scalar,
    write,
)
from memcfg.ops._op_type import (
    Adjoint,
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    register,
    require,
)

__all__ = ["MAX_NODES", "MAX_OPERANDS", "elementwise"]

MAX_NODES = 256  # as in _native/src/kernels/expression.cpp
MAX_OPERANDS = 32

_NONE: Mapping[str, Any] = MappingProxyType({})
_deriving = threading.RLock()

Outputs: TypeAlias = tuple[Expression, ...]
Trace: TypeAlias = Callable[[Mapping[str, bool]], Outputs]


@dataclass(frozen=True, eq=False)
class _Case:
    """The expressions of a formula for one setting of its switches."""

    outputs: Outputs
    operands: tuple[str, ...]

    @cached_property
    def flops(self) -> int:
        """The floating-point operations per element, at least one."""
        return max(count_flops(self.outputs), 1)

    @cached_property
    def text(self) -> str:
        """The expressions as text for kernels."""
        return write(self.outputs, self.operands)


@dataclass(frozen=True, eq=False)
class _Formula:
    """Expressions of named operands; `defaults` are the attributes' (None: required).

    An attribute whose default is True or False is a switch, for each value of which
    separate expressions are traced.
    """

    name: str
    operands: tuple[str, ...]
    scalars: frozenset[str]
    defaults: Mapping[str, Any]
    trace: Trace
    state: tuple[str, ...] = ()  # operands that the outputs overwrite
    constants: frozenset[str] = frozenset()  # operands without a gradient
    upstream: str = "dy"  # the operand of its gradients that is that of the output
    gradients: list[str] = field(default_factory=list)  # op types, if they are made
    _rules: list[_GradientRule] = field(default_factory=list)  # one, if it is made
    _cases: dict[tuple[bool, ...], _Case] = field(default_factory=dict)

    @property
    def is_activation(self) -> bool:
        """Whether it has a single array operand and no required attribute."""
        return (
            len(self.operands) == 1
            and len(next(self.cases())) == 1
            and not self.state
            and not self.constants
            and self.upstream == "dy"
            and None not in self.defaults.values()
        )

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """The names of the attributes that are bools."""
        return tuple(k for k, v in self.defaults.items() if isinstance(v, bool))

    @cached_property
    def arrays(self) -> tuple[int, ...]:
        """Positions of the operands that are arrays."""
        return tuple(
            i for i, name in enumerate(self.operands) if name not in self.scalars
        )

    def complete(self, attributes: Attributes) -> Attributes:
        """Return the attributes with their defaults."""
        for name, default in self.defaults.items():
            if default is None and attributes.get(name) is None:
                raise GraphError(f"{self.name} needs the attribute {name!r}")
        return {**self.defaults, **attributes}

    def case(self, attributes: Attributes) -> _Case:
        """Return the expressions of an op with complete attributes."""
        key = tuple([bool(attributes[name]) for name in self.switches])
        if key not in self._cases:
            outputs = self.trace(dict(zip(self.switches, key, strict=True)))
            self._cases[key] = _Case(outputs, self.operands)
        return self._cases[key]

    def outputs(self, attributes: Attributes) -> Outputs:
        """Return the expressions of the outputs of an op with complete attributes."""
        return self.case(attributes).outputs

    def cases(self) -> Iterator[Outputs]:
        """Yield the expressions for each setting of the switches."""
        for case in product((False, True), repeat=len(self.switches)):
            yield self.outputs(dict(zip(self.switches, case, strict=True)))

    def kernel_attributes(self, attributes: Attributes) -> Attributes:
        """Return the attributes, with defaults and the expression as text."""
        complete = self.complete(attributes)
        return {**complete, "expression": self.case(complete).text}

    def derive(self) -> _GradientRule:
        """Return the gradient rule of a gradient, and register its op types.

        They are made at the first need: programs that differentiate twice are few.
        """
        with _deriving:
            if not self._rules:
                types: list[OpType] = []
                try:
                    rule = _GradientRule(self, None, _NONE, types)
                except ValueError as error:
                    text = f"{self.name} has no gradient: {error}"
                    raise GraphError(text) from error
                register(*types)
                self.gradients.extend(each.name for each in types)
                self._rules.append(rule)
            return self._rules[0]

    def infer(self, inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
        """Return the outputs' specs; GraphError for invalid shapes or dtypes."""
        unknown = sorted(attributes.keys() - self.defaults.keys())
        require(not unknown, f"{self.name} has no attribute {', '.join(unknown)}")
        outputs = self.outputs(self.complete(attributes))
        arrays = [inputs[place] for place in self.arrays]
        shape = arrays[0].shape
        for spec in arrays:
            if spec.shape != shape:
                raise GraphError(f"{self.name}: shapes {shape} and {spec.shape} differ")
        dtype = common_dtype(arrays)
        require("float" in dtype, f"{self.name} computes floats, not {dtype}")
        for name, spec in zip(self.operands, inputs, strict=True):
            if spec.shape and name in self.scalars:
                raise GraphError(
                    f"{self.name}: {name} is one number, not of shape {spec.shape}"
                )
        if self.state:
            places = map(self.operands.index, self.state)
            return [Spec(shape, dtype, f"new{place}") for place in places]
        return [
            Spec(shape, dtype, f"output{i}" if i else "") for i in range(len(outputs))
        ]

    def numpy(self, attributes: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        """Compute the outputs."""
        values: dict[tuple[str, str], Any] = {}
        complete = self.complete(attributes)
        for name, value in complete.items():
            if isinstance(value, int | float | np.number):
                values["attribute", name] = float(value)
        for name, array in zip(self.operands, inputs, strict=True):
            if name in self.scalars:
                values["scalar", name] = float(array)
            else:
                values["operand", name] = array
        results = evaluate(self.outputs(complete), values, outputs[0].dtype)
        if len(results) > 1:  # an output may overwrite an operand that is a result
            results = [
                each.copy() if any(each is array for array in inputs) else each
                for each in results
            ]
        for output, result in zip(outputs, results, strict=True):
            output[...] = result

    def flops(
        self, _: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
    ) -> int:
        """Count the floating-point operations of an op."""
        return self.case(self.complete(attributes)).flops * outputs[0].size


def elementwise(
    name: str,
    formula: Callable[..., Any],
    slope: Callable[..., Any] | None = None,
    *,
    partials: Mapping[str, Callable[..., Any]] = _NONE,
    scalars: Sequence[str] = (),
    state: Sequence[str] = (),
    constants: Sequence[str] = (),
) -> OpType:
    """Register an element-wise op type.

    The NumPy meaning, the derivative, the cost and the devices' kernels are derived
    from the formula. The type and those of its gradients can then be used in graphs; a
    layer applies it by ``scope.apply(name, inputs)``, and a type with a single array
    operand is also an activation of that name.

    Parameters
    ----------
    name : str
        The type's name.
    formula : callable
        Takes an `Expression` for each operand, and for each attribute by keyword, and
        returns one, or a tuple of one for each output. Its parameters' names are those
        of operands and attributes; an attribute may have a default. If the default is
        True or False, the attribute is passed as a bool.
    slope : callable, optional
        Returns the derivative as an expression of the output, its parameter ``y``, so
        that backward reads the output instead of the input. It may take attributes of
        the formula by keyword. Only for formulas of one operand and one output.
    partials : mapping of str to callable, optional
        Derivatives by operand, for those that the formula would lead to badly. Each
        returns an expression; its parameters are operands, attributes, or the output y.
    scalars : sequence of str, default ()
        The operands of shape ().
    state : sequence of str, default ()
        The operands that the outputs overwrite: the op is an update, runs once a step,
        and has no gradient.
    constants : sequence of str, default ()
        The operands without a gradient, such as the targets of a loss.

    Returns
    -------
    OpType
        The type.

    Raises
    ------
    ValueError
        If there is already a type of this name, the formula uses a reserved name,
        `slope` is given for more than one operand or output, `partials` name no
        operand, or the formula or a derivative has more than 256 nodes or 32 operands
        and outputs.
    TypeError
        If the formula does not return expressions.

    Examples
    --------
    >>> from memcfg import ops
    >>> smooth_relu = ops.elementwise(
    ...     "smooth_relu", lambda x, *, b=4.0: (x + ops.sqrt(x * x + b)) / 2
    ... )
    >>> smooth_relu.arity
    1
    """
    made = _read_formula(
        name, formula, frozenset(scalars), tuple(state), frozenset(constants)
    )
    single = len(next(made.cases())) == 1
    if slope is not None and (state or not single or len(made.operands) > 1):
        raise ValueError(f"op type {name!r}: a slope is of one operand and one output")
    for each in partials:
        if each not in made.operands or not single or state:
            raise ValueError(f"op type {name!r}: a partial of {each!r}")
    gradients: list[OpType] = []
    rule = None
    if not state and single:
        rule = _GradientRule(made, slope, partials, gradients)
        made._rules.append(rule)
    pairs = [(i, 0) for i in made.arrays]
    if state:
        pairs = [(made.operands.index(each), i) for i, each in enumerate(state)]
    kind = OpType(
        name,
        len(made.operands),
        made.infer,
        made.numpy,
        tuple(pairs),
        rule,
        made.flops,
        replayable=not state,
        float32_inputs=tuple(
            place for place in range(len(made.operands)) if place not in made.arrays
        ),
        formula=made,
    )
    made.gradients.extend(each.name for each in gradients)
    register(kind, *gradients)
    return kind


def _read_formula(
    name: str,
    formula: Callable[..., Any],
    scalars: frozenset[str],
    state: tuple[str, ...],
    constants: frozenset[str],
) -> _Formula:
    operands, defaults = [], {}
    for parameter in inspect.signature(formula).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            given = parameter.default
            defaults[parameter.name] = None if given is parameter.empty else given
        else:
            operands.append(parameter.name)
    for each in (*scalars, *state, *constants):
        if each not in operands:
            raise ValueError(f"op type {name!r} has no operand {each!r}")
    if scalars.issuperset(operands):
        raise ValueError(f"op type {name!r} has no operand that is an array")
    _check_names(operands, defaults)

    def trace(switches: Mapping[str, bool]) -> Outputs:
        given = [
            scalar(each) if each in scalars else operand(each) for each in operands
        ]
        named = {each: switches.get(each, attribute(each)) for each in defaults}
        result = formula(*given, **named)
        outputs = result if isinstance(result, tuple) else (result,)
        return tuple(_checked(name, each) for each in outputs)

    made = _Formula(name, tuple(operands), scalars, defaults, trace, state, constants)
    for outputs in made.cases():
        _check_size(name, outputs, operands)
        if state and len(outputs) != len(state):
            raise TypeError(
                f"op type {name!r} has different numbers of outputs and states"
            )
    return made


def _check_names(operands: Sequence[str], attributes: Mapping[str, Any]) -> None:
    """Raise ValueError for reserved names."""
    if not {"y", "dy"}.isdisjoint(operands):
        raise ValueError("y and dy are the names of an output and of its gradient")
    if not {"expression", "interpreted"}.isdisjoint(attributes):
        raise ValueError("expression and interpreted are attributes of kernels")


def _check_size(
    name: str, outputs: Sequence[Expression], operands: Sequence[str]
) -> None:
    """Raise ValueError for more nodes or operands than kernels support."""
    nodes = len(instructions(outputs)[0])
    if nodes > MAX_NODES:
        raise ValueError(f"op type {name!r} has {nodes} nodes, of {MAX_NODES} at most")
    count = len(operands) + len(outputs)
    if count > MAX_OPERANDS:
        raise ValueError(
            f"op type {name!r} has {count} operands and outputs, of {MAX_OPERANDS} at "
            "most"
        )


def _checked(name: str, value: Any) -> Expression:
    if isinstance(value, int | float):
        value = number(value)
    if not isinstance(value, Expression) or value.condition:
        raise TypeError(
            f"op type {name!r} returns {value!r}, which is not an expression"
        )
    return value


class _GradientRule:
    """The gradient rule of an element-wise op, and the op types that it emits.

    Each operand's gradient is a separate op, ``dy`` times the derivative, unless it is
    ``dy`` itself or zero.
    """

    def __init__(
        self,
        formula: _Formula,
        slope: Callable[..., Any] | None,
        partials: Mapping[str, Callable[..., Any]],
        types: list[OpType],
    ) -> None:
        self.formula = formula
        self.rows: list[tuple[str, str, tuple[str, ...]] | None] = []
        several = len(formula.operands) > 1
        for name in formula.operands:
            suffix = f"gradient_{name}" if several else "gradient"
            row = self._row(name, suffix, partials.get(name, slope), types)
            self.rows.append(row)

    def _row(
        self,
        name: str,
        suffix: str,
        slope: Callable[..., Any] | None,
        types: list[OpType],
    ) -> tuple[str, str, tuple[str, ...]] | None:
        forward, dy = self.formula, operand(self.formula.upstream)
        if name in forward.constants:
            return None
        wrt = scalar(name) if name in forward.scalars else operand(name)
        read_by_slope = [] if slope is None else _parameters_of(slope, forward)

        def trace(switches: Mapping[str, bool]) -> Outputs:
            if slope is not None:
                known: dict[str, Any] = {"y": operand("y")}
                known |= {each: operand(each) for each in forward.operands}
                known |= {each: attribute(each) for each in forward.defaults}
                known |= switches
                return (slope(**{each: known[each] for each in read_by_slope}) * dy,)
            (output,) = forward.outputs({**forward.defaults, **switches})
            return (derivative(output, wrt) * dy,)

        cases = [
            trace(dict(zip(forward.switches, case, strict=True)))
            for case in product((False, True), repeat=len(forward.switches))
        ]
        if all(outputs == (dy,) for outputs in cases):
            return "", suffix, ()
        read = {each for outputs in cases for each in leaves(outputs, "operand")}
        numbers = {each for outputs in cases for each in leaves(outputs, "scalar")}
        if not read:
            return None  # the output does not depend on it
        operands = [each for each in forward.operands if each in read | numbers]
        made = [] if "y" in forward.operands else ["y"]
        operands += [each for each in (*made, forward.upstream) if each in read]
        for outputs in cases:
            _check_size(f"{forward.name}_{suffix}", outputs, operands)
        gradient = _Formula(
            f"{forward.name}_{suffix}",
            tuple(operands),
            frozenset(numbers),
            forward.defaults,
            trace,
            upstream=f"d{forward.upstream}",
        )
        types.append(
            OpType(
                gradient.name,
                len(operands),
                gradient.infer,
                gradient.numpy,
                tuple((i, 0) for i in gradient.arrays),
                lambda adjoint: gradient.derive()(adjoint),
                flops=gradient.flops,
                formula=gradient,
            )
        )
        return gradient.name, suffix, gradient.operands

    def __call__(self, adjoint: Adjoint) -> Sequence[int | None]:
        """Append the backward ops."""
        gradients: list[int | None] = []
        dy: int | None = None  # tensor of the gradient, made when needed
        for row, name, needed in zip(
            self.rows, self.formula.operands, adjoint.needs, strict=True
        ):
            if row is None or not needed:
                gradients.append(None)
            elif not row[0] and name not in self.formula.scalars:
                gradients.append(adjoint.dys[0])
            else:
                dy = adjoint.dy if dy is None else dy
                gradients.append(self._gradient(adjoint, name, row, dy))
        return gradients

    def _gradient(
        self,
        adjoint: Adjoint,
        name: str,
        row: tuple[str, str, tuple[str, ...]],
        dy: int,
    ) -> int:
        kind, suffix, operands = row
        tensors = dict(zip(self.formula.operands, adjoint.inputs, strict=True))
        tensors = {"y": adjoint.outputs[0], **tensors, self.formula.upstream: dy}
        if kind:
            inputs = [tensors[each] for each in operands]
            (dy,) = adjoint.emit(kind, inputs, adjoint.attributes, suffix)
        if name in self.formula.scalars:
            dy = _total(adjoint, dy, suffix)
        return dy


def _parameters_of(slope: Callable[..., Any], formula: _Formula) -> list[str]:
    """Return the names of what a slope reads; ValueError for unknown ones."""
    names = list(inspect.signature(slope).parameters)
    unknown = sorted({*names} - {"y", *formula.operands, *formula.defaults})
    if unknown:
        raise ValueError(
            f"op type {formula.name!r} has no attribute {unknown[0]!r}, which its "
            "slope reads"
        )
    return names


def _total(adjoint: Adjoint, tensor: int, suffix: str) -> int:
    """Append the sum of all elements, of shape (), as the sum of a column."""
    size = int(np.prod(adjoint.emitter.shape(tensor)))
    (column,) = adjoint.emit("reshape", (tensor,), {"shape": (size, 1)}, suffix)
    (total,) = adjoint.emit("bias_gradient", (column,), suffix=suffix)
    return adjoint.emit("reshape", (total,), {"shape": ()}, suffix)[0]
