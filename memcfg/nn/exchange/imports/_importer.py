"""`from_onnx`: the nodes of a graph one after another, and the model of the results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memcfg.errors import FormatError, GraphError
from memcfg.graph import allowed_ops
from memcfg.nn import ops
from memcfg.nn._model import Model
from memcfg.nn.exchange.imports import (
    _imported_elements,
    _imported_moves,
    _imported_products,
    _imported_sequences,
    _imported_windows,
)
from memcfg.nn.exchange.imports._axis_views import (
    BATCH,
    Known,
    UnsupportedError,
    View,
    arranged,
    whole,
)
from memcfg.nn.exchange.imports._imported_node import Node, Rule
from memcfg.nn.layers import Input
from memcfg.nn.layers._operators import Parameter
from memcfg.onnx import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.exchange.imports._imported_node import Value
    from memcfg.nn.layers import Layer, SymbolicTensor
    from memcfg.onnx import OnnxGraph, OnnxInput, OnnxNode

__all__ = ["IMPORTED", "imported"]

_MOST_OPS = 2**20
_INPUTS = {
    "float32": "float32",
    "float64": "float32",
    "float16": "float32",
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint8", "bool"), "int32"),
}

IMPORTED: Mapping[str, Rule] = {
    **_imported_elements.RULES,
    **_imported_moves.RULES,
    **_imported_products.RULES,
    **_imported_sequences.RULES,
    **_imported_windows.RULES,
}


def imported(source: Any, lengths: Mapping[str, int] | None, name: str | None) -> Model:
    """Make a model of an ONNX graph, as `memcfg.nn.models.from_onnx` does.

    Parameters
    ----------
    source : str, path-like, bytes or onnx.ModelProto
        The graph.
    lengths : mapping of str to int or None
        The length of each axis of any length but the batch.
    name : str or None
        The model's name; None: that of the graph.

    Returns
    -------
    Model
        The model.
    """
    if not isinstance(lengths, Mapping | None):
        raise TypeError(f"lengths maps names of axes to lengths, got {lengths!r}")
    graph = read_file(source)
    with allowed_ops(_MOST_OPS):
        return Importer(graph, dict(lengths or {})).model(name)


class Importer:
    """Makes layers of the nodes of one graph."""

    def __init__(self, graph: OnnxGraph, lengths: dict[str, int]) -> None:
        self.graph = graph
        self.values: dict[str, Value] = {}
        self.batch = BATCH
        self._lengths = lengths
        self._names: set[str] = set()
        self._starts: list[SymbolicTensor] = []
        self._layers: dict[Any, Layer] = {}
        self._parameters: dict[Any, SymbolicTensor] = {}
        self._weights: list[tuple[Layer, list[Known]]] = []
        self._done: set[int] = set()
        for held in graph.arrays.values():
            self.values[held.name] = Known(held.shape, held.dtype, held.read, held.name)

    def model(self, name: str | None) -> Model:
        """Return the model with its weights."""
        starts = self._inputs()
        for place, node in enumerate(self.graph.nodes):
            if place not in self._done:
                self._add(place, node)
        ends = [self._result(each) for each in self.graph.outputs]
        label = re.sub(r"\W+", "_", self.graph.name).strip("_") or "model"
        model = Model(
            starts[0] if len(starts) == 1 else starts,
            ends[0] if len(ends) == 1 else ends,
            name=label if name is None else name,
        )
        used = {leaf for each in model.layers for _, leaf in each._leaves()}
        for layer, arrays in self._weights:
            if layer in used:
                try:
                    layer.set_weights([each.read() for each in arrays])
                except (ValueError, TypeError) as error:
                    raise FormatError(str(error)) from None
        return model

    # Inputs and outputs

    def _inputs(self) -> list[SymbolicTensor]:
        inputs = self.graph.inputs
        if not inputs:
            raise FormatError("the graph has no inputs")
        fixed = {each.shape[0] for each in inputs if each.shape}
        if len(fixed) == 1 and isinstance(size := next(iter(fixed)), int):
            self.batch = size
        starts = []
        known = {n for each in inputs for n in each.shape[1:] if isinstance(n, str)}
        for symbol in self._lengths:
            if symbol not in known:
                raise ValueError(
                    f"lengths names {symbol!r}, but axes of any length are: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )
        for each in inputs:
            shape = self._sample_shape(each)
            name = self.unique(each.name)
            start = Input(shape, dtype=_INPUTS[each.dtype], name=name)
            starts.append(start)
            self._starts.append(start)
            axes = tuple((axis,) for axis in range(len(shape) + 1))
            self.values[each.name] = View(start, axes, self.batch)
        return starts

    def _sample_shape(self, given: OnnxInput) -> tuple[int, ...]:
        what = f"input {given.name!r} of the shape {given.shape}"
        if not given.shape:
            raise UnsupportedError(f"{what} has no axis for the batch")
        if given.dtype not in _INPUTS:
            raise UnsupportedError(f"{what} is of the dtype {given.dtype}")
        shape = []
        for length in given.shape[1:]:
            if isinstance(length, int):
                shape.append(length)
            elif length in self._lengths:
                shape.append(self._lengths[length])
            else:
                raise ValueError(
                    f"{what} has an axis of any length, {length!r}: state one, "
                    f"lengths={{{length!r}: 64}}"
                )
        if min(shape, default=1) < 1:
            raise FormatError(f"{what} has an axis without elements")
        return tuple(shape)

    def _result(self, name: str) -> SymbolicTensor:
        value = self.values[name]
        if not isinstance(value, View):
            raise UnsupportedError(f"the output {name!r} does not depend on inputs")
        if not whole(value):
            raise UnsupportedError(f"the output {name!r} joins the batch with others")
        order = [(0,), *(group for group in value.axes if group != (0,))]
        return arranged(value, order)

    # Nodes

    def _add(self, place: int, node: OnnxNode) -> None:
        rule = IMPORTED.get(node.type)
        if rule is None:
            raise UnsupportedError(f"{node}: there are no layers for {node.type}")
        inputs = [self.values[name] if name else None for name in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        given = Node(self, place, node, inputs)
        try:
            made = rule(given)
        except UnsupportedError as error:
            raise UnsupportedError(f"{node} {error}") from None
        except (ValueError, TypeError, IndexError, KeyError) as error:
            if isinstance(error, FormatError) and not isinstance(error, GraphError):
                raise
            raise FormatError(f"{node}: {error}") from error
        results = made if isinstance(made, list) else [made]
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                self.values[name] = value
        missing = [name for name in node.outputs[len(results) :] if name]
        for name in missing:
            if name in self.graph.readers or name in self.graph.outputs:
                raise UnsupportedError(f"{node} has an output {name!r} that is missing")

    def next_reader(self, name: str) -> tuple[int, OnnxNode] | None:
        """Return the only node that reads a value, or None."""
        readers = self.graph.readers.get(name, ())
        if len(readers) != 1 or name in self.graph.outputs:
            return None
        return readers[0], self.graph.nodes[readers[0]]

    def finish(self, place: int, value: Value) -> None:
        """Set the result of a later node, which needs no layer of its own."""
        self._done.add(place)
        self.values[self.graph.nodes[place].outputs[0]] = value

    # Layers and weights

    def unique(self, label: str) -> str:
        """Return a name for a layer that no other has."""
        name = re.sub(r"[/:\s]+", ".", label).strip(".") or "layer"
        made, number = name, 1
        while made in self._names:
            made, number = f"{name}_{number}", number + 1
        self._names.add(made)
        return made

    def layer(
        self, kind: Any, weights: Sequence[Known], label: str, **options: Any
    ) -> Layer:
        """Return a layer with weights; nodes that share them share it."""
        sources = tuple(each.weight for each in weights)
        key = (kind, sources, tuple(sorted(map(str, options.items()))))
        known = self._layers.get(key) if weights and all(sources) else None
        if known is not None:
            return known
        layer: Layer = kind(**options, name=self.unique(label))
        if weights:
            self._weights.append((layer, list(weights)))
            layer.trainable = any(sources)  # of constants it stays as it is
        self._layers[key] = layer
        return layer

    def repeated(self, value: Known, operand: Any) -> View:
        """Return a constant as a value of each sample."""
        start = next(each for each in self._starts)
        key = (slice(None), *(slice(0, 1) for _ in start.sample_shape))
        rank = len(value.shape)
        zeros = ops.reshape(ops.zeros_like(start[key]), (-1, *(1,) * (rank - 1)))
        zeros = ops.cast(zeros, _INPUTS.get(value.dtype, "float32"))
        made = ops.broadcast_to(zeros + operand, (None, *value.shape[1:]))
        return View(made, tuple((axis,) for axis in range(rank)), self.batch)

    def parameter(self, array: Known, label: str, *, learns: bool) -> SymbolicTensor:
        """Return an array as a weight."""
        key = (array.weight, array.shape)
        if array.weight is not None and key in self._parameters:
            return self._parameters[key]
        layer = Parameter(array.shape, learns, name=self.unique(label))
        self._weights.append((layer, [array]))
        made: SymbolicTensor = layer([])
        self._parameters[key] = made
        return made
