"""Simulation of a plan: bytes, seconds and a schedule.

The simulator assumes that the plan is valid. `validate` proves it and shares no code
with this module.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg.errors import PlanError
from memcfg.graph import NOMINAL_COPY
from memcfg.plan.format._actions import (
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Start,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan.format._clock import (
    Clock,
    cost_of,
    decode_seconds,
    encode_seconds,
    lane_seconds,
)
from memcfg.plan.format._collectives import NETWORK, beside_seconds, runs_beside
from memcfg.plan.format._place import Buffer, plan_offsets
from memcfg.plan.format._tier_choice import ENCODES, HEADER, Life, assign
from memcfg.units import ALIGNMENT, align_up

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from memcfg.graph import Graph, Tier
    from memcfg.plan.format._plan import Plan

# ("tensor" or "encoded", tensor id), or ("scratch", action of a start)
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Simulated time of an action.

    Parameters
    ----------
    action : int
        The index of the action in the plan.
    queue : str
        ``"compute"``, ``"network"``, or the tier and direction of a lane, such as
        ``"host out"``.
    begin, end : float
        Seconds since the start of the step.
    """

    action: int
    queue: str
    begin: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """Memory and time of a plan.

    Parameters
    ----------
    peak_bytes : int
        The highest end of any buffer in use at any time.
    host_peak_bytes : int
        The most bytes on other tiers at a time. A copy counts until its last swap-in,
        the overflow that is reserved for an encoding until it is decoded.
    moved_bytes : int
        Bytes copied out and in; an encoded copy counts with its planned encoded size.
    seconds : float
        The time of all computed ops in seconds, without collectives, copies and
        codecs.
    recompute_seconds : float
        The part of `seconds` beyond the first computation of each op.
    by_role_at_peak : mapping of str to int
        Bytes in use at the peak, by role; ``"scratch"`` counts as a role.
    peak_op : int or None
        The op that runs at the peak; None if the peak is at the start or the end.
    timeline : tuple of (int, int)
        For each computed op, in order, its index and the bytes in use while it runs.
    tier_peak_bytes : mapping of str to int
        The highest end of any copy or reserved overflow with an offset, by tier.
    schedule : tuple of Scheduled
        Each op, copy, collective, wait, encoding and decoding, in the plan's order.
    elapsed_seconds : float
        The end of the last of them, in seconds since the start of the step.
    codec_seconds : float
        The time of all encoding and decoding in seconds, at nominal speeds; a codec
        without a nominal speed counts as 0.
    """

    peak_bytes: int
    host_peak_bytes: int
    moved_bytes: int
    seconds: float
    recompute_seconds: float
    by_role_at_peak: Mapping[str, int]
    peak_op: int | None
    timeline: tuple[tuple[int, int], ...]
    tier_peak_bytes: Mapping[str, int]
    schedule: tuple[Scheduled, ...]
    elapsed_seconds: float
    codec_seconds: float


