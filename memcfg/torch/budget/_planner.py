"""Plans of a model's steps: the settings, the bytes that each needs, and the search.

See docs/decisions/0031-pytorch-steps-are-graphs-of-storages.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memcfg._advice import larger_limit_or
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan import Decode, Encode, SwapOut, validate, with_copies_placed
from memcfg.plan.search._floor import lowest_plan
from memcfg.torch.budget._graph_edits import kept_outputs
from memcfg.torch.budget._live_passes import LivePasses
from memcfg.torch.budget._room import (
    BESIDE,
    HELD,
    MISSED,
    OF_LOSS,
    OTHERS,
    OUTPUTS,
    READ_AHEAD,
    SO_FAR,
    STATE,
    UNREAD,
    UNTIL_BACKWARD,
    WORKSPACES,
    NoRoomError,
    Room,
)
from memcfg.torch.budget._step import Step, peak_of
from memcfg.torch.budget._swaps import extent_of
from memcfg.torch.ranks._around import Beside
from memcfg.torch.spill._stores import SpillRefusedError, Stores
from memcfg.torch.state._offload import Offloading
from memcfg.torch.state._weights import READ
from memcfg.torch.trace._costs import MeasuredCosts, costs_of
from memcfg.torch.trace._generator_states import add_states
from memcfg.torch.trace._infeasible import InfeasibleStepError
from memcfg.torch.trace._kept_functions import held_bytes
from memcfg.torch.trace._overhead import workspace_bytes
from memcfg.torch.trace._symbols import Seen
from memcfg.torch.trace._traced import (
    UPDATE,
    Traced,
    Tracer,
    check_dense,
    rounded,
    values_of,
)
from memcfg.torch.trace.ops._lstm_layers import add_workspaces
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from torch import fx

    from memcfg.devices import SpillPlace
    from memcfg.graph import Op
    from memcfg.plan import Plan, Policy
    from memcfg.torch.budget._step import Peak
    from memcfg.torch.limit._process_limit import ProcessLimit
    from memcfg.torch.spill._store import Store
    from memcfg.torch.state._offload import Offload
    from memcfg.torch.trace._graph_inputs import GraphInput
    from memcfg.torch.trace._traced import Costs

FanOut = Callable[[Any, Any], tuple[Any, Any, Callable[[Any], Any]]]


@dataclass(frozen=True)
class Settings:
    """The settings of every step of a model, as the user gave them.

    Parameters
    ----------
    limit_bytes : int or None
        The limit; None: no limit.
    policy : Policy
        The planning method.
    times : str
        ``"measured"`` or ``"nominal"``.
    inductor : bool, default False
        Whether inductor compiles the planned graphs.
    spill : SpillPlace or None, default None
        Where tensors may be moved; None if they stay.
    on_new_shape : str, default "replan"
        What a step does whose inputs have another shape.
    offload : Offloading, optional
        Which tensors lie in files.
    process : ProcessLimit or None, default None
        The limit of the process, if it is that; None if it is of tensors only.
    """

    limit_bytes: int | None
    policy: Policy
    times: str
    inductor: bool = False
    spill: SpillPlace | None = None
    on_new_shape: str = "replan"
    offload: Offloading = field(default_factory=Offloading)
    process: ProcessLimit | None = None


@dataclass(eq=False, repr=False)
class Shared:
    """State that all planners of a model share.

    Parameters
    ----------
    costs : callable
        Returns the seconds and scratch bytes of a node.
    stores : Stores or None
        Where tensors may be moved; None if they stay.
    passes : LivePasses
        The passes that are alive.
    last : Step or None
        The step that was planned or ran last; a training step if there was one.
    offload : Offload or None
        The tensors that lie in files; None if there are none.
    before_run : callable or None
        Called before a forward phase runs, when its plan is known; may raise.
    seen : Seen
        The numbers and lengths of the steps so far.
    tensor_bytes : callable
        Returns the bytes of the model's and the optimizer's tensors in memory.
    only_plans : bool
        Whether passes end, with StopAfterPlanning, before they begin.
    """

    costs: Costs
    stores: Stores | None = None
    passes: LivePasses = field(default_factory=LivePasses)
    last: Step | None = None
    offload: Offload | None = None
    before_run: Callable[[], None] | None = None
    seen: Seen = field(default_factory=Seen)
    tensor_bytes: Callable[[], Iterable[int]] = tuple
    only_plans: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Shared:
        """Return the shared state of planners with these settings."""
        times, spill = settings.times, settings.spill
        stores = None if spill is None else Stores(spill, measured=times == "measured")
        seen = Seen(has_lengths=settings.on_new_shape == "bucket")
        return cls(costs_of(times), stores, seen=seen)

    def show(self, step: Step) -> None:
        """Record a step as the last; only training steps replace training steps."""
        if step.is_training or self.last is None or not self.last.is_training:
            self.last = step


@dataclass(frozen=True)
class Overhead:
    """Bytes that a step needs in addition to those of its graph.

    Parameters
    ----------
    state_bytes : int, default 0
        The state of the optimizer.
    gradient_bytes : int, default 0
        Gradients that exist when the step begins.
    missed_bytes : int, default 0
        Bytes above an earlier plan of the step.
    update_bytes : int or None, default None
        Temporary bytes of the optimizer's step; None if unknown.
    room : Room, optional
        What other passes of the model hold.
    beside : Beside, optional
        What a wrapper around the model holds.
    """

    state_bytes: int = 0
    gradient_bytes: int = 0
    missed_bytes: int = 0
    update_bytes: int | None = None
    room: Room = field(default_factory=Room)
    beside: Beside = field(default_factory=Beside)

    def of(self, source: fx.Graph, num_fwd_outputs: int | None) -> dict[str, int]:
        """Return the bytes outside a graph by name."""
        is_training = num_fwd_outputs is not None
        others = self.room.others
        if not is_training:  # nothing reports when its variable is assigned
            others += self.room.stale
        scalar = max((rounded(1, each) for each in _devices(source)), default=0)
        return {
            STATE: self.state_bytes,
            SO_FAR: self.gradient_bytes,
            MISSED: self.missed_bytes,
            WORKSPACES: workspace_bytes(source.nodes),
            HELD: held_bytes(source.nodes),
            OTHERS: others,
            OF_LOSS: 2 * scalar if is_training else 0,
            OUTPUTS: _output_bytes(source, num_fwd_outputs)
            if self.beside.copies_outputs
            else 0,
            **dict(self.beside.held),
        }

    def left_to_update(
        self, overhead: Mapping[str, int], source: fx.Graph, num_fwd_outputs: int | None
    ) -> int | None:
        """Return the optimizer's temporary bytes beyond those freed by then."""
        if self.update_bytes is None:
            return None
        ended = sum(overhead[each] for each in UNTIL_BACKWARD) + self.beside.freed
        if self.beside.frees_gradients:
            ended += _gradients(source, num_fwd_outputs)
        return max(0, self.update_bytes - ended)


