"""A model's architecture: its layers, their calls and their weights.

Layers are in Keras's order, so that lists of weights can be exchanged with Keras:
decreasing distance from the output, then the order of a traversal from the output.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Column
from rich.text import Text

from memcfg._cached import cached_property
from memcfg._tables import draw, new_table
from memcfg._terminal import shorten, width
from memcfg.graph import spend
from memcfg.nn._nested import Nested
from memcfg.nn._nesting import Structure
from memcfg.nn.initializers import Zeros
from memcfg.nn.layers._layer import (
    LENGTHS,
    InputLayer,
    Node,
    WeightTensor,
    calls_to,
    first_value,
    input_layer,
    labels_of,
    lines_of,
    mix_samples,
    repeated,
    settled,
    show_shape,
    trace_in_training,
    weights_read,
)
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from memcfg.config import DTypePolicy
    from memcfg.nn.initializers import Initializer
    from memcfg.nn.layers._layer import Layer, Shape, SymbolicTensor
    from memcfg.nn.layers._parametrization import Parametrization, Part

__all__ = [
    "Computed",
    "Network",
    "Weight",
    "from_inner",
    "summary_text",
    "traverse",
    "weights_of",
]


_NETWORKS = 64  # of the last lengths, that a network with open axes keeps


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
    def index(self) -> int:
        """The place among the weights of the layer."""
        names = [spec.name for spec in self.layer.weight_specs or ()]
        return names.index(self.spec_name)

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


@dataclass(frozen=True, slots=True)
class Computed:
    """A weight that each step computes from others, which the model holds."""

    weight: Weight  # as the layer reads it
    by: Parametrization
    parts: tuple[str, ...]  # names of weights of the model


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
        inputs, outputs, losses = settled(inputs, outputs, losses)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.losses = tuple(losses)
        self.takes = takes or Structure(None, (self.inputs[0].name,))
        self.gives = gives or Structure(None, (self.outputs[0].name,))
        nodes, self.layers = traverse([each.node for each in (*outputs, *losses)])
        self.nodes = tuple(sorted(nodes, key=lambda node: node.order))
        self.reads = [  # weights that a model's `call` reads
            each
            for each in dict.fromkeys(x for node in self.nodes for x in node.inputs)
            if isinstance(each, WeightTensor)
        ]
        held = {leaf for layer in self.layers for _, leaf in layer._leaves()}
        alone = (each.layer for each in self.reads if each.layer not in held)
        self.layers = (*dict.fromkeys(alone), *self.layers)
        self.layers = tuple(self.with_held(order))
        self._check_inputs()
        self.prepared = [self._prepared(each) for each in self.inputs]
        self._check_names()
        self._list_weights()
        if predicts is not None:
            self._check_predicts(predicts)

    def _list_weights(self) -> None:
        self.weights, self.aliases, self.computed, of_layers = weights_of(self.layers)
        counts = Counter(weight.name for weight in self.weights)
        for name in [name for name, count in counts.items() if count > 1][:1]:
            raise ValueError(
                f"{name!r} is the name of {counts[name]} weights: give the inner "
                "layers of a layer names of their own"
            )
        self.names = {
            (each.layer, each.spec_name): each.name
            for each in (*self.weights, *of_layers)
        }
        # Those of layers, in Keras's order: a computed one instead of its parts.
        self.exchanged = tuple(weight for weight in of_layers if not weight.hidden)

    @cached_property
    def lines(self) -> dict[str, str]:
        """Where the program makes each layer, by the layer's path."""
        return lines_of(self.layers)

    def mixes_samples(self, training: bool) -> bool:
        """Whether outputs depend on other samples than their own, beside statistics.

        What calls add to losses may.
        """
        return mix_samples(self.of(training).outputs, training)

    @cached_property
    def measured(self) -> tuple[str, str] | None:
        """The names of a layer and of a metric that its call updates, if any does."""
        nodes = dict.fromkeys([*self.nodes, *self.of(training=False).nodes])
        found = (node.layer._measured(node) for node in nodes)
        return next((each for each in found if each is not None), None)

    @cached_property
    def measures(self) -> bool:
        """Whether calls of the layers update metrics."""
        return self.measured is not None

    def with_loss(self, loss: SymbolicTensor) -> Network:
        """Return the network whose loss has one more term."""
        structures = self.takes, self.gives
        losses = (*self.losses, loss)
        return Network(
            self.inputs, self.outputs, *structures, (), self._predicts, losses
        )

    def with_held(self, held: Sequence[Layer]) -> list[Layer]:
        """Return the layers, and those that a model holds and does not call.

        Those that the model holds are in its order. What it does not call has weights
        where a step of its own has called it.
        """
        known = set(self.layers)
        more = [
            layer
            for layer in held
            if layer not in known
            and any(leaf.weight_specs for _, leaf in layer._leaves())
        ]
        first = {layer: i for i, layer in enumerate(held)}
        listed = [*self.layers, *more]
        return sorted(listed, key=lambda each: first.get(each, len(first)))

    def renewed(self, layers: Sequence[Layer] | None = None) -> Network:
        """Return the network with the weights that layers, its own or these, have."""
        result = object.__new__(Network)
        vars(result).update(vars(self))
        for cached in (
            "_at",
            "lines",
            "measured",
            "measures",
        ):  # of the layers as they were
            vars(result).pop(cached, None)
        if layers is not None:
            result.layers = tuple(layers)
        if self._predicts is not None:
            result._predicts = self._predicts.renewed()
        result._check_names()
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

    @cached_property
    def open_axes(self) -> tuple[tuple[int, int], ...]:
        """The inputs' axes of any length: the input's index, and the sample's axis."""
        return tuple(
            (place, axis)
            for place, tensor in enumerate(self.inputs)
            for axis, length in enumerate(tensor.open_shape)
            if length is None
        )

    def lengths_of(
        self, shapes: Sequence[Shape], who: str = "the model"
    ) -> tuple[int, ...]:
        """Return the lengths of the open axes for inputs of these shapes."""
        for tensor, shape in zip(self.inputs, shapes, strict=True):
            wanted = tensor.open_shape
            alike = len(shape) == len(wanted) and all(
                known in (None, length)
                for known, length in zip(wanted, shape, strict=True)
            )
            if not alike:
                raise ValueError(
                    f"{who} expects inputs of shape {tensor.shape}, got "
                    f"{show_shape(shape)}"
                )
        return tuple(shapes[place][axis] for place, axis in self.open_axes)

    def at(self, lengths: Sequence[int]) -> Network:
        """Return the network with these lengths of the open axes.

        The layers are the same; the calls that depend on such an axis are repeated.
        The last ones are kept. Raises ValueError if a layer cannot take a length.
        """
        if not self.open_axes:
            return self
        key = tuple(lengths)
        result = self._at.pop(key, None) or self._repeated(key)
        while len(self._at) >= _NETWORKS:
            del self._at[next(iter(self._at))]
        self._at[key] = result  # the last used one comes last
        return result

    @cached_property
    def _at(self) -> dict[tuple[int, ...], Network]:
        return {}

    def _repeated(self, lengths: tuple[int, ...]) -> Network:
        shapes: Any = [list(tensor.open_shape) for tensor in self.inputs]
        for (place, axis), length in zip(self.open_axes, lengths, strict=True):
            shapes[place][axis] = length
        starts = {
            tensor: repeated(
                tensor.node, (), [(tuple(shape), tensor.sample_dtype)]
            ).outputs[0]
            for tensor, shape in zip(self.inputs, shapes, strict=True)
            if tensor.twin is not None
        }
        return self._called_on(starts)

    def _called_on(self, starts: Mapping[SymbolicTensor, SymbolicTensor]) -> Network:
        """Return the network of the same calls, with others in place of inputs."""
        made = dict(starts)
        for node in self.nodes:
            if any(each in made for each in node.inputs):
                again = repeated(node, [made.get(each, each) for each in node.inputs])
                made |= zip(node.outputs, again.outputs, strict=True)
        inputs, ends, losses = (
            [made.get(each, each) for each in tensors]
            for tensors in (self.inputs, self.outputs, self.losses)
        )
        other = self._predicts
        predicts = None if other is None else other._called_on(starts)
        structures = self.takes, self.gives
        return Network(inputs, ends, *structures, self.layers, predicts, losses)

    def values_of_reads(self, weights: Mapping[str, int]) -> dict[SymbolicTensor, int]:
        """Return the weights that `call` reads, of those of the model by name."""
        return {
            each: weights[self.names[each.layer, each.spec.name]] for each in self.reads
        }

    @property
    def leaves(self) -> list[Layer]:
        """The layers with their own weights, in order."""
        return list(dict.fromkeys(weight.layer for weight in self.weights))

    def apart_from(self, ends: Sequence[SymbolicTensor]) -> frozenset[str]:
        """Return the names of weights that neither tensors nor losses depend on.

        What has a regularizer has a loss.
        """
        adding = [node.outputs[0] for node in self.nodes if _adds_loss(node.layer)]
        nodes = calls_to([*ends, *self.losses, *adding])
        made = {part: c.weight for c in self.computed.values() for part in c.parts}
        # a layer reads the weight, and not the parts that it is computed from
        reads = {
            each.name: made.get(each.name, each)
            for each in self.weights
            if each.trainable
        }

        def apart() -> frozenset[str]:
            read = {pair for node in nodes for pair in weights_read(node)}
            return frozenset(
                name
                for name, each in reads.items()
                if each.regularizer is None and (each.layer, each.spec_name) not in read
            )

        if apart():  # perhaps of a `call` that reads them in training only
            for node in nodes:
                trace_in_training(node)
        return apart()

    def frozen(self) -> frozenset[str]:
        """Return the names of the weights that are not trainable."""
        weights = [*self.weights, *(each.weight for each in self.computed.values())]
        frozen = {w.layer for w in weights if not w.layer.trainable}
        for layer in self.layers:
            if not layer.trainable:
                frozen |= {leaf for _, leaf in layer._leaves()}
        return frozenset(w.name for w in weights if w.layer in frozen)

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to a flat list of calls; recursion would fail for deep networks."""
        other = self.of(training=False)
        nodes = sorted({*self.nodes, *other.nodes}, key=lambda node: node.order)
        tensors = [output for node in nodes for output in node.outputs]
        indices = {tensor: i for i, tensor in enumerate(tensors)}
        calls = [
            (
                node.layer,
                [indices.get(each, each) for each in node.inputs],
                _results_of(node),
                node.details,
                node.in_operation,
                node.lengths,
            )
            for node in nodes
        ]
        leaves = [leaf for layer in self.layers for _, leaf in layer._leaves()]
        specs = [(leaf, leaf.weight_specs, leaf._parametrized) for leaf in leaves]
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

    def _prepared(self, start: SymbolicTensor) -> tuple[SymbolicTensor, list[Layer]]:
        """Return what the program reads of an input, and the layers that prepare it."""
        steps: list[Layer] = []
        while True:
            users = [
                node
                for node in self.nodes
                if any(each is start for each in node.inputs)
            ]
            if not any(node.layer.prepares for node in users):
                break
            if len(users) > 1:
                names = ", ".join(repr(node.layer.name) for node in users)
                raise ValueError(
                    f"{start.name!r} is read by {names}: the data of an Input are "
                    "prepared in one way. Give the model an Input for each"
                )
            (node,) = users
            steps.append(node.layer)
            (start,) = node.outputs
        if start.sample_dtype == "string":
            raise ValueError(f"{start.name!r} gives text, and a model gives numbers")
        return start, steps

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
    inputs, outputs = settled(inputs, outputs)
    for tensor in inputs:
        made[tensor] = tensor
        if not isinstance(tensor.node.layer, InputLayer):
            shape, dtype = tensor.open_shape, tensor.sample_dtype
            start = input_layer(shape, dtype, batch_size=tensor.node.batch_size)
            lengths = tensor.node.lengths or LENGTHS
            made[tensor] = Node(start, (), [(shape, dtype)], lengths=lengths).outputs[0]
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
    is_input = isinstance(node.layer, InputLayer)
    return [
        (
            each.whole_shape
            if each.whole
            else each.open_shape
            if is_input
            else each.sample_shape,
            each.sample_dtype,
        )
        for each in node.outputs
    ]


def _rejoined(
    calls: Sequence[tuple[Any, ...]],
    specs: Sequence[tuple[Any, ...]],
    ends: Sequence[Sequence[int]],
    takes: Structure,
    gives: Structure,
) -> Network:
    """Rebuild a network from the calls that `Network.__reduce__` lists."""
    for layer, each, *parametrized in specs:  # absent in older files
        layer._weight_specs = each
        layer._parametrized = dict(*parametrized)
    made: list[SymbolicTensor] = []
    for layer, operands, results, details, *more in calls:
        inputs = tuple(made[i] if isinstance(i, int) else i for i in operands)
        in_operation = bool(more[0]) if more else False  # absent in older files
        lengths = more[1] if len(more) > 1 else None  # likewise
        made += Node(
            layer,
            inputs,
            results,
            details,
            in_operation,
            whole=layer._is_whole(inputs),
            lengths=lengths or LENGTHS,
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
                if tensor not in starts and tensor.node.outputs  # weights have none
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


def weights_of(
    layers: Sequence[Layer],
) -> tuple[tuple[Weight, ...], dict[str, str], dict[str, Computed], tuple[Weight, ...]]:
    """Return the weights, other names of shared weights, and those that are computed.

    The parts of a weight that is computed are listed in its place. The last are the
    weights as layers read them.
    """
    weights: dict[tuple[Layer, str], Weight] = {}
    aliases: dict[str, str] = {}
    computed: dict[str, Computed] = {}
    held: dict[str, tuple[Weight, ...]] = {}  # parts by name of the weight
    for name, key, leaf in _paths(layers, "", ""):
        for index, spec in enumerate(leaf.weight_specs or ()):
            known = weights.get((leaf, spec.name))
            if known is not None:
                aliases[f"{name}/{spec.name}"] = known.name
                continue
            weights[leaf, spec.name] = weight = Weight(
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
            by = leaf._parametrized.get(spec.name)
            if by is not None:
                parts = tuple(_part(weight, each) for each in by.parts)
                names = tuple(each.name for each in parts)
                computed[weight.name] = Computed(weight, by, names)
                held[weight.name] = parts
    listed = tuple(
        each for weight in weights.values() for each in held.get(weight.name, (weight,))
    )
    return listed, aliases, computed, tuple(weights.values())


def _part(weight: Weight, part: Part) -> Weight:
    """Return one of the weights that a weight is computed from."""
    return replace(
        weight,
        name=f"{weight.name}_{part.name}",
        key=f"{weight.key}_{part.name}",
        shape=part.shape,
        dtype=part.dtype,
        initializer=Zeros(),
        trainable=weight.trainable and part.trainable,
        regularizer=None,
        constraint=None,
    )


def _paths(
    layers: Sequence[Layer], name: str, key: str
) -> Iterator[tuple[str, str, Layer]]:
    """Yield all layers, including inner ones, with their names here and in files."""
    labels = labels_of(layers)
    keys = _file_names(layers, labels)
    for layer in layers:
        # A shared layer has one name per path to it, so the work can be exponential.
        spend(0.1 + 0.1 * name.count("/"))
        own = f"{name}{labels[layer]}", f"{key}{keys[layer]}"
        yield *own, layer
        yield from _paths(layer._sublayers(), f"{own[0]}/", f"{own[1]}/")


def _file_names(
    layers: Sequence[Layer], labels: Mapping[Layer, str]
) -> dict[Layer, str]:
    """Return each layer's name in files, numbering automatic ones per model."""
    taken = {labels[layer] for layer in layers if layer._named}
    keys: dict[Layer, str] = {}
    for layer in layers:
        if layer._named:
            keys[layer] = labels[layer]
            continue
        number, key = 0, layer._kind
        while key in taken:
            number += 1
            key = f"{layer._kind}_{number}"
        taken.add(key)
        keys[layer] = key
    return keys


