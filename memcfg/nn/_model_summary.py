"""A model as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.text import Text

from memcfg._tables import draw, new_table
from memcfg._terminal import shorten
from memcfg.nn.layers._symbolic import show_shape
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._network import Network
    from memcfg.nn.layers._layer import Layer

__all__ = ["summary_text"]

_LAYER, _SHAPE = 30, 21  # columns; what is longer goes on in the next line
_NAME = 3 * _LAYER  # columns; of a longer name the middle is left out


def summary_text(name: str, layers: Sequence[Layer], network: Network | None) -> str:
    """Write a model's layers, shapes, parameters and bytes.

    Parameters
    ----------
    name : str
        The model's name.
    layers : sequence of Layer
        Its layers, in order.
    network : Network or None
        Its architecture; None while it is not built.

    Returns
    -------
    str
        A table and the totals, at most 80 columns wide.
    """
    table = new_table()
    table.add_column("Layer (type)", max_width=_LAYER, overflow="fold")
    table.add_column("Output shape", max_width=_SHAPE, overflow="fold")
    for heading in ("Parameters", "Bytes/sample"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in layers:
        table.add_row(*_row(layer, network))
    return f"Model: {shorten(name, 73)}\n{draw(table)}\n{_totals(network)}"


def _row(layer: Layer, network: Network | None) -> tuple[Text, str, str, str]:
    words = layer.name, f"({type(layer).__name__})"
    label = Text(" ".join(shorten(word, _NAME) for word in words))
    if network is None:
        return label, "?", "?", "?"
    shape = network.output_shape_of(layer)
    parameters = sum(math.prod(spec.shape) for spec in layer.weight_specs or ())
    nbytes = format_bytes(4 * math.prod(shape))
    return label, show_shape(shape), f"{parameters:,}", nbytes


def _totals(network: Network | None) -> str:
    if network is None:
        return (
            "Not built: shapes are known after build(input_shape) or the first fit.\n"
        )
    total = sum(weight.size for weight in network.weights)
    trained = sum(weight.size for weight in network.weights if weight.trainable)
    return "".join(
        f"{label + ':':<17} {size:,} ({format_bytes(4 * size)})\n"
        for label, size in (
            ("Total parameters", total),
            ("Trainable", trained),
            ("Not trainable", total - trained),
        )
    )
