"""The contract of every planning method.

Owns the protocol and the refusal of a limit. A policy is a value: a frozen object
that can be compared, printed and stored in a model's configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from memcfg.errors import InfeasiblePlanError
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan

__all__ = ["Policy", "fits", "refuse"]


class Policy(Protocol):
    """A method that plans a graph within a limit.

    Attributes
    ----------
    name : str
        Its name, as ``memcfg plan --method`` takes it.
    """

    @property
    def name(self) -> str:
        """The method's name."""

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph."""


def fits(plan: Plan) -> bool:
    """Whether a plan's peak is within the limit that it was made for."""
    return plan.limit_bytes is None or plan.peak_bytes <= plan.limit_bytes


def refuse(plan: Plan, *, other: str = "") -> InfeasiblePlanError:
    """Make the refusal of a limit."""
    steps = "Raise the limit or lower the batch size."
    if other:
        steps = f"Raise the limit, lower the batch size, or plan with {other}."
    return InfeasiblePlanError(
        f"{plan.method} cannot plan {plan.graph!r} within "
        f"{format_bytes(plan.limit_bytes or 0, exact=True)}.",
        smallest_limit_bytes=plan.peak_bytes,
        lower_bound_bytes=plan.lower_bound_bytes,
        requested_bytes=plan.peak_bytes,
        limit_bytes=plan.limit_bytes,
        hint=steps,
    )
