"""Tensors, ops and the graph that joins them: invariants, and ``memcfg.graph/1``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memcfg._cached import cached_property
from memcfg.documents import (
    Key,
    keys_of,
    read_as,
    read_count,
    read_document,
    read_list,
    read_text,
    write_json,
)
from memcfg.errors import FormatError, GraphError
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "PHASES",
    "ROLES",
    "STATE_ROLES",
    "TIMES",
    "Algorithm",
    "Graph",
    "Op",
    "Tensor",
    "Tier",
]

ROLES = (
    "input",
    "parameter",
    "gradient",
    "activation",
    "activation_gradient",
    "optimizer_state",
    "packed",  # a parameter once more, as a device's kernels like it best
    "output",
)
STATE_ROLES = ("parameter", "optimizer_state", "packed")  # resident between steps
PHASES = ("forward", "backward", "update")
TIMES = ("nominal", "measured")  # the first: the same on every machine
DTYPES = (  # NumPy's, and those of ml_dtypes that graphs of other frameworks have
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
)
_NO_SIZE = 2**63  # bytes
_FORMAT = "memcfg.graph/1"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that a step reads or makes; its id is its place in the graph.

    Parameters
    ----------
    name : str
        For people; unique in graphs that memcfg traces.
    nbytes : int
        Its size in bytes, not rounded.
    role : str
        One of `ROLES`.
    shape : tuple of int or None, default None
        Its shape, when known.
    dtype : str or None, default None
        Its NumPy dtype name, when known. Shape and dtype tell people what the tensor
        is; its size is `nbytes` alone, which may be more, since others pad.
    """

    name: str
    nbytes: int
    role: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way in which a device can run an op.

    Parameters
    ----------
    name : str
        Such as ``"onednn"``.
    seconds : float
        Its expected time in seconds.
    scratch_bytes : int
        The scratch that it needs while it runs, in bytes.
    """

    name: str
    seconds: float
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a step.

    Parameters
    ----------
    name : str
        For people; unique in graphs that memcfg traces.
    type : str
        The op type, such as ``"conv2d"``.
    phase : str
        One of `PHASES`.
    inputs, outputs : tuple of int
        Tensor ids.
    seconds : float, default 0.0
        Expected time of the default algorithm, in seconds.
    scratch_bytes : int, default 0
        Scratch of the default algorithm, in bytes.
    replayable : bool, default True
        Whether it may be computed again: the same inputs give the same bits, and what
        it makes is worth dropping.
    in_place : tuple of (int, int), default ()
        Pairs (input id, output id): the output may take the input's bytes.
    algorithms : tuple of Algorithm, default ()
        The choices of the device, the default first; may be empty.
    attributes : mapping, default {}
        What the kernel needs to know. Not part of the interchange format.
    group : str, default ""
        What it belongs to, such as a layer; a backward op to what its forward op
        belongs to. Not part of the interchange format.
    """

    name: str
    type: str
    phase: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float = 0.0
    scratch_bytes: int = 0
    replayable: bool = True
    in_place: tuple[tuple[int, int], ...] = ()
    algorithms: tuple[Algorithm, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    group: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Tier:
    """A lower tier of a device, where tensors may go.

    Parameters
    ----------
    name : str
        As plans name it, such as ``"host"``.
    bytes_per_second : float
        What a lane copies, each way; 0: copies take no time.
    limit_bytes : int or None, default None
        The most bytes there at a time; None is no limit.
    is_stated : bool, default False
        Whether whoever configured the device said that tensors may go there. `auto`
        swaps only then; a policy that swaps by its name needs nobody's word.
    is_measured : bool, default False
        Whether lanes were measured, and are not held to less; else the rate is nominal,
        or stated.
    """

    name: str
    bytes_per_second: float
    limit_bytes: int | None = None
    is_stated: bool = False
    is_measured: bool = False


@dataclass(frozen=True)
class Graph:
    """One step: tensors, ops in topological order, and what stays at the end.

    Parameters
    ----------
    name : str
        For people.
    tensors : tuple of Tensor
        A tensor's id is its place here.
    ops : tuple of Op
        In topological order, which is the default order of execution.
    keep : tuple of int
        Ids that must be resident at the end.
    losses : tuple of int, default ()
        Ids of the numbers of the forward phase that were differentiated: a guarded run
        ends where one of them is not finite. Not part of the interchange format.
    times : str, default "nominal"
        What the ops' seconds are: ``"nominal"``, stated or of a nominal machine, or
        ``"measured"`` on a device. Not part of the interchange format, and does not
        take part in comparison.
    tiers : tuple of Tier, default ()
        What the device has, in the order in which they are taken; empty: not known.
        Like `times` in other respects. `validate` proves their limits.

    Raises
    ------
    GraphError
        If the graph breaks an invariant: unknown ids, roles, phases or dtypes,
        negative sizes, a tensor with two producers or read before it is made, an
        in-place pair that is not of its op, two algorithms of one name, times that
        are not finite, whose sum is not, or of another kind, a loss that no forward op
        makes.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    keep: tuple[int, ...] = ()
    losses: tuple[int, ...] = ()
    times: str = field(default="nominal", compare=False)
    tiers: tuple[Tier, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        self.check()

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """For each tensor the index of the op that makes it, or None."""
        made: list[int | None] = [None] * len(self.tensors)
        for index, op in enumerate(self.ops):
            for output in op.outputs:
                made[output] = index
        return tuple(made)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the indices of the ops that read it, ascending."""
        readers: list[list[int]] = [[] for _ in self.tensors]
        for index, op in enumerate(self.ops):
            for tensor in dict.fromkeys(op.inputs):
                readers[tensor].append(index)
        return tuple(map(tuple, readers))

    @cached_property
    def aligned_bytes(self) -> tuple[int, ...]:
        """For each tensor its bytes, rounded up to the alignment of arenas."""
        return tuple([-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in self.tensors])

    @cached_property
    def aligned_scratch(self) -> tuple[int, ...]:
        """For each op the bytes of its default scratch, rounded up likewise."""
        return tuple([-(-op.scratch_bytes // ALIGNMENT) * ALIGNMENT for op in self.ops])

    @cached_property
    def persistent(self) -> tuple[int, ...]:
        """Ids of the state that no op makes: parameters, optimizer state, packed."""
        made = self.producer
        state = [
            i
            for i, tensor in enumerate(self.tensors)
            if tensor.role in STATE_ROLES and made[i] is None
        ]
        return tuple(state)

    def find(self, name: str) -> int:
        """Return the id of the tensor of that name.

        Parameters
        ----------
        name : str
            The tensor's name.

        Returns
        -------
        int
            Its id.

        Raises
        ------
        KeyError
            If no tensor, or more than one, has that name.
        """
        named = [i for i, tensor in enumerate(self.tensors) if tensor.name == name]
        if len(named) != 1:
            raise KeyError(
                f"graph {self.name!r} has {len(named)} tensors named {name!r}"
            )
        return named[0]

    def restricted(self, tensors: Sequence[int], ops: Sequence[Op]) -> Graph:
        """Return the graph of these tensors and ops alone, with tensors renumbered.

        Parameters
        ----------
        tensors : sequence of int
            Ids of the tensors that stay, in order: all that is read, made and kept.
        ops : sequence of Op
            Ops over tensors of this graph, in topological order.

        Returns
        -------
        Graph
            The smaller graph.

        Raises
        ------
        KeyError
            If a tensor is needed that does not stay.
        GraphError
            If the result breaks an invariant.
        """
        number = {tensor: number for number, tensor in enumerate(tensors)}.__getitem__

        def renumbered(ids: Iterable[int]) -> tuple[int, ...]:
            return tuple(map(number, ids))

        def changed(op: Op) -> Op:
            pairs = [(number(a), number(b)) for a, b in op.in_place]
            return replace(
                op,
                inputs=renumbered(op.inputs),
                outputs=renumbered(op.outputs),
                in_place=tuple(pairs),
            )

        return replace(
            self,
            tensors=tuple(map(self.tensors.__getitem__, tensors)),
            ops=tuple(map(changed, ops)),
            keep=renumbered(self.keep),
            losses=renumbered(self.losses),
        )

    def check(self) -> None:
        """Assert the invariants.

        Raises
        ------
        GraphError
            If one does not hold.
        """
        _check_tensors(self.tensors)
        available = self._sources()
        for op in self.ops:
            _check_op(op, available, len(self.tensors))
            available.update(op.outputs)
        for tensor_id in self.keep:
            if tensor_id not in available:
                raise GraphError(f"keep names tensor {tensor_id}, which does not exist")
        made = {t for op in self.ops if op.phase == "forward" for t in op.outputs}
        for tensor_id in self.losses:
            if tensor_id not in made:
                raise GraphError(f"no op of the forward phase makes loss {tensor_id}")
        if self.times not in TIMES:
            raise GraphError(f"times are one of {', '.join(TIMES)}, not {self.times!r}")
        longest = 0.0
        for op in self.ops:
            seconds = op.seconds
            for each in op.algorithms:
                seconds = max(seconds, each.seconds)
            longest += seconds
        if not math.isfinite(2 * longest):  # plans may compute an op twice
            raise GraphError("the times of the ops sum to more than a number can hold")

    def _sources(self) -> set[int]:
        made = {output for op in self.ops for output in op.outputs}
        return set(range(len(self.tensors))) - made

    def to_json(self) -> str:
        """Write the graph in the interchange format ``memcfg.graph/1``.

        Attributes of ops do not travel: the format states a planning problem, not
        a program.

        Returns
        -------
        str
            JSON text.
        """
        tensors = ",\n  ".join(write_json(_plain(t, _TENSOR)) for t in self.tensors)
        ops = ",\n  ".join(write_json(_plain_op(op)) for op in self.ops)
        return (
            f'{{"format": {write_json(_FORMAT)}, "name": {write_json(self.name)},\n'
            f' "tensors": [\n  {tensors}],\n "ops": [\n  {ops}],\n'
            f' "keep": {write_json(self.keep)}}}\n'
        )

    @staticmethod
    def from_json(text: str) -> Graph:
        """Read a graph in the interchange format.

        Parameters
        ----------
        text : str
            JSON text.

        Returns
        -------
        Graph
            The graph; its ops have no attributes and can be planned, not run.

        Raises
        ------
        FormatError
            If the text is not JSON, of another format or version, or has unknown,
            missing or mistyped keys.
        GraphError
            If what it says is not a graph.
        """
        return Graph(**read_document(text, "graph", _FORMAT, _GRAPH))


def _check_tensors(tensors: Iterable[Tensor]) -> None:
    """Check each tensor by itself."""
    for tensor in tensors:
        if tensor.role not in ROLES:
            raise GraphError(f"tensor {tensor.name!r}: unknown role {tensor.role!r}")
        if not 0 <= tensor.nbytes < _NO_SIZE:
            raise GraphError(
                f"tensor {tensor.name!r}: size {tensor.nbytes} is not from 0 to "
                "2**63 - 1"
            )
        if tensor.shape and min(tensor.shape) < 0:
            raise GraphError(
                f"tensor {tensor.name!r}: negative length in {tensor.shape}"
            )
        if tensor.dtype is not None and tensor.dtype not in DTYPES:
            raise GraphError(f"tensor {tensor.name!r}: unknown dtype {tensor.dtype!r}")


def _check_op(op: Op, available: set[int], count: int) -> None:
    if op.phase not in PHASES:
        raise GraphError(f"op {op.name!r}: unknown phase {op.phase!r}")
    for tensor in (*op.inputs, *op.outputs):
        if not 0 <= tensor < count:
            raise GraphError(f"op {op.name!r}: there is no tensor {tensor}")
    for tensor in op.inputs:
        if tensor not in available:
            raise GraphError(f"op {op.name!r} reads tensor {tensor} before it is made")
    inputs, outputs = set(op.inputs), set[int]()
    for tensor in op.outputs:
        if tensor in available or tensor in outputs:
            raise GraphError(f"op {op.name!r}: tensor {tensor} has two producers")
        outputs.add(tensor)
    for source, target in op.in_place:
        if source not in inputs or target not in outputs:
            raise GraphError(
                f"op {op.name!r}: in-place pair ({source}, {target}) is not an input "
                "and an output of it"
            )
    _check_costs(op)


def _check_costs(op: Op) -> None:
    costs = [(op.seconds, op.scratch_bytes)]
    if op.algorithms:
        names = {each.name for each in op.algorithms}
        if len(names) < len(op.algorithms):
            raise GraphError(f"op {op.name!r}: two algorithms of one name")
        costs += [(each.seconds, each.scratch_bytes) for each in op.algorithms]
    for seconds, scratch_bytes in costs:
        if not (math.isfinite(seconds) and seconds >= 0):
            raise GraphError(f"op {op.name!r}: negative or non-finite cost")
        if not 0 <= scratch_bytes < _NO_SIZE:
            raise GraphError(f"op {op.name!r}: scratch is from 0 to 2**63 - 1 bytes")


def _plain(value: object, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return fields by their keys; what is not known is left out."""
    return {
        name: each
        for name, key in keys.items()
        if (each := getattr(value, key.field)) is not None
    }


def _plain_op(op: Op) -> dict[str, Any]:
    plain = _plain(op, _OP)
    choices = plain.pop("algorithms")
    if choices:
        plain["algorithms"] = [_plain(choice, _ALGORITHM) for choice in choices]
    return plain


def _read_pair(value: Any, where: str) -> tuple[int, ...]:
    pair: tuple[int, ...] = _IDS(value, where)
    if len(pair) != 2:
        raise FormatError(f"{where} should be a pair [input, output]")
    return pair


_IDS = read_list(read_count)
_ALGORITHM = keys_of(Algorithm)
_TENSOR = {
    "bytes" if name == "nbytes" else name: key for name, key in keys_of(Tensor).items()
}
_OP = keys_of(
    Op,
    without=("attributes", "group"),
    in_place=read_list(_read_pair),
    algorithms=read_list(read_as(Algorithm, _ALGORITHM)),
)
_GRAPH = {
    "name": Key(read_text),
    "tensors": Key(read_list(read_as(Tensor, _TENSOR))),
    "ops": Key(read_list(read_as(Op, _OP))),
    "keep": Key(_IDS),
}
