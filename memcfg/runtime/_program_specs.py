"""The specs of programs: from a graph to its kernels, plan and placement.

Owns the error raised when a graph does not fit the budget. Takes no memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memcfg import plan as planning
from memcfg._caller import outside
from memcfg.errors import InfeasiblePlanError, KernelError, PlanError
from memcfg.ops.collectives import COLLECTIVES
from memcfg.plan.search._policy import Lessons, Method
from memcfg.plan.search.algorithms._claims import order_of
from memcfg.runtime._kernels import Kernels
from memcfg.runtime._packing import (
    InPlace,
    Packed,
    PackedWeight,
    is_inference,
    plan_packed,
    slots_of,
)
from memcfg.runtime._placement import ExecutionMode, Placement, with_margin
from memcfg.runtime._schedule import Schedule
from memcfg.runtime._state import state_bytes
from memcfg.units import align_up, format_bytes

if TYPE_CHECKING:
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.runtime._budget import Budget

__all__ = [
    "PolicyLike",
    "ProgramSpec",
    "contending",
    "lessons_of",
    "planned_again",
    "program_specs",
    "replanned",
    "without_lessons",
]

_Move = planning.SwapOut | planning.SwapIn | planning.Encode | planning.Decode

PolicyLike = Callable[..., planning.Plan]


@dataclass(frozen=True)
class ProgramSpec:
    """The input of a program's compilation; `source` is the traced graph."""

    source: Graph
    graph: Graph  # with the kernels' scratch
    kernels: Kernels
    plan: planning.Plan
    saved_bytes: int  # of the copy of the state on the host, while the state changes
    tier_bytes: Mapping[str, int]
    arena_bytes: int
    # Of programs with a workspace mode, planned by no policy.
    mode: ExecutionMode | None = None
    placement: Placement = field(default_factory=Placement)
    buffer_bytes: int = 0  # max. bytes of buffers of the pool
    margin_bytes: int = 0  # added for page fragmentation of these buffers
    # Of programs planned by a policy, with the inputs of the policy.
    policy: PolicyLike | None = None
    budget: int | None = None
    packed: tuple[PackedWeight, ...] = ()
    # Of programs that lie in an arena without a training step: the bytes of weights
    # that lie packed in their own place; None if all lie plain.
    slots: Mapping[str, int] | None = None
    in_place: tuple[InPlace, ...] = ()
    stored: Graph | None = None  # the source with these bytes
    timed: bool = False  # whether its first steps are timed, to replan
    passive: bool = False  # whether the plan is only for the first, measured step
    staged_bytes: int = 0  # of the host, for operands of two collectives of a device

    @property
    def planner(self) -> PolicyLike:
        """The policy that made the plan; requires that there is no mode."""
        assert self.policy is not None
        return self.policy

    @property
    def sized(self) -> Graph:
        """The source, with the bytes that weights take; without packed copies."""
        return self.source if self.stored is None else self.stored

    def serves(
        self,
        source: Graph,
        policy: PolicyLike,
        budget: int | None,
        slots: Mapping[str, int] | None,
    ) -> bool:
        """Return whether planning with these arguments would give the same spec."""
        own = (self.policy, self.budget, self.slots)
        wanted = (policy, budget, slots)
        return self.mode is None and self.source is source and own == wanted


def program_specs(
    graphs: Mapping[str, Graph],
    policy: PolicyLike,
    modes: Mapping[str, ExecutionMode],
    budget: Budget,
    known: Mapping[str, ProgramSpec],
    *,
    trains: bool = False,
) -> dict[str, ProgramSpec]:
    """Return the specs of all graphs; known specs that would be the same are reused.

    If no graph changes weights and the model does not train (`trains`), weights that
    are read packed are packed in their own place. Raises InfeasiblePlanError with the
    largest of the smallest limits, or PlanError for a plan that is invalid or that the
    device cannot run.
    """
    laid_out = {
        name: _laid_out(name, graph, modes[name], budget, known.get(name))
        for name, graph in graphs.items()
        if name in modes
    }
    rest = {name: graph for name, graph in graphs.items() if name not in modes}
    one_copy = not (trains or modes or _train(graphs))
    specs = laid_out.values()
    aside = max((spec.buffer_bytes for spec in specs), default=0)
    enough = max((spec.buffer_bytes + spec.margin_bytes for spec in specs), default=0)
    left = budget.beside(aside, enough)
    for name, spec in sorted(laid_out.items(), key=lambda row: -row[1].buffer_bytes):
        bound = planning.lower_bound(spec.graph)
        left.check(name, spec.graph, spec.arena_bytes, bound)
    result: dict[str, ProgramSpec] = {
        **laid_out,
        **_planned_all(rest, policy, left, known, one_copy=one_copy),
    }
    return {name: result[name] for name in graphs}


