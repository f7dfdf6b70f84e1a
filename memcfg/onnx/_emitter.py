"""The ONNX graph while it is made: nodes, stored arrays, and layouts of tensors.

A tensor of the graph is channels-last; ONNX's convolutions want channels first. A
`Form` is an ONNX value that has a tensor's numbers in some order of axes, and with axes
of length 1 where they are repeated. An op takes the form that it likes, so the
transposes between two convolutions cancel, and broadcasts are left to ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from memcfg.errors import GraphError
from memcfg.onnx._symbolic_lengths import Length
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcfg.onnx._symbolic_lengths import Number
    from memcfg.onnx._traced_graph import TracedOp, Traces

__all__ = ["DTYPES", "Emitter", "Form", "Node", "Perm", "Stored", "Subgraph"]

Array: TypeAlias = np.ndarray[Any, Any]
Perm: TypeAlias = tuple[int, ...]  # axis i of the ONNX value is axis perm[i]

DTYPES = {  # of tensors, and those of ONNX
    "float32": "float32",
    "float64": "float64",
    "bfloat16": "float32",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "bool": "bool",
}
_FOLDED = 1 << 20  # bytes of a constant that may be larger than what it is made of


class Form(NamedTuple):
    """An ONNX value that has the numbers of a tensor."""

    name: str
    perm: Perm
    dims: tuple[Number, ...]  # of the ONNX value, some 1 where they are repeated


@dataclass(frozen=True)
class Stored:
    """An array of the file; it is read when it is written."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]
    label: str  # from which a name is made
    learned: bool = False  # whether it is a weight, or made of one

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass
class Node:
    """A node of the ONNX graph."""

    type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass
class Subgraph:
    """The body of a `Scan`: nodes between named inputs and outputs."""

    nodes: list[Node]
    inputs: list[tuple[str, str, int]]  # name, dtype and rank
    outputs: list[tuple[str, str, int]]


