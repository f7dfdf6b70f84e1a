"""The backend of `torch.compile` that plans each traced step within a limit.

See docs/decisions/0031-pytorch-steps-are-graphs-of-storages.md.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch._guards import TracingContext

from memcfg import plan as plans
from memcfg._caller import outside
from memcfg._checks import check_policy
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.graph import TIMES, Graph
from memcfg.plan import Alloc, Compute, Decode, Encode, Free, SwapOut, simulate
from memcfg.plan.format._simulate import with_copies_placed
from memcfg.plan.search._auto import Auto
from memcfg.plan.search._floor import lowest_plan
from memcfg.torch.budget._beside_plan import with_beside
from memcfg.torch.budget._boxed import Title, boxed
from memcfg.torch.budget._emitted import Emitter
from memcfg.torch.budget._guarded import guard, unguard
from memcfg.torch.budget._live_passes import LivePasses
from memcfg.torch.budget._pass_token import add_token
from memcfg.torch.budget._peak_watch import WATCH, PeakWatch, meter_of
from memcfg.torch.budget._room import OTHERS, Needs, NoRoomError, Room
from memcfg.torch.budget._swaps import STORE, extent_of, register, swap_out
from memcfg.torch.spill._stores import SpillRefusedError, Stores, spill_of
from memcfg.torch.trace._beside import workspace_bytes
from memcfg.torch.trace._costs import MeasuredCosts
from memcfg.torch.trace._generator_states import (
    add_states,
    run_and_save_state,
    run_with_state,
)
from memcfg.torch.trace._kept_functions import drop_forward, held_bytes
from memcfg.torch.trace._lstm_layers import (
    add_workspaces,
    has_layers,
    has_lstm,
    lstm_as_layers,
    lstm_as_steps,
    set_lstm,
    stepped,
)
from memcfg.torch.trace._traced import (
    ONCE,
    UPDATE,
    Traced,
    Tracer,
    check_dense,
    is_tangent,
    nominal_costs,
    rounded,
    title_of,
    values_of,
)
from memcfg.units import align_up, format_bytes, parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Container, Sequence

    from memcfg.devices import SpillPlace
    from memcfg.plan import Plan, Policy
    from memcfg.torch.spill._store import Store
    from memcfg.torch.trace._traced import Costs


# An allocator gives each tensor its own bytes: there is no arena in which holes count.
ALLOCATED = Auto(places=False)
_TITLE = "memcfg.title"  # where a traced graph has the name of its module
_TELLER = "memcfg.teller"  # and what is told when it runs
SO_FAR, MISSED = "gradients so far", "not planned"  # bytes beside a graph
STATE, WORKSPACES = "optimizer state", "cuBLAS workspaces"
HELD = "held by functions"
OF_LOSS = "loss and its gradient"  # the user's scalars, which outlive the op of a loss
UNTIL_BACKWARD = (SO_FAR, MISSED, HELD)  # which have ended when the optimizer steps


@dataclass(frozen=True)
class Peak:
    """The busiest time of a plan, by what an allocator has given out.

    Parameters
    ----------
    nbytes : int
        Bytes in use.
    op : int or None
        The op that runs; None: the start or the end.
    tensors : tuple of int
        What is there.
    scratch_bytes : int
        What the op needs beside them.
    """

    nbytes: int
    op: int | None
    tensors: tuple[int, ...]
    scratch_bytes: int


def live_peak(graph: Graph, plan: Plan, absent: Container[int] = ()) -> Peak:
    """Return the most bytes that a plan has in use at a time.

    An allocator gives each tensor its own bytes, so holes of the plan's arena do not
    count, and this is the plan's peak or less; nor do tensors that are absent.
    """
    sizes = [align_up(tensor.nbytes) for tensor in graph.tensors]
    there: set[int] = set()
    now = 0
    peak = Peak(0, None, (), 0)
    for action in plan.actions:
        scratch, op = 0, None
        if isinstance(action, (Alloc, Free)) and action.tensor in absent:
            continue
        if isinstance(action, Alloc):
            there.add(action.tensor)
            now += sizes[action.tensor]
        elif isinstance(action, Free):
            there.discard(action.tensor)
            now -= sizes[action.tensor]
        elif isinstance(action, Compute):
            op = action.op
            scratch = align_up(graph.ops[op].scratch_bytes)
        if now + scratch > peak.nbytes or (op is not None and peak.op is None):
            peak = Peak(now + scratch, op, tuple(sorted(there)), scratch)
    return peak


def peak_of(traced: Traced, plan: Plan) -> Peak:
    """Return the busiest time of a plan of a traced graph."""
    return live_peak(traced.graph, plan, traced.unused_states(plan))


@dataclass(frozen=True)
class Step:
    """A traced step and its plan.

    Parameters
    ----------
    traced : Traced
        What was planned.
    plan : Plan
        The plan of its graph.
    beside : dict of str to int
        Bytes beside the graph, by what they are.
    is_training : bool
        Whether the step has a backward phase.
    limit_bytes : int or None, default None
        The limit of what the graph itself needs; None: no limit.
    ways : tuple of Traced, default ()
        What could have been planned: with replays of random ops, and without.
    store : Store or None, default None
        Where tensors go that the plan has leave; None: none may.
    room : Room, optional
        What other passes have beside the step.
    """

    traced: Traced
    plan: Plan
    beside: dict[str, int]
    is_training: bool
    limit_bytes: int | None = None
    ways: tuple[Traced, ...] = ()
    store: Store | None = None
    room: Room = field(default_factory=Room)

    @cached_property
    def spill_bytes(self) -> int:
        """The bytes that its tensors have elsewhere; 0: none leave."""
        if self.store is None:
            return 0
        tiers = simulate(self.traced.graph, self.plan).tier_peak_bytes
        return tiers.get(self.store.tier.name, 0)

    @property
    def spill(self) -> tuple[int, int] | None:
        """What its emitter is told of the place of these."""
        if self.store is None or not self.spill_bytes:
            return None
        return register(self.store), self.spill_bytes

    @property
    def beside_bytes(self) -> int:
        """The sum of the bytes beside the graph."""
        return sum(self.beside.values())

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at a time, those beside the graph included."""
        return self.peak.nbytes + self.beside_bytes

    @cached_property
    def passes_bytes(self) -> int:
        """The most bytes of the graph in use until backward ends."""
        graph = self.traced.graph
        ops = tuple(
            replace(op, scratch_bytes=0) if op.type == UPDATE else op
            for op in graph.ops
        )
        return peak_of(
            replace(self.traced, graph=replace(graph, ops=ops)), self.plan
        ).nbytes

    def floor_bytes(self, policy: Policy) -> int:
        """Return the smallest limit that a policy keeps."""
        lowest = [
            peak_of(each, lowest_plan(policy, each.graph)).nbytes
            for each in self.ways
            if each.graph.ops
        ]
        return min([self.peak_bytes, *(each + self.beside_bytes for each in lowest)])

    @cached_property
    def whole(self) -> tuple[Graph, Plan]:
        """Its graph and plan with what lies beside them."""
        limit = self.limit_bytes
        whole = None if limit is None else limit + self.beside_bytes
        return with_beside(self.traced.graph, self.plan, self.beside, whole)

    @cached_property
    def needs(self) -> Needs:
        """What its phases need beside what other passes have."""
        return Needs.of(self.traced, self.plan, self.beside, self.room)

    @cached_property
    def peak(self) -> Peak:
        """The busiest time of its plan."""
        return peak_of(self.traced, self.plan)


