"""The record of an op type, the interface of gradient rules, and the table of types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from memcfg.errors import GraphError

__all__ = [
    "UNIT",
    "Adjoint",
    "Arrays",
    "Attributes",
    "Composite",
    "OpType",
    "Part",
    "Spec",
    "Value",
    "common_dtype",
    "gradient_dtype",
    "like",
    "op_type",
    "op_types",
    "parameter_dtype",
    "register",
    "require",
    "unregister",
]

Attributes: TypeAlias = Mapping[str, Any]
Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Sequence[Array]

UNIT = -1  # stands for a gradient that is the number 1, without a tensor


class Spec(NamedTuple):
    """Shape and dtype of an operand; for an output also its name and role.

    Parameters
    ----------
    shape : tuple of int
        The length of each dimension; ``()`` for a scalar.
    dtype : str
        The name of a NumPy dtype, or ``"bfloat16"``.
    suffix : str, default ""
        Suffix of the tensor's name; "" for an op's first output.
    role : str or None, default None
        The tensor's role; None: derived from the op's phase.
    """

    shape: tuple[int, ...]
    dtype: str
    suffix: str = ""
    role: str | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Emitter(Protocol):
    """The part of `memcfg.graph.Builder` that gradient rules use."""

    def apply(
        self,
        type: str,  # noqa: A002  (the field's name)
        inputs: Sequence[int],
        attributes: Attributes | None = None,
        *,
        name: str = "",
        phase: str = "forward",
    ) -> tuple[int, ...]:
        """Append an op and return the ids of its outputs."""

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return a tensor's shape."""

    def dtype(self, tensor: int) -> str:
        """Return a tensor's dtype."""


