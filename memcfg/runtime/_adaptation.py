"""Plans of one program by a policy that learns from each of them.

Peng et al., "Capuchin", ASPLOS 2020: a first step that is measured, plans by that, and
feedback where ops waited for copies.
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

_ROUNDS = 20  # of plans, or of feedback, each 5 percent of a copy's seconds
_MARGIN = 0.02  # of the time: less is within the noise of measured seconds


class _Found(NamedTuple):
    """What is to run next."""

    policy: Policy
    plan: planning.Plan
    rounds: int  # that there have been by then


class Adaptation(Trial):
    """Specs of a program, of which each is run for some steps and makes the next.

    Parameters
    ----------
    program : Program
        What has run, of a policy that learns.
    took : mapping
        The seconds of ops, as of `Kernels`.
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
        """Find what is to run next, if anything, by the steps of the running program.

        The policy plans again where that takes less time by the seconds that were
        measured, else copies back start earlier that ops waited for. Nothing is to run
        once none was waited for, steps got slower, or all plans have run.
        """
        if self._left:  # it was found, and interrupted
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
            found = self._planned_again(stays, limit)
            if found is None and not self.running.passive:
                found = self._fed_back(program, stays, limit)
        except InfeasiblePlanError:  # the limit is lower by now
            return
        if found is not None:
            spec = replanned(stays, found.plan, budget)
            self._policy, self._rounds = found.policy, found.rounds
            self._left.append(spec)

    def _planned_again(self, stays: ProgramSpec, limit: int | None) -> _Found | None:
        """Plan by what was measured, unless that gains nothing over a guided plan."""
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
        """Start copies back earlier that ops waited for, until the plan is another."""
        policy, rounds, more = self._policy, self._rounds, 1
        happened = program.happened()
        graph = _with_rates(stays.graph, program.rates())  # of copies beside ops
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
            rounds, more = ends, 2 * more  # an op takes longer than what was added
        return None

    def _costed(self, spec: ProgramSpec, took: Mapping[object, float]) -> ProgramSpec:
        """Return a spec that goes by what was measured."""
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
    """Return a graph whose tiers copy as many bytes a second as was measured."""
    tiers = (
        replace(tier, bytes_per_second=rates.get(tier.name, tier.bytes_per_second))
        for tier in graph.tiers
    )
    return replace(graph, tiers=tuple(tiers))
