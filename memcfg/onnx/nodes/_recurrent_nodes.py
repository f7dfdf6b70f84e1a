"""Recurrent layers: ONNX's own where they compute the same, else a `Scan`.

ONNX's LSTM, GRU and RNN multiply the input by a kernel themselves. They take the place
of a product, a bias and the steps, if nothing else reads those and no step is masked.
The order of gates differs: i, f, c, o here and i, o, f, c there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memcfg.onnx._emitter import Form, Node, Stored, Subgraph
from memcfg.onnx._symbolic_lengths import Length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.onnx._emitter import Array, Emitter
    from memcfg.onnx._symbolic_lengths import Number
    from memcfg.onnx._traced_graph import TracedOp

__all__ = ["recurrent"]

_TIME_FIRST = (1, 0, 2)


class _Cell(NamedTuple):
    """How ONNX names a cell, and in which order it has the gates."""

    node: str
    gates: tuple[int, ...]
    states: int


_CELLS = {
    "lstm": _Cell("LSTM", (0, 3, 1, 2), 2),
    "gru": _Cell("GRU", (0, 1, 2), 1),
    "simple_rnn": _Cell("RNN", (0,), 1),
}


def recurrent(emitter: Emitter, op: TracedOp) -> None:
    """Append a recurrent layer over a whole sequence."""
    cell = _CELLS[op.type]
    z, kernel, *rest = op.inputs
    bias = rest.pop(0) if op.type == "gru" else None
    states, mask = rest[: cell.states], rest[cell.states :]
    product = _product(emitter, z)
    recurrent = emitter.stored(kernel)
    second = None if bias is None else emitter.stored(bias)
    if (
        product is None
        or mask
        or recurrent is None
        or (bias is not None and second is None)
        or not _reads_last_cells(emitter, op)
    ):
        _scan(emitter, op, cell, (z, kernel, bias), states, mask)
        return
    x, weight, first = product
    operands = [
        emitter.full(x, _TIME_FIRST),
        emitter.store(_gates(weight, cell)),
        emitter.store(_gates(recurrent, cell)),
        emitter.store(_biases(first, second, recurrent.shape[1], cell, op.name)),
        "",
        *(_initial(emitter, each) for each in states),
    ]
    while not operands[-1]:
        operands.pop()
    attributes = {"hidden_size": recurrent.shape[0]}
    if op.type == "gru":
        attributes["linear_before_reset"] = 1
    names = emitter.node(cell.node, operands, attributes, count=1 + cell.states)
    steps = emitter.one("Squeeze", names[0], emitter.int64s(1))
    emitter.add(op.outputs[0], steps, _TIME_FIRST)
    batch, _, units = emitter.traces.value(op.outputs[0]).shape
    for tensor, name in zip(op.outputs[: cell.states], names[1:], strict=True):
        emitter.last[tensor] = Form(name, _TIME_FIRST, (1, batch, units))


def _product(emitter: Emitter, z: int) -> tuple[int, Stored, Stored | None] | None:
    """Return the input, kernel and bias of products that only the layer reads."""
    traces = emitter.traces
    first = None
    maker = traces.maker(z)
    if maker is not None and maker.type == "bias" and traces.is_read_once(z):
        first = emitter.stored(maker.inputs[1])
        z, maker = maker.inputs[0], traces.maker(maker.inputs[0])
        if first is None:
            return None
    if maker is None or maker.type != "dense" or not traces.is_read_once(z):
        return None
    weight = emitter.stored(maker.inputs[1])
    return None if weight is None else (maker.inputs[0], weight, first)


def _reads_last_cells(emitter: Emitter, op: TracedOp) -> bool:
    """Return whether of an LSTM's cells only those of the last step are read."""
    if op.type != "lstm":
        return True
    for index in emitter.traces.consumers.get(op.outputs[1], ()):
        reader = emitter.traces.op(index)
        length = emitter.traces.value(op.outputs[1]).shape[1]
        if reader.type != "slice" or reader.attributes["end"][1] != length:
            return False
        begin = reader.attributes["begin"][1]
        after = begin.plus(1) if isinstance(begin, Length) else begin + 1
        if after != length:
            return False
    return all(op.outputs[1] != tensor for tensor, _ in emitter.traces.outputs)


def _gates(kernel: Stored, cell: _Cell) -> Stored:
    """Return a kernel as ONNX has it, [1, gates * units, inputs]."""

    def read() -> Array:
        parts = np.split(kernel.read(), len(cell.gates), axis=1)
        return np.concatenate([parts[i] for i in cell.gates], axis=1).T[None]

    return replace(kernel, shape=(1, *kernel.shape[::-1]), read=read)


def _biases(
    first: Stored | None, second: Stored | None, width: int, cell: _Cell, name: str
) -> Stored:
    """Return the biases of the input's and of the recurrent kernel, one after another.

    A bias may be stored in another shape, such as two rows of which one is taken.
    """

    def read() -> Array:
        rows = [
            np.zeros(width, np.float32) if each is None else each.read().reshape(-1)
            for each in (first, second)
        ]
        parts = [np.split(row, len(cell.gates)) for row in rows]
        return np.concatenate([row[i] for row in parts for i in cell.gates])[None]

    label = f"{name}/biases" if first is None else first.label
    return Stored((1, 2 * width), "float32", read, label, learned=True)


