"""A model's architecture: which layers, called on what, with which weights.

Owns the walk from the outputs back to the input and the order of weights. Refuses
values and batch sizes. Layers stand in Keras's order, so that lists of weights can
be exchanged with Keras: by distance from the output, then in the order in which a
walk from the output meets them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._random import derive_seed
from memcfg.nn.layers._input import InputLayer
from memcfg.nn.layers._symbolic import Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.nn.initializers import Initializer
    from memcfg.nn.layers._layer import Layer, WeightSpec
    from memcfg.nn.layers._symbolic import Shape, SymbolicTensor

__all__ = ["Network", "Weight"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of a model, without its value.

    Parameters
    ----------
    name : str
        ``"<layer>/<weight>"``, the name of its tensor in every graph.
    key : str
        Its name in files: as `name`, but an automatic layer name is numbered
        within the model, so that it does not depend on what else the process made.
    shape : tuple of int
        Its shape; float32.
    initializer : Initializer
        What it starts from.
    seed : int
        Decides its first value.
    trainable : bool
        Whether the optimizer updates it.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    initializer: Initializer
    seed: int
    trainable: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return 4 * self.size

    def first_value(self) -> np.ndarray:
        """Draw the value that training starts from.

        Returns
        -------
        numpy.ndarray
            float32 of the weight's shape.

        Raises
        ------
        ValueError
            If a custom initializer returned something else.
        """
        value = self.initializer.draw(self.shape, self.seed)
        if value.shape != self.shape or value.dtype != np.float32:
            raise ValueError(
                f"the initializer of {self.name!r} returned {value.dtype} of shape "
                f"{value.shape} instead of float32 of shape {self.shape}"
            )
        return value


class Network:
    """The layers between an input and an output.

    Parameters
    ----------
    inputs, outputs : SymbolicTensor
        Where the model begins and ends.

    Raises
    ------
    ValueError
        If the output does not depend on the input, it depends on another input, or
        two layers have one name.
    """

    def __init__(self, inputs: SymbolicTensor, outputs: SymbolicTensor) -> None:
        self.inputs = inputs
        self.outputs = outputs
        nodes, self.layers = _walk(outputs.node)
        self.nodes = tuple(sorted(nodes, key=lambda node: node.order))
        self._check_inputs()
        self._check_names()
        self.weights = tuple(_weights(self.layers))

    @property
    def input_shape(self) -> Shape:
        """Shape of one sample."""
        return self.inputs.sample_shape

    @property
    def output_shape(self) -> Shape:
        """Shape of one sample's output."""
        return self.outputs.sample_shape

    def output_shape_of(self, layer: Layer) -> Shape:
        """Return the shape of a layer's output where it is first called.

        Parameters
        ----------
        layer : Layer
            One of `layers`.

        Returns
        -------
        tuple of int
            The shape without the batch.
        """
        first = next(node for node in self.nodes if node.layer is layer)
        return first.output.sample_shape

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the calls as a list: as deep as the network, Python could not go."""
        places = {node.output: place for place, node in enumerate(self.nodes)}
        calls = [
            (
                node.layer,
                [places[each] for each in node.inputs],
                node.output.sample_shape,
            )
            for node in self.nodes
        ]
        specs = [layer.weight_specs for layer in self.layers]
        ends = places[self.inputs], places[self.outputs]
        return _rejoined, (calls, self.layers, specs, ends)

    def _check_inputs(self) -> None:
        if not isinstance(self.inputs.node.layer, InputLayer):
            raise ValueError(
                f"a model starts from Input(shape), not from the output of layer "
                f"{self.inputs.name!r}"
            )
        if self.inputs.node not in self.nodes:
            raise ValueError(
                f"the output, of layer {self.outputs.name!r}, does not depend on the "
                f"input {self.inputs.name!r}"
            )
        for node in self.nodes:
            if isinstance(node.layer, InputLayer) and node is not self.inputs.node:
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
    calls: Sequence[tuple[Layer, Sequence[int], Shape]],
    layers: Sequence[Layer],
    specs: Sequence[tuple[WeightSpec, ...] | None],
    ends: tuple[int, int],
) -> Network:
    """Make a network again of its calls."""
    for layer, each in zip(layers, specs, strict=True):
        layer.restore(each)
    made: list[SymbolicTensor] = []
    for layer, places, shape in calls:
        inputs = tuple(made[place] for place in places)
        made.append(Node(layer, inputs, shape).output)
    return Network(made[ends[0]], made[ends[1]])


def _walk(end: Node) -> tuple[list[Node], tuple[Layer, ...]]:
    """Return the calls that lead to `end`, and the layers in Keras's order."""
    met: dict[Layer, int] = {}  # in the order in which the walk meets them
    finished: dict[Node, None] = {}  # inputs before outputs
    stack: list[tuple[Node, bool]] = [(end, False)]
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
        for place, spec in enumerate(layer.weight_specs or ()):
            yield _weight(layer, keys[layer], place, spec)


def _weight(layer: Layer, key: str, place: int, spec: WeightSpec) -> Weight:
    fixed = spec.initializer.seed
    return Weight(
        name=f"{layer.name}/{spec.name}",
        key=f"{key}/{spec.name}",
        shape=spec.shape,
        initializer=spec.initializer,
        seed=derive_seed(layer.seed, place) if fixed is None else fixed,
        trainable=spec.trainable,
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
