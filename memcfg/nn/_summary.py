"""A model as a table."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memcfg.nn._symbolic import show_shape
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._layer import Layer
    from memcfg.nn._network import Network

__all__ = ["summary_text"]

_WIDTH = 88  # columns


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
        A table and two lines of totals.
    """
    table = Table(title=Text(f"Model: {name}"), title_justify="left")
    table.add_column("Layer (type)", overflow="fold")
    table.add_column("Output shape", overflow="fold")
    table.add_column("Parameters", justify="right")
    table.add_column("Bytes / sample", justify="right")
    for layer in layers:
        table.add_row(*_row(layer, network))
    buffer = io.StringIO()
    console = Console(file=buffer, width=_WIDTH)
    console.print(table)
    return buffer.getvalue() + _totals(network)


def _row(layer: Layer, network: Network | None) -> tuple[Text, str, str, str]:
    label = Text(f"{layer.name} ({type(layer).__name__})")  # brackets are no markup
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
    rest = total - trained
    return (
        f"Total parameters: {total:,} ({format_bytes(4 * total)})\n"
        f"Trainable: {trained:,} ({format_bytes(4 * trained)}); "
        f"not trainable: {rest:,} ({format_bytes(4 * rest)})\n"
    )