class StopAfterPlanning(Exception):  # noqa: N818 - no error
    """Ends a compilation whose plan is all that was asked for."""


@dataclass(eq=False, repr=False)
class Planner:
    """What a backend knows: its limit, its costs, the steps that it has planned.

    Parameters
    ----------
    limit_bytes : int or None
        The limit; None: no limit.
    policy : Policy
        The method that plans.
    costs : callable
        Seconds and scratch bytes of a node.
    beside : dict of str to int
        Bytes that are in use beside the graph during a step, by what they are.
        cuBLAS's workspaces are added when a graph has products.
    inductor : bool
        Whether inductor compiles the two graphs.
    only_plan : bool
        Whether nothing is to be compiled.
    loss_bytes : int or None
        What the user's own loss needs; None: not known.
    stores : Stores or None
        Where tensors may go; None: nowhere.
    update_bytes : int or None
        What the optimizer's step has in use for a while; None: not known.
    last : list of Step
        The step that was planned or ran last, one that trains if any did; planners of
        a module share it.
    planned : Counter
        How many steps were planned, by whether they train; planners of a backend share
        it.
    """

    limit_bytes: int | None
    policy: Policy = ALLOCATED
    costs: Costs = field(default_factory=MeasuredCosts)
    beside: dict[str, int] = field(default_factory=dict)
    inductor: bool = False
    only_plan: bool = False
    loss_bytes: int | None = None
    stores: Stores | None = None
    update_bytes: int | None = None
    last: list[Step] = field(default_factory=list)
    planned: Counter[bool] = field(default_factory=Counter)
    passes: LivePasses = field(default_factory=LivePasses)
    room: Room = field(default_factory=Room)
    steps: list[Step] = field(default_factory=list)
    parameters: frozenset[int] = frozenset()
    known: list[Step] = field(default_factory=list)
    has_layers: bool = False  # of nn.LSTM, in the last graph
    missed_bytes: int = 0  # what a step above the limit had in use beyond its plan

    @property
    def beside_bytes(self) -> int:
        """The sum of the bytes beside the graph."""
        return sum(self.beside.values())

    def plan(self, source: fx.Graph, num_fwd_outputs: int | None) -> Step:
        """Plan a traced graph, or raise InfeasiblePlanError."""
        self.has_layers = has_layers(source)
        add_workspaces(source)
        check_dense(source)
        if isinstance(self.costs, MeasuredCosts):
            self.costs.prepare(source.nodes)
        if workspaces := workspace_bytes(source.nodes):
            self.beside = {**self.beside, WORKSPACES: workspaces}
        self.beside = {**self.beside, HELD: held_bytes(source.nodes)}
        others = self.room.others
        if num_fwd_outputs is None:  # nothing tells when it sets its variable
            others += self.room.stale
        self.beside = {**self.beside, OTHERS: others}
        scalars = 0 if num_fwd_outputs is None else _scalar_bytes(source)
        self.beside = {**self.beside, OF_LOSS: 2 * scalars}
        store = None if self.stores is None else self.stores.of(_devices(source))
        step = self._within(self._traced(source, num_fwd_outputs, store), store)
        if step.spill is not None and store is not None:
            _check_room(step, store)
            extent_of(store, step.spill_bytes)  # OSError before anything runs
        self.steps.append(step)
        _show(step, self.last)
        kind = step.is_training
        self.planned[kind] += 1
        again = self.planned[kind] == 2 and self.planned[not kind] < 2
        if again and not self.only_plan:
            warnings.warn(
                "a step is traced and planned anew: its inputs have another shape, a "
                "number among them another value, or the model another mode",
                RuntimeWarning,
                stacklevel=outside("torch"),
            )
        if self.only_plan:
            raise StopAfterPlanning
        return step

    def _traced(
        self, source: fx.Graph, num_fwd_outputs: int | None, store: Store | None
    ) -> tuple[Traced, ...]:
        """Trace a graph: with replays of random ops if it has any, and without."""

        def trace(states: dict[fx.Node, fx.Node]) -> Traced:
            tracer = Tracer(
                source,
                num_fwd_outputs=num_fwd_outputs,
                name="training step" if num_fwd_outputs is not None else "forward",
                parameters=self.parameters,
                costs=self.costs,
                kept_outputs=_kept_outputs(source, num_fwd_outputs),
                loss_bytes=self.loss_bytes,
                states=states,
                update_bytes=self._left_to_update(),
                room=self.room,
            )
            traced = tracer.trace()
            if store is None:
                return traced
            graph = replace(traced.graph, tiers=(store.tier,))
            return replace(traced, graph=graph)

        states = add_states(source)
        if not states:
            return (trace({}),)
        first = trace(states)
        for node in states.values():
            source.erase_node(node)
        return first, trace({})

    def _left_to_update(self) -> int | None:
        """Return what the optimizer needs where nothing beside the graph has ended."""
        if self.update_bytes is None:
            return None
        ended = sum(self.beside.get(each, 0) for each in UNTIL_BACKWARD)
        return max(0, self.update_bytes - ended)

    def _within(self, ways: tuple[Traced, ...], store: Store | None) -> Step:
        """Plan the first of several graphs of a step that fits."""
        limit = None
        if self.limit_bytes is not None:
            limit = self.limit_bytes - self.beside_bytes
        for traced in ways:
            for each in self.known:  # as when it was planned for an example
                if each.limit_bytes == limit and each.traced.graph == traced.graph:
                    now = replace(each, traced=traced, beside=self.beside, ways=ways)
                    return replace(now, store=store)
        refused = []
        for traced in ways:
            try:
                plan = with_copies_placed(traced.graph, self._planned(traced, limit))
            except InfeasiblePlanError as error:
                refused.append(error)
                continue
            _check_actions(plan, store)
            is_training = traced.boundary is not None
            step = Step(
                traced, plan, self.beside, is_training, limit, ways, store, self.room
            )
            self.known.append(step)
            return step
        raise min(refused, key=lambda each: each.smallest_limit_bytes or 0) from None

    def _planned(self, traced: Traced, limit: int | None) -> Plan:
        """Plan a graph, or raise what says where the limit is too low."""
        graph = traced.graph
        if limit is None:
            return self.policy(graph, limit_bytes=None)
        try:
            return self.policy(graph, limit_bytes=max(limit, 1))
        except InfeasiblePlanError as error:
            # A policy that places has holes, which an allocator does not need.
            if error.is_smallest:
                plan = lowest_plan(self.policy, graph)
            else:  # where tensors leave for has a limit, and this has a plan
                plan = self.policy(graph, limit_bytes=error.smallest_limit_bytes)
            peak = peak_of(traced, plan)
            if peak.nbytes > limit:
                raise self._refused(graph, peak, error) from None
        return plan

    def _refused(
        self, graph: Graph, peak: Peak, error: InfeasiblePlanError
    ) -> InfeasiblePlanError:
        """Say what the smallest limit is, and which op of which module sets it."""
        op = None if peak.op is None else graph.ops[peak.op]
        where, hint = "", "Raise the limit or lower the batch size."
        if op is not None and op.type == UPDATE:
            where = f"\nWhat needs most is the {op.name}."
            hint = (
                "Raise the limit, or make the optimizer with fused=True if it can be."
            )
        elif op is not None:
            where = f" {op.name} ({op.type})"
            where += f" of module {op.group!r}" if op.group else ""
            where = f"\nWhat needs most is{where}."
        floor = peak.nbytes + self.beside_bytes
        beside = format_bytes(self.beside_bytes)
        if not error.is_smallest:
            hint = error.hint
        if self.room.others or self.room.stale:
            hint = NoRoomError.WAYS
        return InfeasiblePlanError(
            f"The {graph.name} does not fit "
            f"{format_bytes(self.limit_bytes or 0, exact=True)}, {beside} of which are "
            f"beside the graph.{where}",
            smallest_limit_bytes=floor,
            lower_bound_bytes=min(floor, error.lower_bound_bytes + self.beside_bytes),
            is_smallest=error.is_smallest,
            requested_bytes=floor,
            limit_bytes=self.limit_bytes,
            hint=hint,
        )

    def partition(
        self,
        joint: fx.GraphModule,
        _inputs: Any,
        *,
        num_fwd_outputs: int,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Split a graph of forward and backward by a plan of both."""
        joint.graph.eliminate_dead_code()
        copies = _copy_what_changes(joint.graph)
        step = self.plan(joint.graph, num_fwd_outputs)
        emitter = Emitter(
            joint.graph,
            step.traced,
            step.plan,
            num_fwd_outputs=num_fwd_outputs,
            replays=self._replays(),
            spill=step.spill,
        )
        emitted = emitter.emit()
        _drop_copies(emitted, emitter, copies)
        planned = fx.GraphModule(joint, emitted)
        parts: tuple[fx.GraphModule, fx.GraphModule]
        parts = partitioners._extract_fwd_bwd_modules(
            planned, list(emitter.saved), [], num_fwd_outputs=num_fwd_outputs
        )
        drop_forward(parts[1], {node.name for node in emitter.early})
        add_token(parts[0].graph, parts[1].graph, num_fwd_outputs)
        guard(parts[1].graph)
        watch, title = self._watch(step), Title(title_of(joint.graph.nodes))
        for part in parts:
            part.meta.update({WATCH: watch, _TITLE: title, STORE: step.store})
        inputs = _inputs_at(step, parts[0].graph)
        teller = self._teller(step, inputs, num_fwd_outputs)
        for part in parts:
            part.meta[_TELLER] = teller
        return parts

    def _teller(self, step: Step, inputs: Sequence[int], outputs: int) -> _Teller:
        """Return what is told of the runs of a step.

        It holds no planner, so that none lives longer by it.
        """
        # Inductor's peak is its own, and PyTorch may hold an output of it for longer.
        late = None if self.inductor else self.limit_bytes
        return _Teller(
            step, self.last, self.passes, self.limit_bytes, late, inputs, outputs
        )

    def _replays(self) -> tuple[Any, Any]:
        """Return what runs a random op first, and what runs it again."""
        if not self.inductor:
            return run_and_save_state, run_with_state
        from torch._prims import rng_prims  # which inductor knows

        return rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state

    def _watch(self, step: Step) -> PeakWatch | None:
        """Return what watches a step; None: no limit, nothing counts, or inductor.

        It tells of more than is planned if that is more than the limit, too.
        """
        sources = [node for node in step.traced.sources if not is_tangent(node)]
        devices = {value.device for node in sources for value in values_of(node)}
        meter = meter_of(devices.pop()) if len(devices) == 1 else None
        limit = self.limit_bytes
        if meter is None or limit is None or self.inductor:
            return None
        tensors = {step.traced.storage_of.get(node) for node in sources} - {None}
        there = sum(
            align_up(step.traced.graph.tensors[each].nbytes)
            for each in tensors
            if each is not None
        )

        def tell(missed: int) -> None:
            if step.passes_bytes + step.beside_bytes + missed > limit:
                self.missed_bytes = max(self.missed_bytes, missed)

        known = step.beside.get(MISSED, 0) + step.beside[OF_LOSS]
        added = step.passes_bytes - there + known
        return PeakWatch(meter, added, tell, self.passes)

    def infer(self, module: fx.GraphModule, _inputs: Any) -> Any:
        """Plan a graph without backward."""
        step = self.plan(module.graph, None)
        emitter = Emitter(
            module.graph,
            step.traced,
            step.plan,
            num_fwd_outputs=0,
            replays=self._replays(),
            spill=step.spill,
        )
        planned = fx.GraphModule(module, emitter.emit())
        title = Title(title_of(module.graph.nodes))
        output = next(node for node in planned.graph.nodes if node.op == "output")
        inputs = _inputs_at(step, planned.graph)
        teller = self._teller(step, inputs, len(output.args[0]))
        planned.meta.update({_TELLER: teller, _TITLE: title, STORE: step.store})
        return self.compile(planned, _inputs)

    def forward(self, module: fx.GraphModule, inputs: Any) -> Any:
        """Compile the forward graph of a step."""
        return self.compile(module, inputs, PeakWatch.forward)

    def backward(self, module: fx.GraphModule, inputs: Any) -> Any:
        """Compile the backward graph of a step, which may run again (retain_graph)."""
        _keep_what_is_saved()
        unguard(module.graph)
        return self.compile(module, inputs, PeakWatch.backward, is_forward=False)

    def compile(
        self,
        module: fx.GraphModule,
        inputs: Any,
        watched: Callable[[PeakWatch, Any], Any] | None = None,
        *,
        is_forward: bool = True,
    ) -> Any:
        """Compile a graph."""
        teller = module.meta[_TELLER]
        told = teller.forward if is_forward else teller.backward
        if self.inductor:
            from torch._inductor import config
            from torch._inductor.compile_fx import compile_fx_inner

            with config.patch(fallback_random=True):  # numbers as eager draws them
                return told(compile_fx_inner(module, inputs))
        watch = module.meta.get(WATCH)
        run = boxed(module, module.meta[_TITLE])
        if watch is not None and watched is not None:
            run = watched(watch, run)
            run._boxed_call = True
        return told(run)

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile what was traced."""
        if any(isinstance(each, torch.SymInt) for each in inputs):
            raise ValueError("shapes are static: pass torch.compile(dynamic=False)")
        reason = getattr(module, "compile_subgraph_reason", None)
        if getattr(reason, "graph_break", False):
            raise ValueError(
                "the model breaks into several graphs, each of which would have the "
                "limit: pass torch.compile(fullgraph=True) to see where, or take "
                "memcfg.torch.saved_tensors"
            )
        self.parameters = _parameters(module, inputs)
        decompositions = None
        if self.inductor:  # which has no other code for some ops
            from torch._inductor.decomposition import select_decomp_table

            decompositions = select_decomp_table()
        make = aot_autograd(
            decompositions=decompositions,
            fw_compiler=self.forward,
            bw_compiler=self.backward,
            inference_compiler=self.infer,
            partition_fn=self.partition,
        )
        if has_lstm(module):
            return self._with_lstms(make, module, inputs)
        return _made(make, module, inputs)

    def _with_lstms(
        self, make: Any, module: fx.GraphModule, inputs: Sequence[Any]
    ) -> Any:
        """Compile what has `nn.LSTM`: as oneDNN's layers, or as ops of its steps."""
        # With measured costs it is known what oneDNN's recurrent layers need.
        known = isinstance(self.costs, MeasuredCosts) and not self.inductor
        ways = (lstm_as_layers,) * known + (lstm_as_steps,)
        refused: list[Exception] = []
        before = stepped.count
        for lstm in ways:
            set_lstm(module, lstm)
            self.has_layers = False
            try:
                made = _made(make, module, inputs)
            except (MemcfgError, SpillRefusedError, OSError) as error:
                refused.append(error)  # steps may have room, if there are layers
                if not self.has_layers:
                    break
            except StopAfterPlanning:
                _warn_of_steps(refused)
                raise
            else:
                _warn_of_steps(refused)
                if stepped.count > before and not refused:
                    why = "in bfloat16" if known else "without measured costs"
                    _warn("with inductor" if self.inductor else why)
                return made
        raise min(refused, key=_smallest)


def _smallest(error: Exception) -> float:
    """Return the limit that a refusal names; those that name none come last."""
    return getattr(error, "smallest_limit_bytes", math.inf)


def _warn_of_steps(refused: Sequence[Exception]) -> None:
    """Say that an LSTM fits as the ops of its steps alone, if it is so."""
    for error in refused:
        needs = ""
        if isinstance(error, InfeasiblePlanError):
            smallest = format_bytes(error.smallest_limit_bytes, exact=True)
            needs = f": for eager's, raise the limit to {smallest}"
        _warn("within this limit", needs)


def _warn(when: str, needs: str = "") -> None:
    warnings.warn(
        f"{when} nn.LSTM runs as the ops of its steps, which is slower and has the "
        f"bits of PyTorch without oneDNN{needs}",
        RuntimeWarning,
        stacklevel=outside("torch"),
    )


def _made(make: Any, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Trace and compile a graph."""
    try:
        return make(module, inputs)
    except MemcfgError as error:  # PyTorch's frames say nothing of it
        raise error.with_traceback(None) from None


def _keep_what_is_saved() -> None:
    """Let no saved tensor be donated: PyTorch refuses to run such a graph again."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


@dataclass(frozen=True)
class _Teller:
    """Has the passes of a module, and its reports, know of the runs of a step."""

    step: Step
    last: list[Step]
    passes: LivePasses
    limit: int | None
    late_limit: int | None  # which is checked when backward begins
    inputs: Sequence[int]
    outputs: int

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Teller:
        return self  # AOTAutograd copies a backward graph

    def forward(self, run: Any) -> Any:
        """Return a forward graph that tells of itself."""
        step, last = self.step, self.last

        def shown(arguments: list[Any]) -> Any:
            _show(step, last)
            return run(arguments)

        return self.passes.forward(step, self.limit, self.inputs, self.outputs, shown)

    def backward(self, run: Any) -> Any:
        """Return a backward graph that tells of itself."""
        return self.passes.backward(self.step, self.late_limit, run)


def _show(step: Step, last: list[Step]) -> None:
    """Have a step be the last one, unless another one trains and it does not."""
    if step.is_training or not any(each.is_training for each in last):
        last[:] = [step]


def _inputs_at(step: Step, graph: fx.Graph) -> list[int]:
    """Return the places of what a forward graph is given beside parameters."""
    traced = step.traced
    state = {
        node.name
        for node in traced.sources
        if node in traced.storage_of
        and traced.graph.tensors[traced.storage_of[node]].role == "parameter"
    }
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    return [at for at, node in enumerate(sources) if node.name not in state]


def _devices(graph: fx.Graph) -> set[torch.device]:
    """Return the devices that a graph works on."""
    return {value.device for node in graph.nodes for value in values_of(node)}


def _scalar_bytes(graph: fx.Graph) -> int:
    """Return the bytes of a scalar, as the allocator of a graph's device rounds it."""
    return max((rounded(1, each) for each in _devices(graph)), default=0)


def _check_actions(plan: Plan, store: Store | None) -> None:
    """Raise SpillRefusedError if a plan does what emitted graphs do not."""
    for action in plan.actions:
        coded = isinstance(action, SwapOut) and action.codec is not None
        if coded or isinstance(action, Encode | Decode):
            raise SpillRefusedError(
                f"the plan of {plan.method} has codes, and steps of PyTorch have none: "
                "take another policy"
            )
        if isinstance(action, SwapOut) and store is None:
            raise SpillRefusedError(
                f"the plan of {plan.method} has tensors leave: say where, by spill_to"
            )


def _check_room(step: Step, store: Store) -> None:
    """Raise SpillRefusedError if a plan has more elsewhere than there may be."""
    limit = store.limit_bytes
    if limit is not None and step.spill_bytes > limit:
        raise SpillRefusedError(
            f"the plan of {step.plan.method} has {format_bytes(step.spill_bytes)} "
            f"leave, and spill_limit is {format_bytes(limit)}"
        )


def _parameters(module: fx.GraphModule, inputs: Sequence[Any]) -> frozenset[int]:
    """Return the places of parameters and buffers among the inputs of a graph."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset(
        at
        for at, (node, value) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(value, torch.nn.Parameter)
        or any(each in node.name for each in ("_parameters_", "_buffers_"))
    )


def _copy_what_changes(joint: fx.Graph) -> set[str]:
    """Let forward read copies of the inputs that it changes, such as running means.

    They are changed when forward has ended. What is computed again later would read
    the new values.
    """
    output = next(node for node in joint.nodes if node.op == "output")
    changed = {
        each.mutated_input
        for each in output.meta.get("desc") or ()
        if type(each).__name__ == "InputMutationAOTOutput"
    }
    sources = [node for node in joint.nodes if node.op == "placeholder"]
    names = set()
    for node in sources:
        if node.meta.get("desc") not in changed or not node.users:
            continue
        first = next(each for each in joint.nodes if each in node.users)
        with joint.inserting_before(first):
            copy = joint.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = {
            key: value for key, value in first.meta.items() if "module_stack" in key
        }
        value = node.meta["val"]
        with value.fake_mode:
            copy.meta["val"] = value.clone()
        node.replace_all_uses_with(copy, delete_user_cb=partial(operator.ne, copy))
        copy.meta[ONCE] = True
        names.add(copy.name)
    return names


def _drop_copies(graph: fx.Graph, emitter: Emitter, names: set[str]) -> None:
    """Read inputs themselves where no op reads them after forward."""
    early = emitter.early
    for node in list(graph.nodes):
        leaves = any(user.target is swap_out for user in node.users)  # when it has time
        if node.name in names and not leaves and all(u in early for u in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _kept_outputs(
    source: fx.Graph, num_fwd_outputs: int | None
) -> Callable[[int], bool]:
    """Say which outputs the user holds, not those that are copied into buffers.

    Without a backward phase these are copied at the end, and held until then.
    """
    if num_fwd_outputs is None:
        return lambda _: True
    output = next(node for node in source.nodes if node.op == "output")
    described = output.meta.get("desc") or ()
    updates = {
        at
        for at, each in enumerate(described)
        if type(each).__name__ == "InputMutationAOTOutput"
    }
    return lambda index: index not in updates


@dataclass(eq=False, repr=False)
class Backend:
    """What `torch.compile` takes. Made by `backend`.

    PyTorch keeps it until it is reset, so it holds nothing that was traced: each graph
    has a planner of its own, which lives as long as what was compiled.

    Parameters
    ----------
    limit_bytes : int or None
        The limit; None: no limit.
    policy : Policy
        The method that plans.
    costs : callable
        Seconds and scratch bytes of a node.
    inductor : bool
        Whether inductor compiles the two graphs.
    stores : Stores or None
        Where tensors may go; None: nowhere.
    """

    limit_bytes: int | None
    policy: Policy
    costs: Costs
    inductor: bool
    stores: Stores | None
    planned: Counter[bool] = field(default_factory=Counter)

    def __repr__(self) -> str:  # PyTorch quotes it
        limit = None if self.limit_bytes is None else format_bytes(self.limit_bytes)
        return f"memcfg.torch.backend({limit!r})"

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile what was traced."""
        planner = Planner(
            self.limit_bytes,
            policy=self.policy,
            costs=self.costs,
            inductor=self.inductor,
            stores=self.stores,
            planned=self.planned,
        )
        return planner(module, inputs)


def backend(
    limit: int | str | None,
    *,
    policy: Policy | None = None,
    times: str = "measured",
    inductor: bool = False,
    spill_to: str | os.PathLike[str] | None = None,
    spill_limit: int | str | None = None,
    lane_bandwidth: int | str | None = None,
) -> Backend:
    """Make a backend of `torch.compile` that keeps a step within a limit.

    Parameters
    ----------
    limit : int or str or None
        Bytes, such as ``"4GiB"``, of all that a step has in use: parameters, inputs,
        gradients and what lies between. None: no limit.
    policy : Policy or None, default None
        The method that plans; None: as `memcfg.plan.auto`, for bytes in use, since
        PyTorch's allocator has no arena with holes.
    times : str, default "measured"
        Whether seconds and scratch of each distinct op are measured, once, on its
        device, or ``"nominal"``, which knows no scratch.
    inductor : bool, default False
        Whether inductor compiles the planned graphs. It fuses and reorders, so bits
        and the peak are then its own.
    spill_to, spill_limit, lane_bandwidth : str, path or None; int, str or None
        Where tensors may go, how many bytes, and how fast, as for `budget`.

    Returns
    -------
    Backend
        What ``torch.compile(model, backend=..., dynamic=False)`` takes.

    Raises
    ------
    TypeError
        If `policy` is no policy, or `spill_to` no path.
    ValueError
        If the limit is no number of bytes, times are of another kind, or tensors cannot
        go there.
    """
    spill = spill_of(spill_to, spill_limit, lane_bandwidth, inductor=inductor)
    return Backend(
        None if limit is None else parse_bytes(limit),
        policy=checked_policy(policy),
        costs=costs_of(times),
        inductor=inductor,
        stores=stores_of(spill, times),
    )


def checked_policy(policy: Policy | None) -> Policy:
    """Return what plans; None: the best for bytes in use. TypeError if it is none."""
    if policy is None:
        return ALLOCATED
    if not callable(policy) or isinstance(policy, type):
        raise TypeError(f"policy is a policy such as plan.auto(), not {policy!r}")
    name = getattr(policy, "__name__", "")
    if getattr(plans, name, None) is policy:  # what makes one
        raise TypeError(f"policy is a policy: call plan.{name}()")
    check_policy(policy)
    return policy


def stores_of(spill: SpillPlace | None, times: str) -> Stores | None:
    """Return the stores of a module; None: nothing leaves."""
    return None if spill is None else Stores(spill, measured=times == "measured")


def costs_of(times: str) -> Costs:
    """Return costs by their name; ValueError if it is none."""
    if times not in TIMES:
        raise ValueError(f"times are one of {', '.join(TIMES)}, not {times!r}")
    return nominal_costs if times == "nominal" else MeasuredCosts()
