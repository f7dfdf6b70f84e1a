"""A model as boxes and arrows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memcfg.nn._nested import Nested
from memcfg.nn.layers._layer import InputLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._network import Network
    from memcfg.nn.layers._layer import Layer, Node, SymbolicTensor

__all__ = ["Box", "Boxes", "Shown", "boxes_of"]


@dataclass(frozen=True)
class Shown:
    """What boxes say of layers."""

    shapes: bool
    dtype: bool
    names: bool
    activations: bool
    trainable: bool
    nested: bool  # whether models within the model are expanded


@dataclass(frozen=True)
class Box:
    """A layer; `lines` are its text, and `group` the models that it is in."""

    lines: tuple[str, ...]
    group: tuple[str, ...]


@dataclass
class Boxes:
    """Boxes in the order of calls, and arrows between their numbers."""

    boxes: list[Box] = field(default_factory=list)
    arrows: dict[tuple[int, int], None] = field(default_factory=dict)


def boxes_of(network: Network, shown: Shown, *, starts: bool) -> Boxes:
    """Return the boxes of a model, with those of its inputs or without."""
    made = Boxes()
    _Walk(made, shown, starts).add(network, [], ())
    return made


class _Walk:
    """Adds the layers of networks; a layer that is called twice is one box."""

    def __init__(self, made: Boxes, shown: Shown, starts: bool) -> None:
        self._made = made
        self._shown = shown
        self._starts = starts
        self._known: dict[tuple[tuple[str, ...], Layer], int] = {}

    def add(
        self,
        network: Network,
        sources: Sequence[list[int]],
        group: tuple[str, ...],
    ) -> list[list[int]]:
        """Add a network whose inputs come from boxes; return those of its outputs."""
        at: dict[SymbolicTensor, list[int]] = {}
        given = dict(zip(network.inputs, sources, strict=False))
        for node in network.nodes:
            before = [box for each in node.inputs for box in at.get(each, [])]
            if isinstance(node.layer, InputLayer):
                before = given.get(node.outputs[0], [])
                if not self._starts and not group:
                    continue
            layer = node.layer
            if isinstance(layer, Nested) and self._shown.nested:
                inner = layer.model._built_network()
                ends = self.add(
                    inner,
                    [at.get(each, []) for each in node.inputs],
                    (*group, layer.name),
                )
                at |= zip(node.outputs, ends, strict=True)
                continue
            box = self._box(node, network, group)
            self._made.arrows |= dict.fromkeys((each, box) for each in before)
            at |= {each: [box] for each in node.outputs}
        return [at.get(each, []) for each in network.outputs]

    def _box(self, node: Node, network: Network, group: tuple[str, ...]) -> int:
        key = group, node.layer
        if key not in self._known:
            self._known[key] = len(self._made.boxes)
            lines = _lines(node, network, self._shown)
            self._made.boxes.append(Box(lines, group))
        return self._known[key]


def _lines(node: Node, network: Network, shown: Shown) -> tuple[str, ...]:
    layer: Any = node.layer
    what = layer.model if isinstance(layer, Nested) else layer
    kind = type(what).__name__
    lines = [f"{layer.name} ({kind})" if shown.names else kind]
    activation = getattr(what, "activation", None)
    if shown.activations and activation is not None:
        name = getattr(activation, "__name__", activation)
        lines.append(f"Activation: {name}")
    if shown.shapes:
        if not isinstance(layer, InputLayer):
            lines.append(f"Input shape: {_joined(node.inputs, 'shape')}")
        lines.append(f"Output shape: {_joined(node.outputs, 'shape')}")
    if shown.dtype:
        lines.append(f"Output dtype: {_joined(node.outputs, 'dtype')}")
    if shown.trainable and any(leaf.weight_specs for _, leaf in layer._leaves()):
        frozen = network.frozen()
        names = {
            network.names[leaf, s.name]
            for _, leaf in layer._leaves()
            for s in leaf.weight_specs or ()
            if (leaf, s.name) in network.names
        }
        lines.append("Non-trainable" if names <= frozen else "Trainable")
    return tuple(lines)


def _joined(tensors: Sequence[SymbolicTensor], what: str) -> str:
    return ", ".join(str(getattr(each, what)) for each in tensors)
