"""``memcfg judge``: whether a plan is right for a graph.

Owns the verdict's words. Refuses to plan, and asks no planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._terminal import write
from memcfg.commands import _files
from memcfg.graph import Graph
from memcfg.plan import Plan, lower_bound, unchecked_claims, violations
from memcfg.units import format_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser.

    Parameters
    ----------
    subparsers : argparse action
        Where commands are added.
    """
    text = "prove or refute a memcfg.plan/1 for a memcfg.graph/1"
    parser = subparsers.add_parser("judge", help=text, description=text)
    parser.add_argument("graph", help="the file of the graph")
    parser.add_argument("plan", help="the file of the plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the verdict and every violation, or the claims that were not checked.

    Parameters
    ----------
    args : argparse.Namespace
        The options.

    Returns
    -------
    int
        The exit status: 0 if the plan is right, 1 if it is refuted.

    Raises
    ------
    FormatError
        If a file is not what it should be.
    OSError
        If a file cannot be read.
    """
    graph = _files.read(args.graph, Graph.from_json)
    plan = _files.read(args.plan, Plan.from_json)
    found = violations(graph, plan)
    if found:
        write(f"refuted: {len(found)} violation{'s' if len(found) > 1 else ''}")
        write("\n".join(f"  {text}" for text in found))
        return 1
    limit = plan.limit_bytes
    write(f"right: {plan.method} plans {graph.name!r}")
    write(f"  peak         {_size(plan.peak_bytes)}")
    write(f"  limit        {'none' if limit is None else _size(limit)}")
    write(f"  lower bound  {_size(lower_bound(graph))}")
    for claim in unchecked_claims(graph, plan):
        write(f"  not checked  {claim}")
    return 0


def _size(nbytes: int) -> str:
    return format_bytes(nbytes, exact=True)
