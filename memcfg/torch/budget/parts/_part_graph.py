"""The bytes of a part of a model, of which the rest runs in eager mode, and its plans.

The graph of a part is that of forward and backward, between which the rest of the model
runs. So a plan has two numbers: what it keeps for backward, for each call of the part,
and what it has in use besides while it runs, once for all parts, as one runs at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError
from memcfg.plan.search._floor import lowest_plan
from memcfg.torch.budget._planner import TooTightError, fitting_plan
from memcfg.torch.budget._room import HELD, WORKSPACES, Needs, Room
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.plan import Plan, Policy
    from memcfg.torch.trace._traced import Traced


@dataclass(frozen=True)
class PartBytes:
    """What a planned part has in use.

    Parameters
    ----------
    inputs : int
        Bytes of its inputs, without parameters and buffers.
    kept : int
        Bytes that it keeps for backward, without inputs and outputs.
    forward : int
        The most bytes in use in forward, without parameters and inputs.
    backward : int
        The most bytes in use in backward, without these, gradients of parameters, what
        forward has left, and the gradients of outputs.
    between : int
        Bytes of outputs and their gradients.
    """

    inputs: int
    kept: int
    forward: int
    backward: int
    between: int

    @property
    def running(self) -> int:
        """The most bytes in use while it runs, besides inputs and what it keeps."""
        return max(self.forward - self.kept, self.between + self.backward)


@dataclass(frozen=True, eq=False)
class PartPlan:
    """A plan of one of the ways to run a part.

    Parameters
    ----------
    way : int
        Which of the ways.
    plan : Plan
        The plan of its graph.
    nbytes : PartBytes
        What it has in use.
    """

    way: int
    plan: Plan
    nbytes: PartBytes


@dataclass(eq=False)
class PartGraph:
    """A graph of a part, and its plans.

    Parameters
    ----------
    name : str
        What the user calls the part.
    ways : tuple of Traced
        The graph with replays of random ops, if it has any, and without.
    policy : Policy
        The planning method.
    trained_bytes : int
        Bytes of the parameters of the part that are trained.
    overhead : mapping of str to int
        Bytes outside of the graph, by name.
    """

    name: str
    ways: tuple[Traced, ...]
    policy: Policy
    trained_bytes: int
    overhead: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        """Whether it has a backward phase."""
        return self.ways[0].boundary is not None

    @cached_property
    def full(self) -> PartPlan:
        """The plan without a limit, which recomputes nothing."""
        return self._with_bytes(0, self.policy(self.ways[0].graph, limit_bytes=None))

    def lean(self, calls: int) -> PartPlan:
        """Return the plan that needs the least for a number of calls."""
        plans = [self.full, *self._lean] if self.is_training else [self.full]

        def whole(each: PartPlan) -> int:
            return calls * each.nbytes.kept + each.nbytes.running

        return min(plans, key=whole)

    @cached_property
    def _lean(self) -> list[PartPlan]:
        """Plans of lowest peaks while more or less of the rest lies between phases."""
        found = []
        most = self.full.plan.peak_bytes
        for rest in (0, most // 4, 2 * most):
            for way, traced in enumerate(self.ways):
                try:
                    plan = lowest_plan(self.policy, _beside(traced, rest).graph)
                except InfeasiblePlanError:
                    continue
                found.append(self._with_bytes(way, plan))
        return found

    def within(self, kept: int, running: int) -> PartPlan | None:
        """Return the fastest plan that keeps so many bytes; None if there is none."""
        base = _given_bytes(self.ways[0])
        known = self.full.nbytes
        running += self._own_gradients(self.ways[0])
        rest = max(0, running - known.between)
        for way, traced in enumerate(self.ways):
            try:
                plan = fitting_plan(
                    self.policy, _beside(traced, rest), sum(base) + kept + running
                )
            except (InfeasiblePlanError, TooTightError):
                continue
            return self._with_bytes(way, plan)
        return None

    def _own_gradients(self, traced: Traced) -> int:
        """Return the bytes of gradients of parameters, which count elsewhere."""
        made = sum(
            align_up(each.nbytes)
            for each in traced.graph.tensors
            if each.role == "gradient"
        )
        return min(made, self.trained_bytes)

    def _with_bytes(self, way: int, plan: Plan) -> PartPlan:
        traced = self.ways[way]
        needs = Needs.of(traced, plan, {}, Room())
        parameters, inputs = _given_bytes(traced)
        base = parameters + inputs
        kept = needs.resident - needs.tangents
        left = base + kept + needs.outputs + needs.tangents
        left += self._own_gradients(traced)
        held, scratch = self.overhead.get(HELD, 0), self.overhead.get(WORKSPACES, 0)
        nbytes = PartBytes(
            inputs,
            kept + held,
            max(0, needs.forward - base) + scratch + held,
            max(0, needs.backward - left) + scratch,
            needs.outputs + needs.tangents,
        )
        return PartPlan(way, plan, nbytes)


def _given_bytes(traced: Traced) -> tuple[int, int]:
    """Return the bytes of parameters and buffers, and of inputs."""
    found = {"parameter": 0, "input": 0}
    for each in traced.graph.tensors:
        if each.role in found:
            found[each.role] += align_up(each.nbytes)
    return found["parameter"], found["input"]


def _beside(traced: Traced, nbytes: int) -> Traced:
    """Return a traced graph between whose phases others have bytes in use."""
    at = traced.boundary
    if at is None:
        return traced
    ops = list(traced.graph.ops)
    ops[at] = replace(ops[at], scratch_bytes=nbytes)
    return replace(traced, graph=replace(traced.graph, ops=tuple(ops)))
