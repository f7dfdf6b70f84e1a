"""What a plan costs and what it did: the numbers beside its actions.

Owns two value types. Refuses to compute them: the simulator and the policies do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Group", "Predicted", "Summary"]


@dataclass(frozen=True)
class Predicted:
    """What a plan is predicted to need.

    Parameters
    ----------
    peak_bytes : int
        The highest end of any room in the arena, scratch included.
    host_peak_bytes : int, default 0
        The most bytes held on other tiers at a time.
    moved_bytes : int, default 0
        Bytes copied out and in.
    seconds : float, default 0.0
        The time of all computed ops, in seconds.
    recompute_seconds : float, default 0.0
        The part of `seconds` beyond the first computation of each op.
    lower_bound_bytes : int, default 0
        `lower_bound` of the graph.
    planning_seconds : float, default 0.0
        The time that planning took; does not take part in comparison.
    optimality_gap : float or None, default None
        How far `seconds` may be above the optimum, as a fraction; None: not known.
    """

    peak_bytes: int
    host_peak_bytes: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    recompute_seconds: float = 0.0
    lower_bound_bytes: int = 0
    planning_seconds: float = field(default=0.0, compare=False)
    optimality_gap: float | None = None


@dataclass(frozen=True)
class Group:
    """Things that were treated alike.

    Parameters
    ----------
    count : int, default 0
        How many there are.
    nbytes : int, default 0
        Their bytes, rounded to the alignment.
    names : tuple of str, default ()
        The names of the largest few.
    """

    count: int = 0
    nbytes: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What a plan did with a graph.

    Parameters
    ----------
    kept : Group
        Tensors of the forward phase that stay for the backward phase.
    in_place : Group
        Tensors that took over the room of an input.
    recomputed : Group
        Ops that are computed again, and the bytes of their outputs.
    by_role : mapping of str to int
        Bytes in use at the busiest moment, by tensor role; scratch is a role.
    busiest_op : str
        The op that runs at the busiest moment; empty: the start or the end.
    all_bytes : int
        The peak of `keep_all`, in which every tensor has its own bytes.
    chosen_by : str, default ""
        The policy that chose the method, if that is another.
    """

    kept: Group
    in_place: Group
    recomputed: Group
    by_role: Mapping[str, int]
    busiest_op: str
    all_bytes: int
    chosen_by: str = ""
