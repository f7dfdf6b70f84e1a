"""From graphs to what programs are compiled from: kernels, then plans.

Owns the budget that a device leaves to one model and the refusal when a graph has no
plan within it. Takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg import plan as planning
from memcfg.errors import InfeasiblePlanError, KernelError
from memcfg.runtime._kernels import annotate, kernels_for
from memcfg.runtime._program import check_actions

if TYPE_CHECKING:
    from memcfg.devices import BoundlessKernel, Device
    from memcfg.graph import Graph

__all__ = ["Budget", "PolicyLike", "Recipe", "recipes_for"]

PolicyLike = Callable[..., planning.Plan]


@dataclass(frozen=True)
class Budget:
    """What a device leaves to one model: its limit less what others hold."""

    device: Device
    owner: str
    elsewhere: int  # bytes in use that are not the model's

    @property
    def nbytes(self) -> int | None:
        """Bytes that the model may take; None without a limit."""
        limit = self.device.pool.limit
        return None if limit is None else max(limit - self.elsewhere, 0)

    def refusal(self, program: str, error: InfeasiblePlanError) -> InfeasiblePlanError:
        """Say the same of the device's limit, others' bytes included."""
        others = dict(self.device.pool.owners())
        others.pop(self.owner, None)
        return InfeasiblePlanError(
            f"{self.owner} does not fit: {program or 'its step'} needs too much.",
            smallest_limit_bytes=error.smallest_limit_bytes + self.elsewhere,
            lower_bound_bytes=error.lower_bound_bytes + self.elsewhere,
            requested_bytes=error.smallest_limit_bytes,
            in_use_bytes=self.elsewhere,
            limit_bytes=self.device.pool.limit,
            largest_free_bytes=self.nbytes,
            device=self.device.name,
            owners=others,
            hint="Raise the limit, lower the batch size, or allow another method.",
        )


@dataclass(frozen=True)
class Recipe:
    """What a program is compiled from, and what that was decided by."""

    source: Graph  # as traced
    policy: PolicyLike
    budget: int | None
    graph: Graph  # with the kernels' scratch
    kernels: tuple[BoundlessKernel, ...]
    plan: planning.Plan

    def serves(self, source: Graph, policy: PolicyLike, budget: int | None) -> bool:
        """Whether planning again would give the same."""
        return self.source is source and self.policy == policy and self.budget == budget


def recipes_for(
    graphs: Mapping[str, Graph],
    policy: PolicyLike,
    budget: Budget,
    known: Mapping[str, Recipe],
) -> dict[str, Recipe]:
    """Plan all graphs; those that are known and would be planned alike, not again.

    Raises InfeasiblePlanError with the largest of the smallest limits, or PlanError
    for a plan that the validator refutes or the runtime cannot carry out.
    """
    recipes: dict[str, Recipe] = {}
    failures: list[tuple[str, InfeasiblePlanError]] = []
    for name, source in graphs.items():
        old = known.get(name)
        if old is not None and old.serves(source, policy, budget.nbytes):
            recipes[name] = old
            continue
        try:
            recipes[name] = _recipe(source, policy, budget)
        except InfeasiblePlanError as error:
            failures.append((name, error))
    if failures:
        name, worst = max(failures, key=lambda item: item[1].smallest_limit_bytes)
        raise budget.refusal(name, worst)
    return recipes


def _recipe(source: Graph, policy: PolicyLike, budget: Budget) -> Recipe:
    try:
        kernels = kernels_for(source, budget.device)
    except KernelError:  # perhaps for a size that does not fit the limit either
        limit = budget.nbytes
        if limit is not None and planning.lower_bound(source) > limit:
            policy(source, limit_bytes=limit)  # says so
        raise
    graph = annotate(source, kernels)
    plan = policy(graph, limit_bytes=budget.nbytes)
    planning.validate(graph, plan)
    check_actions(plan)
    return Recipe(source, policy, budget.nbytes, graph, kernels, plan)
