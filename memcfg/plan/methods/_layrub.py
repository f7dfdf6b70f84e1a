"""Layrub: reuse of buffers within and between layers, and data migration."""

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


_SAME_SIZE = 1  # `layout` rule: in-place pairs need equal sizes


class Layers:
    """Relation between gradients and the layer inputs (data) of the same size."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes = graph.aligned_bytes
        self._state = set(graph.persistent)

    def data_of(self, op: int) -> dict[int, list[int]]:
        """Map each output of a backward op to the data that it may be the gradient of.

        The op belongs to the layers with which it shares most operands. Candidates are
        the inputs of these layers with as many bytes as the output.
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
    """Return an order in which readers of data run before its gradient's op.

    So the gradient of a weight is computed before that of the layer's input, unless a
    dependence forbids it: if one op computes a weight's gradient and updates it, the op
    of the input's gradient reads the weight before.
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
    """Return, for each op, the ops that must run after it."""
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
    """Return whether op `goal` must run after op `start`."""
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
    """Return the smallest topological order with updates after the forward phase."""
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
    """Slots of one size, each used by one life at a time."""

    def __init__(self) -> None:
        self.size = 0
        self.ends: list[int] = []  # by slot: the last step of its current life

    def take(self, life: Life) -> int:
        """Return the first free slot for a life; calls must be in order of time."""
        self.size = max(self.size, life.size)
        for slot, end in enumerate(self.ends):
            if end < life.begin:
                self.ends[slot] = life.end
                return slot
        self.ends.append(life.end)
        return len(self.ends) - 1


class Reuse:
    """Layrub's placement of lives for an order of the ops.

    Attributes
    ----------
    offsets : list of int
        Offset of each life, relative to the end of the state.
    within : dict of int to int
        Maps the life of a gradient to that of the data whose bytes it takes.
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
        busy: dict[int, int] = {}  # life with its own bytes -> last step of their use
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
        """Return whether a life spans the start, the end, or forward to backward."""
        if life.begin < 0 or life.end >= len(self.sequence):
            return True
        phases = [
            self.graph.ops[self.sequence[step]].phase for step in (life.begin, life.end)
        ]
        return phases[0] == "forward" != phases[1]

    def _data(self, life: Life, of: dict[int, int], busy: dict[int, int]) -> int | None:
        """Return the life of the data whose bytes a gradient may take, or None."""
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
    """Return the order of the ops, the layout, and the placement behind it."""
    graph = request.graph
    sequence = readers_first(graph)
    if request.step.fault(sequence):
        sequence = [*range(len(graph.ops))]
    layout = request.step.layout(sequence, rule=_SAME_SIZE, effort=0)
    lives = Lives(graph, layout)
    reuse = Reuse(graph, sequence, lives.lives)
    scratch = [reuse.height if graph.ops[op].scratch_bytes else -1 for op in sequence]
    return sequence, lives.placed(reuse.offsets, scratch), reuse


def _plan(request: Request) -> Plan:
    sequence, layout, _ = lay_out(request)
    return request.laid_out(sequence, layout)


def layrub() -> Policy:
    """Reuse the bytes of a layer's data for its gradient, and buffers between layers.

    Returns
    -------
    Policy
        The policy: the two kinds of reuse of [1]_, without its migration to the host.
        A graph has one plan, whatever the limit; no op is computed twice.

    Notes
    -----
    Within a layer, the gradient of the input takes the bytes of the input. The op that
    computes it must not read the input, and the input must have no later reader; so the
    gradient of the layer's weight, which reads the input, runs before. If that is
    impossible (the op reads the input, or one op computes the weight's gradient and
    updates the weight), the gradient has other bytes. In addition, in-place pairs that
    ops declare are used.

    Between layers, tensors that are not kept for the backward phase take turns in slots
    of the size of the largest: one set of slots for gradients of activations, one for
    activations, one for gradients of weights. Their bytes do not depend on the depth of
    the network. Tensors that are kept for the backward phase have their own bytes; the
    paper moves these to the host and back.

    A backward op belongs to the layer with which it shares most operands.

    References
    ----------
    .. [1] H. Jin, B. Liu, W. Jiang, Y. Ma, X. Shi, B. He, S. Zhao, "Layer-Centric
       Memory Reuse and Data Migration for Extreme-Scale Deep Learning on Many-Core
       Architectures", ACM TACO 15(3), 2018.
    """
    return Method("layrub", _plan, "auto(), which can recompute")


@dataclass(frozen=True)
class _Migrator:
    """Planning function with a look-ahead; a value, for comparison."""

    look_ahead: int

    def __post_init__(self) -> None:
        if self.look_ahead < 1:
            raise ValueError(f"look_ahead must be at least 1, not {self.look_ahead}")

    def __call__(self, request: Request) -> Plan:
        """Plan in the order of Layrub's reuse, or in the graph's if that needs less."""
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
    """Return the data that may migrate, by positions in a schedule without repeats.

    Data is copied out after its last reader of the forward phase. When the backward
    phase reaches an op that misses data, the copies in for the next `look_ahead` such
    ops may start. Those for the first `look_ahead` ops may start as soon as the copies
    out have ended.
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
    """Migrate data to the host after its last forward use, and back in time.

    Data is copied out after its last reader of the forward phase, and its slot is free
    when the copy has ended. Data that the next ops of the backward phase miss is copied
    in, in the order of use, as soon as there are free slots. An op waits for the data
    that it reads and, if there is a limit, for a free slot.

    Parameters
    ----------
    look_ahead : int, default 2
        How many ops with missing data a copy in may start ahead of its use.

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
    The migration of [1]_, in the order of its reuse (see `layrub`): readers of a
    layer's data run before its gradient's op. A slot is any free bytes below the limit;
    without a limit there is always one. All tensors that the forward phase writes or
    reads and the backward phase reads migrate, whatever their layer. A tensor whose
    copy out has not ended when its copy in may start stays on the device.

    References
    ----------
    .. [1] H. Jin, B. Liu, W. Jiang, Y. Ma, X. Shi, B. He, S. Zhao, "Layer-Centric
       Memory Reuse and Data Migration for Extreme-Scale Deep Learning on Many-Core
       Architectures", ACM TACO 15(3), 2018.
    """
    return Method("layrub_migration", _Migrator(look_ahead), "auto()", swaps=True)
