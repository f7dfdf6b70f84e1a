"""A model's architecture: which layers, called on what, with which weights.

Layers have Keras's order, so that lists of weights can be exchanged with Keras: by
distance from the output, then as a traversal from the output meets them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Column
from rich.text import Text

from memcfg._tables import draw, new_table
from memcfg._terminal import shorten
from memcfg.nn._nesting import Structure
from memcfg.nn._random import derive_seed
from memcfg.nn.layers._layer import InputLayer, Node, show_shape
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.nn.initializers import Initializer
    from memcfg.nn.layers._layer import Layer, Shape, SymbolicTensor, WeightSpec

__all__ = ["Network", "Weight", "summary_text"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of a model, without its value."""

    name: str  # "<layer>/<weight>", the name of its tensor in every graph
    key: str  # in files; automatic layer names are counted within the model
    shape: tuple[int, ...]
    dtype: str
    initializer: Initializer
    seed: int  # decides its first value
    trainable: bool
    hidden: bool = False  # a state, which is not exchanged with Keras or files

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def first_value(self) -> np.ndarray:
        """Draw the value that training starts from; initializers draw float32."""
        value = self.initializer.draw(self.shape, self.seed)
        if value.shape != self.shape or value.dtype != np.float32:
            raise ValueError(
                f"the initializer of {self.name!r} returned {value.dtype} of shape "
                f"{value.shape} instead of float32 of shape {self.shape}"
            )
        return value.astype(self.dtype, copy=False)


