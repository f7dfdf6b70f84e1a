"""Layrub: buffers are reused within a layer and between layers, or data migrates.

Data that migrates leaves behind its last layer, and returns to slots.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memcfg.plan.methods._lives import Life, Lives
from memcfg.plan.methods._swapping import Away
from memcfg.plan.methods._timed_swaps import TimedSwaps
from memcfg.plan.search._full_tiers import tier_excess, within_tier
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search._request import state_updates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Layout, Request


_SAME_SIZE = 1  # the rule for outputs in place


class Layers:
    """Which data the gradients of a graph may be of."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes = graph.aligned_bytes
        self._state = set(graph.persistent)

    def data_of(self, op: int) -> dict[int, list[int]]:
        """Return the outputs of a backward op, each with the data that it may be of.

        An op is of the layer with which it has most in common: weights, what the layer
        reads, what it makes. Its output is the gradient of an input of as many bytes.
        """
        graph, sizes = self.graph, self.sizes
        shared: Counter[int] = Counter()
        for t in dict.fromkeys(graph.ops[op].inputs):
            maker = graph.producer[t]
            near = {*graph.consumers[t], *([] if maker is None else [maker])}
            shared.update(each for each in near if graph.ops[each].phase == "forward")
        most = max(shared.values(), default=0)
        layers = sorted(layer for layer, count in shared.items() if count == most)
        read = dict.fromkeys(t for layer in layers for t in graph.ops[layer].inputs)
        return {
            output: [
                t
                for t in read
                if t not in self._state and sizes[t] == sizes[output] > 0
            ]
            for output in graph.ops[op].outputs
        }


def readers_first(graph: Graph) -> list[int]:
    """Return an order in which what reads data runs before its gradient is made.

    The gradient of a weight comes before that of the layer's input, where nothing
    stands against it: a weight that is updated by its own gradient's op was read before
    by that of the input's gradient.
    """
    after = _waiting(graph)
    layers = Layers(graph)
    for index, op in enumerate(graph.ops):
        if op.phase != "backward":
            continue
        for data in layers.data_of(index).values():
            for reader in dict.fromkeys(r for t in data for r in graph.consumers[t]):
                late = graph.ops[reader].phase != "forward" and reader > index
                if late and not _reaches(after, index, reader):
                    after[reader].append(index)
    return _sorted(graph, after)


def _waiting(graph: Graph) -> list[list[int]]:
    """List by op those that have to wait for it."""
    after: list[list[int]] = [[] for _ in graph.ops]
    updates = state_updates(graph)
    for index, op in enumerate(graph.ops):
        for t in op.inputs:
            maker = graph.producer[t]
            if maker is not None:
                after[maker].append(index)
        for output in updates.keys() & {*op.outputs}:
            for reader in graph.consumers[updates[output]]:
                if reader != index:
                    after[reader].append(index)
    return after


def _reaches(after: Sequence[Sequence[int]], start: int, goal: int) -> bool:
    """Return whether an op has to wait for another one."""
    seen, stack = {start}, [start]
    while stack:
        for other in after[stack.pop()]:
            if other == goal:
                return True
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return False


def _sorted(graph: Graph, after: Sequence[Sequence[int]]) -> list[int]:
    """Put ops in order, of those that may run the first; updates behind forward ops."""
    waits = [0] * len(graph.ops)
    for others in after:
        for other in others:
            waits[other] += 1
    ready = [index for index, count in enumerate(waits) if not count]
    forward = sum(op.phase == "forward" for op in graph.ops)
    held: list[int] = []
    order: list[int] = []
    while ready:
        index = heappop(ready)
        if forward and graph.ops[index].phase == "update":
            held.append(index)
            continue
        order.append(index)
        forward -= graph.ops[index].phase == "forward"
        for other in after[index]:
            waits[other] -= 1
            if not waits[other]:
                heappush(ready, other)
        if not forward:
            while held:
                heappush(ready, held.pop())
    return order


class _Slots:
    """Bytes in slots of one size, each used by one life at a time."""

    def __init__(self) -> None:
        self.size = 0
        self.ends: list[int] = []  # by slot: the last step of what has it

    def take(self, life: Life) -> int:
        """Give a life the first slot that is free; lives come in order of time."""
        self.size = max(self.size, life.size)
        for slot, end in enumerate(self.ends):
            if end < life.begin:
                self.ends[slot] = life.end
                return slot
        self.ends.append(life.end)
        return len(self.ends) - 1


