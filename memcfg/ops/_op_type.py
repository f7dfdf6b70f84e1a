"""The record of an op type, what gradient rules see, and the table of all types."""

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

UNIT = -1  # a gradient that is the number 1, and no tensor


class Spec(NamedTuple):
    """Shape and dtype of an operand; for an output also its name and role.

    Parameters
    ----------
    shape : tuple of int
        The length of each dimension; ``()`` is one number.
    dtype : str
        A NumPy dtype name.
    suffix : str, default ""
        Of the tensor's name; "" for an op's first output.
    role : str or None, default None
        The tensor's role; None: the one that the op's phase gives.
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
    """One op seen from reverse mode.

    Parameters
    ----------
    emitter : Builder
        Takes the backward ops.
    name : str
        The op's name.
    inputs, outputs : tuple of int
        Its tensors.
    attributes : mapping
        Its attributes.
    dys : tuple of (int or None)
        The gradient of each output: a tensor, `UNIT` for the number 1, None where the
        loss does not depend on it.
    needs : tuple of bool
        Which inputs want a gradient.
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
        """Gradient of the first output, as a tensor; no other may have one."""
        first, *others = self.dys
        if first is None or any(dy is not None for dy in others):
            raise GraphError(
                f"op {self.name!r}: the loss depends on another output than the first, "
                "which has no gradient"
            )
        return self.tensor(first)

    def tensor(self, gradient: int) -> int:
        """Return a gradient as a tensor: `UNIT` is made one.

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
        """Append a backward op named after the op it belongs to.

        Parameters
        ----------
        type : str
            Its type.
        inputs : sequence of int
            Its inputs.
        attributes : mapping, optional
            Its attributes.
        suffix : str, default "gradient"
            Ends its name.

        Returns
        -------
        tuple of int
            Its outputs.
        """
        return self.emitter.apply(
            type, inputs, attributes, name=f"{self.name}/{suffix}", phase="backward"
        )

    def shape_of(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input.

        Parameters
        ----------
        position : int
            Which input.

        Returns
        -------
        tuple of int
            Its shape.
        """
        return self.emitter.shape(self.inputs[position])


Infer: TypeAlias = Callable[[Sequence[Spec], Attributes], Sequence[Spec]]
Flops: TypeAlias = Callable[[Sequence[Spec], Sequence[Spec], Attributes], int]
Rule: TypeAlias = Callable[[Adjoint], Sequence[int | None]]
Meaning: TypeAlias = Callable[[Attributes, Arrays, Arrays], None]


def one_flop(_inputs: Sequence[Spec], outputs: Sequence[Spec], _: Attributes) -> int:
    """Count one operation an output element: the op is bound by memory."""
    return sum(spec.size for spec in outputs)


@dataclass(frozen=True, slots=True, eq=False)
class OpType:
    """What ops of one type mean, to graphs and to devices.

    Parameters
    ----------
    name : str
        The type's name, such as ``"conv2d"``.
    arity : int or None
        The number of inputs; None: any, from one on.
    infer : callable
        ``infer(inputs, attributes)`` gives a `Spec` for each output from those of the
        inputs; it raises GraphError for inputs that the op cannot take.
    numpy : callable
        ``numpy(attributes, inputs, outputs)`` fills the outputs, arrays that may be
        the inputs of the in-place pairs. It is the reference kernel, for every float
        type.
    in_place : tuple of (int, int), default ()
        Pairs (input, output), by position: the output may take the input's bytes.
    gradient : callable or None, default None
        ``gradient(adjoint)`` appends the backward ops, which read what backward needs,
        and returns a gradient for each input, or None. None: the op has no gradient.
    flops : callable, optional
        ``flops(inputs, outputs, attributes)``; one an output element when left out.
    replayable : bool, default True
        Whether it may be computed again: the same inputs give the same bits, and what
        it makes is worth dropping.
    float32_inputs : tuple of int or None, default ()
        Inputs, by position, that stay float32 where the others are bfloat16, such as
        statistics; None: all of them, since the op needs the digits.
    contraction : bool, default False
        Whether it sums products of two operands, as matrix products, convolutions
        and recurrent cells do; of a composite its parts say so.
    formula : Formula or None, default None
        The expressions of an element-wise op; `elementwise` makes them.
    composite : Composite or None, default None
        The ops that it stands for; `composite` makes them.
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

    def kernel_attributes(self, attributes: Attributes) -> Attributes:
        """Return what kernels read: the attributes, and an element-wise op's text.

        Parameters
        ----------
        attributes : mapping
            An op's attributes.

        Returns
        -------
        mapping
            The attributes, ``expression`` among them if the op is element-wise.
        """
        if self.formula is None:
            return attributes
        return self.formula.kernel_attributes(attributes)

    def __reduce__(self) -> Any:
        return op_type, (self.name,)


class Formula(Protocol):
    """What an element-wise op computes, as expressions of its operands."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Its attributes' defaults; None: there is none."""

    @property
    def is_activation(self) -> bool:
        """Whether it takes one array and nothing that must be said."""

    @property
    def gradients(self) -> Sequence[str]:
        """The op types of its gradients."""

    def kernel_attributes(self, attributes: Attributes) -> Attributes:
        """Return the attributes, with defaults and the expression as text."""