_LAYER, _SHAPE = 30, 21  # columns; longer text continues on the next line
_NAME = 3 * _LAYER  # columns; longer names are shortened in the middle


def summary_text(
    name: str,
    policy: DTypePolicy,
    layers: Sequence[Layer],
    network: Network | None,
    *,
    expand_nested: bool = False,
    show_trainable: bool = False,
) -> str:
    """Return a table of a model's layers, shapes, parameters and bytes."""
    columns = [
        Column("Layer (type)", max_width=_LAYER, overflow="fold"),
        Column("Output shape", max_width=_SHAPE, overflow="fold"),
    ]
    if show_trainable:
        columns.append(Column("Trained"))
    table = new_table(*columns, numbers=("Parameters", "Bytes/sample"))

    def add(rows: Sequence[Layer], of: Network | None, indent: str) -> None:
        for layer in rows:
            label, shape, *numbers = _row(layer, policy, of)
            trained = [_trained(layer)] if show_trainable else []
            table.add_row(Text(indent) + label, shape, *trained, *numbers)
            if expand_nested and isinstance(layer, Nested):
                add(layer.model._stacked(), layer.model._network, f"{indent}  ")

    add(layers, network, "")
    kind = "" if policy.name == "float32" else f" ({policy.name})"
    title = f"Model: {shorten(name, width() - 7 - len(kind))}{kind}"
    return f"{title}\n{draw(table)}\n{_totals(layers, network)}"


