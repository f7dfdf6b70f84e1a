"""From a graph to numbers for the search, and from the layouts that it finds to plans.

Every policy goes through here, so they agree on where the state lies, on which value
takes over which buffer, and on when a buffer ends.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from memcfg._cached import cached_property
from memcfg._core import search
from memcfg.errors import GraphError
from memcfg.graph import NOMINAL_COPY, Graph, update_order
from memcfg.plan.format._actions import Action, Alias, Alloc, Compute, Free, SwapOut
from memcfg.plan.format._place import PLAN_EFFORT
from memcfg.plan.format._plan import Group, Plan, Predicted, Summary
from memcfg.plan.format._simulate import Simulation, simulate
from memcfg.plan.search._bound import check_graph, lower_bound
from memcfg.plan.search._watch import check_planning_time
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from memcfg.plan.search._watch import Watch

_Made = TypeVar("_Made")

_TRIES = 1000  # orders that the climb tries in a small graph
_ROUNDING = 1e-9  # of a sum of seconds
_ORDER_EFFORT = 20_000_000  # numbers that a search for an order looks at: about 0.1 s
_EQUAL, _SMALLER_TOO = 1, 2  # in-place rules
_LARGEST = 2**62  # bytes; sums of sizes stay below it, so 64 bits hold them
_NO_SIZE = 2**63  # bytes; no file states a size that large
FEW = 3  # names that a group of a summary shows
_PHASES = {"forward": 0, "backward": 1, "update": 2}


class Layout(Protocol):
    """A place for every instance and each step's scratch, as of `search.Layout`."""

    @property
    def instances(self) -> list[tuple[int, int, int, int, bool, int]]:
        """Tensor, first and last step, source, in the state's bytes, offset."""

    @property
    def scratch(self) -> list[int]:
        """Offsets by step; -1: none."""


