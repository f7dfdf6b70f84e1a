"""Lower bound of the peak of any plan; fast to compute, not always attained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph import Graph
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Op


def lower_bound(graph: Graph) -> int:
    """Return a lower bound of the peak of any plan of the interchange format.

    Parameters
    ----------
    graph : Graph
        The graph.

    Returns
    -------
    int
        The bound in bytes, with buffers rounded up to 64.

    Raises
    ------
    TypeError
        If `graph` is not a graph.

    Notes
    -----
    State is resident throughout. In addition, every plan holds all inputs at the start;
    all kept tensors at the end; and, for each op, its other inputs, the outputs that
    cannot take over an input's buffer, and the smallest scratch of its algorithms. The
    bound is the largest of these sums. Since recomputation and copies can remove
    everything else, a stronger bound would have to exclude them.
    """
    check_graph(graph)
    sizes = graph.aligned_bytes
    state_bytes = sum([sizes[t] for t in graph.persistent])
    start = sum([sizes[t] for t, maker in enumerate(graph.producer) if maker is None])
    inside = _inside_state(graph)
    end = sum([sizes[t] for t in set(graph.keep) - inside])
    working = [_working_set(op, sizes, inside) for op in graph.ops]
    return max(start, state_bytes + max((end, *working)))


def check_graph(graph: object) -> None:
    """Raise TypeError unless the argument is a graph."""
    if not isinstance(graph, Graph):
        raise TypeError(
            f"expected a memcfg.graph.Graph, not {type(graph).__name__}: use "
            "model.graph(batch_size), builder.build() or Graph.from_json(text)"
        )


def _inside_state(graph: Graph) -> set[int]:
    """Return the tensors that can be in the buffers of the state."""
    inside = set(graph.persistent)
    for op in graph.ops:
        for source, output in op.in_place:
            if source in inside:
                inside.add(output)
    return inside


def _working_set(op: Op, sizes: Sequence[int], inside: set[int]) -> int:
    inputs = sum(map(sizes.__getitem__, set(op.inputs) - inside))
    outputs = sum(map(sizes.__getitem__, op.outputs))
    if op.in_place:
        outputs -= _in_place_bytes(op, sizes)
    least = op.scratch_bytes
    for each in op.algorithms:
        least = min(least, each.scratch_bytes)
    return inputs + outputs - (-least // ALIGNMENT) * ALIGNMENT


def _in_place_bytes(op: Op, sizes: Sequence[int]) -> int:
    """Return the largest total bytes of outputs that can take over input buffers.

    Sets of outputs that can be matched with inputs form a matroid, so the greedy choice
    of the largest output first, with augmenting paths, is optimal.
    """
    buffers: dict[int, list[int]] = {}
    for source, output in op.in_place:
        if sizes[output] <= sizes[source]:
            buffers.setdefault(output, []).append(source)
    holder: dict[int, int] = {}  # input -> output in its buffer

    def place(output: int, tried: set[int]) -> bool:
        for source in buffers[output]:
            if source in tried:
                continue
            tried.add(source)
            if source not in holder or place(holder[source], tried):
                holder[source] = output
                return True
        return False

    ordered = sorted(buffers, key=sizes.__getitem__, reverse=True)
    return sum([sizes[output] for output in ordered if place(output, set())])
