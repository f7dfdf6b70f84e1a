"""The timeline of a plan: which tensor has which bytes from which op to which.

Follows the actions as the simulator does, whose clock gives the times. The result has
no clock and no device: measured times are passed in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph import PHASES
from memcfg.plan.format._actions import (
    Compute,
    Decode,
    Encode,
    Start,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan.format._clock import cost_of
from memcfg.plan.format._place import Buffer, plan_offsets
from memcfg.plan.format._simulate import Usage, moved_bytes, simulate, tier_rates
from memcfg.timeline import Arrow, Box, Copy, Event, MemoryTimeline
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._actions import Action
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.format._simulate import Scheduled

__all__ = ["memory_timeline"]


def memory_timeline(
    graph: Graph,
    plan: Plan,
    *,
    bandwidth: Mapping[str, float] | None = None,
    measured: Sequence[Scheduled] = (),
    measured_peak_bytes: int | None = None,
    measured_bytes: Sequence[int] = (),
    limit_bytes: int | None = None,
    facts: Mapping[str, str] | None = None,
) -> MemoryTimeline:
    """Return which tensor has which bytes when, by a plan.

    Parameters
    ----------
    graph : Graph
        The graph of the plan.
    plan : Plan
        A valid plan.
    bandwidth : mapping of str to float, optional
        As of `simulate`; by default that of the graph's tiers, or nominal ones.
    measured : sequence of Scheduled, default ()
        The schedule of a measured step: each op, copy, collective, wait, encoding and
        decoding, in the plan's order.
    measured_peak_bytes : int or None, default None
        The measured peak.
    measured_bytes : sequence of int, default ()
        For each computed op, in order, the measured bytes of the pool.
    limit_bytes : int or None, default None
        The limit; by default the plan's.
    facts : mapping of str to str, optional
        What else the picture says, by label.

    Returns
    -------
    MemoryTimeline
        The boxes, and when they are there.

    Raises
    ------
    PlanError
        As of `simulate`.
    ValueError
        If the measured step is not one of this plan.

    Examples
    --------
    >>> from memcfg.graph import Builder
    >>> from memcfg.plan import memory_timeline, share
    >>> builder = Builder("twice")
    >>> x = builder.tensor("x", (2, 3), role="input")
    >>> (y,) = builder.apply("add", (x, x), name="y")
    >>> graph = builder.build(keep=[y])
    >>> memory_timeline(graph, share()(graph)).boxes[-1].name
    'y'
    """
    if bandwidth is None:
        bandwidth = tier_rates(graph)
    schedule = simulate(graph, plan, bandwidth).schedule
    if measured and [each.action for each in measured] != [
        each.action for each in schedule
    ]:
        raise ValueError("the measured step is not one of this plan")
    follower = _Follower(graph, plan, _Origins(graph))
    boxes = follower.boxes()
    if not plan.places:
        boxes = _packed(boxes, plan.alignment)
    copies = _copies(graph, plan, schedule, measured, follower.box_of_copy)
    numbers = {action: number for number, action in enumerate(copies)}
    shown = {"method": plan.method}
    if plan.summary is not None and plan.summary.chosen_by:
        shown["method"] += f", chosen by {plan.summary.chosen_by}"
    shown["planned time"] = _seconds(max((s.end for s in schedule), default=0.0))
    if graph.times == "nominal":
        shown["planned time"] += " on a nominal processor"
    if measured:
        shown["measured time"] = _seconds(max(s.end for s in measured))
    return MemoryTimeline(
        title=f"Memory of '{graph.name}'",
        events=tuple(follower.events),
        boxes=tuple(boxes),
        planned=_times(plan, schedule),
        measured=_times(plan, measured) if measured else (),
        copies=tuple(copies.values()),
        arrows=tuple(
            replace(each, copies=tuple(map(numbers.__getitem__, each.copies)))
            for each in follower.arrows
        ),
        limit_bytes=plan.limit_bytes if limit_bytes is None else limit_bytes,
        peak_bytes=plan.peak_bytes,
        measured_peak_bytes=measured_peak_bytes,
        measured_bytes=_by_event(measured_bytes, follower.events),
        has_places=plan.places,
        facts={**(facts or {}), **shown},
    )


class _Origins:
    """The layers and lines of tensors and ops."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._groups = {op.group for op in graph.ops if op.phase != "update"} - {""}

    def layer_of_op(self, index: int) -> str:
        """Return the layer of an op; that of the weight for an update."""
        op = self._graph.ops[index]
        return self._prefix(op.name) if op.phase == "update" else op.group

    def layer_of(self, tensor: int) -> str:
        """Return the layer that makes a tensor, or else the first that reads it."""
        graph = self._graph
        maker = graph.producer[tensor]
        users = graph.consumers[tensor] if maker is None else (maker,)
        for index in users:
            op = graph.ops[index]
            if op.phase != "update" and op.group:
                return op.group
        return self._prefix(graph.tensors[tensor].name)

    def line(self, op: str, layer: str) -> str:
        """Return the line of an op, of its layer, or of a layer around it."""
        lines = self._graph.lines
        if op in lines:
            return lines[op]
        while layer:
            if layer in lines:
                return lines[layer]
            layer = layer.rpartition("/")[0] or layer.rpartition(".")[0]
        return ""

    def _prefix(self, name: str) -> str:
        """Return the layer in a name, such as ``sgd/dense/kernel/momentum``."""
        parts = name.split("/")
        for first in range(len(parts)):
            for last in range(len(parts), first, -1):
                if (layer := "/".join(parts[first:last])) in self._groups:
                    return layer
        return ""


