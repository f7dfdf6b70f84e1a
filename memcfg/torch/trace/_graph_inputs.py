"""The inputs of a captured graph, by what the user's program calls them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

_PART = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_LOCAL = re.compile(r"^L\['(\w+)'\]")


class GraphInput(NamedTuple):
    """An input of a graph."""

    name: str  # such as "encoder.0.weight", or "args[0]"
    is_state: bool  # whether it is a parameter or a buffer


def inputs_of(module: fx.GraphModule, values: Sequence[Any]) -> tuple[GraphInput, ...]:
    """Return the inputs of a captured graph, of which these are the values."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    found = []
    for node, value in zip(nodes, values, strict=True):
        is_state = isinstance(value, torch.nn.Parameter) or any(
            each in node.name for each in ("_parameters_", "_buffers_")
        )
        found.append(GraphInput(_name_of(node), is_state))
    return tuple(found)


def _name_of(node: fx.Node) -> str:
    """Return the path of a parameter or a buffer, or the expression of an argument."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", None)
    if callable(name):  # before PyTorch 2.10
        name = name()
    if not isinstance(name, str):
        return str(node.name)
    parts = _PART.findall(name)
    return ".".join(parts) if parts else _LOCAL.sub(r"\1", name)


def gradients_of(graph: fx.Graph, num_fwd_outputs: int) -> dict[int, int]:
    """Return the outputs of a joint graph that are gradients, with their inputs.

    Both are positions.
    """
    output = graph.output_node()
    results = output.args[0]
    described = output.meta.get("desc") or [None] * len(results)
    found = {}
    for at in range(num_fwd_outputs, len(results)):
        about = getattr(described[at], "grad_of", None)
        if hasattr(results[at], "meta"):  # else no gradient
            found[at] = getattr(about, "idx", at - num_fwd_outputs)
    return found


def position_of(node: fx.Node) -> int | None:
    """Return which input of the captured graph a node is; None if it is none."""
    place = getattr(node.meta.get("desc"), "idx", None)
    if place is not None:
        return int(place)
    match = re.fullmatch(r"(?:primals_|arg)(\d+)(_1)?", node.name)
    return None if match is None else int(match[1]) - (0 if match[2] else 1)
