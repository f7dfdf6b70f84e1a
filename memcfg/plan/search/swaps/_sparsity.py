"""Sparsity of activations, and ops that read only the signs of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from memcfg.errors import GraphError
from memcfg.ops import op_type

if TYPE_CHECKING:
    from memcfg.graph import Graph, Op

_RECTIFIERS = ("relu", "relu6")  # ops whose results are 0 unless positive
_SAME_VALUES = ("flatten", "reshape", "dropout")  # output has at least as many zeros
# op type -> position of the input of which only signs are read
_OF_SIGNS = {"relu_gradient": 0, "relu_gradient_at": 0, "bias_relu_gradient_at": 0}
# Density of a ReLU's results. About half of them are 0, but planned at 0.5, 125 of 240
# encodings of a small VGG did not fit in the first 48 steps; at 0.6, 15 did not.
RECTIFIED = 0.6
_DENSE = 1.0


@dataclass(frozen=True)
class Densities:
    """Expected densities (fractions of nonzero words) of tensors.

    Parameters
    ----------
    rectified : float
        The density of results of ReLUs.
    named : tuple of (str, float), default ()
        Known densities by tensor name.
    """

    rectified: float
    named: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def of(given: float | Mapping[str, float], default: float) -> Densities:
        """Convert a policy's argument: one density, or densities by tensor name.

        ValueError if a density is not between 0 and 1.
        """
        if isinstance(given, Mapping):
            made = Densities(default, tuple(sorted(given.items())))
        else:
            made = Densities(given)
        for value in (made.rectified, *(value for _, value in made.named)):
            if not 0 <= value <= 1:
                raise ValueError(f"a density must be from 0 to 1, not {value!r}")
        return made

    def in_graph(self, graph: Graph) -> dict[int, float]:
        """Return the densities of the sparse tensors of the forward phase.

        A pooled element is 0 if its whole window is; zeros are taken as independent.
        """
        named = dict(self.named)
        result: dict[int, float] = {}
        for op in graph.ops:
            if op.phase != "forward" or not op.outputs:
                continue
            made, name = op.outputs[0], graph.tensors[op.outputs[0]].name
            density = named.get(name, self._made_by(graph, op, result))
            if density < _DENSE and graph.tensors[made].dtype == "float32":
                result[made] = density
        return result

    def _made_by(self, graph: Graph, op: Op, densities: Mapping[int, float]) -> float:
        if _ends_in_rectifier(op.type):
            return self.rectified
        read = [densities.get(tensor, _DENSE) for tensor in op.inputs]
        if op.type in _SAME_VALUES:
            return read[0]
        if op.type == "max_pool2d":
            window = prod(op.attributes.get("pool_size", ()))
            return float(1 - (1 - read[0]) ** window)
        if op.type == "concatenate":
            sizes = [graph.tensors[tensor].nbytes for tensor in op.inputs]
            return sum(d * n for d, n in zip(read, sizes, strict=True)) / sum(sizes)
        return _DENSE


def _composite_of(kind: str) -> Any:
    """Return the composite of an op type; None if it has none or is not registered."""
    try:
        return op_type(kind).composite
    except GraphError:
        return None


def _ends_in_rectifier(kind: str) -> bool:
    """Return whether an op type is a ReLU or a composite that ends in one."""
    if kind in _RECTIFIERS:
        return True
    composite = _composite_of(kind)
    return composite is not None and composite.parts[-1].type in _RECTIFIERS


def reads_sign(op: Op, tensor: int) -> bool:
    """Return whether an op only reads whether a tensor's elements are positive."""
    return all(
        _asks_sign(op.type, place)
        for place, source in enumerate(op.inputs)
        if source == tensor
    )


def _asks_sign(kind: str, place: int) -> bool:
    if kind in _OF_SIGNS:
        return _OF_SIGNS[kind] == place
    composite = _composite_of(kind)
    if composite is None:
        return False
    readers = [
        (part.type, own)
        for part in composite.parts
        for own, value in enumerate(part.inputs)
        if value.part < 0 and value.place == place
    ]
    return bool(readers) and all(_asks_sign(*reader) for reader in readers)
