"""MXNet's static sharing: in place, and buffers that are used again one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan._policy import Method
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.plan._lifetimes import Request
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy

_RANGES = (1, 2, 4, 8, 16)  # how much larger or smaller a buffer may be
_SAME_SIZE = 1  # the rule for outputs in place


class Life(NamedTuple):
    """Bytes from the step that makes them to the last that reads them."""

    begin: int
    end: int
    size: int


@dataclass(frozen=True)
class Sharing:
    """The buffer of each life, and the sizes of the buffers."""

    buffer: list[int]
    sizes: list[int]

    @property
    def total(self) -> int:
        """Return the bytes of all buffers."""
        return sum(self.sizes)


def co_share(lives: Sequence[Life], match: int) -> Sharing:
    """Give each life a free buffer of about its size, or one of its own.

    Step by step, the largest first: the smallest free buffer from its size to `match`
    times that, else the largest from a `match`-th of it on, which grows. What is there
    from the start has a buffer of its own.
    """
    free: list[int] = []
    sizes: list[int] = []
    buffer = [-1] * len(lives)
    order = sorted(range(len(lives)), key=lambda i: (lives[i].begin, -lives[i].size, i))
    ends = sorted(range(len(lives)), key=lambda i: (lives[i].end, i))
    ended = 0
    for i in order:
        life = lives[i]
        while lives[ends[ended]].end < life.begin:
            if lives[ends[ended]].begin >= 0:
                free.append(buffer[ends[ended]])
            ended += 1
        larger = [b for b in free if life.size <= sizes[b] <= life.size * match]
        smaller = [b for b in free if sizes[b] < life.size <= sizes[b] * match]
        if life.begin >= 0 and larger:
            buffer[i] = min(larger, key=lambda b: (sizes[b], b))
        elif life.begin >= 0 and smaller:
            buffer[i] = max(smaller, key=lambda b: (sizes[b], -b))
        else:
            buffer[i] = len(sizes)
            sizes.append(life.size)
            continue
        free.remove(buffer[i])
        sizes[buffer[i]] = max(sizes[buffer[i]], life.size)
    return Sharing(buffer, sizes)


class _Layout(NamedTuple):
    instances: list[tuple[int, int, int, int, bool, int]]
    scratch: list[int]


def _plan(request: Request) -> Plan:
    sequence = range(len(request.graph.ops))
    found = request.step.layout(sequence, rule=_SAME_SIZE, effort=0)
    whole: dict[int, int] = {}  # instance -> the life that its bytes are
    lives: list[Life] = []
    for number, (tensor, begin, end, source, state, _) in enumerate(found.instances):
        if state:
            continue
        if source >= 0:
            whole[number] = whole[source]
            life = lives[whole[source]]
            lives[whole[source]] = life._replace(end=max(life.end, end))
        else:
            whole[number] = len(lives)
            size = align_up(request.graph.tensors[tensor].nbytes)
            lives.append(Life(begin, end, size))
    best = min((co_share(lives, match) for match in _RANGES), key=lambda s: s.total)
    offsets = [0]
    for size in best.sizes:
        offsets.append(offsets[-1] + size)
    instances = [
        (*each[:5], each[5] if each[4] else offsets[best.buffer[whole[number]]])
        for number, each in enumerate(found.instances)
    ]
    scratch = [
        offsets[-1] if request.graph.ops[op].scratch_bytes else -1 for op in sequence
    ]
    return request.laid_out(sequence, _Layout(instances, scratch))


def mxnet() -> Policy:
    """Work in place, and use buffers again, one tensor after another.

    Returns
    -------
    Policy
        The policy: the static plan of [1]_ as MXNet's executor makes it. There is one
        for a graph, whatever the limit; nothing is computed twice.

    Notes
    -----
    An output takes over the buffer of an input of the same size when the op declares
    the pair and is the input's last reader. Other outputs take a free buffer whole, the
    largest output first: the smallest that is large enough and at most r times as
    large, else the largest that is at least an r-th, which grows. Of r = 1, 2, 4, 8 and
    16 the least sum of buffers counts. All ops share the scratch of the largest.
    `share` divides and joins free memory instead, and needs less.

    References
    ----------
    .. [1] T. Chen et al., "MXNet: A Flexible and Efficient Machine Learning Library
       for Heterogeneous Distributed Systems", 2015, arXiv:1512.01274.
    """
    return Method("mxnet", _plan, "auto(), which can recompute")