@dataclass(frozen=True)
class Request:
    """What a policy was asked, and what is known of its graph.

    A policy makes a schedule, a sequence of ops in which an op may stand more than
    once. `ordered` or `scheduled` makes its plan. `Request.of` makes a request.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph, with its updates where a plan may have them.
    order : tuple of int
        Its ops, in the numbers of the graph that was given.
    method : str
        Name of the policy.
    limit_bytes : int or None
        The limit; None is no limit.
    began : float
        When planning began, in seconds of `time.perf_counter`.
    replayed : frozenset of int, optional
        The only ops that may be computed again. Any by default.
    orders : bool, optional
        Whether to look for orders. By default the method decides.
    in_place : bool, default True
        Whether outputs take the place of inputs.
    searches : bool, default True
        Whether offsets are searched for. Else each buffer takes the lowest gap.
    places : bool, default True
        Whether buffers have places. Else an allocator finds them, and peaks are bytes
        in use.
    watch : Watch, optional
        What ends the search. Nothing does by default.
    below : float, default inf
        Seconds; instead of a plan that takes longer, one may be given that fits
        nothing.
    known : dict
        What was found out about the graph, which methods share.
    """

    graph: Graph  # its updates in time
    order: tuple[int, ...]  # its ops in the numbers of the graph that was given
    method: str
    limit_bytes: int | None
    began: float
    replayed: frozenset[int] | None = None  # ops, the others are kept; None: any
    orders: bool | None = None  # whether to look for orders; None: as the method does
    in_place: bool = True  # whether outputs take the place of inputs
    searches: bool = True  # for offsets; else each buffer has the lowest gap there is
    # Whether buffers have places; else an allocator finds them, and peaks are bytes in
    # use. A plan's offsets then say nothing, and no output takes a larger one's place.
    places: bool = True
    watch: Watch | None = None  # None: nobody ends it
    # Seconds: instead of a plan that takes longer, one may be given that fits nothing.
    below: float = math.inf
    # What was found out about the graph, whoever asked: `auto` has several methods plan
    # one graph, and each would place the same schedules again.
    known: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(
        graph: Graph, method: str, limit_bytes: int | None, watch: Watch | None = None
    ) -> Request:
        """Check a policy's arguments and start its clock.

        Parameters
        ----------
        graph : memcfg.graph.Graph
            What to plan. Its updates are moved if no plan may have them where they are.
        method : str
            Name of the policy.
        limit_bytes : int or None
            The limit; None is no limit.
        watch : Watch, optional
            What ends the search.

        Returns
        -------
        Request
            The question.

        Raises
        ------
        TypeError
            If that is no graph, or no number of bytes.
        ValueError
            If the limit is not positive, or not below 2**63 bytes.
        GraphError
            If a state cannot be overwritten by its update, or sizes are too large.
        """
        check(graph, limit_bytes)
        began = time.perf_counter()
        ordered, order = with_updates_in_time(graph)
        return Request(ordered, order, method, limit_bytes, began, watch=watch)

    @property
    def is_over(self) -> Callable[[], bool]:
        """Asks whether whoever waits wants no more searching.

        It does not refer to the request: what keeps it may itself be `known`, and
        would otherwise stay until garbage is collected.
        """
        return _never if self.watch is None else self.watch.is_over

    def is_slow(self, seconds: float) -> bool:
        """Return whether a plan that takes so long, or longer, is of no use.

        Parameters
        ----------
        seconds : float
            What the plan takes.

        Returns
        -------
        bool
            Whether that is more than `below`.
        """
        return seconds > self.below * (1 + _ROUNDING)

    def replaying(self, ops: frozenset[int]) -> Request:
        """Ask the same of plans that compute none but these ops again.

        Parameters
        ----------
        ops : frozenset of int
            What may be computed again.

        Returns
        -------
        Request
            The other question.
        """
        return replace(self, replayed=ops)

    def of_method(self, method: str) -> Request:
        """Ask the same of another method, which may use what is known.

        Parameters
        ----------
        method : str
            Its name.

        Returns
        -------
        Request
            The other question.
        """
        return replace(self, method=method, began=time.perf_counter())

    def once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Make what depends on the graph and a key alone, if no method has.

        Parameters
        ----------
        key : hashable
            Its name.
        make : callable
            Makes it, without arguments.

        Returns
        -------
        object
            What was made, now or before.
        """
        if key not in self.known:
            if self.watch is None:  # else its searches end by themselves
                check_planning_time()
            self.known[key] = make()
        made: _Made = self.known[key]
        return made

    @cached_property
    def droppable(self) -> tuple[int, ...]:
        """The ops of the forward phase that a plan may compute again."""
        graph, keep = self.graph, set(self.graph.keep)
        forward = _needed_forward(graph)
        return tuple(
            index
            for index, op in enumerate(graph.ops)
            if op.replayable
            and index in forward
            and keep.isdisjoint(op.outputs)
            and (self.replayed is None or index in self.replayed)
        )

    @cached_property
    def repeatable(self) -> frozenset[int]:
        """The ops that a schedule may compute more than once.

        A loss that is kept stays where it was first computed, and what was overwritten
        with a new state cannot be read again.
        """
        graph = self.graph
        fixed = {*graph.losses} & {*graph.keep} | {*state_updates(graph)}
        return frozenset(
            index
            for index, op in enumerate(graph.ops)
            if op.replayable
            and fixed.isdisjoint(op.outputs)
            and (self.replayed is None or index in self.replayed)
        )

    @property
    def step(self) -> search.Step:
        """The graph as numbers; its searches ask whether it is over."""
        return self.once(("step", self.replayed, self.in_place), self._step)

    def _step(self) -> search.Step:
        graph = self.graph if self.in_place else without_pairs(self.graph)
        asked = None if self.watch is None else self.watch.is_over
        return make_step(graph, frozenset(self.droppable), self.repeatable, asked)

    def sequence_of(self, plan: Plan) -> list[int]:
        """Return the schedule of a plan that was made for it.

        Parameters
        ----------
        plan : memcfg.plan.Plan
            Such a plan.

        Returns
        -------
        list of int
            The ops that it computes, in the numbers of `graph`.
        """
        numbers = {given: index for index, given in enumerate(self.order)}
        return [numbers[a.op] for a in plan.actions if isinstance(a, Compute)]

    def placed(self, dropped: bytes) -> Plan:
        """Make the plan that computes dropped ops again, as `scheduled`.

        Parameters
        ----------
        dropped : bytes
            By op, 1 if it is computed again for the backward phase, else 0.

        Returns
        -------
        memcfg.plan.Plan
            The plan.
        """
        return self.scheduled(self.step.sequence(dropped))

    def placed_in_order(self, dropped: bytes) -> Plan:
        """Make the plan that computes dropped ops again, as `ordered`.

        Parameters
        ----------
        dropped : bytes
            By op, 1 if it is computed again for the backward phase, else 0.

        Returns
        -------
        memcfg.plan.Plan
            The plan.
        """
        return self.ordered(self.step.sequence(dropped))

    def arranged(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return these ops in the order of the lowest load, where orders are asked for.

        For methods that run their schedules in the order that they make them in.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        sequence of int
            The same ops.
        """
        return self.reordered(sequence) if self.orders else sequence

    def ordered(self, sequence: Sequence[int]) -> Plan:
        """Make the plan that runs these ops, as often, in the order of the lowest peak.

        The given order stays where no other is found that is placed lower, or orders
        are not to be looked for.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        memcfg.plan.Plan
            The plan, simulated and not yet judged.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        return self.laid_out(*self._in_order(sequence))

    def in_order(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return these ops in the order of the plan that `ordered` makes.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        sequence of int
            The same ops.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        return self._in_order(sequence)[0]

    def peak_in_order(self, sequence: Sequence[int]) -> int:
        """Return the peak of the plan that `ordered` makes, without making it.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        int
            Bytes.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        order, layout = self._in_order(sequence)
        if not self.places:
            return self.step.measure(order)[0]
        return self._state_bytes + layout.height

    def least_load(self, sequence: Sequence[int]) -> int:
        """Return the bytes that are in use at the peak in the order of `ordered`.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        int
            Bytes.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        other = sequence if self.orders is False else self.reordered(sequence)
        return self.step.measure(other)[0]

    def _in_order(self, sequence: Sequence[int]) -> tuple[Sequence[int], search.Layout]:
        ops = tuple(sequence)
        how = self.orders is False, self.in_place, self.searches, self.places
        return self.once(("in order", ops, how), lambda: self._lower(ops))

    def _lower(self, ops: Sequence[int]) -> tuple[Sequence[int], search.Layout]:
        """Return these ops in the order that is placed lower, and its layout."""
        self._check(ops)
        limit = self.limit_bytes
        if (
            limit is not None and self.places and self.is_over()
        ):  # what fits is not improved any more
            result = ops, self._lowest(ops, effort=1)
            if self._state_bytes + result[1].height <= limit:
                return result
        other = ops if self.orders is False else self.reordered(ops)
        result = other, self._lowest(other)
        if other is ops or not self.places:
            return result
        load, _, _ = self.step.measure(ops)
        if self._state_bytes + result[1].height <= load:
            return result
        return min(result, (ops, self._lowest(ops)), key=lambda each: each[1].height)

    def reordered(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return the order of the lowest load; the given one itself if that is it.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        sequence of int
            The same ops.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        self._check(sequence)
        load, _, _ = self.step.measure(sequence)
        other, least, _ = self.step.reorder(sequence, effort=_ORDER_EFFORT)
        return other if least < load else sequence

    def _check(self, sequence: Sequence[int]) -> None:
        if fault := self.step.fault(sequence):
            raise ValueError(f"graph {self.graph.name!r}: {fault}")

    def scheduled(self, sequence: Sequence[int]) -> Plan:
        """Make the plan that runs these ops in this order, with the lowest layout.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        memcfg.plan.Plan
            The plan, simulated and not yet judged.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        self._check(sequence)
        return self.laid_out(sequence, self._lowest(sequence))

    def _lowest(
        self, sequence: Sequence[int], *, effort: int = PLAN_EFFORT
    ) -> search.Layout:
        """Return the lowest layout.

        Where smaller outputs could go in place, both ways are tried.
        """
        graph = self.graph
        smaller = (
            self.in_place
            and self.places
            and self.once("shrinks", lambda: _shrinks_in_place(graph))
        )
        layouts = [
            self._layout(sequence, rule, effort)
            for rule in ((_EQUAL, _SMALLER_TOO) if smaller else (_EQUAL,))
        ]
        return min(layouts, key=lambda layout: layout.height)

    @cached_property
    def _state_bytes(self) -> int:
        return _state_bytes(self.graph)

    def _layout(self, sequence: Sequence[int], rule: int, effort: int) -> search.Layout:
        if not self.searches or not self.places:
            return self.step.first_fit(sequence, rule=rule)
        buffers = len(self.graph.ops) + len(self.graph.tensors)
        effort = min(effort, _TRIES * buffers * buffers // 4)
        return self.step.layout(sequence, rule=rule, effort=effort)

    def written_in_order(self, sequence: Sequence[int]) -> list[Action]:
        """Write these ops in the order of the lowest peak, as `ordered`.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        list of memcfg.plan.Action
            The actions.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        return _actions(self.graph, *self._in_order(sequence))

    def written(self, sequence: Sequence[int]) -> list[Action]:
        """Write these ops in this order as actions, with the lowest layout.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.

        Returns
        -------
        list of memcfg.plan.Action
            The actions.

        Raises
        ------
        ValueError
            If the ops cannot be run in that order.
        """
        self._check(sequence)
        return _actions(self.graph, sequence, self._lowest(sequence))

    def laid_out(self, sequence: Sequence[int], layout: Layout) -> Plan:
        """Make the plan that runs these ops with everything where a layout has it.

        Parameters
        ----------
        sequence : sequence of int
            Ops; one may stand more than once.
        layout : Layout
            Such as those of ``step.layout(sequence)`` and ``step.first_fit(sequence)``.

        Returns
        -------
        memcfg.plan.Plan
            The plan, simulated and not yet judged.
        """
        return self.plan(_actions(self.graph, sequence, layout))

    def plan(self, actions: Sequence[Action]) -> Plan:
        """Make the plan of these actions: simulated, summarised, not yet judged.

        Parameters
        ----------
        actions : sequence of memcfg.plan.Action
            In the numbers of `graph`.

        Returns
        -------
        memcfg.plan.Plan
            The plan, in the numbers of the graph that was given.
        """
        blank = self.unpriced(actions)
        result = simulate(self.graph, blank, tier_rates(self.graph))
        predicted = Predicted(
            peak_bytes=result.peak_bytes,
            host_peak_bytes=result.host_peak_bytes,
            moved_bytes=result.moved_bytes,
            seconds=result.seconds,
            recompute_seconds=result.recompute_seconds,
            lower_bound_bytes=self.once("bound", lambda: lower_bound(self.graph)),
            planning_seconds=time.perf_counter() - self.began,
            stall_seconds=stall(result),
            codec_seconds=result.codec_seconds,
        )
        if not self._keeps_numbers:
            actions = [self.renumbered(action) for action in actions]
        return replace(
            blank,
            predicted=predicted,
            actions=tuple(actions),
            summary=_summary(self.graph, blank, result),
        )

    @cached_property
    def _keeps_numbers(self) -> bool:
        """Whether ops have the numbers that they had in the graph that was given."""
        return self.order == tuple(range(len(self.order)))

    def unpriced(self, actions: Sequence[Action]) -> Plan:
        """Return the plan of these actions, of which nobody knows what it takes.

        Parameters
        ----------
        actions : sequence of memcfg.plan.Action
            In the numbers of `graph`.

        Returns
        -------
        memcfg.plan.Plan
            A plan that predicts nothing.
        """
        return Plan(
            graph=self.graph.name,
            method=self.method,
            limit_bytes=self.limit_bytes,
            alignment=ALIGNMENT,
            predicted=Predicted(peak_bytes=0),
            actions=tuple(actions),
            places=self.places,
        )

    def renumbered(self, action: Action) -> Action:
        """Return an action of its graph with ops in the numbers of the given one.

        Parameters
        ----------
        action : memcfg.plan.Action
            In the numbers of `graph`.

        Returns
        -------
        memcfg.plan.Action
            In the numbers of the graph that was given.
        """
        if isinstance(action, Compute) and self.order[action.op] != action.op:
            return replace(action, op=self.order[action.op])
        return action


# Answers searches that nobody ends: bool() is False, and no call of Python, of which
# searches make one for each schedule that they look at.
_never = bool


def check(graph: Graph, limit_bytes: int | None) -> None:
    """Check the arguments of a policy."""
    check_graph(graph)
    if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int | None):
        raise TypeError(f"a limit is a number of bytes or None: {limit_bytes!r}")
    if limit_bytes is not None and limit_bytes <= 0:
        raise ValueError(f"a limit must be positive, not {limit_bytes} bytes")
    if limit_bytes is not None and limit_bytes >= _NO_SIZE:
        raise ValueError("a limit is below 2**63 bytes; None is no limit")
    if 2 * (sum(graph.aligned_bytes) + sum(graph.aligned_scratch)) >= _LARGEST:
        raise GraphError(f"graph {graph.name!r}: sizes beyond 2**62 bytes")


def _summary(graph: Graph, plan: Plan, found: Simulation) -> Summary:
    """Return what a plan did, in the names of its graph."""
    seen: set[int] = set()
    again: dict[int, None] = {}
    for action in plan.actions:
        if isinstance(action, Compute):
            if action.op in seen:
                again[action.op] = None
            seen.add(action.op)
    reads = {t for op in graph.ops if op.phase == "backward" for t in op.inputs}
    kept = [
        tensor
        for index, op in enumerate(graph.ops)
        if op.phase == "forward" and index not in again
        for tensor in op.outputs
        if tensor in reads
    ]
    in_place = dict.fromkeys([a.output for a in plan.actions if isinstance(a, Alias)])
    recomputed = [(graph.ops[i].name, graph.ops[i].outputs) for i in again]
    return Summary(
        kept=_group(graph, [(graph.tensors[t].name, (t,)) for t in kept]),
        in_place=_group(graph, [(graph.tensors[t].name, (t,)) for t in in_place]),
        recomputed=_group(graph, recomputed),
        by_role={k: v for k, v in found.by_role_at_peak.items() if v},
        peak_op="" if found.peak_op is None else graph.ops[found.peak_op].name,
        all_bytes=_own_buffers(graph),
        times=graph.times,
        copies_per_second=measured_rate(graph, plan.actions),
        by_tier=by_tier(graph, found),
    )


def by_tier(graph: Graph, found: Simulation) -> dict[str, int]:
    """Return the bytes of the tiers that a plan has something on, in their order.

    Of a plan that has something on one of several stated tiers, the others are 0.
    """
    there = dict.fromkeys((tier.name for tier in graph.tiers), 0)
    there.update(found.tier_peak_bytes)
    stated = [tier.name for tier in graph.tiers if tier.is_stated]
    told = set(stated) if len(stated) > 1 and any(there.values()) else set()
    return {tier: n for tier, n in there.items() if n or tier in told}


def stall(found: Simulation) -> float:
    """Return how long ops wait for copies, in seconds."""
    busy = found.seconds + found.codec_seconds
    return max(found.elapsed_seconds - busy, 0.0) if found.moved_bytes else 0.0


def measured_rate(graph: Graph, actions: Sequence[Action]) -> float:
    """Return the measured bytes a second of the tier that is swapped to; 0: of none."""
    used = {action.tier for action in actions if isinstance(action, SwapOut)}
    rates = (
        tier.bytes_per_second
        for tier in graph.tiers
        if tier.is_measured and tier.name in used
    )
    return min(rates, default=0.0)


def tier_rates(graph: Graph) -> dict[str, float]:
    """Return bytes a second of the tiers: the device's, or nominal ones."""
    stated = {tier.name: tier.bytes_per_second for tier in graph.tiers}
    return {**NOMINAL_COPY, **stated}


def _group(graph: Graph, items: Iterable[tuple[str, Sequence[int]]]) -> Group:
    """Sum the tensors of named things; the largest are shown, of equals the first."""
    own = graph.aligned_bytes
    sizes = [(name, sum([own[tensor] for tensor in each])) for name, each in items]
    largest = sorted(sizes, key=itemgetter(1), reverse=True)[:FEW]
    names = tuple([name for name, _ in largest])
    return Group(len(sizes), sum([nbytes for _, nbytes in sizes]), names)


def _own_buffers(graph: Graph) -> int:
    """Return the peak of `keep_all`."""
    sizes = graph.aligned_bytes
    taken = sum([sizes[tensor] for tensor in state_updates(graph)])
    return sum(sizes) - taken + max(graph.aligned_scratch, default=0)


def _state_bytes(graph: Graph) -> int:
    sizes = graph.aligned_bytes
    return sum([sizes[tensor] for tensor in graph.persistent])


def _shrinks_in_place(graph: Graph) -> bool:
    """Return whether an output may take the place of a larger input."""
    tensors = graph.tensors
    for op in graph.ops:
        for source, output in op.in_place:
            if tensors[source].nbytes > tensors[output].nbytes:
                return True
    return False


def without_pairs(graph: Graph) -> Graph:
    """Return a graph in which nothing goes in place but updates of the state."""
    updates = state_updates(graph)
    ops = (
        replace(
            op, in_place=tuple((i, o) for i, o in op.in_place if updates.get(o) == i)
        )
        for op in graph.ops
    )
    return replace(graph, ops=tuple(ops))


def make_step(
    graph: Graph,
    droppable: frozenset[int],
    repeatable: frozenset[int],
    is_over: Callable[[], bool] | None = None,
) -> search.Step:
    """Turn a graph into numbers, whose searches end when ``is_over()`` says so.

    Costs are seconds; in a graph that states none, each op costs 1. Of the pairs of an
    op, those that update the state come first: an output that could go in the place of
    another input, too, has to overwrite the state.
    """
    updates = state_updates(graph)
    keep = set(graph.keep)
    persistent = set(graph.persistent)
    timed = any(map(attrgetter("seconds"), graph.ops))
    tensors = [
        (
            size,
            index in persistent,
            index in keep,
            -1 if maker is None else maker,
        )
        for index, (size, maker) in enumerate(
            zip(graph.aligned_bytes, graph.producer, strict=True)
        )
    ]
    ops = []
    for index, op in enumerate(graph.ops):
        pairs = [*op.in_place]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: updates.get(pair[1]) != pair[0])
        ops.append(
            (
                op.inputs,
                op.outputs,
                [tensor for pair in pairs for tensor in pair],
                graph.aligned_scratch[index],
                _PHASES[op.phase],
                op.seconds if timed else 1.0,
                index in droppable,
                index in repeatable,
            )
        )
    return search.Step(tensors, ops, is_over=is_over)


