"""Successive plans of one program by a policy that learns from measured steps.

The method of Peng et al., "Capuchin", ASPLOS 2020: measure a first step, plan from the
measurement, and start swap-ins earlier if ops waited for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from memcfg import plan as planning
from memcfg.errors import InfeasiblePlanError
from memcfg.runtime._program_specs import ProgramSpec, lessons_of, replanned
from memcfg.runtime._trial import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Graph
    from memcfg.plan import Policy
    from memcfg.runtime._budget import Budget
    from memcfg.runtime._program import Program

_ROUNDS = 20  # plans and feedback rounds; one of these shifts by 5 % of a copy's time
_MARGIN = 0.02  # relative; smaller differences are measurement noise


class _Found(NamedTuple):
    """The plan to run next and the policy that made it."""

    policy: Policy
    plan: planning.Plan
    rounds: int  # rounds used up to and including this plan


class Adaptation(Trial):
    """Trial in which the measured steps of each plan determine the next plan.

    Parameters
    ----------
    program : Program
        The program whose steps were measured; its policy learns from steps.
    took : mapping
        Measured seconds, keyed as in `Kernels`.
    """

    def __init__(self, program: Program, took: Mapping[object, float]) -> None:
        self._rates = program.rates()
        first = self._costed(program.spec, took)
        super().__init__(program.spec, first, program.least_seconds, ())
        lessons = lessons_of(program.spec.policy)
        assert lessons is not None
        self._lessons = lessons
        self._policy = cast("Policy", program.spec.planner)
        self._rounds = 0

    def learn(
        self, program: Program, took: Mapping[object, float], budget: Budget
    ) -> None:
        """Determine the next plan, if any, from the steps of the running program.

        The policy plans again from the measured seconds; the new plan is used if it is
        predicted to be faster. Otherwise swap-ins for which ops waited start earlier.
        The trial ends when no op waited, steps became slower, or no new plan is found.
        """
        if self._left:  # found before, but an interrupt came before it ran
            return
        for tier, rate in program.rates().items():
            self._rates[tier] = max(rate, self._rates.get(tier, 0.0))
        best = min(seconds for seconds, _ in self._took)
        if self._rounds == _ROUNDS or self._took[-1][0] > (1 + _MARGIN) * best:
            return
        stays = self._costed(self.running, took)
        limits = [each for each in (stays.budget, budget.nbytes) if each is not None]
        limit = min(limits, default=None)
        try:
            next_plan = self._planned_again(stays, limit)
            if next_plan is None and not self.running.passive:
                next_plan = self._fed_back(program, stays, limit)
        except InfeasiblePlanError:  # the limit has been lowered since
            return
        if next_plan is not None:
            spec = replanned(stays, next_plan.plan, budget)
            self._policy, self._rounds = next_plan.policy, next_plan.rounds
            self._left.append(spec)

    def _planned_again(self, stays: ProgramSpec, limit: int | None) -> _Found | None:
        """Plan from the measured seconds.

        Return None if the plan has run already, or does not improve on a guided plan by
        at least `_MARGIN`.
        """
        plan = self._policy(stays.graph, limit)
        most = (1 - _MARGIN) * stays.plan.elapsed_seconds
        if self._has_run(plan):
            return None
        if not self.running.passive and plan.elapsed_seconds > most:
            return None
        return _Found(self._policy, plan, self._rounds + 1)

    def _fed_back(
        self, program: Program, stays: ProgramSpec, limit: int | None
    ) -> _Found | None:
        """Start swap-ins for which ops waited earlier until the plan changes.

        One round may move a swap-in by less than the time of one op and so leave the
        plan as it is; the number of rounds between two plans doubles for that reason.
        """
        policy, rounds, more = self._policy, self._rounds, 1
        happened = program.happened()
        # rates measured while ops ran
        graph = _with_rates(stays.graph, program.rates())
        while rounds < _ROUNDS:
            before, ends = policy, min(rounds + more, _ROUNDS)
            for _ in range(rounds, ends):
                policy = self._lessons.feedback(
                    policy, graph, self.running.plan, happened
                )
            if policy == before:
                return None
            plan = policy(stays.graph, limit)
            if not self._has_run(plan):
                return _Found(policy, plan, ends)
            rounds, more = ends, 2 * more  # the shift was shorter than an op
        return None

    def _costed(self, spec: ProgramSpec, took: Mapping[object, float]) -> ProgramSpec:
        """Return a spec with the measured seconds and rates in its graph and plan."""
        kernels = spec.kernels.with_seconds(took)
        graph = _with_rates(kernels.annotate(spec.graph), self._rates)
        plan = planning.recosted(graph, spec.plan)
        return replace(spec, graph=graph, kernels=kernels, plan=plan)

    def _has_run(self, plan: planning.Plan) -> bool:
        return any(plan.actions == each.plan.actions for _, each in self._took)

    def _method(self, number: int) -> str:
        spec = self._took[number][1]
        return f"{spec.plan.method}, {'passive' if spec.passive else 'guided'}"


def _with_rates(graph: Graph, rates: Mapping[str, float]) -> Graph:
    """Return a graph whose tiers have the measured bytes per second."""
    tiers = (
        replace(tier, bytes_per_second=rates.get(tier.name, tier.bytes_per_second))
        for tier in graph.tiers
    )
    return replace(graph, tiers=tuple(tiers))
