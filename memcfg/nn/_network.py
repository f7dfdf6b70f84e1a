"""A model's architecture: its layers, their calls and their weights.

Layers are in Keras's order, so that lists of weights can be exchanged with Keras:
decreasing distance from the output, then the order of a traversal from the output.
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
from memcfg._terminal import shorten, width
from memcfg.graph import spend
from memcfg.nn._nested import Nested
from memcfg.nn._nesting import Structure
from memcfg.nn.layers._layer import (
    InputLayer,
    Node,
    first_value,
    show_shape,
)
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from memcfg.config import DTypePolicy
    from memcfg.nn.initializers import Initializer
    from memcfg.nn.layers._layer import Layer, SymbolicTensor, WeightSpec

__all__ = [
    "Network",
    "Weight",
    "from_inner",
    "summary_text",
    "traverse",
    "weights_of",
]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of a model, without its value."""

    name: str  # "<layer>/<weight>", the name of its tensor in every graph
    key: str  # name in files; automatic layer names are numbered per model
    shape: tuple[int, ...]
    dtype: str
    initializer: Initializer
    seed: int  # draws the initial value
    trainable: bool
    layer: Layer
    regularizer: Any = None
    constraint: Any = None
    hidden: bool = False  # state, not exchanged with Keras or weight files

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def spec_name(self) -> str:
        """The name within the layer."""
        return self.name.rpartition("/")[2]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def first_value(self) -> np.ndarray:
        """Draw the initial value in float32 and convert it to the weight's dtype."""
        return first_value(
            self.name, self.initializer, self.shape, self.dtype, self.seed
        )

    @property
    def draws_in_place(self) -> bool:
        """Whether the initial value can be drawn without an array of its size."""
        return self.dtype == "float32" and self.initializer.draws_in_place

    def draw_into(self, values: np.ndarray) -> None:
        """Draw the initial value into an array of the weight's shape."""
        self.initializer.draw_into(values, self.seed)