def _train(graphs: Mapping[str, Graph]) -> bool:
    """Return whether one of the graphs changes weights."""
    return not all(is_inference(graph) for graph in graphs.values())


def _planned_all(
    graphs: Mapping[str, Graph],
    policy: PolicyLike,
    budget: Budget,
    known: Mapping[str, ProgramSpec],
    *,
    one_copy: bool,
) -> dict[str, ProgramSpec]:
    made: dict[str, Kernels] = {}
    first = None
    if one_copy:
        slots = _known_slots(known)
        if slots is None:
            made, slots = _slots(graphs, budget)
        try:
            return _planned_with(graphs, policy, budget, known, slots, made)
        except InfeasiblePlanError as error:
            first = error
    try:
        return _planned_with(graphs, policy, budget, known, None, made)
    except InfeasiblePlanError as error:
        if first is None or first.smallest_limit_bytes >= error.smallest_limit_bytes:
            raise
        raise first from error


def _known_slots(known: Mapping[str, ProgramSpec]) -> Mapping[str, int] | None:
    """Return the bytes that loaded weights take, so that they stay where they are."""
    return next((s.slots for s in known.values() if s.slots is not None), None)


def _slots(
    graphs: Mapping[str, Graph], budget: Budget
) -> tuple[dict[str, Kernels], Mapping[str, int]]:
    """Return the kernels of graphs, and the bytes of weights that lie packed.

    There are none where an op has no kernel, which planning reports.
    """
    made: dict[str, Kernels] = {}
    try:
        for name, graph in graphs.items():
            made[name] = Kernels(graph, budget.device, budget.times, budget.took)
    except KernelError:
        return made, {}
    return made, slots_of([(graphs[name], kernels) for name, kernels in made.items()])


def _planned_with(
    graphs: Mapping[str, Graph],
    policy: PolicyLike,
    budget: Budget,
    known: Mapping[str, ProgramSpec],
    slots: Mapping[str, int] | None,
    made: Mapping[str, Kernels],
) -> dict[str, ProgramSpec]:
    specs: dict[str, ProgramSpec] = {}
    failures: list[tuple[str, InfeasiblePlanError]] = []
    for name, source in graphs.items():
        old = known.get(name)
        if old is not None and old.serves(source, policy, budget.nbytes, slots):
            specs[name] = old
            continue
        try:
            specs[name] = _planned(source, policy, budget, slots, made.get(name))
        except InfeasiblePlanError as error:
            failures.append((name, error))
    if failures:
        name, worst = max(failures, key=lambda item: item[1].smallest_limit_bytes)
        raise budget.refusal(name, worst)
    _tell_less_scratch(
        [spec.plan for name, spec in specs.items() if spec is not known.get(name)],
        budget,
    )
    return dict(specs)


def _tell_less_scratch(plans: Sequence[planning.Plan], budget: Budget) -> None:
    """Warn once if the scratch of the device's default algorithms does not fit."""
    needs = [
        (plan.peak_bytes + plan.summary.less_scratch.nbytes, plan.summary.less_scratch)
        for plan in plans
        if plan.summary is not None and plan.summary.less_scratch.count
    ]
    if not needs:
        return
    enough, group = max(needs, key=lambda each: each[0])
    missing = format_bytes(enough - (budget.nbytes or 0))
    names = ", ".join(group.names)
    if group.count > len(group.names):
        names = f"{group.count} ops ({names}, ...)"
    warnings.warn(
        f"{budget.owner}: the limit of {budget.device.name} has no room for the "
        f"scratch of its default algorithms, so {names} use others, which may be "
        f"slower and round differently. Raise the limit by {missing} to avoid this",
        RuntimeWarning,
        stacklevel=outside(),
    )