class Reuse:
    """Where the bytes of each life are, in an order of the ops.

    Attributes
    ----------
    offsets : list of int
        By life, from the end of the state.
    within : dict of int to int
        Gradients that take the bytes of their layer's data: life to life.
    slot_bytes : int
        Bytes of all slots.
    height : int
        Bytes of all buffers; scratch lies above.
    """

    def __init__(
        self, graph: Graph, sequence: Sequence[int], lives: Sequence[Life]
    ) -> None:
        self.graph = graph
        self.sequence = sequence
        self.lives = lives
        self._layers = Layers(graph)
        of = {life.tensor: number for number, life in enumerate(lives)}
        order = sorted(range(len(lives)), key=lambda i: (lives[i].begin, i))
        self.offsets = [0] * len(lives)
        self.height = 0
        self.within: dict[int, int] = {}
        busy: dict[int, int] = {}  # by life with bytes of its own: when they are free
        slots: dict[str, _Slots] = {}  # by role
        place: dict[int, int] = {}
        for number in order:
            life = lives[number]
            data = self._data(life, of, busy)
            if data is not None:
                self.within[number] = data
                self.offsets[number] = self.offsets[data]
                busy[data] = life.end
            elif self._is_kept(life):
                self.offsets[number] = self.height
                self.height += life.size
                busy[number] = life.end
            else:
                place[number] = slots.setdefault(self._role(life), _Slots()).take(life)
        start = self.height
        bases: dict[str, int] = {}
        for role, each in slots.items():
            bases[role] = self.height
            self.height += len(each.ends) * each.size
        self.slot_bytes = self.height - start
        for number, slot in place.items():
            role = self._role(lives[number])
            self.offsets[number] = bases[role] + slot * slots[role].size

    def _role(self, life: Life) -> str:
        return self.graph.tensors[life.tensor].role

    def _is_kept(self, life: Life) -> bool:
        """Return whether it lives from the start, to the end, or into backward."""
        if life.begin < 0 or life.end >= len(self.sequence):
            return True
        phases = [
            self.graph.ops[self.sequence[step]].phase for step in (life.begin, life.end)
        ]
        return phases[0] == "forward" != phases[1]

    def _data(self, life: Life, of: dict[int, int], busy: dict[int, int]) -> int | None:
        """Return the life of the layer's data whose bytes a gradient may take."""
        if life.begin < 0 or life.end >= len(self.sequence):
            return None
        maker = self.sequence[life.begin]
        if self.graph.ops[maker].phase != "backward":
            return None
        for tensor in self._layers.data_of(maker)[life.tensor]:
            number = of.get(tensor)
            if number is None or number not in busy:
                continue
            data = self.lives[number]
            if data.size == life.size and busy[number] < life.begin:
                return number
        return None


def lay_out(request: Request) -> tuple[list[int], Layout, Reuse]:
    """Return the order of the ops, where everything lies in it, and why."""
    graph = request.graph
    sequence = readers_first(graph)
    if request.step.fault(sequence):
        sequence = [*range(len(graph.ops))]
    found = request.step.layout(sequence, rule=_SAME_SIZE, effort=0)
    lives = Lives(graph, found)
    reuse = Reuse(graph, sequence, lives.lives)
    scratch = [reuse.height if graph.ops[op].scratch_bytes else -1 for op in sequence]
    return sequence, lives.placed(reuse.offsets, scratch), reuse


def _plan(request: Request) -> Plan:
    sequence, layout, _ = lay_out(request)
    return request.laid_out(sequence, layout)


def layrub() -> Policy:
    """Let gradients take the bytes of their layer's data, and layers take turns.

    Returns
    -------
    Policy
        The policy: the two kinds of reuse of [1]_, without its migration to the host.
        There is one plan for a graph, whatever the limit; nothing is computed twice.

    Notes
    -----
    Within a layer, the gradient of its input takes the bytes of the input itself.
    That takes an op that does not read the input while it makes its gradient, and no
    other reader later: so the gradient of the layer's weight, which reads it, runs
    before. Where it cannot (the op that makes the gradient reads the data, or the
    weight is updated by the op that makes its gradient) the gradient has bytes
    elsewhere. Pairs that ops declare are taken besides.

    Between layers, what does not have to wait for the backward phase takes turns in
    slots as large as the largest: one set of slots for gradients of activations, one
    for activations, one for gradients of weights. Their bytes do not depend on how deep
    a network is. What waits for the backward phase has bytes of its own, which the
    paper moves to the host and back.

    A backward op is of the layer with which it has most in common: weights, what the
    layer reads, and what it makes.

    References
    ----------
    .. [1] H. Jin, B. Liu, W. Jiang, Y. Ma, X. Shi, B. He, S. Zhao, "Layer-Centric
       Memory Reuse and Data Migration for Extreme-Scale Deep Learning on Many-Core
       Architectures", ACM TACO 15(3), 2018.
    """
    return Method("layrub", _plan, "auto(), which can recompute")