def _initial(emitter: Emitter, state: int) -> str:
    """Return an initial state [1, batch, units]; "" for zeros."""
    maker = emitter.traces.maker(state)
    if maker is not None and maker.type == "fill" and maker.attributes["value"] == 0:
        return ""
    return emitter.one("Unsqueeze", emitter.full(state), emitter.int64s(0))


def _scan(
    emitter: Emitter,
    op: TracedOp,
    cell: _Cell,
    weights: tuple[int, int, int | None],
    states: Sequence[int],
    mask: Sequence[int],
) -> None:
    """Append a scan whose body is one step."""
    z, kernel, bias = weights
    names = [emitter.full(each) for each in states]
    names.append(emitter.full(z, _TIME_FIRST))
    names += [emitter.full(each, (1, 0)) for each in mask]
    outer = [emitter.full(kernel)]
    outer += [] if bias is None else [emitter.full(bias)]
    body = _Body(emitter, op, outer, bool(mask))
    count = cell.states
    attributes = {"body": body.graph(), "num_scan_inputs": 1 + bool(mask)}
    made = emitter.node("Scan", names, attributes, count=2 * count)
    batch, _, units = emitter.traces.value(op.outputs[0]).shape
    for place in range(count):
        emitter.add(op.outputs[place], made[count + place], _TIME_FIRST)
        last = emitter.one("Unsqueeze", made[place], emitter.int64s(0))
        dims: tuple[Number, ...] = (1, batch, units)
        emitter.last[op.outputs[place]] = Form(last, _TIME_FIRST, dims)


class _Body:
    """The nodes of one step of a scan."""

    def __init__(
        self, emitter: Emitter, op: TracedOp, outer: Sequence[str], masked: bool
    ) -> None:
        self._emitter = emitter
        self._op = op
        self._outer = outer
        self._masked = masked
        self._nodes: list[Node] = []

    def _one(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = self._emitter.unique(f"{self._op.name}/step")
        self._nodes.append(Node(kind, list(inputs), [name], dict(attributes), name))
        return name

    def _split(self, name: str, parts: int) -> list[str]:
        outputs = [self._emitter.unique(f"{self._op.name}/gate") for _ in range(parts)]
        attributes = {"axis": -1, "num_outputs": parts}
        self._nodes.append(Node("Split", [name], outputs, attributes, outputs[0]))
        return outputs

    def graph(self) -> Subgraph:
        """Return the body: states and elements in, states twice out."""
        cell = _CELLS[self._op.type]
        before = [self._emitter.unique("state") for _ in range(cell.states)]
        z, mask = self._emitter.unique("products"), self._emitter.unique("keeps")
        product = self._one("MatMul", before[0], self._outer[0])
        if len(self._outer) > 1:
            product = self._one("Add", product, self._outer[1])
        step = {"lstm": self._lstm, "gru": self._gru, "simple_rnn": self._simple}
        new = step[self._op.type](z, product, before)
        inputs = [(name, "float32", 2) for name in (*before, z)]
        if self._masked:
            inputs.append((mask, "float32", 1))
            wide = self._one("Unsqueeze", mask, self._emitter.int64s(1))
            keep = self._one("Equal", wide, self._emitter.constant(0.0))
            new = [
                self._one("Where", keep, old, made)
                for old, made in zip(before, new, strict=True)
            ]
        copies = [self._one("Identity", name) for name in new]
        outputs = [(name, "float32", 2) for name in (*new, *copies)]
        return Subgraph(self._nodes, inputs, outputs)

    def _lstm(self, z: str, product: str, before: Sequence[str]) -> list[str]:
        i, f, g, o = self._split(self._one("Add", z, product), 4)
        i, f, o = (self._one("Sigmoid", each) for each in (i, f, o))
        candidate = self._one("Mul", i, self._one("Tanh", g))
        c = self._one("Add", self._one("Mul", f, before[1]), candidate)
        return [self._one("Mul", o, self._one("Tanh", c)), c]

    def _gru(self, z: str, product: str, before: Sequence[str]) -> list[str]:
        xz, xr, xh = self._split(z, 3)
        rz, rr, rh = self._split(product, 3)
        update = self._one("Sigmoid", self._one("Add", xz, rz))
        reset = self._one("Sigmoid", self._one("Add", xr, rr))
        inner = self._one("Add", xh, self._one("Mul", reset, rh))
        candidate = self._one("Tanh", inner)
        change = self._one("Mul", update, self._one("Sub", before[0], candidate))
        return [self._one("Add", candidate, change)]

    def _simple(self, z: str, product: str, before: Sequence[str]) -> list[str]:
        del before
        return [self._one("Tanh", self._one("Add", z, product))]
