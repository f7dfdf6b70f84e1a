"""``memcfg compare``: every method on several networks at several budgets."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from memcfg import config
from memcfg._checks import unknown
from memcfg._core._machine import machine_bytes
from memcfg._tables import new_table
from memcfg._terminal import width, write
from memcfg.commands._at_work import GrowingTable, shown
from memcfg.commands._measured import devices_for_turns, measure_in_turns
from memcfg.commands._places import (
    add_places,
    configure,
    said_places,
    tiers_said,
)
from memcfg.commands._tasks import NETWORKS, Task, missing
from memcfg.commands._whole_numbers import positive
from memcfg.commands.comparison._heat_map import heat_map
from memcfg.commands.comparison._method_cells import (
    BANDWIDTHS,
    MIDDLE,
    Case,
    Cell,
    Planned,
    plan_cell,
)
from memcfg.commands.comparison._method_document import (
    RATES,
    budget_text,
    document,
    in_lines,
    lossy,
    row,
    tier_rows,
)
from memcfg.commands.comparison._method_facts import describe_lossy
from memcfg.commands.comparison._method_report import (
    bandwidth,
    lasting,
    markdown,
    on_tiers,
    percent,
    spreadsheet,
    times,
)
from memcfg.files import write_atomically
from memcfg.graph import TIMES
from memcfg.plan import NAMED_POLICIES, POLICIES
from memcfg.units import format_bytes, parse_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from memcfg.graph import Tier

_BATCH = 32  # of a network that the zoo lacks
_CASES = {  # a chain, shortcuts, long skips, recurrent layers, attention; step by step
    each.network: each
    for each in (
        Task("mobilenet", _BATCH, {"input_shape": (64, 64, 3), "classes": 10}),
        Task("resnet", _BATCH, {"depth": 20}),
        Task("unet", 8, {"input_shape": (192, 192, 1), "padding": "same"}),
        Task("lstm_lm", _BATCH, {"units": 128, "vocabulary_size": 100}),
        Task(
            "bert_encoder",
            8,
            {
                "layers": 2,
                "hidden": 128,
                "heads": 2,
                "vocabulary_size": 1000,
                "sequence_length": 128,
            },
        ),
        Task(  # cells for those that go through time, additive scores for Meng's
            "seq2seq_attention",
            _BATCH,
            {
                "layers": 1,
                "units": 64,
                "vocabulary_size": 100,
                "sequence_length": 16,
                "attention": "additive",
            },
        ),
    )
}
_BUDGETS = (Fraction(4, 5), Fraction(3, 5), Fraction(2, 5))
_COMPARED = "each of unlimited, 8GB and 2GB"  # as of `BANDWIDTHS`
_NUMBERS = {"Least": 5, "Planned": 7, "Trained": 7}  # columns of the table
_WRITERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    ".md": markdown,
    ".csv": spreadsheet,
    ".svg": heat_map,
    ".json": in_lines,
}


def add_compare(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Add ``memcfg compare`` to a parser."""
    text = "compare methods on several networks, each within several budgets"
    parser = subparsers.add_parser("compare", help=text, description=text)
    parser.add_argument(
        "--methods",
        type=_several("method", NAMED_POLICIES),
        default=tuple(POLICIES),
        metavar="A,B",
        help="methods, separated by commas (default: all but exact)",
    )
    parser.add_argument(
        "--networks",
        type=_several("network", NETWORKS),
        default=tuple(_CASES),
        metavar="A,B",
        help=(
            "networks of memcfg.models, separated by commas (default: "
            f"{','.join(_CASES)}, in sizes that are planned quickly; others have "
            "batches of 32)"
        ),
    )
    parser.add_argument(
        "--budgets",
        type=_budgets,
        default=_BUDGETS,
        metavar="A%,B%",
        help="limits as percentages of the peak of share (default: 80%%,60%%,40%%)",
    )
    parser.add_argument(
        "--times",
        choices=TIMES,
        default=TIMES[0],
        help=(
            "times of the ops: nominal, the same on every machine, or measured on this "
            f"CPU, which is better with --run (default: {TIMES[0]})"
        ),
    )
    add_places(parser, _COMPARED)
    parser.add_argument(
        "--run",
        type=positive,
        default=0,
        dest="steps",
        metavar="STEPS",
        help=(
            "train this many steps under each plan, alternating with as many under "
            "share"
        ),
    )
    parser.add_argument(
        "--output",
        type=_output,
        action="append",
        default=[],
        metavar="FILE",
        help="file for the comparison: .md, .csv, .svg or .json; may be repeated",
    )
    parser.set_defaults(run=_compare, parser=parser)


