"""``memcfg torch estimate``: what a PyTorch model needs, and what fits a limit."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from memcfg._checks import unknown
from memcfg._tables import draw, new_table
from memcfg._terminal import write
from memcfg.commands._at_work import shown
from memcfg.commands._sizes import limit
from memcfg.commands._whole_numbers import positive
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.units import format_bytes, format_seconds

_BATCH = 32
_NAMES = "model", "make_inputs", "loss", "optimizer"
_DESCRIPTION = (
    "Trace a model of PyTorch, and print the peak of its training step in eager mode, "
    "the smallest limit, the largest batch within --limit, and the fastest plan there. "
    "The model is not run. FILE:FUNCTION names a function without arguments that "
    "returns a dict of the model ('model') and of a function that makes inputs for a "
    "batch size ('make_inputs'), and, if they are known, of the optimizer "
    "('optimizer') and the loss of the model's outputs ('loss')."
)


class _Problem(NamedTuple):
    """A model to train, as a user's function returns it."""

    model: Any
    make_inputs: Any
    loss: Any = None
    optimizer: Any = None


def add_torch(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memcfg torch`` to a parser."""
    text = "tell what a training step of a PyTorch model needs"
    parser = subparsers.add_parser("torch", help=text, description=text)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    estimate = commands.add_parser(
        "estimate", help="print peak, floor and largest batch", description=_DESCRIPTION
    )
    estimate.add_argument("source", metavar="FILE:FUNCTION", type=_source)
    estimate.add_argument(
        "--limit", type=limit, metavar="SIZE", help="memory limit, such as 8GiB"
    )
    estimate.add_argument(
        "--batch",
        type=positive,
        default=_BATCH,
        metavar="N",
        help=f"samples of a step (default: {_BATCH})",
    )
    estimate.add_argument(
        "--times",
        choices=("measured", "nominal"),
        default="measured",
        help="measure each op once (the default), or run nothing and know no scratch",
    )
    estimate.set_defaults(run=_estimate)


def _source(text: str) -> tuple[str, str]:
    """Parse ``train.py:make``."""
    path, colon, name = text.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a file and a function, such as train.py:make"
        )
    return path, name


def _problem(path: str, name: str) -> _Problem:
    """Call the user's function."""
    with open(path, "rb"):  # an OSError is one line, as of other commands
        pass
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    found = runpy.run_path(path)
    if not callable(found.get(name)):
        raise MemcfgError(f"{path} has no function {name!r}")
    made = found[name]()
    if not isinstance(made, Mapping):
        raise MemcfgError(
            f"{name}() returns a dict with 'model' and 'make_inputs', not "
            f"{type(made).__name__}"
        )
    for each in made:
        if each not in _NAMES:
            raise MemcfgError(f"{name}(): {unknown('key', each, _NAMES)}")
    missing = [each for each in _NAMES[:2] if each not in made]
    if missing:
        raise MemcfgError(f"the dict of {name}() lacks {missing[0]!r}")
    return _Problem(**made)


def _estimate(args: argparse.Namespace) -> int:
    """Print the table; the status is 1 if the batch does not fit the limit."""
    import memcfg.torch as mt

    problem = _problem(*args.source)
    try:
        with shown("tracing"):
            made = problem.make_inputs(args.batch)
            by_name = isinstance(made, Mapping)
            inputs: dict[str, Any] = {
                "example": () if by_name else made,
                "example_kwargs": made if by_name else None,
            }
            loss = {"loss": problem.loss, "optimizer": problem.optimizer}
            found = mt.estimate(problem.model, **inputs, **loss, times=args.times)
        rows = [
            ("Batch", str(args.batch)),
            ("Peak in PyTorch", _bytes(found.eager_bytes)),
            ("Peak of a plan without a limit", _bytes(found.peak_bytes)),
            ("Smallest limit", _bytes(found.floor_bytes)),
        ]
        fits = args.limit is None or found.floor_bytes <= args.limit
        if args.limit is not None:
            rows += _within(mt, args, problem, inputs, loss, fits=fits)
    except (TypeError, ValueError) as error:  # of the user's model
        if isinstance(error, MemcfgError):
            raise
        raise MemcfgError(str(error)) from error
    table = new_table("Step", numbers=[type(problem.model).__name__])
    for row in rows:
        table.add_row(*row)
    write(draw(table))
    return 0 if fits else 1


def _within(
    mt: Any,
    args: argparse.Namespace,
    problem: _Problem,
    inputs: dict[str, Any],
    loss: dict[str, Any],
    *,
    fits: bool,
) -> list[tuple[str, str]]:
    """Return rows on what fits the limit."""
    size = format_bytes(args.limit)
    with shown("searching for the largest batch"):
        largest = mt.largest_batch(
            problem.model, problem.make_inputs, args.limit, **loss, times=args.times
        )
    rows = [(f"Largest batch within {size}", str(largest))]
    if not fits:
        return [*rows, (f"Fastest plan within {size}", "there is none")]
    with shown("planning"):
        try:
            mt.budget(problem.model, args.limit, **inputs, **loss, times=args.times)
        except InfeasiblePlanError:
            return [*rows, (f"Fastest plan within {size}", "there is none")]
    plan = mt.get_budget(problem.model).memory_plan
    again = plan.predicted.recompute_seconds
    once = plan.elapsed_seconds - again
    part = again / once if once else 0.0
    told = f"{plan.method}: {format_seconds(plan.elapsed_seconds)} of ops"
    return [
        *rows,
        (f"Fastest plan within {size}", told),
        ("  its peak", _bytes(mt.get_budget(problem.model).predicted_peak_bytes)),
        ("  time of ops computed again", f"{100 * part:.1f} %"),
    ]


def _bytes(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_bytes(nbytes)
