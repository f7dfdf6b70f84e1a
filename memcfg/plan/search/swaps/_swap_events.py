"""Plans of schedules in which tensors are recomputed, swapped or encoded.

A method lists the events in order; this module adds offsets, in-place outputs and
places on tiers.
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
    """Compute an op, for the first time or again.

    Parameters
    ----------
    op : int
        Index of the op.
    algorithm : str, optional
        Name of an algorithm; by default the op's default algorithm.
    """

    op: int
    algorithm: str | None = None


class StartSwapOut(NamedTuple):
    """Start a copy out to a tier; with a codec, the lane encodes it.

    Parameters
    ----------
    tensor : int
        Tensor id.
    codec : str, optional
        The codec.
    nbytes : int, optional
        The planned encoded size in bytes.
    tier : str, optional
        The expected tier; by default the first. `plan_events` may choose another.
    """

    tensor: int
    codec: str | None = None
    nbytes: int | None = None
    tier: str | None = None


class EndSwapOut(NamedTuple):
    """Wait for a copy out, and free the tensor's bytes.

    Parameters
    ----------
    tensor : int
        Tensor id.
    """

    tensor: int


class StartSwapIn(NamedTuple):
    """Start a copy in, into a new buffer; one copy out may have several copies in.

    Parameters
    ----------
    tensor : int
        Tensor id.
    """

    tensor: int


class EndSwapIn(NamedTuple):
    """Wait for a copy in; by default the tensor's next reader waits for it.

    Parameters
    ----------
    tensor : int
        Tensor id.
    """

    tensor: int


class Pack(NamedTuple):
    """Encode a tensor, and free its own buffer.

    Parameters
    ----------
    tensor : int
        Tensor id.
    codec : str
        The codec.
    nbytes : int
        The planned encoded size in bytes.
    overflows : bool, default False
        Whether bytes that do not fit go to a tier.
    """

    tensor: int
    codec: str
    nbytes: int
    overflows: bool = False


class Unpack(NamedTuple):
    """Decode a tensor into a new buffer.

    Parameters
    ----------
    tensor : int
        Tensor id.
    """

    tensor: int


Event = Run | StartSwapOut | EndSwapOut | StartSwapIn | EndSwapIn | Pack | Unpack


def plan_events(
    request: Request, events: Iterable[Event], *, reorders: bool = False
) -> Plan:
    """Return the plan of a schedule of events, with the lowest layout.

    Each copy goes to the first tier that has room, regardless of its expected tier.

    Parameters
    ----------
    request : Request
        The request.
    events : iterable of Event
        The events in order: `Run`, `StartSwapOut`, `EndSwapOut`, `StartSwapIn`,
        `EndSwapIn`, `Pack` and `Unpack`.
    reorders : bool, default False
        Whether to reorder for the lowest peak, as `Request.ordered`. Not for schedules
        with copies, whose order determines their times.

    Returns
    -------
    memcfg.plan.Plan
        The plan, simulated but not validated.

    Raises
    ------
    ValueError
        If the schedule reads a tensor that is not resident, or has a tensor twice.
    """
    schedule = Schedule(request.graph, events)
    made = schedule.asked(request)
    write = made.written_in_order if reorders else made.written
    actions = schedule.translated(write(range(len(made.graph.ops))))
    unplaced = request.unpriced(actions)
    placed = with_tiers(request.graph, unplaced, tiers_of(request.graph))
    return request.plan(placed.actions)


def least_load(request: Request, events: Iterable[Event]) -> int:
    """Return the peak of bytes in use of a schedule, a lower bound of any layout.

    Parameters
    ----------
    request : Request
        The request.
    events : iterable of Event
        The events, as for `plan_events`.

    Returns
    -------
    int
        The peak in bytes.

    Raises
    ------
    ValueError
        If the schedule reads a tensor that is not resident, or has a tensor twice.
    """
    made = Schedule(request.graph, events).asked(request)
    load: int = made.step.measure(range(len(made.graph.ops)))[0]
    return load


class Schedule:
    """Auxiliary graph in which each event that changes buffers is an op.

    A recomputed, swapped-in or decoded tensor is a new tensor there, so buffers are
    shared and outputs are in place as in any plan. `translated` maps actions back.
    """

    def __init__(self, graph: Graph, events: Iterable[Event]) -> None:
        self.source = graph
        self._tier = tiers_of(graph)[0].name  # preliminary; `with_tiers` sets it
        self._tensors = list(graph.tensors)
        self._ops: list[Op] = []
        # By op: preceding events that are not ops, and its own event.
        self._before: list[list[Event]] = []
        self._behind: list[Event] = []  # events since the last op
        self._own: dict[int, int] = {}  # new tensor -> tensor of the source
        self._codes: set[int] = set()  # encodings
        self._coded: set[int] = set()  # encodings and decoded tensors
        # tensor of the source -> its current tensor, or None if it is away
        self._now: dict[int, int | None] = {}
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
            raise ValueError(f"{graph.tensors[tensor].name!r} is still away at the end")
        self.graph = replace(
            graph,
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            keep=tuple(map(self._current, graph.keep)),
        )

    def asked(self, request: Request) -> Request:
        """Return the request for the auxiliary graph."""
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
        again = not made.isdisjoint(op.outputs)  # may come after the first updates
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
        """Return the current tensor of a source tensor; wait for its copy in."""
        now = self._now.get(tensor, tensor)
        if now is None:
            raise ValueError(f"{self.source.tensors[tensor].name!r} is not resident")
        if tensor in self._coming:
            self._coming.remove(tensor)
            self._behind.append(EndSwapIn(tensor))
        return now

    def _another(self, tensor: int) -> int:
        """Return a new tensor that is one of the source once more."""
        if tensor in self._leaving:
            name = self.source.tensors[tensor].name
            raise ValueError(f"{name!r} is resident again before its copy out ended")
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
        """Translate actions of the auxiliary graph to actions of the source."""
        result: list[Action] = []
        starts: dict[tuple[type[Event], int], int] = {}  # copy -> index of its action
        offsets: dict[int, int] = {}  # encoding or decoded tensor -> offset
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
        """Return the source tensor of a tensor."""
        return self._own.get(tensor, tensor)
