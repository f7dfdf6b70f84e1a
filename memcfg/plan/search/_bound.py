"""A bound below which no plan can go: cheap and true, not always reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph import Graph
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Op


def lower_bound(graph: Graph) -> int:
    """Return bytes that every plan of the interchange format needs at least.

    Parameters
    ----------
    graph : Graph
        The graph.

    Returns
    -------
    int
        Bytes, for buffers rounded up to 64.

    Raises
    ------
    TypeError
        If it is not a graph.

    Notes
    -----
    The state is resident throughout. On top of it every plan holds, at some time,
    all that is there from the start; all that is to be kept, at the end; and, for
    each op, its other inputs, the outputs that cannot take over an input's buffer, and
    the scratch of its most frugal algorithm. The bound is the largest of these.
    Recomputation and copies can empty the arena of everything else, so a stronger
    bound would have to forbid them.
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
    """Say what gives a graph where something else is to be planned; TypeError."""
    if not isinstance(graph, Graph):
        raise TypeError(
            f"a memcfg.graph.Graph is planned, not {type(graph).__name__}: "
            "model.graph(batch_size), builder.build() and Graph.from_json(text) give "
            "one"
        )


def _inside_state(graph: Graph) -> set[int]:
    """List the tensors that can live in the buffers of the state."""
    inside = set(graph.persistent)
    for op in graph.ops:
        inside |= {output for source, output in op.in_place if source in inside}
    return inside


def _working_set(op: Op, sizes: Sequence[int], inside: set[int]) -> int:
    inputs = sum([sizes[t] for t in set(op.inputs) - inside])
    outputs = sum([sizes[t] for t in op.outputs])
    if op.in_place:
        outputs -= _in_place_bytes(op, sizes)
    least = min([op.scratch_bytes, *[each.scratch_bytes for each in op.algorithms]])
    return inputs + outputs - (-least // ALIGNMENT) * ALIGNMENT


def _in_place_bytes(op: Op, sizes: Sequence[int]) -> int:
    """Sum the most bytes of outputs that fit buffers of inputs, each buffer once.

    Sets of outputs that can be matched with inputs form a matroid, so taking the
    largest output first, with augmenting paths, is optimal.
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

    ordered = sorted(buffers, key=lambda output: -sizes[output])
    return sum(sizes[output] for output in ordered if place(output, set()))