def lessons_of(policy: PolicyLike | None) -> Lessons | None:
    """Return a policy's lessons from measured steps, or None."""
    return policy.learns if isinstance(policy, Method) else None


def without_lessons(policy: PolicyLike) -> PolicyLike:
    """Return a policy that plans the same without learning from steps."""
    return replace(policy, learns=None) if isinstance(policy, Method) else policy


def planned_spec(
    source: Graph, policy: PolicyLike, budget: Budget, *, trains: bool
) -> ProgramSpec:
    """Plan a program alone, for a model with or without a training step.

    Raises InfeasiblePlanError as the policy does.
    """
    made: dict[str, Kernels] = {}
    first = None
    if not trains and is_inference(source):
        made, slots = _slots({"": source}, budget)
        try:
            return _planned(source, policy, budget, slots, made.get(""))
        except InfeasiblePlanError as error:
            first = error
    try:
        return _planned(source, policy, budget, None, made.get(""))
    except InfeasiblePlanError as error:
        if first is None or first.smallest_limit_bytes >= error.smallest_limit_bytes:
            raise
        raise first from error


def planned_again(spec: ProgramSpec, budget: Budget) -> ProgramSpec:
    """Plan a program for another budget, with its weights where they lie.

    Raises InfeasiblePlanError as the policy does.
    """
    return _planned(spec.source, spec.planner, budget, spec.slots, None)


def _planned(
    source: Graph,
    policy: PolicyLike,
    budget: Budget,
    slots: Mapping[str, int] | None,
    kernels: Kernels | None,
) -> ProgramSpec:
    """Plan a program; only its first step if the policy learns from that."""
    try:
        if kernels is None:
            kernels = Kernels(source, budget.device, budget.times, budget.took)
    except KernelError:  # report an infeasible limit first, if it is one
        limit = budget.nbytes
        if limit is not None and planning.lower_bound(source) > limit:
            policy(source, limit_bytes=limit)  # raises InfeasiblePlanError
        raise

    lessons = lessons_of(policy) if budget.times == "measured" else None
    if lessons is not None:
        first = lessons.first
        result = None
        with suppress(InfeasiblePlanError, PlanError):  # later steps may need less
            result = plan_packed(
                source,
                kernels,
                lambda graph: first(graph, budget.nbytes),
                budget.nbytes,
                slots,
                order_of(policy),
            )
        if result is not None:
            spec = _spec(source, result, policy, budget, slots)
            return replace(spec, passive=spec.timed)

    def planned(graph: Graph) -> planning.Plan:
        if budget.device.spares_scratch:
            plan = planning.plan_within(policy, graph, budget.nbytes)
        else:
            plan = policy(graph, limit_bytes=budget.nbytes)
        if not isinstance(plan, planning.Plan):
            raise TypeError(f"a policy must return a Plan, not {type(plan).__name__}")
        return plan

    result = plan_packed(
        source, kernels, planned, budget.nbytes, slots, order_of(policy)
    )
    return _spec(source, result, policy, budget, slots)


def _spec(
    source: Graph,
    packed: Packed,
    policy: PolicyLike,
    budget: Budget,
    slots: Mapping[str, int] | None,
) -> ProgramSpec:
    """Return the spec of a plan that the device can run within the budget."""
    plan, limit = _checked(packed.graph, packed.plan, budget), budget.nbytes
    spec = ProgramSpec(
        source,
        packed.graph,
        packed.kernels,
        **_needs(packed.graph, packed.kernels, plan, budget.device),
        plan=plan,
        policy=policy,
        budget=limit,
        packed=packed.weights,
        slots=slots,
        in_place=packed.in_place,
        stored=packed.sized,
    )
    return replace(spec, timed=budget.times == "measured" and _is_choice(spec))


def contending(
    spec: ProgramSpec, took: Mapping[object, float], budget: Budget
) -> tuple[ProgramSpec, list[ProgramSpec]]:
    """Return a spec with measured seconds, and specs of plans that may be faster.

    The latter are `plan.reconsidered` with these seconds, if it differs, and
    `plan.contenders`, all within the budget of the plan and that of now. Raises
    PlanError as `program_specs` does.
    """
    kernels = spec.kernels.with_seconds(took)
    graph = kernels.annotate(spec.graph)
    limits = [limit for limit in (spec.budget, budget.nbytes) if limit is not None]
    limit = min(limits, default=None)
    stays = planning.recosted(graph, spec.plan)
    fastest = planning.reconsidered(spec.planner, graph, spec.plan, limit)
    contenders = planning.contenders(spec.planner, graph, fastest, limit)
    known = replace(spec, graph=graph, kernels=kernels, plan=stays, timed=True)
    others = [
        replanned(known, other, budget)
        for other in (fastest, *contenders)
        if other.actions != stays.actions
    ]
    return known, others


