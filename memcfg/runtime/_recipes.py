"""From graphs to what programs are made from: kernels, then plans or walks.

Owns the choice between a compiled program and one that runs op by op, and the refusal
when a graph does not fit the budget. Takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from memcfg import plan as planning
from memcfg.errors import InfeasiblePlanError, KernelError, PlanError
from memcfg.runtime._kernels import Kernels
from memcfg.runtime._program import Program, check_actions, protected, tier_bytes
from memcfg.runtime._stepwise import Stepwise
from memcfg.runtime._walk import Walk

if TYPE_CHECKING:
    from memcfg._core.engine import Arena, ScratchFile
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.runtime._budget import Budget
    from memcfg.runtime._runnable import Recipe, Runnable
    from memcfg.runtime._ways import Way

__all__ = ["PolicyLike", "recipes_for"]

PolicyLike = Callable[..., planning.Plan]


@dataclass(frozen=True)
class _Planned:
    """What a compiled program is made from, and what that was decided by."""

    source: Graph  # as traced
    policy: PolicyLike
    budget: int | None
    graph: Graph
    kernels: Kernels
    plan: planning.Plan
    tier_bytes: Mapping[str, int]
    saved_bytes: int  # of state, on the host

    beside_bytes = 0

    @property
    def arena_bytes(self) -> int:
        """The plan's peak."""
        return self.plan.peak_bytes

    def serves(self, source: Graph, policy: PolicyLike, budget: int | None) -> bool:
        """Whether planning again would give the same."""
        return self.source is source and self.policy == policy and self.budget == budget

    def program(
        self,
        arena: Arena,
        tiers: Mapping[str, Arena | ScratchFile],
        device: Device,
        owner: str,
    ) -> Runnable:
        """Compile the program."""
        return Program(
            self.graph,
            self.plan,
            self.kernels,
            arena,
            tiers,
            device,
            self.tier_bytes,
            self.saved_bytes,
        )


@dataclass(frozen=True)
class _Walked:
    """What a program that runs op by op is made from."""

    source: Graph  # as traced
    way: Way
    walk: Walk
    kernels: Kernels
    beside_bytes: int
    enough_bytes: int

    plan = None
    tier_bytes: ClassVar[Mapping[str, int]] = {}

    @property
    def graph(self) -> Graph:
        """The graph, with the kernels' scratch."""
        return self.walk.graph

    @property
    def arena_bytes(self) -> int:
        """The state alone."""
        return self.walk.state_bytes

    def program(
        self,
        arena: Arena,
        tiers: Mapping[str, Arena | ScratchFile],
        device: Device,
        owner: str,
    ) -> Runnable:
        """Make the program."""
        placer = self.way.placer(self.walk, device, owner)
        return Stepwise(
            self.walk,
            self.kernels,
            placer,
            arena,
            device,
            mode=self.way.name,
            needed_bytes=self.beside_bytes,
        )


def recipes_for(
    graphs: Mapping[str, Graph],
    policy: PolicyLike,
    ways: Mapping[str, Way],
    budget: Budget,
    known: Mapping[str, Recipe],
) -> dict[str, Recipe]:
    """Find the recipes of all graphs; those that are known and would be the same stay.

    Raises InfeasiblePlanError with the largest of the smallest limits, or PlanError
    for a plan that the validator refutes or the runtime cannot carry out.
    """
    walked = {
        name: _walked(name, graph, ways[name], budget, known.get(name))
        for name, graph in graphs.items()
        if name in ways
    }
    rest = {name: graph for name, graph in graphs.items() if name not in ways}
    aside = max((recipe.beside_bytes for recipe in walked.values()), default=0)
    enough = max((recipe.enough_bytes for recipe in walked.values()), default=0)
    left = budget.beside(aside, enough)
    for name, recipe in walked.items():
        if recipe.beside_bytes == aside:
            left.check(name, recipe.arena_bytes, planning.lower_bound(recipe.graph))
    found: dict[str, Recipe] = {**walked, **_planned_all(rest, policy, left, known)}
    return {name: found[name] for name in graphs}


def _planned_all(
    graphs: Mapping[str, Graph],
    policy: PolicyLike,
    budget: Budget,
    known: Mapping[str, Recipe],
) -> dict[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    failures: list[tuple[str, InfeasiblePlanError]] = []
    for name, source in graphs.items():
        old = known.get(name)
        if isinstance(old, _Planned) and old.serves(source, policy, budget.nbytes):
            recipes[name] = old
            continue
        try:
            recipes[name] = _planned(source, policy, budget)
        except InfeasiblePlanError as error:
            failures.append((name, error))
    if failures:
        name, worst = max(failures, key=lambda item: item[1].smallest_limit_bytes)
        raise budget.refusal(name, worst)
    return recipes


def _planned(source: Graph, policy: PolicyLike, budget: Budget) -> _Planned:
    try:
        kernels = Kernels(source, budget.device)
    except KernelError:  # perhaps for a size that does not fit the limit either
        limit = budget.nbytes
        if limit is not None and planning.lower_bound(source) > limit:
            policy(source, limit_bytes=limit)  # says so
        raise
    graph = kernels.annotate(source)
    plan = policy(graph, limit_bytes=budget.nbytes)
    if not isinstance(plan, planning.Plan):
        raise TypeError(f"a policy returns a Plan, not {type(plan).__name__}")
    planning.validate(graph, plan)
    check_actions(plan, budget.device)
    plan = planning.with_copies_placed(graph, plan)
    limit = budget.nbytes
    if limit is not None and plan.peak_bytes > limit:
        raise PlanError(f"the plan takes {plan.peak_bytes} B, and {limit} B are left")
    saved = protected(graph, plan, kernels, budget.device)
    tiers = tier_bytes(graph, plan, saved)
    return _Planned(source, policy, limit, graph, kernels, plan, tiers, saved)


def _walked(
    name: str, source: Graph, way: Way, budget: Budget, old: Recipe | None
) -> _Walked:
    if isinstance(old, _Walked) and old.source is source and old.way == way:
        return old
    if budget.device.space != "host":
        raise RuntimeError(
            f"{budget.device.name} has memory of its own, which {way.name!r} cannot "
            "place arrays in: use workspace mode 'enabled'"
        )
    graph, _ = planning.with_updates_in_time(source)
    try:
        kernels = Kernels(graph, budget.device)
    except KernelError:  # perhaps for a size that does not fit the limit either
        bound = planning.lower_bound(graph)
        budget.check(name, bound, bound)
        raise
    graph = kernels.annotate(graph)
    walk = Walk.of(graph, way.order(graph))
    return _Walked(
        source, way, walk, kernels, way.needed_bytes(walk), way.enough_bytes(walk)
    )
