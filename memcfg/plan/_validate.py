"""The independent judge of whether a plan is right for a graph.

Owns a reading of ``memcfg.graph/1`` and ``memcfg.plan/1`` of its own: it imports
nothing of the planners, the packer or the simulator, not even their arithmetic.
Refuses to be clever: a new room is compared with those in use, in the arena's order.

What it proves, for every action of the format:

* an op reads only what is resident, written and arrived; each op is computed at
  least once, again only if it is replayable, and never from an overwritten state;
* no two rooms in use at a time share a byte, scratch and encodings included; every
  offset is a multiple of the alignment, and that of 64;
* a room is taken over only while it is there, for a declared pair that fits, and
  ``free`` follows;
* what is there from the start is allocated before anything else, the state at the
  front of the arena in the graph's order: all programs of a model agree on it;
* the state stays resident; each of its updates, of which none runs before every op of
  the forward phase has, takes over its room, so that the next step begins with the
  newest value, and a step that ends with the forward phase has changed nothing; an
  overwritten value does not come back; what is to be kept is resident at the end;
* a copy is waited for before its tensor is freed, overwritten or, on its way in,
  read; reading while it is on its way out is fine;
* bytes are not encoded in none;
* the highest end of any room is the claimed peak and within the limit; the claimed
  lower bound and times do not contradict the actions.

`unchecked_claims` lists what it takes on trust.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from memcfg.errors import PlanError
from memcfg.plan._claims import list_unchecked
from memcfg.plan._judge import Judge, TooManyError
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan

__all__ = ["unchecked_claims", "validate", "violations"]


def validate(graph: Graph, plan: Plan) -> None:
    """Prove that a plan is right for a graph.

    Parameters
    ----------
    graph : Graph
        The graph.
    plan : Plan
        The plan, from whatever planner.

    Raises
    ------
    PlanError
        If the plan breaks a rule; the message names the first and how many more.
    """
    found = violations(graph, plan)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise PlanError(f"the plan is refuted: {found[0]}{more}")


def violations(graph: Graph, plan: Plan) -> list[str]:
    """List the rules that a plan breaks, up to a thousand.

    Parameters
    ----------
    graph : Graph
        The graph.
    plan : Plan
        The plan.

    Returns
    -------
    list of str
        One sentence a violation, in order; empty if the plan is right. A room that
        overlaps others names the first of them and says how many more there are.
        Behind a thousand sentences one more says that the rest was not judged.
    """
    line: object = plan.alignment  # of a user's policy
    if not isinstance(line, Integral) or int(line) < 1 or int(line) % ALIGNMENT:
        return [f"the alignment is {line}, not a positive multiple of {ALIGNMENT}"]
    judge = Judge(graph, plan)
    try:
        for index, action in enumerate(plan.actions):
            judge.step(index, action)
        judge.finish()
    except TooManyError:
        judge.found.append(f"{judge.where}: more, and the plan was followed no further")
    return judge.found


def unchecked_claims(graph: Graph, plan: Plan) -> list[str]:
    """List what `violations` takes on trust.

    Parameters
    ----------
    graph : Graph
        The graph.
    plan : Plan
        The plan.

    Returns
    -------
    list of str
        Codecs, and fields of `Predicted` that claim something, each with a reason.
    """
    return list_unchecked(graph, plan)