class Emitter:
    """Makes the nodes of an ONNX graph, op by op."""

    def __init__(self, traces: Traces, read: Callable[[str], Array]) -> None:
        self.traces = traces
        self.nodes: list[Node] = []
        self.arrays: dict[str, Stored] = {}  # by the name of the initializer
        self.tensor_of: dict[str, int] = {}  # what ONNX values have the numbers of
        self.maker: dict[int, Node] = {}  # nodes to which a bias may be added
        self.last: dict[int, Form] = {}  # last step of sequences, [1, batch, units]
        self._forms: dict[int, list[Form]] = {}
        self._stored: dict[int, Stored] = {}
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}  # of each label so far
        self._made: dict[Any, str] = {}  # by what they are
        self._label = "result"
        self._read = read
        self._declare()

    def _declare(self) -> None:
        """Declare inputs and weights."""
        inputs = self.traces.inputs
        self._names |= {*inputs.values(), *(name for _, name in self.traces.outputs)}
        for tensor, name in inputs.items():
            value = self.traces.value(tensor)
            self.add(tensor, name, dims=value.shape)
        for tensor in self.traces.consumers:
            value = self.traces.value(tensor)
            if value.role == "parameter" and self.traces.maker(tensor) is None:
                shape, name = value.lengths or (), value.name

                def read(name: str = name) -> Array:
                    return self._read(name)

                self._stored[tensor] = Stored(
                    shape, value.dtype, read, name, learned=True
                )

    # Names and nodes

    def unique(self, label: str) -> str:
        """Return a new name."""
        name, number = label, self._numbers.get(label, 0)
        while name in self._names:
            number += 1
            name = f"{label}_{number}"
        self._numbers[label] = number
        self._names.add(name)
        return name

    def begin(self, op: TracedOp) -> None:
        """Name the following nodes after an op."""
        self._label = op.name

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        count: int = 1,
        label: str = "",
    ) -> list[str]:
        """Append a node; return the names of its outputs."""
        outputs = [self.unique(label or self._label) for _ in range(count)]
        given = Node(kind, list(inputs), outputs, dict(attributes or {}), outputs[0])
        self.nodes.append(given)
        return outputs

    def one(
        self, kind: str, *inputs: str, label: str = "", **attributes: object
    ) -> str:
        """Append a node of one output; return its name."""
        return self.node(kind, inputs, attributes, label=label)[0]

    def once(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Append a node unless there is the same one."""
        key = (kind, inputs, tuple(sorted(attributes.items())))
        if key not in self._made:
            self._made[key] = self.node(kind, inputs, attributes)[0]
        return self._made[key]

    # Stored arrays

    def store(self, stored: Stored) -> str:
        """Return the name of an array of the file."""
        key = ("stored", id(stored))
        if key not in self._made:
            name = self.unique(stored.label)
            self.arrays[name] = stored
            self._made[key] = name
        return self._made[key]

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Return the name of a small array, each stored once."""
        array = np.array(value, dtype, order="C")
        key = ("constant", dtype, array.shape, array.tobytes())
        if key not in self._made:
            label = "shape" if dtype == "int64" and array.ndim else "constant"
            name = self.unique(label)
            self.arrays[name] = Stored(array.shape, dtype, lambda: array, label)
            self._made[key] = name
        return self._made[key]

    def int64s(self, *values: int) -> str:
        """Return the name of a vector of int64."""
        return self.constant(values, "int64")

    def stored(self, tensor: int) -> Stored | None:
        """Return the array of a tensor that does not depend on inputs, or None."""
        return self._stored.get(tensor)

    def keep(self, tensor: int, stored: Stored) -> None:
        """Note that a tensor does not depend on inputs."""
        self._stored[tensor] = stored

    def fold(self, op: TracedOp) -> bool:
        """Compute an op of stored arrays when the file is written, if it is small."""
        given = [self._stored.get(each) for each in op.inputs]
        operands = [each for each in given if each is not None]
        values = [self.traces.value(each) for each in op.outputs]
        if len(operands) < len(given) or op.type in _KEPT:
            return False
        shapes = [each.lengths for each in values]
        known = [each for each in shapes if each is not None]
        dtypes = [DTYPES.get(each.dtype, "") for each in values]
        if len(known) < len(shapes) or not all(dtypes):
            return False
        rows = list(zip(known, dtypes, strict=True))
        size = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in rows)
        if size > max(_FOLDED, 2 * sum(each.nbytes for each in operands)):
            return False

        def compute() -> list[Array]:
            arrays = [each.read() for each in operands]
            outputs = [np.empty(shape, dtype) for shape, dtype in rows]
            with np.errstate(all="ignore"):
                op_type(op.type).numpy(op.attributes, arrays, outputs)
            return outputs

        learned = any(each.learned for each in operands)
        for place, (tensor, row) in enumerate(zip(op.outputs, rows, strict=True)):

            def read(place: int = place) -> Array:
                return compute()[place]

            self.keep(tensor, Stored(*row, read, values[place].name, learned))
        return True

    # Forms

    def add(
        self,
        tensor: int,
        name: str,
        perm: Perm | None = None,
        dims: Sequence[Number] | None = None,
    ) -> None:
        """Note that an ONNX value has the numbers of a tensor."""
        shape = self.traces.value(tensor).shape
        perm = tuple(range(len(shape))) if perm is None else perm
        if dims is None:
            dims = tuple(shape[axis] for axis in perm)
        self._forms.setdefault(tensor, []).append(Form(name, perm, tuple(dims)))
        self.tensor_of.setdefault(name, tensor)

    def forms(self, tensor: int) -> list[Form]:
        """Return the forms that a tensor has."""
        return self._forms.get(tensor, [])

    def share(self, tensor: int, other: int) -> None:
        """Give a tensor the forms of another."""
        self._forms.setdefault(tensor, []).extend(self.forms(other))
        if other in self._stored:
            self._stored[tensor] = self._stored[other]

    def layout(self, tensors: Sequence[int]) -> Perm:
        """Return the order of axes that most tensors have, of equal rank."""
        votes: dict[Perm, int] = {}
        for tensor in dict.fromkeys(tensors):
            if tensor not in self._stored:
                for perm in dict.fromkeys(form.perm for form in self.forms(tensor)):
                    votes[perm] = votes.get(perm, 0) + 1
        if not votes:
            rank = len(self.traces.value(tensors[0]).shape)
            return tuple(range(rank))
        return max(votes, key=votes.__getitem__)

    def form(self, tensor: int, perm: Perm | None = None) -> Form:
        """Return a form in an order of axes, in which axes may be of length 1."""
        shape = self.traces.value(tensor).shape
        perm = tuple(range(len(shape))) if perm is None else perm
        known = [form for form in self.forms(tensor) if form.perm == perm]
        if known:
            return min(known, key=lambda form: form.dims.count(1) == 0)
        stored = self._stored.get(tensor)
        if stored is not None and not self.forms(tensor):
            return self._form_of_stored(tensor, stored, perm)
        source = max(self.forms(tensor), key=lambda form: form.dims.count(1))
        axes = tuple(source.perm.index(axis) for axis in perm)
        dims = tuple(source.dims[axis] for axis in axes)
        self.add(tensor, self.once("Transpose", source.name, perm=axes), perm, dims)
        return self.forms(tensor)[-1]

    def _form_of_stored(self, tensor: int, stored: Stored, perm: Perm) -> Form:
        given = stored
        if perm != tuple(range(len(perm))):
            shape = tuple(stored.shape[axis] for axis in perm)

            def read() -> Array:
                return np.transpose(stored.read(), perm)

            given = replace(stored, shape=shape, read=read)
        self.add(tensor, self.store(given), perm)
        return self.forms(tensor)[-1]

    def full(self, tensor: int, perm: Perm | None = None) -> str:
        """Return the ONNX value of a tensor without repeated axes."""
        shape = self.traces.value(tensor).shape
        perm = tuple(range(len(shape))) if perm is None else perm
        wanted = tuple(shape[axis] for axis in perm)
        for form in self.forms(tensor):
            if (form.perm, form.dims) == (perm, wanted):
                return form.name
        narrow = self.form(tensor, perm)
        if narrow.dims == wanted:
            return narrow.name
        ends = [
            1 if known == length else length
            for known, length in zip(narrow.dims, wanted, strict=True)
        ]
        self.add(tensor, self.one("Expand", narrow.name, self.shape(ends)), perm)
        return self.forms(tensor)[-1].name

    # Shapes

    def length(self, length: Number) -> str:
        """Return the name of a vector of one length."""
        if not isinstance(length, Length):
            return self.int64s(length)
        name = ""
        for symbol in length.symbols:
            factor = self._symbol(symbol)
            name = self.once("Mul", name, factor) if name else factor
        if length.factor != 1:
            name = self.once("Mul", name, self.int64s(length.factor))
        if length.term:
            name = self.once("Add", name, self.int64s(length.term))
        return name

    def _symbol(self, symbol: str) -> str:
        """Return the name of the vector of a symbol, read from an input's shape."""
        wanted = Length(1, (symbol,), 0)
        for tensor, name in self.traces.inputs.items():
            shape = self.traces.value(tensor).shape
            if wanted in shape:
                axis = shape.index(wanted)
                return self.once("Shape", name, start=axis, end=axis + 1)
        raise GraphError(f"no input has an axis of the length {symbol}")

    def shape(self, lengths: Sequence[Number]) -> str:
        """Return the name of a vector of lengths."""
        if not any(isinstance(each, Length) for each in lengths):
            return self.int64s(*map(int, lengths))  # type: ignore[arg-type]
        parts: list[str] = []
        for known, run in _runs(lengths):
            parts.append(self.int64s(*run) if known else self.length(run[0]))
        return parts[0] if len(parts) == 1 else self.once_concat(parts)

    def once_concat(self, parts: Sequence[str]) -> str:
        """Return the name of vectors one after another."""
        return self.once("Concat", *parts, axis=0)

    def reshaped(self, name: str, lengths: Sequence[Number]) -> str:
        """Append a reshape, of which one length may be left to be derived."""
        unknown = [i for i, each in enumerate(lengths) if isinstance(each, Length)]
        if len(unknown) == 1 and 0 not in lengths:
            known = [-1 if i in unknown else each for i, each in enumerate(lengths)]
            return self.one("Reshape", name, self.int64s(*known))  # type: ignore[arg-type]
        return self.one("Reshape", name, self.shape(lengths))


_KEPT = frozenset({"random_uniform", "dropout"})  # ops that draw are no constants


def _runs(lengths: Sequence[Number]) -> Iterator[tuple[bool, list[Any]]]:
    """Yield runs of known lengths, and each unknown one."""
    run: list[Any] = []
    for each in lengths:
        if isinstance(each, Length):
            if run:
                yield True, run
                run = []
            yield False, [each]
        else:
            run.append(each)
    if run:
        yield True, run