def _compare(args: argparse.Namespace) -> int:
    """Plan cell by cell, and print a method's row when its cells are done."""
    for name in args.networks:
        if name not in _CASES and (needed := missing(name, set())):
            given = needed[0].removeprefix("--set ").partition("=")[0]
            args.parser.error(
                f"{name} needs an argument, {given}, which compare cannot give it"
            )
    places = said_places(args)
    if places is not None and places.spill_on(machine_bytes()).places[0].bandwidth:
        args.parser.error(
            f"compare gives the first place {_COMPARED}: say --lane-bandwidth none "
            "of it"
        )
    own = places or config.LogicalDeviceConfiguration(spill_to="host")
    tiers = tiers_said(own)
    if args.steps or places is not None:
        configure(args, devices_for_turns(BANDWIDTHS[MIDDLE], own))
    with shown("tracing the networks"):
        cases = [
            Case.of(letter, replace(task, times=args.times), tiers)
            for name, letter in _letters(args.networks).items()
            for task in (_CASES.get(name, Task(name, _BATCH)),)
        ]
    write(_head(cases, args.budgets, tiers))
    table = _table(args.methods, len(cases), args.steps)
    cells: list[Cell] = []
    for method in args.methods:
        planned = [
            _found(method, case, budget, args.steps)
            for case in cases
            for budget in args.budgets
        ]
        cells += planned
        table.add(*_row(planned, args.steps))
    write("\n".join(_refusals(cells)))
    if text := describe_lossy(_codecs(cells)):
        write(textwrap.fill(text, width(), subsequent_indent="  "))
    for path in args.output:
        comparison = document(cases, cells, args.steps, tiers)
        text = _WRITERS[Path(path).suffix](comparison)
        write_atomically(path, text.encode())
    wrong = [cell for cell in cells if not cell.is_as_planned]
    for cell in wrong:
        assert cell.trained is not None
        where = f"{cell.method} on {cell.case.task.network} at {budget_text(cell)}"
        write(f"{where}: measured {cell.trained.peak_bytes} B, NOT as predicted")
    return 1 if wrong else 0


def _found(method: str, case: Case, budget: Fraction, steps: int) -> Cell:
    """Plan a cell and, if asked to, train some steps under its plan."""
    where = f"{method} on {case.task.network}"
    with shown(f"planning: {where}"):
        cell = plan_cell(method, case, budget)
    if not steps or cell.plan() is None:
        return cell
    with shown(f"training: {where}"):
        policy = NAMED_POLICIES[method]()
        turns = measure_in_turns(case.task, policy, cell.limit_bytes, steps)
    return Cell(method, case, budget, cell.outcomes, turns)


def _letters(networks: Iterable[str]) -> dict[str, str]:
    """Give each network a letter of its name that no other has, or a number."""
    result: dict[str, str] = {}
    for number, name in enumerate(networks, 1):
        letters = [each for each in name.upper() if each.isalpha()]
        free = [each for each in letters if each not in result.values()]
        result[name] = free[0] if free else str(number)
    return result


# -- printing ------------------------------------------------------------------


def _head(
    cases: Sequence[Case], budgets: Sequence[Fraction], tiers: Sequence[Tier]
) -> str:
    wide = max(len(case.task.network) for case in cases)
    lines = [
        f"  {case.letter}  {case.task.network:<{wide}}  batch {case.task.batch:>3}  "
        f"{len(case.graphs[0].ops):>4} ops  share {format_bytes(case.share_peak_bytes)}"
        f", lower bound {case.lower_bound_bytes / case.share_peak_bytes:.0%}"
        for case in cases
    ]
    percents = ", ".join(f"{float(100 * each):g}%" for each in budgets)
    message = (
        f"Within {percents} of the peak of share. Means over the plans of each method: "
        f"least and mean peak, slowdown by bandwidth to the {tiers[0].name}. "
        f"Op times are {cases[0].task.times}."
    )
    if (rate := cases[0].copies_per_second) is not None:
        where = tiers[0].name
        message += (
            f" A lane to the {where} copies {rate / 1e9:.3g} GB/s here, each way."
        )
    if len(tiers) > 1 or tiers[0].limit_bytes is not None:
        message += f" {on_tiers(tier_rows(tiers))}"
    lines += ["", textwrap.fill(message, width()), ""]
    return "\n".join(lines)


