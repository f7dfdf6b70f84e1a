"""``memcfg plan``: plan a graph from a file.

Owns the options. Refuses to judge: that is ``memcfg judge``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._terminal import write
from memcfg.commands import _files
from memcfg.files import write_atomically
from memcfg.graph import Graph
from memcfg.plan import POLICIES

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
    text = "plan the memory of a training step given as memcfg.graph/1"
    parser = subparsers.add_parser("plan", help=text, description=text)
    parser.add_argument("--graph", required=True, metavar="FILE", help="the graph")
    parser.add_argument(
        "--limit",
        type=_files.size,
        metavar="SIZE",
        help="bytes that the plan may use, such as 4194304 or 4MiB; "
        "without it the method does its best",
    )
    parser.add_argument(
        "--method",
        choices=tuple(POLICIES),
        default="auto",
        help="how to plan (default: auto)",
    )
    parser.add_argument("--output", metavar="FILE", help="where to write the plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, print the plan, write it.

    Parameters
    ----------
    args : argparse.Namespace
        The options.

    Returns
    -------
    int
        The exit status, 0.

    Raises
    ------
    FormatError
        If the file is not a graph.
    GraphError
        If the graph is too large to be planned.
    InfeasiblePlanError
        If no plan fits the limit; nothing is written.
    OSError
        If a file cannot be read or written.
    """
    graph = _files.read(args.graph, Graph.from_json)
    plan = POLICIES[args.method]()(graph, args.limit)
    if args.output is not None:
        write_atomically(args.output, plan.to_json().encode())
    write(plan)
    return 0