class _Follower(Usage):
    """The simulator's buffers, with the events at which each begins and ends."""

    def __init__(self, graph: Graph, plan: Plan, origins: _Origins) -> None:
        super().__init__(graph, plan)
        self.events: list[Event] = []
        self.arrows: list[Arrow] = []
        self.box_of_copy: dict[int, int] = {}  # action -> box that it reads or writes
        self._origins = origins
        self._boxes: list[Box] = []
        self._ends: list[int | None] = []
        self._open_boxes: dict[tuple[str, int], int] = {}  # by key of the buffer
        self._latest: dict[int, int] = {}  # tensor -> its latest box
        self._before: dict[int, int] = {}  # box -> the tensor's box before it
        self._in_place: set[int] = set()
        self._again: set[int] = set()  # recomputed; in bytes that their source has yet
        self._lag = 0  # 1 while an encoding ends, which is read until then
        self._runs: set[int] = set()  # ops that have been computed
        self._sent: dict[tuple[int, str], int] = {}  # tensor, tier -> latest copy out

    def boxes(self) -> list[Box]:
        """Follow all actions; return the boxes in order of their allocation."""
        for index, action in enumerate(self.plan.actions):
            if isinstance(action, SwapOut | SwapIn):
                self.follow(index)
                self._note_copy(index, action)
        self.follow()
        last = len(self.events)
        return [
            replace(box, end=last if end is None else end)
            for box, end in zip(self._boxes, self._ends, strict=True)
        ]

    def _open(self, key: tuple[str, int], offset: int, size: int) -> None:
        super()._open(key, offset, size)
        kind, number = key
        self._open_boxes[key] = at = len(self._boxes)
        if kind == "scratch":  # of a start, whose action the number is
            action = self.plan.actions[number]
            assert isinstance(action, Compute)
            self._add(self._scratch_box(action.op, offset, size))
            return
        self._add(self._tensor_box(number, offset, size, encoded=kind == "encoded"))
        if kind == "tensor":
            if number in self._latest:
                self._before[at] = self._latest[number]
            self._latest[number] = at
            if number in self._again:
                self._again.remove(number)
                self._come_back(number, "recomputed")

    def _close(self, key: tuple[str, int]) -> int:
        self._ends[self._open_boxes.pop(key)] = len(self.events) + self._lag
        return super()._close(key)

    def _add(self, box: Box, end: int | None = None) -> None:
        self._boxes.append(box)
        self._ends.append(end)

    def _tensor_box(self, tensor: int, offset: int, size: int, *, encoded: bool) -> Box:
        it, maker = self.graph.tensors[tensor], self.graph.producer[tensor]
        op = "" if maker is None else self.graph.ops[maker].name
        layer = self._origins.layer_of(tensor)
        origin = "before the step" if maker is None else "computed"
        if encoded or tensor in self._in_place:
            origin = "encoded" if encoded else "in place"
        shape = "" if it.shape is None else str(it.shape)
        return Box(
            name=it.name,
            role="encoded" if encoded else it.role,
            offset=offset,
            nbytes=size,
            begin=len(self.events),
            end=0,
            origin=origin,
            op=op,
            layer=layer,
            line=self._origins.line(op, layer),
            requested_bytes=None if encoded or it.nbytes == size else it.nbytes,
            form=f"{it.dtype or ''} {shape}".strip(),
        )

    def _scratch_box(self, op: int, offset: int, size: int) -> Box:
        name, layer = self.graph.ops[op].name, self._origins.layer_of_op(op)
        begin, line = len(self.events), self._origins.line(name, layer)
        return Box(name, "scratch", offset, size, begin, 0, "", name, layer, line)

    def _alias(self, output: int, source: int) -> None:
        super()._alias(output, source)
        self._in_place.add(output)

    def _keep_scratch(self, index: int, action: Compute) -> None:
        """Add the event of an op that has been computed, and the box of its scratch."""
        super()._keep_scratch(index, action)
        op, again = self.graph.ops[action.op], action.op in self._runs
        self._runs.add(action.op)
        for tensor in op.outputs if again else ():
            if ("tensor", tensor) in self.buffers:
                self._come_back(tensor, "recomputed")
            else:
                self._again.add(tensor)
        if isinstance(action, Start):
            return
        if action.scratch_offset is not None:
            nbytes = cost_of(op, action.algorithm)[1]
            size = align_up(nbytes, self.plan.alignment)
            box = self._scratch_box(action.op, action.scratch_offset, size)
            self._add(box, len(self.events) + 1)
        layer = self._origins.layer_of_op(action.op)
        line = self._origins.line(op.name, layer)
        live = self.timeline[-1][1]
        self.events.append(Event(op.name, op.phase, live, again, layer, line))

    def _code(self, action: Encode | Decode) -> None:
        """Add the event of an encoding or decoding."""
        name, live = self.graph.tensors[action.tensor].name, self._live
        if isinstance(action, Encode):
            super()._code(action)
            self.events.append(Event(name, "encode", self._live))
            return
        self._lag = 1
        super()._code(action)
        self._lag = 0
        self._come_back(action.tensor, "decoded")
        live += self._sizes[action.tensor]
        self.events.append(Event(name, "decode", live))

    def _end(self, target: int) -> None:
        """Add the event of a wait."""
        name = _name_of(self.graph, self.plan.actions[target])
        self.events.append(Event(name, "wait", self._live))
        super()._end(target)

    def _note_copy(self, index: int, action: SwapOut | SwapIn) -> None:
        tensor = action.tensor
        if isinstance(action, SwapOut):
            self._sent[tensor, action.tier] = index
        else:
            out = self._sent.get((tensor, action.tier))
            copies = (index,) if out is None else (out, index)
            self._come_back(tensor, "swapped in", copies)
        if tensor in self._latest:
            self.box_of_copy[index] = self._latest[tensor]

    def _come_back(
        self, tensor: int, origin: str, copies: tuple[int, ...] = ()
    ) -> None:
        """Note where the value in a tensor's latest box comes from."""
        target = self._latest.get(tensor)
        if target is None or target not in self._before:
            return
        self._boxes[target] = replace(self._boxes[target], origin=origin)
        source = self._before.pop(target)
        self.arrows.append(Arrow(origin, source, target, copies))