@dataclass(frozen=True)
class _Migrator:
    """What plans with one look-ahead: a value, so that equal policies are equal."""

    look_ahead: int

    def __post_init__(self) -> None:
        if self.look_ahead < 1:
            raise ValueError(f"look_ahead is at least 1, not {self.look_ahead}")

    def __call__(self, request: Request) -> Plan:
        """Plan in the order of Layrub's reuse, or the graph's if that takes less."""
        graph = request.graph
        orders = [readers_first(graph), [*range(len(graph.ops))]]
        if request.step.fault(orders[0]) or orders[0] == orders[1]:
            orders = orders[1:]
        result: list[Plan] = []
        for sequence in orders:
            away = migrations(graph, sequence, self.look_ahead)
            result.append(TimedSwaps(request, sequence, away).plan())
            fitting = request.limit_bytes is not None and fits(result[-1])
            if request.is_over() or (fitting and not tier_excess(request, result[-1])):
                break

        def order(plan: Plan) -> tuple[bool, int, int]:
            return not fits(plan), tier_excess(request, plan), plan.peak_bytes

        return within_tier(request, min(result, key=order))


def migrations(graph: Graph, sequence: Sequence[int], look_ahead: int) -> list[Away]:
    """Return what may migrate when, by places in a schedule that computes each op once.

    Data leaves behind its last reader of the forward phase. When the backward phase
    comes to what one op misses, what the next `look_ahead` ops do may be on its way;
    what the first of them do may come back as soon as it has left.
    """
    phases = [graph.ops[op].phase for op in sequence]
    turn = phases.index("backward") if "backward" in phases else len(phases)
    place = {op: at for at, op in enumerate(sequence)}
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    away = []
    for tensor, readers in enumerate(graph.consumers):
        maker = graph.producer[tensor]
        made = -1 if maker is None else place[maker]
        uses = [place[reader] for reader in readers]
        later = [use for use in uses if use >= turn]
        if tensor in fixed or made >= turn or not later:
            continue
        begin = max((use for use in uses if use < turn), default=made) + 1
        away.append(Away(tensor, begin, begin, begin, min(later)))
    backs = sorted({each.back for each in away})
    asked = {
        back: backs[at - look_ahead] if at >= look_ahead else 0
        for at, back in enumerate(backs)
    }
    away = [each._replace(arrive=asked[each.back]) for each in away]
    return sorted(away, key=lambda each: each.begin)


def layrub_migration(look_ahead: int = 2) -> Policy:
    """Let data migrate to the host behind its last layer, and back to slots in time.

    Data leaves when its last reader of the forward phase has read it, and its slot is
    free when the copy has ended. What the next ops of the backward phase miss comes
    back as soon as there are slots, in the order of its uses. An op waits for what it
    reads; within a limit also for a slot.

    Parameters
    ----------
    look_ahead : int, default 2
        For how many of the next ops that miss something it may be on its way.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    ValueError
        If `look_ahead` is below 1.

    Notes
    -----
    The migration of [1]_, together with the order of its reuse (see `layrub`): readers
    of a layer's data run before its gradient takes the bytes. A slot is bytes that a
    limit leaves, of any size; without a limit there is always one. All that the forward
    phase makes or reads and the backward phase reads migrates, whatever its layer; what
    is still leaving when it may come back stays.

    References
    ----------
    .. [1] H. Jin, B. Liu, W. Jiang, Y. Ma, X. Shi, B. He, S. Zhao, "Layer-Centric
       Memory Reuse and Data Migration for Extreme-Scale Deep Learning on Many-Core
       Architectures", ACM TACO 15(3), 2018.
    """
    return Method("layrub_migration", _Migrator(look_ahead), "auto()", swaps=True)
