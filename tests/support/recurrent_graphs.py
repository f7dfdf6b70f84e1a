"""Unrolled recurrent nets made without the tracer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training_graphs import Sketch

if TYPE_CHECKING:
    from memcfg.graph import Graph


def unrolled(cells: int, *, state: int = 64, inside: int = 640) -> Graph:
    """Cells in a row that read one weight; each gradient reads its cell's inside."""
    sketch = Sketch()
    weight = sketch.tensor("w", 64, "parameter")
    states = [sketch.tensor("h0", state, "input")]
    insides = []
    for t in range(1, cells + 1):
        states.append(sketch.tensor(f"h{t}", state, "activation"))
        insides.append(sketch.tensor(f"i{t}", inside, "activation"))
        sketch.op(
            "cell",
            "forward",
            [states[-2], weight],
            [states[-1], insides[-1]],
            seconds=1.0,
        )
    gradient = sketch.tensor(f"g{cells}", state, "activation_gradient")
    sketch.op("loss", "backward", [states[-1]], [gradient])
    for t in range(cells, 0, -1):
        below = sketch.tensor(f"g{t - 1}", state, "activation_gradient")
        reads = [states[t - 1], insides[t - 1], gradient]
        sketch.op("cell_gradient", "backward", reads, [below], seconds=2.0)
        gradient = below
    return sketch.graph(f"{cells} cells", [gradient])