@dataclass(frozen=True, slots=True)
class Adjoint:
    """An op in reverse mode: the argument of its gradient rule.

    Parameters
    ----------
    emitter : Builder
        Builder to which backward ops are appended.
    name : str
        The op's name.
    inputs, outputs : tuple of int
        Ids of the op's tensors.
    attributes : mapping
        The op's attributes.
    dys : tuple of (int or None)
        The gradient of each output: a tensor's id, `UNIT` for the number 1, or None if
        the loss does not depend on the output.
    needs : tuple of bool
        For each input whether its gradient is needed.
    """

    emitter: Emitter
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Attributes
    dys: tuple[int | None, ...]
    needs: tuple[bool, ...]

    @property
    def dy(self) -> int:
        """Gradient of the first output, as a tensor; GraphError if others have one."""
        first, *others = self.dys
        if first is None or any(dy is not None for dy in others):
            raise GraphError(
                f"op {self.name!r}: the loss depends on another output than the first, "
                "which has no gradient"
            )
        return self.tensor(first)

    def dy_like(self, position: int) -> int:
        """Return `dy` in the dtype of an input.

        Parameters
        ----------
        position : int
            Position of the input.

        Returns
        -------
        int
            A tensor's id.
        """
        dtype = self.emitter.dtype(self.inputs[position])
        if self.emitter.dtype(self.dy) == dtype:
            return self.dy
        return self.emit("cast", (self.dy,), {"dtype": dtype})[0]

    def tensor(self, gradient: int) -> int:
        """Return a gradient as a tensor; for `UNIT`, append a tensor of ones.

        Parameters
        ----------
        gradient : int
            A tensor's id or `UNIT`.

        Returns
        -------
        int
            A tensor's id.
        """
        if gradient != UNIT:
            return gradient
        dtype = self.emitter.dtype(self.outputs[0])
        one = {"shape": (), "value": 1.0, "dtype": dtype}
        return self.emit("fill", (), one, "gradient_one")[0]

    def emit(
        self,
        type: str,  # noqa: A002  (the field's name)
        inputs: Sequence[int],
        attributes: Attributes | None = None,
        suffix: str = "gradient",
    ) -> tuple[int, ...]:
        """Append a backward op named after this op.

        Parameters
        ----------
        type : str
            Type of the backward op.
        inputs : sequence of int
            Ids of its inputs.
        attributes : mapping, optional
            Its attributes.
        suffix : str, default "gradient"
            Suffix of its name.

        Returns
        -------
        tuple of int
            Ids of its outputs.
        """
        return self.emitter.apply(
            type, inputs, attributes, name=f"{self.name}/{suffix}", phase="backward"
        )

    def shape_of(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input.

        Parameters
        ----------
        position : int
            Position of the input.

        Returns
        -------
        tuple of int
            The shape.
        """
        return self.emitter.shape(self.inputs[position])


Infer: TypeAlias = Callable[[Sequence[Spec], Attributes], Sequence[Spec]]
Flops: TypeAlias = Callable[[Sequence[Spec], Sequence[Spec], Attributes], int]
Rule: TypeAlias = Callable[[Adjoint], Sequence[int | None]]
Meaning: TypeAlias = Callable[[Attributes, Arrays, Arrays], None]


def one_flop(_inputs: Sequence[Spec], outputs: Sequence[Spec], _: Attributes) -> int:
    """Count one operation per output element, for ops bound by memory."""
    return sum(spec.size for spec in outputs)


@dataclass(frozen=True, slots=True, eq=False)
class OpType:
    """The definition of a type of ops, for graphs and devices.

    Parameters
    ----------
    name : str
        The type's name, such as ``"conv2d"``.
    arity : int or None
        The number of inputs; None: any number, at least one.
    infer : callable
        ``infer(inputs, attributes)`` returns a `Spec` for each output from those of the
        inputs, and raises GraphError for invalid inputs.
    numpy : callable
        ``numpy(attributes, inputs, outputs)`` computes the outputs in arrays, which may
        be the inputs of the in-place pairs. It is the reference kernel, for every float
        dtype.
    in_place : tuple of (int, int), default ()
        Pairs (input, output), by position: the output may overwrite the input. Pairs of
        operands that an op of variable arity lacks do not count.
    gradient : callable or None, default None
        ``gradient(adjoint)`` appends the backward ops, and returns a gradient or None
        for each input. Backward keeps the tensors that these ops read. None: the op has
        no gradient, unless `parts` are given.
    flops : callable, optional
        ``flops(inputs, outputs, attributes)`` returns the floating-point operations.
        By default one per output element.
    replayable : bool, default True
        Whether it may be recomputed: equal inputs give equal bits, and its outputs are
        worth dropping.
    float32_inputs : tuple of int or None, default ()
        Positions of inputs that stay float32 if the others are bfloat16, such as
        statistics. None: all inputs, as the op needs the precision.
    contraction : bool, default False
        Whether it sums products of two operands, as matrix products, convolutions
        and recurrent cells do. For composites, derived from the parts.
    formula : Formula or None, default None
        The expressions of an element-wise op, made by `elementwise`.
    composite : Composite or None, default None
        The ops that it replaces, made by `composite`.
    parts : callable or None, default None
        ``parts(op)`` appends ops with gradients that compute the same from the inputs
        of an `Adjoint`, and returns an output or None for each of the op's. The op's
        gradient is theirs: for ops that are rarely differentiated.
    """

    name: str
    arity: int | None
    infer: Infer
    numpy: Meaning
    in_place: tuple[tuple[int, int], ...] = ()
    gradient: Rule | None = None
    flops: Flops = one_flop
    replayable: bool = True
    float32_inputs: tuple[int, ...] | None = ()
    contraction: bool = False
    formula: Formula | None = None
    composite: Composite | None = None
    parts: Callable[[Adjoint], Sequence[int | None]] | None = None

    def kernel_attributes(self, attributes: Attributes) -> Attributes:
        """Return the attributes for kernels, including an element-wise op's text.

        Parameters
        ----------
        attributes : mapping
            An op's attributes.

        Returns
        -------
        mapping
            The attributes; if the op is element-wise, completed by defaults and with
            the text of the expression as ``expression``.
        """
        if self.formula is None:
            return attributes
        return self.formula.kernel_attributes(attributes)

    def __reduce__(self) -> Any:
        return op_type, (self.name,)


class Formula(Protocol):
    """The expressions of an element-wise op over its operands."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of its attributes; None for a required attribute."""

    @property
    def is_activation(self) -> bool:
        """Whether it has a single array operand and no required attribute."""

    @property
    def gradients(self) -> Sequence[str]:
        """The op types of its gradients."""

    def kernel_attributes(self, attributes: Attributes) -> Attributes:
        """Return the attributes, with defaults and the expression as text."""

    def derive(self) -> Any:
        """Register the op types of its gradients, if they are made at need."""


class Value(NamedTuple):
    """An output of a composite's part, or an input of the composite, whose part is -1.

    Parameters
    ----------
    part : int
        Index of the part, or -1.
    place : int
        Index of the output or input.
    """

    part: int
    place: int


class Part(NamedTuple):
    """An op of those that a composite replaces.

    Parameters
    ----------
    type : str
        The op's type.
    inputs : tuple of Value
        The op's inputs.
    outputs : int
        The number of its outputs.
    """

    type: str
    inputs: tuple[Value, ...]
    outputs: int


class Composite(Protocol):
    """The ops that a composite replaces; the last one depends on all others."""

    @property
    def parts(self) -> Sequence[Part]:
        """The ops, each after those that it reads."""

    @property
    def outputs(self) -> Sequence[Value]:
        """The outputs of the composite, in order; other values are internal."""

    @property
    def main(self) -> int:
        """The first part that is not element-wise; its op gives the fused op's name."""

    @property
    def for_inference(self) -> bool:
        """Whether it is used only in programs without training."""

    def specs(
        self, inputs: Sequence[Spec], attributes: Attributes
    ) -> Mapping[Value, Spec]:
        """Return the specs of all values.

        Parameters
        ----------
        inputs : sequence of Spec
            Specs of the composite's inputs.
        attributes : mapping
            The op's attributes.

        Returns
        -------
        mapping of Value to Spec
            Specs of the inputs and of all outputs of the parts.

        Raises
        ------
        GraphError
            If inputs of the composite or of a part are invalid.
        """


_types: dict[str, OpType] = {}


def register(*types: OpType) -> None:
    """Register op types for use in graphs and on devices.

    Parameters
    ----------
    *types : OpType
        The types, with new names.

    Raises
    ------
    ValueError
        If a name is already registered.
    """
    names = [new.name for new in types]
    for name in names:
        if name in _types or names.count(name) > 1:
            raise ValueError(f"there is already an op type {name!r}")
    _types.update(zip(names, types, strict=True))


def unregister(name: str) -> None:
    """Remove an op type from the table; existing graphs are unchanged.

    Parameters
    ----------
    name : str
        The type's name. The gradient types of an element-wise op are removed, too.

    Raises
    ------
    GraphError
        If there is no type of this name.
    """
    kind = op_type(name)
    for each in () if kind.formula is None else kind.formula.gradients:
        unregister(each)
    _types.pop(name, None)


def op_type(name: str) -> OpType:
    """Return the op type of a name.

    Parameters
    ----------
    name : str
        The type's name, such as ``"conv2d"``.

    Returns
    -------
    OpType
        The type.

    Raises
    ------
    GraphError
        If there is no type of this name.
    """
    try:
        return _types[name]
    except KeyError:
        pass
    base = _types.get(name.rpartition("_gradient")[0])
    if base is not None and base.formula is not None and base.gradient is not None:
        base.formula.derive()  # a gradient of a gradient
        if name in _types:
            return _types[name]
    known = ", ".join(sorted(_types))
    raise GraphError(f"unknown op type {name!r}; known: {known}")


def op_types() -> tuple[OpType, ...]:
    """Return all op types, in the order in which they were registered.

    Returns
    -------
    tuple of OpType
        The types.
    """
    return tuple(_types.values())


def like(position: int = 0) -> Infer:
    """Return an `infer` for one output with the shape and dtype of an input."""

    def infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
        return [Spec(inputs[position].shape, inputs[position].dtype)]

    return infer


def common_dtype(inputs: Sequence[Spec]) -> str:
    """Return the common dtype of specs; GraphError if they differ."""
    dtypes = [spec.dtype for spec in inputs]
    if len(set(dtypes)) != 1:
        raise GraphError(f"dtypes differ: {', '.join(dtypes)}")
    return dtypes[0]


def gradient_dtype(inputs: Sequence[Spec]) -> str:
    """Return the dtype of a parameter's gradient: float32 for bfloat16 products."""
    dtype = common_dtype(inputs)
    return "float32" if dtype == "bfloat16" else dtype


def parameter_dtype(x: Spec, parameters: Sequence[Spec]) -> str:
    """Return the dtype of parameters and statistics: x's, or float32 for bfloat16."""
    if x.dtype == "bfloat16":
        return common_dtype([*parameters, Spec((), "float32")])
    return common_dtype([x, *parameters])


def require(condition: bool, message: str) -> None:
    """Raise GraphError with a message unless the condition holds."""
    if not condition:
        raise GraphError(message)
