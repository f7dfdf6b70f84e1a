"""Schedules in which tensors are computed again, leave the device, or are encoded.

A method lists what happens, in order; places, buffers that outputs take over and the
bytes of tiers come from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg.graph import PHASES, Op, Tensor
from memcfg.plan.format._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan.format._simulate import with_tiers
from memcfg.plan.format._tier_choice import tiers_of
from memcfg.plan.search._request import state_updates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._request import Request


class Run(NamedTuple):
    """An op is computed, once more if it was before.

    Parameters
    ----------
    op : int
        The op.
    algorithm : str, optional
        Its algorithm; the default one by default.
    """

    op: int
    algorithm: str | None = None


class StartSwapOut(NamedTuple):
    """A copy out to the tier starts; with a codec, its lane encodes it.

    Parameters
    ----------
    tensor : int
        What leaves.
    codec : str, optional
        How the lane encodes it.
    nbytes : int, optional
        Bytes that are planned for what is encoded.
    tier : str, optional
        Where it is thought to go; to the first by default.
    """

    tensor: int
    codec: str | None = None
    nbytes: int | None = None
    tier: str | None = None


class EndSwapOut(NamedTuple):
    """A copy out is waited for, and the tensor's bytes end.

    Parameters
    ----------
    tensor : int
        What has left.
    """

    tensor: int


class StartSwapIn(NamedTuple):
    """A copy in starts, into new bytes; there may be several of one copy out.

    Parameters
    ----------
    tensor : int
        What comes back.
    """

    tensor: int


class EndSwapIn(NamedTuple):
    """A copy in is waited for; if nobody says so, by the first that reads the tensor.

    Parameters
    ----------
    tensor : int
        What is back.
    """

    tensor: int


class Pack(NamedTuple):
    """A tensor is encoded, and its own bytes end.

    Parameters
    ----------
    tensor : int
        What is encoded.
    codec : str
        How.
    nbytes : int
        Bytes that the encoding is given.
    overflows : bool, default False
        Whether what does not fit goes to the tier.
    """

    tensor: int
    codec: str
    nbytes: int
    overflows: bool = False


class Unpack(NamedTuple):
    """A tensor is decoded, into new bytes.

    Parameters
    ----------
    tensor : int
        What was encoded.
    """

    tensor: int


Event = Run | StartSwapOut | EndSwapOut | StartSwapIn | EndSwapIn | Pack | Unpack


def plan_events(
    request: Request, events: Iterable[Event], *, reorders: bool = False
) -> Plan:
    """Make the plan of a schedule, with the lowest layout of its order.

    Copies go to the first tier that has room, wherever they were thought to go.

    Parameters
    ----------
    request : Request
        What is asked.
    events : iterable of Event
        What happens, in order: `Run`, `StartSwapOut`, `EndSwapOut`, `StartSwapIn`,
        `EndSwapIn`, `Pack` and `Unpack`.
    reorders : bool, default False
        Whether to take the order with the lowest peak, as `Request.ordered`. Not for
        schedules with copies, whose order is their time.

    Returns
    -------
    memcfg.plan.Plan
        The plan, simulated and not yet judged.

    Raises
    ------
    ValueError
        If the schedule reads what is not there, or has a tensor twice at a time.
    """
    schedule = Schedule(request.graph, events)
    made = schedule.asked(request)
    write = made.written_in_order if reorders else made.written
    actions = schedule.translated(write(range(len(made.graph.ops))))
    unplaced = request.unpriced(actions)
    placed = with_tiers(request.graph, unplaced, tiers_of(request.graph))
    return request.plan(placed.actions)


def least_load(request: Request, events: Iterable[Event]) -> int:
    """Return the bytes in use at the peak of a schedule: no layout is lower.

    Parameters
    ----------
    request : Request
        What is asked.
    events : iterable of Event
        What happens, as for `plan_events`.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ValueError
        If the schedule reads what is not there, or has a tensor twice at a time.
    """
    made = Schedule(request.graph, events).asked(request)
    load: int = made.step.measure(range(len(made.graph.ops)))[0]
    return load


class Schedule:
    """A graph in which whatever happens is an op, and what its plan means.

    What is computed again or comes back is another tensor there. So buffers are shared,
    and outputs put in the place of inputs, as in any other plan.
    """

    def __init__(self, graph: Graph, events: Iterable[Event]) -> None:
        self.source = graph
        self._tier = tiers_of(graph)[0].name  # until copies are placed
        self._tensors = list(graph.tensors)
        self._ops: list[Op] = []
        self._before: list[list[Event]] = []  # what each op is, behind what is no op
        self._behind: list[Event] = []  # and is not yet before one
        self._own: dict[int, int] = {}  # a tensor -> which of the source it is
        self._codes: set[int] = set()  # encodings
        self._coded: set[int] = set()  # they, and what is decoded
        self._now: dict[int, int | None] = {}  # of the source -> what it is; None: away
        self._leaving: dict[int, int] = {}
        self._coming: set[int] = set()
        self._packed: dict[int, int] = {}
        self._phase = "forward"
        self._updates = state_updates(graph)
        made: set[int] = set()
        for event in events:
            self._add(event, made)
        if self._leaving or self._packed:
            tensor = next(iter((*self._leaving, *self._packed)))
            raise ValueError(f"{graph.tensors[tensor].name!r} stays on its way")
        self.graph = replace(
            graph,
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            keep=tuple(map(self._current, graph.keep)),  # what was computed last
        )

    def asked(self, request: Request) -> Request:
        """Ask the same of this graph."""
        return replace(request, graph=self.graph, known={})

    # -- the graph -------------------------------------------------------------

    def _add(self, event: Event, made: set[int]) -> None:
        match event:
            case Run(index, algorithm):
                self._run(event, self.source.ops[index], algorithm, made)
            case StartSwapOut(tensor):
                self._leaving[tensor] = self._current(tensor)
                self._behind.append(event)
            case EndSwapOut(tensor):
                self._move(event, "swap_out", (self._leaving.pop(tensor),), ())
                self._now[tensor] = None
            case StartSwapIn(tensor):
                self._move(event, "swap_in", (), (self._another(tensor),))
                self._coming.add(tensor)
            case EndSwapIn(tensor):
                self._coming.discard(tensor)
                self._behind.append(event)
            case Pack(tensor, nbytes=nbytes):
                code = self._encoding(tensor, nbytes)
                self._move(event, "encode", (self._current(tensor),), (code,))
                self._now[tensor] = None
            case Unpack(tensor):
                again, code = self._another(tensor), self._packed.pop(tensor)
                self._coded.add(again)
                self._move(event, "decode", (code,), (again,))

    def _run(self, event: Run, op: Op, algorithm: str | None, made: set[int]) -> None:
        inputs = tuple(self._current(tensor) for tensor in op.inputs)
        outputs = tuple(
            self._another(tensor) if tensor in made else tensor for tensor in op.outputs
        )
        now = dict(zip((*op.inputs, *op.outputs), (*inputs, *outputs), strict=True))
        if algorithm is not None:
            chosen = {each.name: each for each in op.algorithms}[algorithm]
            op = replace(op, seconds=chosen.seconds, scratch_bytes=chosen.scratch_bytes)
        again = not made.isdisjoint(op.outputs)  # perhaps behind the first updates
        phase = "backward" if again and op.phase == "forward" else op.phase
        self._phase = max(self._phase, phase, key=PHASES.index)
        made.update(op.outputs)
        self._now.update(
            (self._updates[output], None)
            for output in op.outputs
            if output in self._updates
        )
        pairs = tuple((now[source], now[output]) for source, output in op.in_place)
        self._append(
            event,
            replace(op, phase=phase, inputs=inputs, outputs=outputs, in_place=pairs),
        )

    def _current(self, tensor: int) -> int:
        """Return what a tensor is now, which is waited for if it is on its way."""
        now = self._now.get(tensor, tensor)
        if now is None:
            raise ValueError(f"{self.source.tensors[tensor].name!r} is not there")
        if tensor in self._coming:
            self._coming.remove(tensor)
            self._behind.append(EndSwapIn(tensor))
        return now

    def _another(self, tensor: int) -> int:
        """Return a new tensor that is one of the source once more."""
        if tensor in self._leaving:
            name = self.source.tensors[tensor].name
            raise ValueError(f"{name!r} is there again before its copy has ended")
        again = len(self._tensors)
        given = self.source.tensors[tensor]
        self._tensors.append(replace(given, name=f"{given.name} #{again}"))
        self._own[again] = tensor
        self._now[tensor] = again
        return again

    def _encoding(self, tensor: int, nbytes: int) -> int:
        code = self._packed[tensor] = len(self._tensors)
        given = self.source.tensors[tensor]
        self._tensors.append(Tensor(f"{given.name} #{code}", nbytes, given.role))
        self._codes.add(code)
        self._coded.add(code)
        return code

    def _move(
        self,
        event: Event,
        kind: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
    ) -> None:
        op = Op(kind, kind, self._phase, inputs, outputs, replayable=False)
        self._append(event, op)

    def _append(self, event: Event, op: Op) -> None:
        self._before.append([*self._behind, event])
        self._behind.clear()
        self._ops.append(op)

    # -- its plan --------------------------------------------------------------

    def translated(self, actions: Iterable[Action]) -> list[Action]:
        """Return the actions of the source itself."""
        result: list[Action] = []
        starts: dict[tuple[type[Event], int], int] = {}  # copies -> their actions
        offsets: dict[int, int] = {}  # of encodings, and of what is decoded
        for action in actions:
            match action:
                case Alloc(tensor, offset) if tensor in self._coded:
                    offsets[tensor] = offset
                case Alloc(tensor, offset):
                    result.append(Alloc(self._which(tensor), offset))
                case Alias(output, source):
                    result.append(Alias(self._which(output), self._which(source)))
                case Free(tensor) if tensor not in self._codes:
                    result.append(Free(self._which(tensor)))
                case Compute(op, _, scratch):
                    made = self._ops[op].outputs
                    place = offsets.get(made[0]) if made else None
                    for event in self._before[op]:
                        if isinstance(event, StartSwapOut | StartSwapIn):
                            starts[type(event), event.tensor] = len(result)
                        result.append(self._action(event, scratch, place, starts))
        result += [self._action(event, None, None, starts) for event in self._behind]
        return result

    def _action(
        self,
        event: Event,
        scratch: int | None,
        offset: int | None,
        starts: Mapping[tuple[type[Event], int], int],
    ) -> Action:
        match event:
            case Run(op, algorithm):
                return Compute(op, algorithm, scratch)
            case StartSwapOut(tensor, codec, nbytes):
                return SwapOut(tensor, self._tier, None, codec, nbytes)
            case StartSwapIn(tensor):
                return SwapIn(tensor, self._tier, None)
            case EndSwapOut(tensor):
                return Wait(starts[StartSwapOut, tensor])
            case EndSwapIn(tensor):
                return Wait(starts[StartSwapIn, tensor])
        assert offset is not None
        if isinstance(event, Pack):
            tier = self._tier if event.overflows else None
            return Encode(event.tensor, event.codec, event.nbytes, offset, tier)
        return Decode(event.tensor, offset)

    def _which(self, tensor: int) -> int:
        """Return which tensor of the source one is."""
        return self._own.get(tensor, tensor)