def replanned(spec: ProgramSpec, plan: planning.Plan, budget: Budget) -> ProgramSpec:
    """Return a spec with another plan of the graph, whose first steps are timed.

    Raises PlanError as `program_specs` does.
    """
    plan = _checked(spec.graph, plan, budget)
    assert plan.summary is not None  # has `chosen_by`
    plan = replace(plan, summary=replace(plan.summary, recosted=None))
    needs = _needs(spec.graph, spec.kernels, plan, budget.device)
    return replace(spec, plan=plan, timed=True, passive=False, **needs)


def _is_choice(spec: ProgramSpec) -> bool:
    """Return whether another plan of the same program might be faster.

    It might if a policy chose the method or learns from steps, and the plan recomputes
    or swaps. Plans with other than default algorithms are excluded, as replanning would
    change the last digits of results.
    """
    computes = [a for a in spec.plan.actions if isinstance(a, planning.Compute)]
    moves = spec.plan.predicted.moved_bytes > 0
    return (
        spec.plan.summary is not None
        and (bool(spec.plan.summary.chosen_by) or lessons_of(spec.policy) is not None)
        and (len(computes) > len(spec.graph.ops) or moves)
        and all(action.algorithm is None for action in computes)
    )


def _checked(graph: Graph, plan: planning.Plan, budget: Budget) -> planning.Plan:
    """Return the plan with placed copies; PlanError if the device cannot run it."""
    planning.validate(graph, plan)
    if not plan.places:
        raise PlanError(
            "the plan has no places for buffers, and models have one arena: plan with "
            "a policy of memcfg.plan"
        )
    _check_actions(plan, budget.device)
    placed = planning.with_copies_placed(graph, plan)
    if placed.actions != plan.actions:
        planning.validate(graph, placed)  # the new offsets are not validated yet
    plan, limit = placed, budget.nbytes
    if limit is not None and plan.peak_bytes > limit:
        raise PlanError(f"the plan takes {plan.peak_bytes} B, and {limit} B are left")
    return plan


def _needs(
    graph: Graph, kernels: Kernels, plan: planning.Plan, device: Device
) -> dict[str, Any]:
    """Return the bytes that a plan needs, as fields of `ProgramSpec`.

    Raises PlanError if it exceeds the limit of a tier.
    """
    moves = [action for action in plan.actions if isinstance(action, _Move)]
    fails = device.fallible or any(_may_fail(action, device) for action in moves)
    # A collective may fail when updates have run that stand behind its start.
    fails = fails or any(isinstance(each, planning.Start) for each in plan.actions)
    computes = [a for a in plan.actions if isinstance(a, planning.Compute)]
    ops = [(a.op, a.algorithm) for a in computes]
    saved = _saved(graph, kernels, ops, device, fails=fails)
    peaks = planning.simulate(graph, plan).tier_peak_bytes if moves else {}
    tiers = {tier: peaks[tier] for tier in device.tiers if tier in peaks}
    for place in device.spill.places:
        away, limit = tiers.get(place.tier, 0), place.limit_bytes
        if limit is not None and away > limit:
            raise PlanError(
                f"the plan takes {away} B of tier {place.tier!r}, whose limit is "
                f"{limit} B"
            )
    staged = 0
    if device.stages_collectives:
        sizes = [
            kernels.get(op, algorithm).instruction().staged_bytes
            for op, algorithm in ops
            if graph.ops[op].type in COLLECTIVES
        ]
        staged = 2 * align_up(max(sizes, default=0))  # one is copied, one computed
    if saved or staged:
        tiers["host"] = align_up(tiers.get("host", 0)) + staged + saved
    return {
        "saved_bytes": saved,
        "staged_bytes": staged,
        "tier_bytes": tiers,
        "arena_bytes": plan.peak_bytes,
    }