def _gradients(source: fx.Graph, num_fwd_outputs: int | None) -> int:
    """Return the bytes of the gradients that a graph makes."""
    if num_fwd_outputs is None:
        return 0
    return _bytes_of(source.output_node().args[0][num_fwd_outputs:])


def _output_bytes(source: fx.Graph, num_fwd_outputs: int | None) -> int:
    """Return the bytes of copies of what a graph returns to the user."""
    kept = kept_outputs(source, num_fwd_outputs)
    outputs = source.output_node().args[0][:num_fwd_outputs]
    return _bytes_of(each for at, each in enumerate(outputs) if kept(at))


def _bytes_of(nodes: Iterable[Any]) -> int:
    """Return the bytes of tensors of their own with the values of nodes."""
    return sum(
        rounded(int(value.nbytes), value.device)
        for node in nodes
        if node is not None
        for value in values_of(node)
    )


@dataclass(eq=False, repr=False)
class Planner:
    """Plans the steps of one compiled function: a model in one situation.

    Parameters
    ----------
    settings : Settings
        What the user asks of every step.
    shared : Shared
        What the planners of the model share.
    overhead : Overhead
        Bytes outside the graph of a step.
    loss : callable or None
        The user's loss; None if it is unknown.
    loss_bytes : int or None
        Bytes that the user's loss needs for the next inputs; None if unknown.
    missed_bytes : int
        Bytes above the plan of a step that exceeded the limit; 0 if none did.
    unread : mapping of torch.device to int
        Bytes of parameters, buffers and arguments that a step does not read.
    steps : list of Step
        The planned steps, the latest last.
    planned : Counter
        How many steps were planned to run, by whether they train.
    fan_out : callable or None
        Changes a graph that Dynamo traced. It returns a graph, its inputs, and what
        wraps the function that runs instead. None if there is nothing to change.
    """

    settings: Settings
    shared: Shared
    overhead: Overhead = field(default_factory=Overhead)
    loss: Callable[[Any], torch.Tensor] | None = None
    loss_bytes: int | None = None
    missed_bytes: int = 0
    unread: Mapping[torch.device, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    planned: Counter[bool] = field(default_factory=Counter)
    fan_out: FanOut | None = None

    def plan(
        self,
        source: fx.Graph,
        num_fwd_outputs: int | None,
        inputs: Sequence[GraphInput] = (),
    ) -> Step:
        """Plan a traced graph within the limit.

        Parameters
        ----------
        source : fx.Graph
            The graph, whose nodes are given the bytes of their workspaces.
        num_fwd_outputs : int or None
            The number of its outputs that are forward's; None if it has no backward
            phase.
        inputs : sequence of GraphInput
            What the user's program calls its inputs.

        Returns
        -------
        Step
            The graph of storages and its plan, which the judge of `memcfg.plan` has
            found valid.

        Raises
        ------
        InfeasiblePlanError
            If no plan fits; it names the smallest limit.
        PlanError
            If the policy gives a plan that is invalid.
        SpillRefusedError, SparseRefusedError
            If tensors cannot be moved to the place that the user named, or are sparse.
        ResourceExhaustedError, OSError
            If there is no room for the tensors that leave.
        """
        add_workspaces(source)
        check_dense(source)
        costs, stores = self.shared.costs, self.shared.stores
        if isinstance(costs, MeasuredCosts):
            costs.prepare(source.nodes)
        overhead = self.overhead.of(source, num_fwd_outputs)
        overhead[UNREAD] = sum(self.unread.get(each, 0) for each in _devices(source))
        if any(node.target is READ for node in source.nodes):
            offload = self.shared.offload
            overhead[READ_AHEAD] = 0 if offload is None else offload.ahead_bytes
        process = self.settings.process
        if process is not None:
            tensors = sum(self.shared.tensor_bytes())
            overhead[BESIDE] = process.beside(tensors, "a step was planned")
        store = None if stores is None else stores.of(_devices(source))
        ways = self._traced(source, num_fwd_outputs, inputs, overhead, store)
        step = self._known(ways, overhead, store)
        if step is None:
            step = self._planned(ways, overhead, store)
        if step.spill_bytes and store is not None:
            _check_room(step, store)
            extent_of(store, step.spill_bytes)  # OSError before anything runs
        self.steps.append(step)
        self.shared.show(step)
        return step

    def _traced(
        self,
        source: fx.Graph,
        num_fwd_outputs: int | None,
        inputs: Sequence[GraphInput],
        overhead: Mapping[str, int],
        store: Store | None,
    ) -> tuple[Traced, ...]:
        """Trace a graph: with replays of random ops if it has any, and without."""
        room = self.overhead.room

        def trace(states: dict[fx.Node, fx.Node]) -> Traced:
            tracer = Tracer(
                source,
                num_fwd_outputs=num_fwd_outputs,
                name="training step" if num_fwd_outputs is not None else "forward",
                inputs=inputs,
                costs=self.shared.costs,
                kept_outputs=kept_outputs(source, num_fwd_outputs),
                loss_bytes=self.loss_bytes,
                states=states,
                update_bytes=self.overhead.left_to_update(
                    overhead, source, num_fwd_outputs
                ),
                stale_bytes=room.stale,
                other_losses_bytes=room.loss,
                passing_bytes=self.overhead.beside.passing,
                times=self.settings.times,
            )
            traced = tracer.trace()
            if store is None:
                return traced
            return replace(traced, graph=replace(traced.graph, tiers=(store.tier,)))

        states = add_states(source)
        if not states:
            return (trace({}),)
        first = trace(states)
        for node in states.values():
            source.erase_node(node)
        return first, trace({})

    def _left(self, overhead: Mapping[str, int]) -> int | None:
        """Return the part of the limit left for a graph; None if there is no limit."""
        limit = self.settings.limit_bytes
        return None if limit is None else limit - sum(overhead.values())

    def _known(
        self, ways: tuple[Traced, ...], overhead: dict[str, int], store: Store | None
    ) -> Step | None:
        """Return an earlier planned step of an equal graph, such as an example's."""
        for traced in ways:
            for at, each in enumerate(self.steps):
                same_limit = each.limit_bytes == self._left(overhead)
                if same_limit and each.traced.graph == traced.graph:
                    del self.steps[at]
                    known = replace(each, traced=traced, overhead=overhead, ways=ways)
                    return replace(known, store=store)
        return None

    def _planned(
        self, ways: tuple[Traced, ...], overhead: dict[str, int], store: Store | None
    ) -> Step:
        """Plan the first of several graphs of a step that fits."""
        limit = self._left(overhead)
        refused = []
        for traced in ways:
            try:
                plan = fitting_plan(self.settings.policy, traced, limit)
            except TooTightError as error:
                refusal = self._refusal(error.refusal, error.peak, traced, overhead)
                refused.append(refusal)
                continue
            except InfeasiblePlanError as error:  # of every limit
                refused.append(self._refusal(error, None, traced, overhead))
                continue
            _check_actions(plan, store)
            plan = with_copies_placed(traced.graph, plan)
            # Holes of an arena may exceed the limit, but an allocator has none.
            validate(traced.graph, replace(plan, limit_bytes=None))
            return Step(traced, plan, overhead, limit, ways, store, self.overhead.room)
        raise min(refused, key=lambda each: each.smallest_limit_bytes or 0) from None

    def _refusal(
        self,
        refused: InfeasiblePlanError,
        peak: Peak | None,
        traced: Traced,
        overhead: Mapping[str, int],
    ) -> InfeasibleStepError:
        """Return an error with the smallest limit and the op and module that set it.

        The peak is that of the plan that needs the least; None if there is none.
        """
        graph = traced.graph
        op = None if peak is None or peak.op is None else graph.ops[peak.op]
        where = f"\n{refused.message}" if peak is None else ""
        if op is not None and op.type == UPDATE:
            where = f"\nWhat needs most is the {op.name}."
        elif op is not None:
            where = f" of module {op.group!r}" if op.group else ""
            where = f"\nWhat needs most is {op.name} ({op.type}){where}."
        added = sum(overhead.values())
        floor = added + (refused.smallest_limit_bytes if peak is None else peak.nbytes)
        limit = self.settings.limit_bytes or 0
        names = ", ".join(name for name, nbytes in overhead.items() if nbytes)
        taken = f", of which {format_bytes(added)} are taken: {names}" if added else ""
        return InfeasibleStepError(
            f"The {graph.name} does not fit {format_bytes(limit, exact=True)}{taken}."
            f"{where}",
            smallest_limit_bytes=floor,
            lower_bound_bytes=min(floor, refused.lower_bound_bytes + added),
            is_smallest=refused.is_smallest and peak is not None,
            requested_bytes=floor,
            limit_bytes=self.settings.limit_bytes,
            hint=self._way_out(refused, op, traced),
        )

    def _way_out(
        self, refused: InfeasiblePlanError, op: Op | None, traced: Traced
    ) -> str:
        """Return advice on what else to do about a limit that is too low."""
        room = self.overhead.room
        if room.others or room.stale:
            return NoRoomError.WAYS
        if not refused.is_smallest:
            return refused.hint
        if op is not None and op.type == UPDATE:
            return (
                "Raise the limit, or make the optimizer with fused=True if it can be."
            )
        batch = traced.graph.batch_size
        if self.shared.stores is not None or self.settings.inductor:
            return larger_limit_or(batch)
        values = (each for node in traced.sources for each in values_of(node))
        gpu = any(each.device.type == "cuda" for each in values)
        there = "'host'" if gpu else "<a folder>"
        leaving = f"let tensors leave: budget(..., spill_to={there})"
        return larger_limit_or(batch, leaving)


class TooTightError(Exception):
    """A policy found no plan of a graph within a limit."""

    def __init__(self, peak: Peak, refusal: InfeasiblePlanError) -> None:
        super().__init__()
        self.peak = peak  # of the plan that needs the least
        self.refusal = refusal


def fitting_plan(policy: Policy, traced: Traced, limit: int | None) -> Plan:
    """Return a plan whose bytes in use stay within a limit, or None.

    A policy that assigns offsets counts the holes of its arena, which an allocator does
    not have. If it refuses the limit, its plan of lowest peak may still fit;
    TooTightError is raised if it does not.
    """
    graph = traced.graph
    if limit is None:
        return policy(graph, limit_bytes=None)
    try:
        plan = policy(graph, limit_bytes=max(limit, 1))
    except InfeasiblePlanError as error:
        if error.is_smallest:
            plan = lowest_plan(policy, graph)
        else:  # a place for tensors has a limit, or the graph is large
            plan = policy(graph, limit_bytes=error.smallest_limit_bytes)
        peak = peak_of(traced, plan)
        if peak.nbytes > limit:
            raise TooTightError(peak, error) from None
        return plan
    used = peak_of(traced, plan).nbytes
    if used > max(limit, 1):
        raise PlanError(
            f"the plan of {plan.method} has {format_bytes(used, exact=True)} in use, "
            f"and was asked for {format_bytes(max(limit, 1), exact=True)}"
        )
    return plan


def floor_bytes(step: Step, policy: Policy) -> int:
    """Return the smallest limit that a policy can keep for a step."""
    lowest = [
        peak_of(each, lowest_plan(policy, each.graph)).nbytes
        for each in step.ways
        if each.graph.ops
    ]
    return min([step.peak_bytes, *(each + step.overhead_bytes for each in lowest)])


def _devices(graph: fx.Graph) -> set[torch.device]:
    """Return the devices that the nodes of a graph use."""
    return {value.device for node in graph.nodes for value in values_of(node)}


def _check_actions(plan: Plan, store: Store | None) -> None:
    """Raise SpillRefusedError if emitted graphs do not support an action of a plan."""
    for action in plan.actions:
        coded = isinstance(action, SwapOut) and action.codec is not None
        if coded or isinstance(action, Encode | Decode):
            raise SpillRefusedError(
                f"the plan of {plan.method} has codes, and steps of PyTorch have none: "
                "take another policy"
            )
        if isinstance(action, SwapOut) and store is None:
            raise SpillRefusedError(
                f"the plan of {plan.method} has tensors leave: say where, by "
                "budget(..., spill_to=a folder), on a GPU spill_to='host'"
            )


def _check_room(step: Step, store: Store) -> None:
    """Raise SpillRefusedError if a plan moves more bytes than the place has."""
    limit = store.limit_bytes
    if limit is not None and step.spill_bytes > limit:
        raise SpillRefusedError(
            f"the plan of {step.plan.method} has {format_bytes(step.spill_bytes)} "
            f"leave, and spill_limit is {format_bytes(limit)}"
        )