def simulate(
    graph: Graph, plan: Plan, bandwidth: Mapping[str, float] | None = None
) -> Simulation:
    """Simulate a plan and return its bytes, seconds and schedule.

    Parameters
    ----------
    graph : Graph
        The graph of the plan.
    plan : Plan
        The plan.
    bandwidth : mapping of str to float, optional
        Bytes per second in each direction, by tier; copies to and from a tier that is
        missing take no time.

    Raises
    ------
    PlanError
        If an action names a tensor, op or algorithm that the graph does not have, or a
        buffer that does not exist at that action.
    """
    usage = Usage(graph, plan)
    usage.follow()
    held = _copies(graph, plan)
    schedule = _schedule(graph, plan, bandwidth or {})
    tiers: dict[str, int] = {}
    for copy in held:
        end = 0 if copy.offset is None else copy.offset + copy.size
        tiers[copy.tier] = max(end, tiers.get(copy.tier, 0))
    away = [
        sum(other.size for other in held if other.begin <= copy.begin < other.end)
        for copy in held
    ]
    moved = [
        -(-nbytes // plan.alignment) * plan.alignment
        for nbytes in moved_bytes(graph, plan).values()
    ]
    coding = [
        each.end - each.begin
        for each in schedule
        if isinstance(plan.actions[each.action], Encode | Decode)
    ]
    return Simulation(
        peak_bytes=usage.peak,
        host_peak_bytes=max(away, default=0),
        moved_bytes=sum(moved),
        seconds=usage.seconds,
        recompute_seconds=usage.recompute_seconds,
        by_role_at_peak=usage.by_role_at_peak,
        peak_op=usage.peak_op,
        timeline=tuple(usage.timeline),
        tier_peak_bytes=tiers,
        schedule=schedule,
        elapsed_seconds=max([each.end for each in schedule], default=0.0),
        codec_seconds=sum(coding),
    )


def buffers_at_ops(
    graph: Graph, plan: Plan, ops: Container[int]
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield the buffers in use, scratch excluded, at each computation of these ops.

    Each item is the index of the action, the op, and the (offset, end) of each buffer,
    ascending.
    """
    usage = Usage(graph, plan)
    for index, action in enumerate(plan.actions):
        if isinstance(action, Compute) and action.op in ops:
            usage.follow(index + 1)
            spans = sorted(usage.buffers.values())
            yield index, action.op, [(begin, begin + size) for begin, size in spans]


def tier_rates(graph: Graph) -> dict[str, float]:
    """Map tiers to bytes per second: the device's, or nominal ones."""
    stated = {tier.name: tier.bytes_per_second for tier in graph.tiers}
    return {**NOMINAL_COPY, **stated}


class Usage:
    """The buffers of the arena and their statistics while the actions are followed."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        unit = plan.alignment
        self.graph = graph
        self.plan = plan
        self.buffers: dict[_Key, tuple[int, int]] = {}  # offset, bytes
        self.peak = 0
        self.by_role_at_peak: dict[str, int] = {}
        self.peak_op: int | None = None
        self.seconds = 0.0
        self.recompute_seconds = 0.0
        self.timeline: list[tuple[int, int]] = []
        self._sizes: Sequence[int] = graph.aligned_bytes
        if unit != ALIGNMENT:
            self._sizes = [align_up(tensor.nbytes, unit) for tensor in graph.tensors]
        self._takers: dict[int, int] = {}  # input -> output that takes over its buffer
        self._state = set(graph.persistent)  # tensors that share the state's buffers
        self._by_role: dict[str, int] = defaultdict(int)
        self._live = 0
        self._most = -1  # bytes in use at the peak
        self._computed: set[int] = set()
        self._next = 0  # the action to follow next

    def follow(self, end: int | None = None) -> None:
        """Follow the actions up to index `end`, or all of them.

        Raises PlanError if an action does not fit the graph or the arena. The loop is
        on the hot path: searches simulate each plan that they compare.
        """
        index = self._next
        actions = self.plan.actions[index:end]
        for index, action in enumerate(actions, index):  # noqa: B020
            try:
                match action:
                    case Alloc(tensor, offset):
                        self._open(("tensor", tensor), offset, self._sizes[tensor])
                    case Free(tensor):
                        self._free(tensor)
                    case Compute(op, algorithm, scratch):
                        self._compute(op, algorithm, scratch)
                        self._keep_scratch(index, action)
                    case Wait(target):
                        self._end(target)
                    case Alias(output, source):
                        self._alias(output, source)
                    case Encode() | Decode():
                        self._code(action)
            except LookupError as error:
                raise PlanError(
                    f"action {index} ({action}) does not fit the graph "
                    f"{self.graph.name!r}"
                ) from error
        self._next += len(actions)
        if end is None:
            self._note_moment(None)

    def _role(self, key: _Key) -> str:
        kind, number = key
        return kind if kind == "scratch" else self.graph.tensors[number].role

    def _open(self, key: _Key, offset: int, size: int) -> None:
        self.buffers[key] = (offset, size)
        self._by_role[self._role(key)] += size
        self._live += size
        top = offset + size if self.plan.places else self._live
        if top > self.peak:
            self.peak = top

    def _close(self, key: _Key) -> int:
        offset, size = self.buffers.pop(key)
        self._by_role[self._role(key)] -= size
        self._live -= size
        return offset

    def _free(self, tensor: int) -> None:
        if ("tensor", tensor) not in self.buffers:
            self._close(("encoded", tensor))
            return
        offset = self._close(("tensor", tensor))
        if tensor in self._takers:
            output = self._takers.pop(tensor)
            self._open(("tensor", output), offset, self._sizes[output])

    def _code(self, action: Encode | Decode) -> None:
        tensor, offset = action.tensor, action.offset
        if isinstance(action, Encode):
            size = align_up(action.nbytes, self.plan.alignment)
            self._open(("encoded", tensor), offset, size)
            return
        self._open(("tensor", tensor), offset, self._sizes[tensor])
        self._note_moment(None)
        self._close(("encoded", tensor))

    def _alias(self, output: int, source: int) -> None:
        if source in self._state:
            self._state.add(output)
        else:
            self._takers[source] = output

    def _keep_scratch(self, index: int, action: Compute) -> None:
        """Follow the scratch of a start, which is in use until its wait."""
        if isinstance(action, Start) and action.scratch_offset is not None:
            _, nbytes = cost_of(self.graph.ops[action.op], action.algorithm)
            size = align_up(nbytes, self.plan.alignment)
            self._open(("scratch", index), action.scratch_offset, size)

    def _end(self, target: int) -> None:
        if ("scratch", target) in self.buffers:
            self._close(("scratch", target))

    def _compute(self, index: int, algorithm: str | None, scratch: int | None) -> None:
        op = self.graph.ops[index]
        seconds, nbytes = op.seconds, op.scratch_bytes
        if algorithm is not None:
            seconds, nbytes = cost_of(op, algorithm)
        if runs_beside(op):
            seconds = 0.0
        size = -(-nbytes // self.plan.alignment) * self.plan.alignment
        load = self._live + size
        if scratch is not None:
            end = scratch + size if self.plan.places else load
            self.peak = max(self.peak, end)
        if load > self._most:
            self._note_moment(index, size)
        self.timeline.append((index, load))
        self.seconds += seconds
        self.recompute_seconds += seconds if index in self._computed else 0.0
        self._computed.add(index)

    def _note_moment(self, op: int | None, scratch: int = 0) -> None:
        """Record the bytes by role if more are in use than at any time before."""
        if self._live + scratch > self._most:
            self._most = self._live + scratch
            scratch += self._by_role.get("scratch", 0)  # of starts
            self.by_role_at_peak = {**self._by_role, "scratch": scratch}
            self.peak_op = op


class _Stay(NamedTuple):
    """A copy or reserved overflow on a tier during the actions [begin, end)."""

    tensor: int
    tier: str
    offset: int | None
    size: int
    begin: int
    end: int
    back: tuple[int, ...]  # indices of its swap-ins


def _copies(graph: Graph, plan: Plan) -> list[_Stay]:
    """Return the copies and reserved overflows on other tiers with their lifetimes."""
    waits: dict[int, int] = {}
    starts: dict[tuple[int, str], int] = {}
    back: dict[int, list[int]] = {}
    copies = _overflows(graph, plan)
    for index, action in enumerate(plan.actions):
        if isinstance(action, Wait):
            waits.setdefault(action.action, index)
        elif isinstance(action, SwapOut):
            starts[action.tensor, action.tier] = index
            back[index] = []
        elif isinstance(action, SwapIn) and (action.tensor, action.tier) in starts:
            back[starts[action.tensor, action.tier]].append(index)
    for index, uses in back.items():
        out = plan.actions[index]
        assert isinstance(out, SwapOut)
        nbytes = graph.tensors[out.tensor].nbytes + (HEADER if out.codec else 0)
        size = align_up(nbytes, plan.alignment)
        end = waits.get(max(uses, default=index), len(plan.actions))
        copies.append(
            _Stay(out.tensor, out.tier, out.offset, size, index, end, tuple(uses))
        )
    return copies


def _overflows(graph: Graph, plan: Plan) -> list[_Stay]:
    """Return the bytes reserved on tiers for encodings that may overflow."""
    result = []
    ends = _encodings(plan)
    for index, action in enumerate(plan.actions):
        if isinstance(action, Encode) and action.tier is not None:
            left = max(graph.tensors[action.tensor].nbytes - action.nbytes, 0)
            size = align_up(left, plan.alignment)
            life = (index, ends.get(index, len(plan.actions)), ())
            result.append(
                _Stay(action.tensor, action.tier, action.overflow, size, *life)
            )
    return result


def _encodings(plan: Plan) -> dict[int, int]:
    """Map each `Encode` to the `Decode` or `Free` that ends its encoding."""
    ends: dict[int, int] = {}
    begun: dict[int, int] = {}
    there: set[int] = set()  # tensors with an own buffer: `Free` ends that first
    for index, action in enumerate(plan.actions):
        match action:
            case Alloc(tensor) | Alias(tensor):
                there.add(tensor)
            case Encode(tensor):
                begun[tensor] = index
            case Free(tensor) if tensor in there:
                there.remove(tensor)
            case Decode(tensor) | Free(tensor) if tensor in begun:
                ends[begun.pop(tensor)] = index
                if isinstance(action, Decode):
                    there.add(tensor)
    return ends


def moved_bytes(graph: Graph, plan: Plan) -> dict[int, int]:
    """Map each swap action to the bytes that it moves."""
    result: dict[int, int] = {}
    coded: dict[tuple[int, str], int] = {}  # bytes of the copies on tiers
    for index, action in enumerate(plan.actions):
        if isinstance(action, SwapOut):
            nbytes = action.nbytes if action.codec else None
            own = graph.tensors[action.tensor].nbytes if nbytes is None else nbytes
            result[index] = coded[action.tensor, action.tier] = own
        elif isinstance(action, SwapIn):
            key = (action.tensor, action.tier)
            result[index] = coded.get(key, graph.tensors[action.tensor].nbytes)
    return result


def with_copies_placed(graph: Graph, plan: Plan) -> Plan:
    """Return a plan in which each copy and overflow has an offset on its tier.

    Parameters
    ----------
    graph : Graph
        The graph of the plan.
    plan : Plan
        The plan. On a tier where every copy and overflow has an offset already, the
        offsets are kept; on other tiers all are placed.
    """
    copies = _copies(graph, plan)
    actions = list(plan.actions)
    for tier in dict.fromkeys(copy.tier for copy in copies if copy.offset is None):
        own = [copy for copy in copies if copy.tier == tier]
        buffers = [
            Buffer(str(n), copy.begin, copy.end, copy.size)
            for n, copy in enumerate(own)
        ]
        offsets = plan_offsets(buffers, plan.alignment)
        for copy, offset in zip(own, offsets, strict=True):
            for index in (copy.begin, *copy.back):
                swap = actions[index]
                if isinstance(swap, Encode):
                    actions[index] = replace(swap, overflow=offset)
                else:
                    assert isinstance(swap, SwapOut | SwapIn)
                    actions[index] = replace(swap, offset=offset)
    return replace(plan, actions=tuple(actions))


def with_tiers(graph: Graph, plan: Plan, tiers: Sequence[Tier]) -> Plan:
    """Return a plan whose copies and overflows are assigned to tiers within limits.

    Parameters
    ----------
    graph : Graph
        The graph of the plan.
    plan : Plan
        The plan.
    tiers : sequence of Tier
        The tiers in order of preference. Each copy goes to the first with enough free
        bytes during its whole lifetime. Copies to tiers whose lanes do not encode lose
        their codecs.
    """
    copies = sorted(_copies(graph, plan), key=lambda copy: copy.begin)
    lives = []
    for copy in copies:
        own = align_up(graph.tensors[copy.tensor].nbytes, plan.alignment)
        out = plan.actions[copy.begin]
        own = own if isinstance(out, SwapOut) else copy.size
        lives.append(Life(copy.begin, copy.end, own, copy.size))
    changed = list(plan.actions)
    places = assign(tiers, lives, plan.alignment)
    for copy, (tier, offset) in zip(copies, places, strict=True):
        for index in (copy.begin, *copy.back):
            swap = changed[index]
            if isinstance(swap, Encode):
                changed[index] = replace(swap, tier=tier, overflow=offset)
                continue
            assert isinstance(swap, SwapOut | SwapIn)
            swap = replace(swap, tier=tier, offset=offset)
            if isinstance(swap, SwapOut) and tier != ENCODES:
                swap = replace(swap, codec=None, nbytes=None)
            changed[index] = swap
    return with_copies_placed(graph, replace(plan, actions=tuple(changed)))


def _schedule(
    graph: Graph, plan: Plan, bandwidth: Mapping[str, float]
) -> tuple[Scheduled, ...]:
    """Return when each action begins and ends."""
    clock = Clock()
    ends: dict[int, float] = {}  # action of a copy -> when it ends
    codecs: dict[int, str] = {}  # encoded tensor -> codec
    away: dict[tuple[int, str], str | None] = {}  # tensor and tier of a copy -> codec
    moved = moved_bytes(graph, plan)
    schedule: list[Scheduled] = []
    for index, action in enumerate(plan.actions):
        queue, begin, end = "compute", clock.now, None
        match action:
            case Compute(op) if runs_beside(graph.ops[op]):
                queue = NETWORK
                begin, end = _meet(clock, beside_seconds(graph, graph.ops[op]), action)
                ends[index] = end
            case Compute(op, algorithm):
                clock.now += cost_of(graph.ops[op], algorithm)[0]
            case SwapOut(tensor, tier, _, codec):
                away[tensor, tier] = codec
                coding = encode_seconds(codec, graph.tensors[tensor].nbytes)
                seconds = lane_seconds(moved[index], bandwidth.get(tier), coding)
                queue = f"{tier} out"
                begin, end = clock.copy((tier, "out"), seconds)
                ends[index] = end
            case SwapIn(tensor, tier):
                codec = away.get((tensor, tier))
                coding = decode_seconds(codec, graph.tensors[tensor].nbytes)
                seconds = lane_seconds(moved[index], bandwidth.get(tier), coding)
                queue = f"{tier} in"
                begin, end = clock.copy((tier, "in"), seconds)
                ends[index] = end
            case Encode() | Decode():
                clock.run(_coding_seconds(graph, action, codecs))
            case Wait(target):
                clock.wait(ends.get(target, begin))
            case _:
                continue
        end = clock.now if end is None else end
        schedule.append(Scheduled(index, queue, begin, end))
    return tuple(schedule)


def _meet(clock: Clock, seconds: float, action: Compute) -> tuple[float, float]:
    """Run a collective; return when it begins and when it ends."""
    begin, end = clock.start(seconds)
    if not isinstance(action, Start):
        clock.wait(end)
    return begin, end


def _coding_seconds(
    graph: Graph, action: Encode | Decode, codecs: dict[int, str]
) -> float:
    """Return the seconds of an encoding or decoding, and note the codec."""
    nbytes = graph.tensors[action.tensor].nbytes
    if isinstance(action, Decode):
        return decode_seconds(codecs[action.tensor], nbytes)
    codecs[action.tensor] = action.codec
    return encode_seconds(action.codec, nbytes)