def _needed_forward(graph: Graph) -> set[int]:
    """Find the forward ops that are surely computed before the first update.

    One whose outputs only the backward phase reads could be put off beyond it.
    """
    forward = {i for i, op in enumerate(graph.ops) if op.phase == "forward"}
    if all(op.phase != "update" for op in graph.ops):
        return forward
    return {
        i
        for i in forward
        if any(not forward.isdisjoint(graph.consumers[t]) for t in graph.ops[i].outputs)
    }


def _actions(graph: Graph, sequence: Sequence[int], layout: Layout) -> list[Action]:
    """Write a schedule as actions: the state first, then whatever its layout says."""
    offsets: dict[int, int] = {}
    base = 0  # of what is no state
    for tensor in graph.persistent:  # from 0 in id order: all programs agree on it
        offsets[tensor] = base
        base += graph.aligned_bytes[tensor]
    begins: dict[int, list[Action]] = defaultdict(list)
    ends: dict[int, list[tuple[bool, int]]] = defaultdict(list)
    taken = {instance[3] for instance in layout.instances}
    for number, (tensor, begin, end, source, state, offset) in enumerate(
        layout.instances
    ):
        if source >= 0:
            begins[begin].append(Alias(tensor, layout.instances[source][0]))
        else:
            begins[begin].append(
                Alloc(tensor, offsets[tensor] if state else base + offset)
            )
        if not state:
            ends[end].append((number not in taken, tensor))  # taken buffers end first
    actions: list[Action] = []
    for step in range(-1, len(sequence)):
        actions += begins[step]
        if step >= 0:
            scratch = layout.scratch[step]
            place = base + scratch if scratch >= 0 else None
            actions.append(Compute(sequence[step], None, place))
        actions += [Free(tensor) for _, tensor in sorted(ends[step])]
    return actions


