"""What lies idle in a schedule, and the copies that keep it within a limit.

A gap is the time between two uses of a value. A value that is away for a gap is copied
out behind the first use, on a lane that copies one after another, and back as late as
it still arrives in time, on another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memcfg.plan._algorithms import algorithms
from memcfg.plan._lifetimes import state_updates
from memcfg.plan._simulate import decode_seconds, encode_seconds
from memcfg.plan._tensor_moves import Event, Leave, Left, Return, Run, tier_of
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.graph import Algorithm
    from memcfg.plan._lifetimes import Request

_EQUAL = 1  # the in-place rule of equal sizes


class Gap(NamedTuple):
    """A value between two uses, by places in a schedule."""

    tensor: int
    nbytes: int  # rounded
    begin: int  # its copy out starts before this one, which may read it
    first: int  # the next that reads it


def gaps(request: Request, sequence: Sequence[int]) -> list[Gap]:
    """List the gaps of all values but those that stay, in order of their beginning."""
    graph = request.graph
    fixed = {*graph.persistent, *graph.keep, *graph.losses, *state_updates(graph)}
    touched: dict[int, list[int]] = defaultdict(list)  # of the value that there is now
    values: list[tuple[int, list[int]]] = []
    for place, index in enumerate(sequence):
        op = graph.ops[index]
        for tensor in dict.fromkeys(op.inputs):
            touched[tensor].append(place)
        for tensor in op.outputs:
            values.append((tensor, touched.pop(tensor, [])))
            touched[tensor] = [place + 1]  # it can leave behind its op
    values += touched.items()
    found = [
        Gap(tensor, align_up(graph.tensors[tensor].nbytes), begin, first)
        for tensor, places in values
        if tensor not in fixed and graph.tensors[tensor].nbytes
        for begin, first in pairwise(places)
        if first - begin > 1
    ]
    return sorted(found, key=lambda gap: (gap.begin, gap.tensor, gap.first))


def loads(request: Request, sequence: Sequence[int]) -> np.ndarray:
    """Return the bytes in use before the first op of a schedule and in each."""
    graph = request.graph
    layout = request.step.first_fit(sequence, rule=_EQUAL)
    changes = np.zeros(len(sequence) + 3, np.int64)
    for tensor, begin, end, source, state, _ in layout.instances:
        if state:
            continue
        # What takes over a buffer has its bytes from the next place on.
        begin += source >= 0
        changes[begin + 1] += align_up(graph.tensors[tensor].nbytes)
        changes[end + 2] -= align_up(graph.tensors[tensor].nbytes)
    found = np.cumsum(changes)[: len(sequence) + 1]
    found += sum(align_up(graph.tensors[t].nbytes) for t in graph.persistent)
    found[1:] += [align_up(graph.ops[index].scratch_bytes) for index in sequence]
    return found


class Code(NamedTuple):
    """A codec for the copies of a tensor, and the bytes that are expected of it."""

    name: str
    nbytes: int


class Copies(NamedTuple):
    """When a value is copied that is away for a gap, by places in a schedule."""

    gap: Gap
    leave: int | None  # the op that waits for the copy out; None: there was one before
    arrive: int  # the copy back starts before this one


class Swaps:
    """A schedule under a limit, with gaps in which values are away.

    An op that does not fit however much is away takes the fastest of its algorithms
    that does. Tensors with a code are encoded by the lane that copies them.
    """

    def __init__(
        self,
        request: Request,
        sequence: Sequence[int],
        limit: int,
        codes: Mapping[int, Code] = MappingProxyType({}),
    ) -> None:
        graph = request.graph
        self.graph = graph
        self.sequence = sequence
        self.limit = limit
        self.codes = codes
        self.gaps = gaps(request, sequence)
        found = loads(request, sequence)
        self.start, self.loads = int(found[0]), found[1:]
        self.rate = tier_of(graph).bytes_per_second or math.inf  # 0: no time
        self.algorithms = self._algorithms()  # by place, where it is not the default
        seconds = [graph.ops[index].seconds for index in sequence]
        for place, chosen in self.algorithms.items():
            saved = graph.ops[sequence[place]].scratch_bytes
            self.loads[place] -= align_up(saved) - align_up(chosen.scratch_bytes)
            seconds[place] = chosen.seconds
        self.starts = [0.0, *accumulate(seconds)]  # of each place, and of the end

    def _algorithms(self) -> dict[int, Algorithm]:
        over = self._least_loads() - self.limit
        found = {}
        for place in np.flatnonzero(over > 0).tolist():
            op = self.graph.ops[self.sequence[place]]
            most = align_up(op.scratch_bytes) - int(over[place])
            fitting = [
                each
                for each in algorithms(op, divided=True)
                if align_up(each.scratch_bytes) <= most
            ]
            if fitting:
                found[place] = min(fitting, key=lambda each: each.seconds)
        return found

    def _least_loads(self) -> np.ndarray:
        """Return the bytes in use in each op where all is away that can be."""
        left = self.loads.copy()
        for gap in self.gaps:
            left[gap.begin + 1 : gap.first] -= gap.nbytes
        return left

    def idle(self, gap: Gap) -> float:
        """Return the seconds of a gap that no copy takes: Capuchin's free time."""
        copies = self._out_seconds(gap) + self._in_seconds(gap)
        return self.starts[gap.first] - self.starts[gap.begin] - copies

    def _out_seconds(self, gap: Gap) -> float:
        if (code := self.codes.get(gap.tensor)) is None:
            return gap.nbytes / self.rate
        return max(code.nbytes / self.rate, encode_seconds(code.name, gap.nbytes))

    def _in_seconds(self, gap: Gap) -> float:
        if (code := self.codes.get(gap.tensor)) is None:
            return gap.nbytes / self.rate
        return max(code.nbytes / self.rate, decode_seconds(code.name, gap.nbytes))

    def least_limit(self) -> int:
        """Return the bytes in use at the peak where everything is away that can be."""
        return int(self._least_loads().max(initial=self.start))

    def cover(self, order: Iterable[Gap]) -> list[Gap] | None:
        """Choose gaps, in this order, until the limit holds; None: it never does.

        One that frees nothing where too much is in use is left out, and what others
        have made needless is taken back.
        """
        left = self.loads.copy()
        chosen: list[Gap] = []
        for gap in order:
            inside = left[gap.begin + 1 : gap.first]
            if inside.max(initial=0) > self.limit:
                inside -= gap.nbytes
                chosen.append(gap)
        if left.max(initial=self.start) > self.limit:
            return None
        needed = []
        for gap in reversed(chosen):
            inside = left[gap.begin + 1 : gap.first]
            if inside.max(initial=0) + gap.nbytes <= self.limit:
                inside += gap.nbytes
            else:
                needed.append(gap)
        return needed[::-1]

    def copies(self, chosen: Iterable[Gap]) -> list[Copies]:
        """Say when values are copied that are away for these gaps, and for how long.

        Copies have the time that the limit leaves them: a value that is still copied
        out, or is back already, has its bytes.
        """
        wanted = sorted(chosen)
        left = self.loads.copy()
        for gap in wanted:
            left[gap.begin + 1 : gap.first] -= gap.nbytes
        first: dict[int, Gap] = {}
        for gap in sorted(wanted, key=lambda gap: gap.begin):
            first.setdefault(gap.tensor, gap)
        leaves = self._leaves(first, left)
        arrives = self._arrives(wanted, left, leaves)
        return [Copies(gap, leaves.get(gap), arrives[gap]) for gap in wanted]

    def events(self, chosen: Iterable[Gap]) -> list[Event]:
        """List what happens where these values are away for these gaps."""
        before: dict[int, list[list[Event]]] = defaultdict(lambda: [[], [], []])
        for gap, leave, arrive in self.copies(chosen):
            code = self.codes.get(gap.tensor, ())
            if leave is not None:
                before[gap.begin][2].append(Leave(gap.tensor, *code))
                before[leave][0].append(Left(gap.tensor))
            before[arrive][1].append(Return(gap.tensor))
        found: list[Event] = []
        for place, op in enumerate(self.sequence):
            found += chain.from_iterable(before[place])
            thrifty = self.algorithms.get(place)
            found.append(Run(op, None if thrifty is None else thrifty.name))
        return found

    def _leaves(self, first: dict[int, Gap], left: np.ndarray) -> dict[Gap, int]:
        """Tell before which op each copy out is waited for."""
        found: dict[Gap, int] = {}
        free = 0.0
        for gap in sorted(first.values(), key=lambda gap: gap.begin):
            free = max(free, self.starts[gap.begin]) + self._out_seconds(gap)
            place = gap.begin + 1
            while (
                place < gap.first
                and self.starts[place] < free
                and left[place] + gap.nbytes <= self.limit
            ):
                left[place] += gap.nbytes
                place += 1
            found[gap] = place
        return found

    def _arrives(
        self, wanted: Iterable[Gap], left: np.ndarray, leaves: dict[Gap, int]
    ) -> dict[Gap, int]:
        """Tell before which op each copy back starts."""
        found: dict[Gap, int] = {}
        free = float("inf")  # when the lane must be free for what is used later
        for gap in sorted(wanted, key=lambda gap: (-gap.first, gap.tensor)):
            free = min(free, self.starts[gap.first]) - self._in_seconds(gap)
            place = gap.first
            least = leaves.get(gap, gap.begin + 1)
            while (
                place > least
                and self.starts[place] > free
                and left[place - 1] + gap.nbytes <= self.limit
            ):
                place -= 1
                left[place] += gap.nbytes
            found[gap] = place
        return found
