"""The builder of graphs: names and roles of tensors, casts to the compute dtype."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.errors import GraphError
from memcfg.graph._allowance import spend
from memcfg.graph._cost import nominal_seconds
from memcfg.graph._graph import ROLES, Graph, Op, Tensor
from memcfg.ops import OpType, Spec, op_type
from memcfg.ops._dtypes import item_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Builder", "Integers"]

_FLOATS = ("float32", "bfloat16")  # dtypes that `Builder.cast` converts
# Ops that copy an input, and the place of both the input and the copy.
_COPYING = {"cast": 0, "reshape": 0}
_ROLE_OF_PHASE = {"forward": "activation", "backward": "activation_gradient"}


class Rule(NamedTuple):
    """How gradients of tensors lead to those of others."""

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    call: Callable[[Sequence[int]], Sequence[int | None]]


class Integers(NamedTuple):
    """Tensors that a weight, or some columns of it, is the product of.

    Parameters
    ----------
    codes : int
        Integers of 8 bits in the shape of the weight, or of 4 bits in groups.
    scales : int
        The scale of each column, or of each in each group.
    group : int or None, default None
        Rows of a group; None: the integers have 8 bits.
    """

    codes: int
    scales: int
    group: int | None = None


class Builder:
    """Builder of a graph, one op at a time.

    Parameters
    ----------
    name : str
        The graph's name.
    reserved : iterable of str, default ()
        Names that no op gets, reserved for `tensor`.

    Examples
    --------
    >>> builder = Builder("twice")
    >>> x = builder.tensor("x", (2, 3), role="input")
    >>> (y,) = builder.apply("add", (x, x), name="y")
    >>> builder.build(keep=[y]).tensors[y].nbytes
    24
    """

    def __init__(self, name: str, reserved: Iterable[str] = ()) -> None:
        self.name = name
        self.group: str | None = None  # group of following ops; None: the op's name
        self.training = False  # whether `gradients` will be called
        self.lines: Mapping[str, str] = {}  # of the program, by group: see `Graph`
        self.phase = "forward"  # of ops that are appended without a phase
        # dtype in which ops of the forward phase compute, "float32" or "bfloat16":
        # floats of another dtype are cast first. None: the dtype of the inputs.
        self.compute_dtype: str | None = None
        # weights of which products may be computed from integers and scales, in parts
        # of consecutive columns
        self.integers: dict[int, Sequence[Integers]] = {}
        self._reserved = frozenset(reserved)
        self._tensors: list[Tensor] = []
        self._specs: list[Spec] = []  # of the tensors, without suffix and role
        self._ops: list[Op] = []
        self._names: set[str] = set()  # of tensors and ops
        # Name and suffixes of outputs -> first number that may be free.
        self._numbers: dict[tuple[str, ...], int] = {}
        self._losses: dict[int, None] = {}
        self._makers: dict[int, Op] = {}
        self._casts: dict[tuple[int, str, bool], int] = {}  # tensor, dtype, backward
        self._copies: dict[int, Op] = {}  # copy of a parameter -> its op
        self._remade: dict[int, int] = {}  # copy -> copy for the backward phase
        self.rules: dict[int, Rule] = {}  # of gradients, by output: see `with_rule`

    @property
    def ops(self) -> Sequence[Op]:
        """The ops appended so far, in order."""
        return tuple(self._ops)

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        role: str = "activation",
    ) -> int:
        """Declare a tensor that no op produces: an input or state.

        Parameters
        ----------
        name : str
            A name that is not in use yet.
        shape : sequence of int
            The shape; ``()`` for a scalar.
        dtype : str, default "float32"
            A NumPy dtype name.
        role : str, default "activation"
            One of `memcfg.graph.ROLES`.

        Returns
        -------
        int
            The tensor's id.

        Raises
        ------
        GraphError
            If the name is in use or the role is unknown.
        """
        if name in self._names:
            raise GraphError(f"graph {self.name!r} already has a tensor {name!r}")
        if role not in ROLES:
            raise GraphError(f"tensor {name!r}: unknown role {role!r}")
        return self._append(name, Spec(tuple(shape), dtype), role)

    def apply(
        self,
        type: str,  # noqa: A002  (the field's name)
        inputs: Sequence[int],
        attributes: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        phase: str | None = None,
    ) -> tuple[int, ...]:
        """Append an op.

        Parameters
        ----------
        type : str
            The op type.
        inputs : sequence of int
            Tensor ids, in the order that the type documents.
        attributes : mapping, optional
            The type's attributes.
        name : str, default ""
            Name of the op and its first output, by default the type; a number is
            appended if it is in use.
        phase : str, optional
            One of `memcfg.graph.PHASES`; by default `Builder.phase`, which is
            ``"forward"`` unless it is set.

        Returns
        -------
        tuple of int
            The ids of the outputs.

        Raises
        ------
        GraphError
            If the type is unknown or does not accept these inputs, or the allowance of
            ops is used up.
        """
        spend()
        phase = self.phase if phase is None else phase
        kind = op_type(type)
        if kind.arity is not None and len(inputs) != kind.arity:
            raise GraphError(f"{type} takes {kind.arity} inputs, not {len(inputs)}")
        if kind.arity is None and not inputs:
            raise GraphError(f"{type} takes at least one input")
        if phase == "forward" and self.compute_dtype is not None and type != "cast":
            inputs = self._in_compute_dtype(kind, inputs)
        if phase == "backward":
            inputs = [self._again(tensor) for tensor in inputs]
        operands = [self._spec(tensor) for tensor in inputs]
        results = kind.infer(operands, attributes or {})
        suffixes = [spec.suffix and f":{spec.suffix}" for spec in results]
        label = self._unique(name or type, suffixes)
        outputs: tuple[int, ...] = ()
        for place, spec in enumerate(results):
            role = spec.role or self._role(kind, inputs, place, phase)
            outputs += (self._append(label + suffixes[place], spec, role),)
        made = Op(
            label,
            type,
            phase,
            tuple(inputs),
            outputs,
            seconds=nominal_seconds(kind, operands, results, attributes or {}),
            replayable=kind.replayable,
            in_place=tuple(
                [
                    (inputs[i], outputs[o])
                    for i, o in kind.in_place
                    if max(i - len(operands), o - len(results)) < 0
                    if operands[i].dtype == results[o].dtype
                ]
            ),
            attributes=dict(attributes or {}),
            group=label if self.group is None else self.group,
        )
        self._ops.append(made)
        self._makers.update(dict.fromkeys(outputs, made))
        copied = _COPYING.get(type) if phase == "forward" else None
        if copied is not None and self._is_parameter(inputs[copied]):
            self._copies[outputs[copied]] = made
        return outputs

    def cast(self, tensor: int, dtype: str, *, phase: str | None = None) -> int:
        """Cast a tensor to another float dtype.

        Parameters
        ----------
        tensor : int
            The tensor's id.
        dtype : str
            ``"float32"`` or ``"bfloat16"``.
        phase : str, optional
            As of `apply`.

        Returns
        -------
        int
            The id of the cast tensor, or `tensor` if it has that dtype already or is
            neither float32 nor bfloat16. A tensor is cast at most once in the backward
            phase and once in the others.
        """
        phase = self.phase if phase is None else phase
        source = self._tensors[tensor]
        if source.dtype == dtype or source.dtype not in _FLOATS:
            return tensor
        key = (tensor, dtype, phase == "backward")
        if key not in self._casts:
            (made,) = self.apply(
                "cast",
                (tensor,),
                {"dtype": dtype},
                name=f"{source.name}/{dtype}",
                phase=phase,
            )
            self._casts[key] = made
        return self._casts[key]

    def with_rule(
        self,
        outputs: Sequence[int],
        inputs: Sequence[int],
        rule: Callable[[Sequence[int]], Sequence[int | None]],
        name: str,
    ) -> list[int]:
        """Copy tensors whose gradients a rule gives, instead of those of their ops.

        Parameters
        ----------
        outputs : sequence of int
            The tensors, made from the inputs.
        inputs : sequence of int
            The tensors to which `rule` leads.
        rule : callable
            ``rule(gradients)`` appends backward ops to the gradients of all outputs,
            and returns a gradient or None for each input.
        name : str
            Name of the copies.

        Returns
        -------
        list of int
            The ids of the copies.
        """
        copies = [
            self.apply("stop_gradient", (each,), name=name)[0] for each in outputs
        ]
        given = Rule(tuple(copies), tuple(inputs), rule)
        self.rules |= dict.fromkeys(copies, given)
        return copies

    def overwritten(self, tensor: int) -> int:
        """Return the tensor whose place an updated tensor takes.

        Parameters
        ----------
        tensor : int
            The result of a chain of updates.

        Returns
        -------
        int
            The id of what no op made in place, such as a weight.
        """
        while (op := self.maker(tensor)) is not None:
            old = next((old for old, new in op.in_place if new == tensor), None)
            if old is None:
                break
            tensor = old
        return tensor

    def _is_parameter(self, tensor: int) -> bool:
        """Return whether a tensor is a parameter or a copy of one."""
        return tensor in self._copies or self._tensors[tensor].role == "parameter"

    def _again(self, tensor: int) -> int:
        """Return the backward phase's own copy of a parameter's copy.

        So the forward phase's copy need not stay resident. Other tensors are returned
        as they are.
        """
        copy = self._copies.get(tensor)
        if copy is None:
            return tensor
        if tensor not in self._remade:
            self._remade[tensor] = self.apply(
                copy.type,
                copy.inputs,  # `apply` copies these again as well
                copy.attributes,
                name=f"{copy.name}/again",
                phase="backward",
            )[_COPYING[copy.type]]
        return self._remade[tensor]

    def _in_compute_dtype(self, kind: OpType, inputs: Sequence[int]) -> list[int]:
        """Cast inputs to the compute dtype, or to float32 where the op requires it."""
        kept = kind.float32_inputs
        assert self.compute_dtype is not None
        return [
            self.cast(
                tensor,
                "float32" if kept is None or place in kept else self.compute_dtype,
            )
            for place, tensor in enumerate(inputs)
        ]

    def note_loss(self, tensor: int, instead_of: int | None = None) -> None:
        """Mark a scalar as a loss, which guarded runs check; `gradients` calls it.

        Parameters
        ----------
        tensor : int
            The scalar's id.
        instead_of : int, optional
            A marked scalar that is not to be checked any more, such as this rank's
            share of the loss.
        """
        if instead_of is not None:
            self._losses.pop(instead_of, None)
        self._losses[tensor] = None

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Parameters
        ----------
        tensor : int
            The tensor's id.

        Returns
        -------
        tuple of int
            The shape.
        """
        return self._spec(tensor).shape

    def dtype(self, tensor: int) -> str:
        """Return the dtype name of a tensor.

        Parameters
        ----------
        tensor : int
            The tensor's id.

        Returns
        -------
        str
            A NumPy dtype name.
        """
        return self._spec(tensor).dtype

    def maker(self, tensor: int) -> Op | None:
        """Return the op that produces a tensor.

        Parameters
        ----------
        tensor : int
            The tensor's id.

        Returns
        -------
        Op or None
            The op; None for inputs and state.
        """
        return self._makers.get(tensor)

    def build(self, keep: Sequence[int]) -> Graph:
        """Return the graph.

        Parameters
        ----------
        keep : sequence of int
            Ids of tensors that must be resident at the end; activations among them get
            the role ``"output"``.

        Returns
        -------
        Graph
            The checked graph.

        Raises
        ------
        GraphError
            If an id does not exist.
        """
        tensors = list(self._tensors)
        for tensor in keep:
            if not 0 <= tensor < len(tensors):
                raise GraphError(f"keep names tensor {tensor}, which does not exist")
            if tensors[tensor].role == "activation":
                tensors[tensor] = replace(tensors[tensor], role="output")
        return Graph(
            self.name,
            tuple(tensors),
            tuple(self._ops),
            tuple(keep),
            tuple(self._losses),
            lines=self.lines,
        )

    def _append(self, name: str, spec: Spec, role: str) -> int:
        nbytes = prod(spec.shape) * item_bytes(spec.dtype)
        self._names.add(name)
        self._specs.append(Spec(spec.shape, spec.dtype))
        self._tensors.append(Tensor(name, nbytes, role, spec.shape, spec.dtype))
        return len(self._tensors) - 1

    def _spec(self, tensor: int) -> Spec:
        if not 0 <= tensor < len(self._tensors):
            raise GraphError(f"graph {self.name!r} has no tensor {tensor}")
        return self._specs[tensor]

    def _unique(self, name: str, suffixes: Sequence[str]) -> str:
        """Return and register an unused name for an op and its outputs."""
        key = name, *suffixes
        number = self._numbers.get(key, 0)  # lower numbers are in use for good
        label = f"{name}_{number}" if number else name
        while label in self._reserved or not self._names.isdisjoint(
            [label, *map(label.__add__, suffixes)]
        ):
            number += 1
            label = f"{name}_{number}"
        self._numbers[key] = number + 1
        self._names.add(label)
        return label

    def _role(self, kind: OpType, inputs: Sequence[int], place: int, phase: str) -> str:
        """Return the role of an output whose spec states none."""
        if phase == "update":
            replaced = next((i for i, o in kind.in_place if o == place), len(inputs))
            if replaced < len(inputs):
                return self._tensors[inputs[replaced]].role
            return "activation_gradient"  # what only updates read
        roles = {self._tensors[tensor].role for tensor in inputs}
        if phase == "backward" and roles == {"gradient"}:
            return "gradient"  # the sum of a shared parameter's gradients
        return _ROLE_OF_PHASE[phase]