def _table(methods: Sequence[str], nets: int, steps: int) -> GrowingTable:
    rates = [bandwidth(rate).replace(" ", "") for rate in RATES]
    numbers = ["Least", "Peak", *rates, "Work", "Trained" if steps else "Planned"]
    widths = [_NUMBERS.get(name, 4) for name in numbers]
    table = new_table("Method", "Nets", numbers=numbers)
    return GrowingTable(table, [max(map(len, methods)), max(4, nets), *widths])


def _row(cells: Sequence[Cell], steps: int) -> list[str]:
    result = row(cells)
    last = times(result["trained_slowdown"]) if steps else ""
    return [
        result["method"],
        result["networks"],
        percent(result["least"]),
        percent(result["peak"]),
        *map(times, result["slowdowns"]),
        percent(result["extra_work"]),
        last or lasting(result["planning_seconds"]),
    ]


def _refusals(cells: Sequence[Cell]) -> Iterable[str]:
    """Explain why a row has dashes, and which networks each method cannot plan.

    A row has dashes where no plan fits; then a line gives what the method needs. Of the
    networks that a method cannot plan only the first reason is given.
    """
    networks: dict[str, dict[str, str]] = {}  # method -> letter -> reason
    for cell in cells:
        outcome = cell.outcome()
        if not isinstance(outcome, Planned) and outcome.needs_bytes is None:
            own = networks.setdefault(cell.method, {})
            own.setdefault(cell.case.letter, outcome.reason)
    for method, needed in _needs(cells).items():
        letter, part = min(needed.items(), key=lambda item: item[1])
        text = f"{method}: no plan fits; {letter} needs {part:.1%} of the peak of share"
        yield textwrap.fill(text, width(), subsequent_indent="  ")
    alike: dict[tuple[str, str], list[str]] = {}
    for method, own in networks.items():
        reasons = "".join(own), next(iter(own.values()))
        alike.setdefault(reasons, []).append(method)
    for (letters, reason), methods in alike.items():
        text = f"{', '.join(methods)}: not {letters}: {reason}"
        yield textwrap.fill(text, width(), subsequent_indent="  ")


def _needs(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Return what methods without any plan need, relative to share, by network."""
    planned = {cell.method for cell in cells if cell.plan() is not None}
    result: dict[str, dict[str, float]] = {}
    for cell in cells:
        outcome = cell.outcome()
        if cell.method in planned or isinstance(outcome, Planned):
            continue
        if outcome.needs_bytes is not None:
            part = outcome.needs_bytes / cell.case.share_peak_bytes
            result.setdefault(cell.method, {})[cell.case.letter] = part
    return result


def _codecs(cells: Sequence[Cell]) -> dict[str, set[str]]:
    """Return the lossy codecs of each method that has a plan."""
    result: dict[str, set[str]] = {}
    for cell in cells:
        if cell.plan() is not None:
            result.setdefault(cell.method, set()).update(lossy(cell))
    return result


# -- arguments ------------------------------------------------------------------


def _several(what: str, known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of names separated by commas."""
    names = tuple(known)

    def read(text: str) -> tuple[str, ...]:
        given = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
        for each in given:
            if each not in names:
                raise argparse.ArgumentTypeError(str(unknown(what, each, names)))
        return given

    return read


def _budgets(text: str) -> tuple[Fraction, ...]:
    result = []
    for each in text.split(","):
        try:
            part = parse_share(each)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if not part:
            raise argparse.ArgumentTypeError(f"{each!r} is not a budget such as 60%")
        result.append(part)
    return tuple(dict.fromkeys(result))


def _output(text: str) -> str:
    path = Path(text)
    if path.suffix not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise argparse.ArgumentTypeError(f"{text!r} does not end in one of {known}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return text