def _may_fail(move: _Move, device: Device) -> bool:
    """Return whether a move can fail: one that uses a disk or a codec."""
    match move:
        case planning.SwapOut(_, tier, _, codec):
            return device.tiers[tier] == "file" or codec is not None
        case planning.SwapIn(_, tier):
            return device.tiers[tier] == "file"
    return True


def _check_actions(plan: planning.Plan, device: Device) -> None:
    """Raise PlanError if the device lacks a tier or a codec of the plan."""
    for action in plan.actions:
        match action:
            case planning.SwapOut(tier=tier, codec=codec):
                _check_tier(tier, device)
                if codec is not None:
                    _check_codec(codec, device)
                    _check_coded(tier, device)
            case planning.SwapIn(tier=tier):
                _check_tier(tier, device)
            case planning.Encode(codec=codec, tier=tier):
                _check_codec(codec, device)
                if tier is not None and not device.takes_overflow:
                    raise PlanError(
                        f"{device.name} cannot move tensors that exceed their encoded "
                        f"size to a tier: plan the maximum size of {codec!r}"
                    )
                if tier is not None:
                    _check_tier(tier, device)


def _check_tier(tier: str, device: Device) -> None:
    if tier not in device.tiers:
        known = ", ".join(device.tiers) or "none"
        raise PlanError(
            f"{device.name} has no tier {tier!r} to swap to; it has {known}"
        )


def _check_codec(codec: str, device: Device) -> None:
    if codec not in device.codecs:
        known = ", ".join(device.codecs)
        raise PlanError(f"{device.name} has no codec {codec!r}; it has {known}")


def _check_coded(tier: str, device: Device) -> None:
    if tier not in device.coded_tiers:
        known = ", ".join(device.coded_tiers) or "none"
        raise PlanError(
            f"{device.name} cannot encode copies to tier {tier!r}; it can to {known}"
        )


def _saved(
    graph: Graph,
    kernels: Kernels,
    computes: Sequence[tuple[int, str | None]],
    device: Device,
    *,
    fails: bool,
) -> int:
    """Return the bytes of state to save on the host before the first update.

    They are needed if a step can fail after it: if `fails`, or if a kernel on the CPU
    runs Python code, as collectives do.
    """
    changes = False
    shared = device.space == "host"
    for op, algorithm in computes:
        changes = changes or graph.ops[op].phase == "update"
        if changes and shared:
            fails = fails or kernels.get(op, algorithm).kernel is None
        elif changes and device.stages_collectives:
            fails = fails or graph.ops[op].type in COLLECTIVES
    if not changes or not fails:
        return 0
    return state_bytes(graph)


def _laid_out(
    name: str,
    source: Graph,
    mode: ExecutionMode,
    budget: Budget,
    old: ProgramSpec | None,
) -> ProgramSpec:
    """Return the spec of a program with a mode; InfeasiblePlanError if too large."""
    if old is not None and old.source is source and old.mode == mode:
        return old
    if budget.device.space != "host":
        raise RuntimeError(
            f"{budget.device.name} has memory of its own, which {mode.name!r} cannot "
            "place arrays in: use workspace mode 'enabled'"
        )
    graph, _ = planning.with_updates_in_time(source)
    try:
        kernels = Kernels(graph, budget.device)
    except KernelError:  # report an infeasible limit first, if it is one
        bound = planning.lower_bound(graph)
        budget.check(name, graph, bound, bound)
        raise
    graph = kernels.annotate(graph)
    schedule = Schedule.of(graph, mode.order(graph))
    plan, placement = schedule.plan(mode.name), mode.layout(schedule)
    planning.validate(graph, plan)
    for buffer in placement.buffers:
        budget.check_workspace(name, buffer)
    at_ops = placement.held(graph, plan)
    needed = max(nbytes for nbytes, _ in at_ops)
    enough = max(with_margin(*each) for each in at_ops)
    needs = _needs(graph, kernels, plan, budget.device)
    needs["arena_bytes"] = placement.arena_bytes or state_bytes(graph)
    return ProgramSpec(
        source,
        graph,
        kernels,
        plan,
        **needs,
        mode=mode,
        placement=placement,
        buffer_bytes=needed,
        margin_bytes=enough - needed,
    )
