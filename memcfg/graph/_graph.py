"""Tensors, ops and graphs: invariants and the interchange format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from operator import attrgetter
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
    "Link",
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
    "packed",  # a copy of a parameter in the layout that a device's kernels prefer
    "output",
)
STATE_ROLES = ("parameter", "optimizer_state", "packed")  # resident between steps
PHASES = ("forward", "backward", "update")
TIMES = ("nominal", "measured")  # nominal times are the same on every machine
DTYPES = (  # of NumPy, and of ml_dtypes for graphs of other frameworks
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
)
_NO_SIZE = 2**63  # bytes; exclusive upper bound of sizes
_FORMAT = "memcfg.graph/1"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that a step reads or computes; its id is its index in the graph.

    Parameters
    ----------
    name : str
        Display name; unique in graphs that memcfg traces.
    nbytes : int
        Size in bytes, not rounded.
    role : str
        One of `ROLES`.
    shape : tuple of int or None, default None
        Shape, if known.
    dtype : str or None, default None
        NumPy dtype name, if known. Shape and dtype are informative: the size is
        `nbytes`, which may be larger because other frameworks pad.
    """

    name: str
    nbytes: int
    role: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm of a device for an op.

    Parameters
    ----------
    name : str
        Name, such as ``"onednn"``.
    seconds : float
        Expected time in seconds.
    scratch_bytes : int
        Scratch needed while it runs, in bytes.
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
        Display name; unique in graphs that memcfg traces.
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
        Whether the op may be recomputed: the same inputs give the same bits, and
        dropping its outputs saves memory.
    in_place : tuple of (int, int), default ()
        Pairs (input id, output id) where the output may overwrite the input.
    algorithms : tuple of Algorithm, default ()
        The device's algorithms, the default first; may be empty.
    attributes : mapping, default {}
        Parameters of the kernel. Not part of the interchange format.
    group : str, default ""
        The group of the op, such as a layer; a backward op has the group of its forward
        op. Not part of the interchange format.
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
    """A lower memory tier of a device, to which tensors can be swapped.

    Parameters
    ----------
    name : str
        Name in plans, such as ``"host"``.
    bytes_per_second : float
        Bytes that a lane copies per second in each direction; 0 if copies take no time.
    limit_bytes : int or None, default None
        The most bytes on the tier at a time; None if there is no limit.
    is_stated : bool, default False
        Whether the user has configured the tier. `auto` swaps only to such tiers;
        policies that swap by definition use any.
    is_measured : bool, default False
        Whether the rate was measured and is not throttled; otherwise it is nominal or
        configured.
    """

    name: str
    bytes_per_second: float
    limit_bytes: int | None = None
    is_stated: bool = False
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """The network between the ranks of a group, over which collectives run.

    Parameters
    ----------
    seconds : float
        The latency of a collective.
    bytes_per_second : float
        Bytes that each rank sends, and receives, per second; 0 if they take no time.
    """

    seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Graph:
    """One step: tensors, ops in topological order, and the tensors to keep.

    Parameters
    ----------
    name : str
        Display name.
    tensors : tuple of Tensor
        The tensors; the id of a tensor is its index.
    ops : tuple of Op
        The ops in topological order, which is the default order of execution.
    keep : tuple of int
        Ids of tensors that must be resident at the end.
    losses : tuple of int, default ()
        Ids of scalars of the forward phase that were differentiated. A guarded run
        stops if one of them is not finite. Not part of the interchange format.
    times : str, default "nominal"
        Kind of the ops' seconds: ``"nominal"`` (given, or of a nominal machine) or
        ``"measured"`` on a device. Not part of the interchange format, and ignored in
        comparisons.
    tiers : tuple of Tier, default ()
        The device's tiers in order of preference; empty if unknown. `validate` checks
        their limits. Not part of the interchange format, and ignored in comparisons.
    outside : tuple of int, default ()
        Ids of tensors that lie in arrays of the caller while a step runs: results, and
        what is reshaped to them. They have no bytes in the arena, so their `nbytes` is
        0. Not part of the interchange format.
    link : Link or None, default None
        The network of the step's collectives; None if unknown. Not part of the
        interchange format, and ignored in comparisons.
    lines : mapping of str to str, default {}
        Files and lines of the user's program, such as ``"train.py:12"``, by the names
        of ops or of their groups, where they are known. Not part of the interchange
        format, and ignored in comparisons.

    Raises
    ------
    GraphError
        If an invariant does not hold: unknown ids, roles, phases, dtypes or kind of
        times; negative sizes; a tensor with two producers or read before it is
        produced; an in-place pair that is not an input and an output of its op;
        duplicate algorithm names; times that are negative, not finite or have an
        infinite sum; a loss that no forward op produces; a tensor outside of the arena
        that has bytes in it, or that no op produces.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    keep: tuple[int, ...] = ()
    losses: tuple[int, ...] = ()
    times: str = field(default="nominal", compare=False)
    tiers: tuple[Tier, ...] = field(default=(), compare=False)
    outside: tuple[int, ...] = ()
    link: Link | None = field(default=None, compare=False)
    lines: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.check()

    @cached_property
    def batch_size(self) -> int | None:
        """The length of the first axis of all inputs with axes; None if they differ."""
        inputs = (each for each in self.tensors if each.role == "input")
        lengths = {each.shape[0] for each in inputs if each.shape}
        return lengths.pop() if len(lengths) == 1 else None

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """For each tensor, the index of the op that produces it, or None."""
        made: list[int | None] = [None] * len(self.tensors)
        for index, op in enumerate(self.ops):
            for output in op.outputs:
                made[output] = index
        return tuple(made)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the indices of the ops that read it, ascending."""
        readers: list[list[int]] = [[] for _ in self.tensors]
        for index, op in enumerate(self.ops):
            for tensor in dict.fromkeys(op.inputs):
                readers[tensor].append(index)
        return tuple(map(tuple, readers))

    @cached_property
    def aligned_bytes(self) -> tuple[int, ...]:
        """For each tensor, its bytes rounded up to the alignment of arenas."""
        return tuple([-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in self.tensors])

    @cached_property
    def aligned_scratch(self) -> tuple[int, ...]:
        """For each op, the bytes of its default scratch rounded up likewise."""
        return tuple([-(-op.scratch_bytes // ALIGNMENT) * ALIGNMENT for op in self.ops])

    @cached_property
    def persistent(self) -> tuple[int, ...]:
        """Ids of the state that no op produces: parameters, optimizer state, packed."""
        made = self.producer
        state = [
            i
            for i, tensor in enumerate(self.tensors)
            if tensor.role in STATE_ROLES and made[i] is None
        ]
        return tuple(state)

    def find(self, name: str) -> int:
        """Return the id of the tensor with a name.

        Parameters
        ----------
        name : str
            The tensor's name.

        Returns
        -------
        int
            The tensor's id.

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
        """Return the graph restricted to these tensors and ops, tensors renumbered.

        Parameters
        ----------
        tensors : sequence of int
            Ids of the remaining tensors, in order. They must include all tensors that
            the ops read or write and those in `keep` and `losses`.
        ops : sequence of Op
            Ops over tensors of this graph, in topological order.

        Returns
        -------
        Graph
            The smaller graph.

        Raises
        ------
        KeyError
            If a required tensor is missing in `tensors`.
        GraphError
            If the result breaks an invariant.
        """
        number = {tensor: number for number, tensor in enumerate(tensors)}.__getitem__

        changed = []
        for op in ops:
            pairs = [(number(a), number(b)) for a, b in op.in_place]
            reads, makes = tuple(map(number, op.inputs)), tuple(map(number, op.outputs))
            changed.append(
                replace(op, inputs=reads, outputs=makes, in_place=tuple(pairs))
            )
        return replace(
            self,
            tensors=tuple(map(self.tensors.__getitem__, tensors)),
            ops=tuple(changed),
            keep=tuple(map(number, self.keep)),
            losses=tuple(map(number, self.losses)),
            outside=tuple(map(number, self.outside)),
        )

    def check(self) -> None:
        """Check the invariants.

        Raises
        ------
        GraphError
            If an invariant does not hold.
        """
        _check_tensors(self.tensors)
        _check_ops(self.ops, len(self.tensors))
        _check_costs(self.ops)
        for tensor_id in self.keep:
            if not 0 <= tensor_id < len(self.tensors):
                raise GraphError(f"keep names tensor {tensor_id}, which does not exist")
        made = {t for op in self.ops if op.phase == "forward" for t in op.outputs}
        for tensor_id in self.losses:
            if tensor_id not in made:
                raise GraphError(f"no forward op produces loss {tensor_id}")
        for tensor_id in self.outside:
            if tensor_id not in made or self.tensors[tensor_id].nbytes:
                raise GraphError(
                    f"tensor {tensor_id} cannot lie outside of the arena: no forward "
                    "op produces it, or it has bytes there"
                )
        if self.times not in TIMES:
            known = ", ".join(TIMES)
            raise GraphError(f"times must be one of {known}, not {self.times!r}")

    def to_json(self) -> str:
        """Return the graph in the interchange format ``memcfg.graph/1``.

        Attributes of ops are not written: the format describes a planning problem, not
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
            If the described graph breaks an invariant.
        """
        return Graph(**read_document(text, "graph", _FORMAT, _GRAPH))


def _check_tensors(tensors: Iterable[Tensor]) -> None:
    """Check role, size, shape and dtype of each tensor."""
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


def _check_ops(ops: Sequence[Op], count: int) -> None:
    """Check the phase, order and in-place pairs of ops over `count` tensors."""
    ids = set(range(count))
    available = ids.difference(*[op.outputs for op in ops])
    for op in ops:
        if op.phase not in PHASES:
            raise GraphError(f"op {op.name!r}: unknown phase {op.phase!r}")
        inputs, outputs = set(op.inputs), set(op.outputs)
        if strange := (inputs | outputs) - ids:
            raise GraphError(f"op {op.name!r}: there is no tensor {min(strange)}")
        if early := inputs - available:
            raise GraphError(
                f"op {op.name!r} reads tensor {min(early)} before it is computed"
            )
        if len(outputs) < len(op.outputs) or outputs & available:
            twice = [t for t in op.outputs if t in available or op.outputs.count(t) > 1]
            raise GraphError(f"op {op.name!r}: tensor {twice[0]} has two producers")
        for source, target in op.in_place:
            if source not in inputs or target not in outputs:
                raise GraphError(
                    f"op {op.name!r}: in-place pair ({source}, {target}) is not an "
                    "input and an output of the op"
                )
        available |= outputs


def _check_costs(ops: Iterable[Op]) -> None:
    """Check the seconds and the scratch of each algorithm, and the longest time."""
    longest = 0.0
    for op in ops:
        slowest = 0.0
        costs: tuple[Op | Algorithm, ...] = (op, *op.algorithms)
        for each in costs:
            if not (math.isfinite(each.seconds) and each.seconds >= 0):
                raise GraphError(f"op {op.name!r}: negative or non-finite cost")
            if not 0 <= each.scratch_bytes < _NO_SIZE:
                raise GraphError(f"op {op.name!r}: scratch is not in [0, 2**63) bytes")
            slowest = max(slowest, each.seconds)
        longest += slowest
        names = set(map(attrgetter("name"), op.algorithms))
        if len(names) < len(op.algorithms):
            raise GraphError(f"op {op.name!r}: duplicate algorithm names")
    if not math.isfinite(2 * longest):  # plans may compute an op twice
        raise GraphError("the sum of the ops' times overflows")


def _plain(value: object, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return the fields of an object by key, without those that are None."""
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