class Network:
    """The layers between inputs and outputs."""

    def __init__(
        self,
        inputs: Sequence[SymbolicTensor],
        outputs: Sequence[SymbolicTensor],
        takes: Structure | None = None,
        gives: Structure | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.takes = takes or Structure(None, (self.inputs[0].name,))
        self.gives = gives or Structure(None, (self.outputs[0].name,))
        nodes, self.layers = _traverse([output.node for output in outputs])
        self.nodes = tuple(sorted(nodes, key=lambda node: node.order))
        self._check_inputs()
        self._check_names()
        self.weights = tuple(_weights(self.layers))
        self.exchanged = tuple(w for w in self.weights if not w.hidden)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the calls as a list: as deep as the network, Python could not go."""
        tensors = [output for node in self.nodes for output in node.outputs]
        indices = {tensor: i for i, tensor in enumerate(tensors)}
        calls = [
            (
                node.layer,
                [indices[each] for each in node.inputs],
                [(output.sample_shape, output.dtype) for output in node.outputs],
            )
            for node in self.nodes
        ]
        specs = [layer.weight_specs for layer in self.layers]
        ends = [[indices[end] for end in each] for each in (self.inputs, self.outputs)]
        return _rejoined, (calls, self.layers, specs, ends, self.takes, self.gives)

    def _check_inputs(self) -> None:
        for tensor in self.inputs:
            if not isinstance(tensor.node.layer, InputLayer):
                raise ValueError(
                    f"a model starts from Input(shape), not from the output of layer "
                    f"{tensor.name!r}"
                )
            if tensor.node not in self.nodes:
                raise ValueError(
                    f"the output, of layer {self.outputs[0].name!r}, does not depend "
                    f"on the input {tensor.name!r}"
                )
        starts = {tensor.node for tensor in self.inputs}
        if len(starts) != len(self.inputs):
            raise ValueError("an Input is among the model's inputs twice")
        for node in self.nodes:
            if isinstance(node.layer, InputLayer) and node not in starts:
                raise ValueError(
                    f"the output depends on the input {node.layer.name!r}, which is "
                    "not among the model's inputs"
                )

    def _check_names(self) -> None:
        counts = Counter(layer.name for layer in self.layers)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(
                f"layer names must be unique in a model; used twice: "
                f"{', '.join(repr(name) for name in twice)}"
            )


def _rejoined(
    calls: Sequence[tuple[Layer, Sequence[int], Sequence[tuple[Shape, str]]]],
    layers: Sequence[Layer],
    specs: Sequence[tuple[WeightSpec, ...] | None],
    ends: Sequence[Sequence[int]],
    takes: Structure,
    gives: Structure,
) -> Network:
    """Make a network again of its calls."""
    for layer, each in zip(layers, specs, strict=True):
        layer._weight_specs = each
    made: list[SymbolicTensor] = []
    for layer, operands, results in calls:
        made += Node(layer, tuple(made[i] for i in operands), results).outputs
    inputs, outputs = ([made[i] for i in each] for each in ends)
    return Network(inputs, outputs, takes, gives)


def _traverse(ends: Sequence[Node]) -> tuple[list[Node], tuple[Layer, ...]]:
    """Return the calls that lead to `ends`, and the layers in Keras's order."""
    met: dict[Layer, int] = {}  # in the order in which they are met
    finished: dict[Node, None] = {}  # inputs before outputs
    stack = [(end, False) for end in reversed(ends)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            finished[node] = None
        elif node not in finished:
            met.setdefault(node.layer, len(met))
            stack.append((node, True))
            stack += [(tensor.node, False) for tensor in reversed(node.inputs)]
    depths = _depths(list(finished))
    order = sorted(met, key=lambda layer: (-depths[layer], met[layer]))
    return list(finished), tuple(order)


def _depths(finished: Sequence[Node]) -> dict[Layer, int]:
    """Return how many calls lie between each layer and the output, at most."""
    of_node: dict[Node, int] = {}
    of_layer: dict[Layer, int] = {}
    for node in reversed(finished):
        depth = max(of_node.get(node, 0), of_layer.get(node.layer, 0))
        of_layer[node.layer] = depth
        for tensor in node.inputs:
            of_node[tensor.node] = max(of_node.get(tensor.node, 0), depth + 1)
    return of_layer


def _weights(layers: Sequence[Layer]) -> Iterable[Weight]:
    keys = _file_names(layers)
    for layer in layers:
        for index, spec in enumerate(layer.weight_specs or ()):
            fixed = spec.initializer.seed
            yield Weight(
                name=f"{layer.name}/{spec.name}",
                key=f"{keys[layer]}/{spec.name}",
                shape=spec.shape,
                dtype=spec.dtype,
                initializer=spec.initializer,
                seed=derive_seed(layer.seed, index) if fixed is None else fixed,
                trainable=spec.trainable,
                hidden=spec.hidden,
            )


def _file_names(layers: Sequence[Layer]) -> dict[Layer, str]:
    """Return each layer's name in files: automatic ones counted in the model."""
    taken = {layer.name for layer in layers if layer.named}
    keys: dict[Layer, str] = {}
    for layer in layers:
        if layer.named:
            keys[layer] = layer.name
            continue
        number, key = 0, layer.kind
        while key in taken:
            number += 1
            key = f"{layer.kind}_{number}"
        taken.add(key)
        keys[layer] = key
    return keys


_LAYER, _SHAPE = 30, 21  # columns; what is longer goes on in the next line
_NAME = 3 * _LAYER  # columns; of a longer name the middle is left out


def summary_text(name: str, layers: Sequence[Layer], network: Network | None) -> str:
    """Write a model's layers, shapes, parameters and bytes."""
    table = new_table(
        Column("Layer (type)", max_width=_LAYER, overflow="fold"),
        Column("Output shape", max_width=_SHAPE, overflow="fold"),
        numbers=("Parameters", "Bytes/sample"),
    )
    for layer in layers:
        table.add_row(*_row(layer, network))
    return f"Model: {shorten(name, 73)}\n{draw(table)}\n{_totals(network)}"


def _row(layer: Layer, network: Network | None) -> tuple[Text, str, str, str]:
    words = layer.name, f"({type(layer).__name__})"
    label = Text(" ".join(shorten(word, _NAME) for word in words))
    if network is None:
        return label, "?", "?", "?"
    first = next(node for node in network.nodes if node.layer is layer)
    shape = first.outputs[0].sample_shape
    parameters = sum(math.prod(spec.shape) for spec in layer.weight_specs or ())
    nbytes = format_bytes(4 * math.prod(shape))
    return label, show_shape(shape), f"{parameters:,}", nbytes


def _totals(network: Network | None) -> str:
    if network is None:
        return (
            "Not built: shapes are known after build(input_shape) or the first fit.\n"
        )
    total = sum(weight.size for weight in network.exchanged)
    trained = sum(weight.size for weight in network.exchanged if weight.trainable)
    return "".join(
        f"{label + ':':<17} {size:,} ({format_bytes(4 * size)})\n"
        for label, size in (
            ("Total parameters", total),
            ("Trainable", trained),
            ("Not trainable", total - trained),
        )
    )