def _is_event(action: Action) -> bool:
    """Return whether an action is one of those that follow each other."""
    return isinstance(action, Compute | Wait | Encode | Decode) and not isinstance(
        action, Start
    )


def _times(plan: Plan, schedule: Iterable[Scheduled]) -> tuple[float, ...]:
    """Return when each event begins, and when the last one ends."""
    times = [0.0]
    for each in schedule:
        if _is_event(plan.actions[each.action]):
            times.append(max(times[-1], each.end))
    return tuple(times)


def _copies(
    graph: Graph,
    plan: Plan,
    schedule: Sequence[Scheduled],
    measured: Sequence[Scheduled],
    box_of: Mapping[int, int],
) -> dict[int, Copy]:
    """Return what runs on lanes and on the network, by action."""
    moved = moved_bytes(graph, plan)
    ran = {each.action: (each.begin, each.end) for each in measured}
    result = {}
    for each in schedule:
        if each.queue == "compute":
            continue
        action = plan.actions[each.action]
        if isinstance(action, Compute):
            tensors = graph.ops[action.op].inputs
            nbytes = sum(graph.tensors[tensor].nbytes for tensor in tensors)
        else:
            nbytes = moved[each.action]
        result[each.action] = Copy(
            name=_name_of(graph, action),
            queue=each.queue,
            nbytes=nbytes,
            planned=(each.begin, each.end),
            measured=ran.get(each.action),
            box=box_of.get(each.action),
        )
    return result


def _name_of(graph: Graph, action: Action) -> str:
    """Return the name of an action's op or tensor."""
    if isinstance(action, Compute):
        return graph.ops[action.op].name
    assert isinstance(action, SwapOut | SwapIn | Encode | Decode)
    return graph.tensors[action.tensor].name


def _packed(boxes: list[Box], unit: int) -> list[Box]:
    """Return boxes at offsets that do not overlap; those without a time at 0."""
    lasting = [box for box in boxes if box.begin < box.end]
    buffers = [Buffer(box.name, box.begin, box.end, box.nbytes) for box in lasting]
    offsets = iter(plan_offsets(buffers, unit))
    return [
        replace(box, offset=next(offsets) if box.begin < box.end else 0)
        for box in boxes
    ]


def _by_event(nbytes: Sequence[int], events: Sequence[Event]) -> tuple[int, ...]:
    """Return the bytes at each event from those at each op; a wait has the next's."""
    if not nbytes:
        return ()
    values, result = iter(nbytes), []
    now = nbytes[0]
    for event in events:
        if event.kind in PHASES:
            now = next(values)
        result.append(now)
    return tuple(result)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