class Value(NamedTuple):
    """An output of a composite's part, or an input of the composite, whose part is -1.

    Parameters
    ----------
    part : int
        Which part, or -1.
    place : int
        Which output or input.
    """

    part: int
    place: int


class Part(NamedTuple):
    """One of the ops that a composite stands for.

    Parameters
    ----------
    type : str
        Its type.
    inputs : tuple of Value
        What it reads.
    outputs : int
        How many outputs it has.
    """

    type: str
    inputs: tuple[Value, ...]
    outputs: int


class Composite(Protocol):
    """The ops that a composite stands for; the last one follows from all others."""

    @property
    def parts(self) -> Sequence[Part]:
        """The ops, each after what it reads."""

    @property
    def outputs(self) -> Sequence[Value]:
        """What is made of them, in order; the other values stay inside."""

    @property
    def main(self) -> int:
        """The first part that is not element-wise, after which its ops are named."""

    @property
    def for_inference(self) -> bool:
        """Whether it stands in programs alone that train nothing."""

    def specs(
        self, inputs: Sequence[Spec], attributes: Attributes
    ) -> Mapping[Value, Spec]:
        """Return the specs of all values.

        Parameters
        ----------
        inputs : sequence of Spec
            Those of the composite's inputs.
        attributes : mapping
            The op's attributes.

        Returns
        -------
        mapping of Value to Spec
            Those of its inputs and of all outputs of its parts.

        Raises
        ------
        GraphError
            If the composite or a part cannot take the inputs.
        """


_types: dict[str, OpType] = {}


def register(*types: OpType) -> None:
    """Make op types known to graphs and devices.

    Parameters
    ----------
    *types : OpType
        The types, of names that are not taken.

    Raises
    ------
    ValueError
        If another type has one of the names.
    """
    names = [new.name for new in types]
    for name in names:
        if name in _types or names.count(name) > 1:
            raise ValueError(f"there is already an op type {name!r}")
    _types.update(zip(names, types, strict=True))


def unregister(name: str) -> None:
    """Remove an op type, as before its registration; graphs that have it stay as is.

    Parameters
    ----------
    name : str
        Its name. Of an element-wise op its gradients go with it.

    Raises
    ------
    GraphError
        If there is none.
    """
    kind = op_type(name)
    gone = () if kind.formula is None else kind.formula.gradients
    for each in (name, *gone):
        _types.pop(each, None)


def op_type(name: str) -> OpType:
    """Return the op type of a name.

    Parameters
    ----------
    name : str
        Such as ``"conv2d"``.

    Returns
    -------
    OpType
        What it means.

    Raises
    ------
    GraphError
        If there is none.
    """
    try:
        return _types[name]
    except KeyError:
        known = ", ".join(sorted(_types))
        raise GraphError(f"unknown op type {name!r}; known: {known}") from None


def op_types() -> tuple[OpType, ...]:
    """Return all op types, in the order in which they were registered.

    Returns
    -------
    tuple of OpType
        The types.
    """
    return tuple(_types.values())


def like(position: int = 0) -> Infer:
    """Infer one output of the shape and dtype of an input."""

    def infer(inputs: Sequence[Spec], _: Attributes) -> Sequence[Spec]:
        return [Spec(inputs[position].shape, inputs[position].dtype)]

    return infer


def common_dtype(inputs: Sequence[Spec]) -> str:
    """Return the dtype of all of these, or raise GraphError."""
    dtypes = [spec.dtype for spec in inputs]
    require(len(set(dtypes)) == 1, f"dtypes differ: {', '.join(dtypes)}")
    return dtypes[0]


def gradient_dtype(inputs: Sequence[Spec]) -> str:
    """Return the dtype of a parameter's gradient: of bfloat16 products float32."""
    dtype = common_dtype(inputs)
    return "float32" if dtype == "bfloat16" else dtype


def parameter_dtype(x: Spec, parameters: Sequence[Spec]) -> str:
    """Return the dtype of parameters and statistics: x's, or float32 by bfloat16."""
    if x.dtype == "bfloat16":
        return common_dtype([*parameters, Spec((), "float32")])
    return common_dtype([x, *parameters])


def require(condition: bool, message: str) -> None:
    """Raise GraphError with that message unless the condition holds."""
    if not condition:
        raise GraphError(message)
