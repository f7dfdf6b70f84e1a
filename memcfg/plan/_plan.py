"""A plan: actions over a graph, and what they are predicted to cost.

Owns the value that every policy returns. Refuses the graph itself: a plan names it
and speaks of its tensors by id, so that it can be stored, sent and judged apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg.plan import _format, _report
from memcfg.plan._facts import Predicted, Summary

if TYPE_CHECKING:
    from memcfg.plan._actions import Action

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """What to do with every byte of a step; printing it tells where they went.

    Parameters
    ----------
    graph : str
        The name of the graph that it plans.
    method : str
        The policy that made it.
    limit_bytes : int or None
        The limit that it was made for, in bytes; None: no limit.
    alignment : int
        Bytes to which rooms are rounded up and aligned.
    predicted : Predicted
        What it is predicted to need.
    actions : tuple of Action
        In order of execution.
    summary : Summary or None, default None
        What it did, in the words of the graph; does not travel in JSON and does not
        take part in comparison.
    """

    graph: str
    method: str
    limit_bytes: int | None
    alignment: int
    predicted: Predicted
    actions: tuple[Action, ...]
    summary: Summary | None = field(default=None, compare=False, repr=False)

    @property
    def peak_bytes(self) -> int:
        """The highest end of any room in use at any time, in bytes."""
        return self.predicted.peak_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """A bound below which no plan of the graph can go, in bytes."""
        return self.predicted.lower_bound_bytes

    def __str__(self) -> str:
        return _report.describe(self)

    def to_json(self) -> str:
        """Write the plan in the interchange format.

        That is ``memcfg.plan/2`` if it says where copies lie on other tiers, else
        ``memcfg.plan/1``.

        Returns
        -------
        str
            JSON text.

        Raises
        ------
        FormatError
            If a number of the plan is NaN or infinite.
        """
        return _format.write_plan(self)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a plan in the interchange format, version 1 or 2.

        The text is checked as far as its grammar goes; whether the plan is right for
        a graph, `validate` tells.

        Parameters
        ----------
        text : str
            JSON text.

        Returns
        -------
        Plan
            The plan, without a summary.

        Raises
        ------
        FormatError
            If the text is not JSON, of another format or version, or has unknown,
            missing or mistyped keys or actions.
        """
        fields = _format.read_plan(text)
        predicted = Predicted(**fields.pop("predicted"))
        return Plan(predicted=predicted, **fields)