class Network:
    """The graph of layers between inputs and outputs."""

    def __init__(
        self,
        inputs: Sequence[SymbolicTensor],
        outputs: Sequence[SymbolicTensor],
        takes: Structure | None = None,
        gives: Structure | None = None,
        order: Sequence[Layer] = (),  # layers whose weights come first
        predicts: Network | None = None,
        losses: Sequence[SymbolicTensor] = (),  # that `call` adds
    ) -> None:
        self._predicts = predicts  # set if `call` branches on training
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.losses = tuple(losses)
        self.takes = takes or Structure(None, (self.inputs[0].name,))
        self.gives = gives or Structure(None, (self.outputs[0].name,))
        nodes, self.layers = traverse([each.node for each in (*outputs, *losses)])
        if order:
            first = {layer: i for i, layer in enumerate(order)}
            known = sorted(self.layers, key=lambda each: first.get(each, len(first)))
            self.layers = tuple(known)
        self.nodes = tuple(sorted(nodes, key=lambda node: node.order))
        self._check_inputs()
        self._check_names()
        self._list_weights()
        if predicts is not None:
            self._check_predicts(predicts)

    def _list_weights(self) -> None:
        self.weights, self.aliases = weights_of(self.layers)
        self.names = {(each.layer, each.spec_name): each.name for each in self.weights}
        self.exchanged = tuple(w for w in self.weights if not w.hidden)

    def renewed(self) -> Network:
        """Return the network with the weights that its layers have by now."""
        result = object.__new__(Network)
        vars(result).update(vars(self))
        if self._predicts is not None:
            result._predicts = self._predicts.renewed()
        result._list_weights()
        return result

    def of(self, training: bool) -> Network:
        """Return the network to trace in a mode; it differs if `call` branches."""
        return self if training or self._predicts is None else self._predicts

    def _check_predicts(self, other: Network) -> None:
        """Raise ValueError if prediction has other outputs or additional weights."""
        shapes = [
            [(each.sample_shape, each.sample_dtype) for each in network.outputs]
            for network in (self, other)
        ]
        if shapes[0] != shapes[1] or self.gives != other.gives:
            raise ValueError(
                "a model's call must return tensors of the same shapes and dtypes in "
                f"training and in prediction, got {shapes[0]} and {shapes[1]}"
            )
        for layer, name in other.names.keys() - self.names.keys():
            raise ValueError(
                f"layer {layer.name!r} has a weight {name!r} that call uses in "
                "prediction only: use it in training, too"
            )

    @property
    def leaves(self) -> list[Layer]:
        """The layers with their own weights, in order."""
        return list(dict.fromkeys(weight.layer for weight in self.weights))

    def frozen(self) -> frozenset[str]:
        """Return the names of the weights that are not trainable."""
        result = {weight.name for weight in self.weights if not weight.layer.trainable}
        for layer in self.layers:
            if not layer.trainable:
                result |= {
                    self.names[leaf, spec.name]
                    for _, leaf in layer._leaves()
                    for spec in leaf.weight_specs or ()
                }
        return frozenset(result)

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to a flat list of calls; recursion would fail for deep networks."""
        other = self.of(training=False)
        nodes = sorted({*self.nodes, *other.nodes}, key=lambda node: node.order)
        tensors = [output for node in nodes for output in node.outputs]
        indices = {tensor: i for i, tensor in enumerate(tensors)}
        calls = [
            (
                node.layer,
                [indices[each] for each in node.inputs],
                _results_of(node),
                node.details,
                node.in_operation,
            )
            for node in nodes
        ]
        leaves = [leaf for layer in self.layers for _, leaf in layer._leaves()]
        specs = [(leaf, leaf.weight_specs) for leaf in leaves]
        ends = [
            [indices[end] for end in each]
            for each in (self.inputs, self.outputs, other.outputs, self.losses)
        ]
        return _rejoined, (calls, specs, ends, self.takes, self.gives)

    def _check_inputs(self) -> None:
        for tensor in self.inputs:
            if not isinstance(tensor.node.layer, InputLayer):
                raise ValueError(
                    "a model must start from Input(shape), not from the output of "
                    f"layer {tensor.name!r}"
                )
            if tensor.node not in self.nodes:
                raise ValueError(
                    f"the output of layer {self.outputs[0].name!r} does not depend on "
                    f"the input {tensor.name!r}"
                )
        starts = {tensor.node for tensor in self.inputs}
        if len(starts) != len(self.inputs):
            raise ValueError("the same Input is passed to the model twice")
        for node in self.nodes:
            if isinstance(node.layer, InputLayer) and node not in starts:
                raise ValueError(
                    f"the output depends on the input {node.layer.name!r}, which is "
                    "not one of the model's inputs"
                )

    def _check_names(self) -> None:
        counts = Counter(layer.name for layer in self.layers)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(
                f"layer names must be unique in a model; used twice: "
                f"{', '.join(repr(name) for name in twice)}"
            )


def from_inner(
    inputs: Sequence[SymbolicTensor], outputs: Sequence[SymbolicTensor]
) -> tuple[list[SymbolicTensor], list[SymbolicTensor]]:
    """Repeat the calls between inner tensors and outputs on new inputs.

    Inputs that are results of layers become inputs of their shape and dtype, as in
    Keras; the layers are shared.
    """
    made: dict[SymbolicTensor, SymbolicTensor] = {}
    for tensor in inputs:
        made[tensor] = tensor
        if not isinstance(tensor.node.layer, InputLayer):
            shape, dtype = tensor.sample_shape, tensor.sample_dtype
            start = InputLayer(shape, dtype, batch_size=tensor.node.batch_size)
            made[tensor] = Node(start, (), [(shape, dtype)]).outputs[0]
    nodes, _ = traverse([output.node for output in outputs], set(inputs))
    for node in sorted(nodes, key=lambda node: node.order):
        called = tuple(made.get(each, each) for each in node.inputs)
        if any(a is not b for a, b in zip(called, node.inputs, strict=True)):
            again = Node(
                node.layer,
                called,
                _results_of(node),
                node.details,
                node.in_operation,
                whole=node.outputs[0].whole,
            )
            for old, new in zip(node.outputs, again.outputs, strict=True):
                made.setdefault(old, new)
    starts = [made[tensor] for tensor in inputs]
    return starts, [made.get(tensor, tensor) for tensor in outputs]


def _results_of(node: Node) -> list[tuple[Any, str]]:
    """Return the shapes and dtypes of a call's results, as `Node` takes them."""
    return [
        (each.whole_shape if each.whole else each.sample_shape, each.sample_dtype)
        for each in node.outputs
    ]


def _rejoined(
    calls: Sequence[tuple[Any, ...]],
    specs: Sequence[tuple[Layer, tuple[WeightSpec, ...] | None]],
    ends: Sequence[Sequence[int]],
    takes: Structure,
    gives: Structure,
) -> Network:
    """Rebuild a network from the calls that `Network.__reduce__` lists."""
    for layer, each in specs:
        layer._weight_specs = each
    made: list[SymbolicTensor] = []
    for layer, operands, results, details, *in_operation in calls:
        inputs = tuple(made[i] for i in operands)
        in_operation = in_operation or [False]  # absent in older files
        whole = layer._is_whole(inputs)
        made += Node(
            layer, inputs, results, details, *in_operation, whole=whole
        ).outputs
    starts, *stops = ([made[i] for i in each] for each in ends)
    predicts = None
    if len(stops) > 1 and ends[1] != ends[2]:
        predicts = Network(starts, stops[1], takes, gives)
    losses = stops[2] if len(stops) > 2 else ()  # absent in older files
    return Network(starts, stops[0], takes, gives, (), predicts, losses)