def state_updates(graph: Graph) -> dict[int, int]:
    """Return the outputs that live on in a buffer of the state, and what they update.

    A pair counts when its input is in the state's buffers, its op is of the update
    phase and the input's last reader, and the input is not to be kept.

    Parameters
    ----------
    graph : Graph
        A graph.

    Returns
    -------
    dict of int to int
        Ids of outputs, to the ids of the tensors whose buffers they take over; such a
        tensor may itself be such an output.
    """
    state = set(graph.persistent)
    keep, taken = set(graph.keep), set[int]()
    updates: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        if op.phase != "update":
            continue
        for source, output in op.in_place:
            legal = source in state and source not in keep
            legal = legal and graph.consumers[source][-1] == index
            fits = graph.aligned_bytes[output] <= graph.aligned_bytes[source]
            if legal and fits and source not in taken and output not in updates:
                updates[output] = source
                taken.add(source)
                state.add(output)
    return updates


def with_updates_in_time(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """Return a graph with its updates where a plan may have them, and their order.

    Parameters
    ----------
    graph : Graph
        A graph.

    Returns
    -------
    Graph
        The graph itself if its updates stand so, else with them moved.
    tuple of int
        The ops of the first in the numbers of the given graph.

    Raises
    ------
    GraphError
        If there is no such order, or a state cannot be overwritten by its update.
    """
    order = tuple(range(len(graph.ops)))
    phases = [op.phase for op in graph.ops]
    last_forward = max((i for i in order if phases[i] == "forward"), default=-1)
    if "update" in phases[: last_forward + 1] or _misfit(graph):
        order = update_order(graph)
        graph = replace(graph, ops=tuple(graph.ops[i] for i in order))
    misfit = _misfit(graph)
    if misfit:
        raise GraphError(f"graph {graph.name!r} cannot be planned: {misfit}")
    return graph, order


def _misfit(graph: Graph) -> str:
    """Name an update that cannot overwrite its state; empty if there is none."""
    updates = state_updates(graph)
    state = set(graph.persistent)
    for op in graph.ops:
        pairs: dict[int, int] = {}  # each state that it updates, and its new value
        made: set[int] = set()
        for source, output in op.in_place if op.phase == "update" else ():
            if source in state and source not in pairs and output not in made:
                pairs[source] = output
                made.add(output)
        for source, output in pairs.items():
            if updates.get(output) != source:
                old, new = graph.tensors[source].name, graph.tensors[output].name
                return (
                    f"{new!r} cannot take the place of {old!r}, which op {op.name!r} "
                    f"updates; {old!r} is kept, read later, or smaller"
                )
            state.add(output)
    return ""
