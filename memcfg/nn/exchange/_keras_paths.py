"""Where Keras's files have the weights of layers.

Keras writes the variables of each layer to a group ``.../vars``, numbered, and inner
layers to groups named after the attributes that hold them. In lists, groups have the
names of classes with numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn._attributes import FixedAttributes, snake_case
from memcfg.nn._nested import Nested
from memcfg.nn.layers._attention import GroupQueryAttention, MultiHeadAttention
from memcfg.nn.layers._layer import Layer, members
from memcfg.nn.layers._rnn import RNN, StepByStep
from memcfg.nn.layers._spectral import SpectralNormalization
from memcfg.nn.layers._wrappers import Bidirectional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memcfg.nn._network import Weight

__all__ = ["Group", "layer_paths", "model_groups", "optimizer_slots"]

_OURS = {*Layer.__slots__, "_parts", "_nested", "_owner", "_lock"}
# State of optimizers that Keras has after that of all weights, in this order.
_BEFORE = ("average", "gradient_accumulator")
_AFTER = ("v_hat", "average_gradient", "product")


class Group(NamedTuple):
    """A group of a file: its path, the layer's name, and the weights in it."""

    path: str
    layer: str
    weights: tuple[Weight, ...]


def model_groups(model: Any, names: Callable[[str], dict[str, str]]) -> list[Group]:
    """Return the groups of a model's weights.

    `names` returns the groups of a path by the names of layers that a file notes.
    """
    network = model._completed()
    known = {(each.layer, each.spec_name): each for each in network.weights}
    found: dict[str, Group] = {}
    for path, layer, of in _of_model(model, "", names):
        weights = tuple(known[leaf, name] for leaf, name in of)
        found.setdefault(path, Group(path, layer.name, weights))
    return list(found.values())


def layer_paths(
    model: Any, names: Callable[[str], dict[str, str]]
) -> Iterator[tuple[str, Layer]]:
    """Yield the path of each layer, with a slash at the end; `names` as above."""
    for path, layer, _ in _of_model(model, "", names):
        yield path.removesuffix("vars"), layer


_Found = tuple[str, Any, list[tuple[Layer, str]]]


def _of_model(
    model: Any, path: str, names: Callable[[str], dict[str, str]]
) -> Iterator[_Found]:
    if type(model).__dict__.get("_saved_as") is None:
        held = list(members(list(getattr(model, "__dict__", {}).values())))
        met: set[Any] = set()
        for found in _of_attributes(model, path, names, held):
            if (found[1], *found[2]) not in met:  # `layers` repeats what came before
                met.add((found[1], *found[2]))
                yield found
        return
    network = model._built_network()
    layers = model._stacked() if "_stack" in type(model).__slots__ else network.layers
    yield from _of_list(layers, f"{path}layers", names)


def _of_list(
    layers: Iterable[Layer], path: str, names: Callable[[str], dict[str, str]]
) -> Iterator[_Found]:
    """Yield the groups of layers in a list: by their names, or by their classes."""
    listed = list(dict.fromkeys(layers))
    noted, counts = names(path), dict[str, int]()
    kept = [each for each in listed if each.weights or each.prepares]
    by_name = all(each.name in noted for each in kept)
    for layer in listed:
        kind = _kind(layer)
        number = counts.get(kind, 0)
        counts[kind] = number + 1
        name = f"{kind}_{number}" if number else kind
        if by_name and noted:
            name = noted.get(layer.name, "")
        if name:
            yield from _of_layer(layer, f"{path}/{name}/", names)


def _kind(layer: Layer) -> str:
    """Return the name of a layer's class in snake case, as Keras has it."""
    if isinstance(layer, GroupQueryAttention):
        return "grouped_query_attention"
    if isinstance(layer, Nested):
        kind = type(layer.model).__name__
        return snake_case("Functional" if kind == "Model" else kind)
    return snake_case(type(layer).__name__)


def _of_layer(
    layer: Any, path: str, names: Callable[[str], dict[str, str]]
) -> Iterator[_Found]:
    if isinstance(layer, Nested):
        yield from _of_model(layer.model, path, names)
        return
    specs = [each for each in layer.weight_specs or () if not each.hidden]
    specs.sort(key=lambda each: not each.trainable)
    own = [(layer, each.name) for each in specs]
    if isinstance(layer, MultiHeadAttention | GroupQueryAttention):
        private = "_" * isinstance(layer, GroupQueryAttention)
        for part in ("query", "key", "value", "attention_output"):
            group = f"{path}{private}{part.removeprefix('attention_')}_dense/vars"
            yield group, layer, [each for each in own if each[1].startswith(part + "_")]
        return
    if isinstance(layer, SpectralNormalization):  # Keras lists the kernel here, too
        kernel = next(each.name for each in layer.layer.weight_specs or ())
        own.insert(0, (layer.layer, kernel))
    single = isinstance(layer, StepByStep) and not isinstance(
        layer, RNN | Bidirectional
    )
    yield f"{path}{'cell/' * single}vars", layer, own
    yield from _of_attributes(layer, path, names)


def _of_attributes(
    owner: Any,
    path: str,
    names: Callable[[str], dict[str, str]],
    layers: Sequence[Layer] = (),
) -> Iterator[_Found]:
    """Yield the groups of the layers in attributes, private ones last.

    Of a model, the list of its `layers` is an attribute, too.
    """
    state = FixedAttributes.__getstate__(owner)
    if layers:
        state = {"layers": list(layers), **state}
    for name in sorted(state, key=lambda each: each.replace("_", "~", 1)):
        if name in _OURS or (name.startswith("_") and not hasattr(owner, "__dict__")):
            continue
        value = state[name]
        inner = list(members(value))
        if isinstance(value, list | tuple | dict):
            yield from _of_list(inner, f"{path}{name}", names)
            continue
        for layer in inner:
            yield from _of_layer(layer, f"{path}{name}/", names)


def optimizer_slots(kind: str, slots: Sequence[Any]) -> list[Any] | None:
    """Return an optimizer's state in Keras's order; None if Keras's is another one."""
    if kind == "adafactor":
        return None
    rounds: dict[int, list[Any]] = {}
    for slot in slots:
        name = slot.key.rpartition("/")[2]
        order = 0
        if name in _BEFORE:
            order = _BEFORE.index(name) - len(_BEFORE)
        elif name in _AFTER:
            order = 2 + _AFTER.index(name)
        elif kind == "rmsprop" and name == "momentum":
            order = 1
        rounds.setdefault(order, []).append(slot)
    return [slot for order in sorted(rounds) for slot in rounds[order]]