def _adds_loss(layer: Layer) -> bool:
    """Return whether a call of a layer may add a loss."""
    return any(
        leaf.activity_regularizer is not None
        or any(getattr(each, "losses", ()) for each in leaf._inner.values())
        or (isinstance(leaf, Nested) and bool(leaf.model._built_network().losses))
        for _, leaf in layer._leaves()
    )


def _trained(layer: Layer) -> str:
    """Return whether a layer's weights are trained, or nothing if it has none."""
    if not layer.weights:
        return "-"
    return "yes" if layer.trainable_weights else "no"


def _row(
    layer: Layer, policy: DTypePolicy, network: Network | None
) -> tuple[Text, str, str, str]:
    what = layer.model if isinstance(layer, Nested) else layer
    words: tuple[str, ...] = layer.name, f"({type(what).__name__})"
    dtype = what.dtype_policy.compute_dtype
    if dtype != policy.compute_dtype:
        words = *words, dtype
    label = Text(" ".join(shorten(word, _NAME) for word in words))
    nodes = () if network is None else network.nodes
    first = next((node for node in nodes if node.layer is layer), None)
    if first is None:  # not built, or called by a step of one's own alone
        return label, "?", f"{layer.count_params():,}" if layer.weights else "?", "?"
    shapes = [each.open_shape for each in first.outputs]
    parameters = layer.count_params()
    item = 4 if dtype == "float32" else 2
    nbytes = "?"  # depends on the length of an axis
    if not any(None in shape for shape in shapes):
        sizes = [math.prod(each.sample_shape) for each in first.outputs]
        nbytes = format_bytes(item * sum(sizes))
    return label, "\n".join(map(show_shape, shapes)), f"{parameters:,}", nbytes


def _totals(layers: Sequence[Layer], network: Network | None) -> str:
    weights = dict.fromkeys(each for layer in layers for each in layer.weights)
    if network is None and not weights:
        return (
            "Not built: shapes are known after build(input_shape) or the first fit.\n"
        )
    total = sum(math.prod(each.shape) for each in weights)
    trains = {each for layer in layers for each in layer.trainable_weights}
    trained = sum(math.prod(each.shape) for each in weights if each in trains)
    text = "".join(
        f"{label + ':':<17} {size:,} ({format_bytes(4 * size)})\n"
        for label, size in (
            ("Total parameters", total),
            ("Trainable", trained),
            ("Not trainable", total - trained),
        )
    )
    if network is not None and network.open_axes:
        text += (
            "Axes of None have a length in each batch: plan(batch_size, lengths=...) "
            "says what one takes.\n"
        )
    return text