def traverse(
    ends: Sequence[Node], starts: Collection[SymbolicTensor] = ()
) -> tuple[list[Node], tuple[Layer, ...]]:
    """Return the calls that lead to `ends`, and the layers in Keras's order.

    Calls before `starts` are left out.
    """
    met: dict[Layer, int] = {}  # in the order of discovery
    finished: dict[Node, None] = {}  # inputs before outputs
    stack = [(end, False) for end in reversed(ends)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            finished[node] = None
        elif node not in finished:
            met.setdefault(node.layer, len(met))
            stack.append((node, True))
            stack += [
                (tensor.node, False)
                for tensor in reversed(node.inputs)
                if tensor not in starts
            ]
    depths = _depths(list(finished))
    order = sorted(met, key=lambda layer: (-depths[layer], met[layer]))
    return list(finished), tuple(order)


def _depths(finished: Sequence[Node]) -> dict[Layer, int]:
    """Return the longest distance of each layer from the output, in calls."""
    of_node: dict[Node, int] = {}
    of_layer: dict[Layer, int] = {}
    for node in reversed(finished):
        depth = max(of_node.get(node, 0), of_layer.get(node.layer, 0))
        of_layer[node.layer] = depth
        for tensor in node.inputs:
            of_node[tensor.node] = max(of_node.get(tensor.node, 0), depth + 1)
    return of_layer


def weights_of(layers: Sequence[Layer]) -> tuple[tuple[Weight, ...], dict[str, str]]:
    """Return the weights, and the alternative names of shared weights."""
    weights: dict[tuple[Layer, str], Weight] = {}
    aliases: dict[str, str] = {}
    for name, key, leaf in _paths(layers, "", ""):
        for index, spec in enumerate(leaf.weight_specs or ()):
            known = weights.get((leaf, spec.name))
            if known is not None:
                aliases[f"{name}/{spec.name}"] = known.name
                continue
            weights[leaf, spec.name] = Weight(
                name=f"{name}/{spec.name}",
                key=f"{key}/{spec.name}",
                shape=spec.shape,
                dtype=spec.dtype,
                initializer=spec.initializer,
                seed=leaf._seed_of(index),
                trainable=spec.trainable,
                hidden=spec.hidden,
                layer=leaf,
                regularizer=spec.regularizer,
                constraint=spec.constraint,
            )
    return tuple(weights.values()), aliases


def _paths(
    layers: Sequence[Layer], name: str, key: str
) -> Iterator[tuple[str, str, Layer]]:
    """Yield all layers, including inner ones, with their names here and in files."""
    keys = _file_names(layers)
    for layer in layers:
        # A shared layer has one name per path to it, so the work can be exponential.
        spend(0.1 + 0.1 * name.count("/"))
        own = f"{name}{layer.name}", f"{key}{keys[layer]}"
        yield *own, layer
        yield from _paths(layer._sublayers(), f"{own[0]}/", f"{own[1]}/")


def _file_names(layers: Sequence[Layer]) -> dict[Layer, str]:
    """Return each layer's name in files, numbering automatic ones per model."""
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


_LAYER, _SHAPE = 30, 21  # columns; longer text continues on the next line
_NAME = 3 * _LAYER  # columns; longer names are shortened in the middle


def summary_text(
    name: str, policy: DTypePolicy, layers: Sequence[Layer], network: Network | None
) -> str:
    """Return a table of a model's layers, shapes, parameters and bytes."""
    table = new_table(
        Column("Layer (type)", max_width=_LAYER, overflow="fold"),
        Column("Output shape", max_width=_SHAPE, overflow="fold"),
        numbers=("Parameters", "Bytes/sample"),
    )
    for layer in layers:
        table.add_row(*_row(layer, policy, network))
    kind = "" if policy.name == "float32" else f" ({policy.name})"
    title = f"Model: {shorten(name, width() - 7 - len(kind))}{kind}"
    return f"{title}\n{draw(table)}\n{_totals(network)}"


def _row(
    layer: Layer, policy: DTypePolicy, network: Network | None
) -> tuple[Text, str, str, str]:
    what = layer.model if isinstance(layer, Nested) else layer
    words: tuple[str, ...] = layer.name, f"({type(what).__name__})"
    dtype = what.dtype_policy.compute_dtype
    if dtype != policy.compute_dtype:
        words = *words, dtype
    label = Text(" ".join(shorten(word, _NAME) for word in words))
    if network is None:
        return label, "?", "?", "?"
    first = next(node for node in network.nodes if node.layer is layer)
    shapes = [each.sample_shape for each in first.outputs]
    parameters = layer.count_params()
    item = 4 if dtype == "float32" else 2
    nbytes = format_bytes(item * sum(map(math.prod, shapes)))
    return label, "\n".join(map(show_shape, shapes)), f"{parameters:,}", nbytes


def _totals(network: Network | None) -> str:
    if network is None:
        return (
            "Not built: shapes are known after build(input_shape) or the first fit.\n"
        )
    total = sum(weight.size for weight in network.exchanged)
    frozen = network.frozen()
    trained = sum(
        weight.size
        for weight in network.exchanged
        if weight.trainable and weight.name not in frozen
    )
    return "".join(
        f"{label + ':':<17} {size:,} ({format_bytes(4 * size)})\n"
        for label, size in (
            ("Total parameters", total),
            ("Trainable", trained),
            ("Not trainable", total - trained),
        )
    )
