"""MXNet's static memory planning: in-place outputs and sharing of whole buffers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from memcfg.plan.methods._lives import Life, Lives
from memcfg.plan.search._policy import Method
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_RANGES = (1, 2, 4, 8, 16)  # max. ratio between the sizes of a buffer and a tensor
_SAME_SIZE = 1  # `layout` rule: in-place pairs need equal sizes


@dataclass(frozen=True)
class Sharing:
    """The buffer of each life, and the sizes of the buffers."""

    buffer: list[int]
    sizes: list[int]

    @property
    def total(self) -> int:
        """The bytes of all buffers."""
        return sum(self.sizes)


def color_paths(before: Sequence[Sequence[int]], colors: int | None) -> list[int]:
    """Color the nodes of a graph by paths, the longest path first.

    `before` has the predecessors of each node, in topological order. The length of a
    path counts uncolored nodes only, though it may pass colored ones. The last color is
    for all remaining nodes; None uses one color per path. Nodes of one path never run
    concurrently.
    """
    color = [-1] * len(before)
    number = 0
    while colors is None or number + 1 < colors:
        length: list[int] = []  # length of the longest path that ends at a node
        behind: list[int] = []
        for node, others in enumerate(before):
            last = max(others, key=lambda other: (length[other], -other), default=-1)
            behind.append(last)
            length.append((color[node] < 0) + (length[last] if last >= 0 else 0))
        if max(length, default=0) < 2:  # no two of the nodes left are on one path
            break
        end = length.index(max(length))
        while end >= 0:
            color[end] = number if color[end] < 0 else color[end]
            end = behind[end]
        number += 1
    for node, given in enumerate(color):
        if given < 0:
            color[node] = number
            number += colors is None or number + 1 < colors
    return color


def co_share(
    lives: Sequence[Life], match: int, color: Sequence[int] | None = None
) -> Sharing:
    """Assign each life a free buffer of similar size, or a new one.

    Lives are processed in order of time, the largest first. A life takes the smallest
    free buffer of 1 to `match` times its size, else the largest of at least 1 / `match`
    of it, which grows. Lives from the start get new buffers. With colors, only steps of
    the color that released a buffer may take it.
    """
    free: list[int] = []
    sizes: list[int] = []
    owner: list[int] = []  # by buffer: the color of the step that released it
    buffer = [-1] * len(lives)
    order = sorted(range(len(lives)), key=lambda i: (lives[i].begin, -lives[i].size, i))
    ends = sorted(range(len(lives)), key=lambda i: (lives[i].end, i))
    ended = 0
    for i in order:
        life = lives[i]
        while lives[ends[ended]].end < life.begin:
            old = lives[ends[ended]]
            if old.begin >= 0:
                free.append(buffer[ends[ended]])
                owner[free[-1]] = color[old.end] if color else 0
            ended += 1
        mine = color[life.begin] if color and life.begin >= 0 else 0
        near = [b for b in free if owner[b] == mine]
        larger = [b for b in near if life.size <= sizes[b] <= life.size * match]
        smaller = [b for b in near if sizes[b] < life.size <= sizes[b] * match]
        if life.begin >= 0 and larger:
            buffer[i] = min(larger, key=lambda b: (sizes[b], b))
        elif life.begin >= 0 and smaller:
            buffer[i] = max(smaller, key=lambda b: (sizes[b], -b))
        else:
            buffer[i] = len(sizes)
            sizes.append(life.size)
            owner.append(0)
            continue
        free.remove(buffer[i])
        sizes[buffer[i]] = max(sizes[buffer[i]], life.size)
    return Sharing(buffer, sizes)


@dataclass(frozen=True)
class Sharer:
    """Planning function of MXNet's method; a value, for comparison."""

    colors: int | None = 1
    ranges: tuple[int, ...] = _RANGES

    def __call__(self, request: Request) -> Plan:
        """Return the plan of a graph; the limit is not used."""
        graph = request.graph
        sequence = range(len(graph.ops))
        color = [0] * len(graph.ops)
        if self.colors != 1:
            made = graph.producer
            makers = ({made[t] for t in op.inputs} for op in graph.ops)
            before = [sorted(m for m in each if m is not None) for each in makers]
            color = color_paths(before, self.colors)
        layout = request.step.layout(sequence, rule=_SAME_SIZE, effort=0)
        lives = Lives(graph, layout)
        best = min(
            (co_share(lives.lives, match, color) for match in self.ranges),
            key=lambda s: s.total,
        )
        offsets = [*accumulate(best.sizes, initial=0)]
        scratch = _scratch(graph, color, offsets[-1])
        placed = lives.placed([offsets[b] for b in best.buffer], scratch)
        return request.laid_out(sequence, placed)


def _scratch(graph: Graph, color: Sequence[int], base: int) -> list[int]:
    """Return the scratch offset of each op; ops of a color share a buffer."""
    sizes = [0] * (max(color, default=-1) + 1)
    for op, number in zip(graph.ops, color, strict=True):
        sizes[number] = max(sizes[number], align_up(op.scratch_bytes))
    offsets = [*accumulate(sizes, initial=base)]
    return [
        offsets[number] if op.scratch_bytes else -1
        for op, number in zip(graph.ops, color, strict=True)
    ]


def mxnet(*, colors: int | None = 1) -> Policy:
    """Use in-place outputs, and reuse whole buffers, as MXNet.

    Parameters
    ----------
    colors : int or None, default 1
        The number of colors of ops. The op that releases a buffer and the op that takes
        it must have one color. None uses one color per path, so ops that could run
        concurrently share no buffers.

    Returns
    -------
    Policy
        The policy: the static plan of [1]_ as MXNet's executor makes it. A graph has
        one plan, whatever the limit; no op is computed twice.

    Raises
    ------
    TypeError
        If `colors` is neither an integer nor None.
    ValueError
        If `colors` is not positive.

    Notes
    -----
    An output takes over the buffer of an input of the same size if the op declares the
    pair and is the input's last reader. Other outputs take a whole free buffer, the
    largest output first: the smallest one that is large enough and at most r times as
    large, else the largest one of at least 1/r of the size, which grows. Of r = 1, 2,
    4, 8 and 16, the one with the smallest sum of buffers is used. All ops of a color
    share one scratch buffer. `share` splits and coalesces free memory instead, and
    needs less.

    The ops of the longest path have the first color, those of the longest path among
    the remaining ops the second, and so on; when colors run out, the rest has the last
    color. This is MXNet's option ``MXNET_EXEC_NUM_TEMP`` for executors that run
    branches concurrently. memcfg's devices run one op after another, so more colors
    only cost bytes.

    References
    ----------
    .. [1] T. Chen et al., "MXNet: A Flexible and Efficient Machine Learning Library
       for Heterogeneous Distributed Systems", 2015, arXiv:1512.01274.
    """
    if isinstance(colors, bool) or not isinstance(colors, int | None):
        raise TypeError(f"colors must be an integer or None, not {colors!r}")
    if colors is not None and colors < 1:
        raise ValueError(f"colors must be positive, not {colors}")
    name = "mxnet" if colors == 1 else f"mxnet(colors={colors})"
    return Method(name, Sharer(colors), "auto(), which can recompute")
