"""The results of ``memcfg compare`` as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from typing import TYPE_CHECKING, Any

from memcfg.commands.comparison._drawbacks import drawbacks
from memcfg.commands.comparison._method_cells import MIDDLE
from memcfg.commands.comparison._method_document import at_rate
from memcfg.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NONE = "–"
_WIDE = 88  # columns of prose
_COLUMNS = (  # of a cell at one bandwidth, in a spreadsheet
    "method",
    "network",
    "budget",
    "limit_bytes",
    "is_below_bound",
    "bandwidth",
    "reason",
    "needs_bytes",
    "by",
    "peak_bytes",
    "peak",
    "seconds",
    "slowdown",
    "stall_seconds",
    "extra_work",
    "host_peak_bytes",
    "host_peak",
    "moved_bytes",
    "lossy",
    "planning_seconds",
    "trained_peak_bytes",
    "trained_seconds",
    "trained_share_seconds",
    "trained_slowdown",
)


def times(value: float | None) -> str:
    """Format a slowdown."""
    return _NONE if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Format a fraction."""
    return _NONE if value is None else f"{value:.0%}"


def lasting(value: float | None) -> str:
    """Format a time."""
    return _NONE if value is None else format_seconds(value)


def bandwidth(rate: float | str) -> str:
    """Format the bytes per second of a lane, as a document has them."""
    return "∞" if isinstance(rate, str) else f"{rate / 1e9:g} GB/s"


# -- Markdown -------------------------------------------------------------------


def markdown(document: Mapping[str, Any]) -> str:
    """Return a document as Markdown: the table of methods and what it compares."""
    rates = [bandwidth(rate) for rate in document["bandwidths"]]
    titles = ["method", "technique", "scope", "static", "lossless", "op times"]
    titles += ["networks", "plans", "least", "peak", *(f"× {rate}" for rate in rates)]
    titles += ["extra work", "host peak"] + ["× trained"] * bool(document["steps"])
    titles += ["planning", "source", "drawbacks"]
    lines = [_line(titles), _line(["---"] * len(titles))]
    against = drawbacks(document)
    lines += [
        _line([*_method(row, document), "; ".join(against[row["method"]]) or _NONE])
        for row in document["methods"]
    ]
    notes = (
        textwrap.fill(
            note,
            _WIDE,
            subsequent_indent="  " * note.startswith("- "),
            break_on_hyphens=False,
        )
        for note in _notes(document)
    )
    return "\n".join([*lines, "", *notes]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _method(row: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    return [
        f"`{row['method']}`",
        ", ".join(row["technique"]) or _NONE,
        row["scope"],
        "dynamic" if row["dynamic"] else "static",
        "yes" if row["lossless"] else "no",
        "yes" if row["times"] else "no",
        row["networks"] or _NONE,
        f"{row['plans']}/{row['cells']}",
        percent(row["least"]),
        percent(row["peak"]),
        *map(times, row["slowdowns"]),
        _NONE if row["extra_work"] is None else f"{row['extra_work']:.1%}",
        percent(row["host_peak"]),
        *([times(row["trained_slowdown"])] if document["steps"] else []),
        lasting(row["planning_seconds"]),
        row["source"],
    ]


def _notes(document: Mapping[str, Any]) -> list[str]:
    place = document["environment"]
    cores = f"{place['cores']} core{'s' * (place['cores'] != 1)}"
    budgets = ", ".join(document["budgets"])
    notes = [
        f"Budgets: {budgets} of the peak of `share`. Means are over the cells that a "
        "method can plan, so compare only rows with the same cells; *least*: the "
        "lowest peak that it reaches or asks for.",
        "",
        *(_told(network) for network in document["networks"]),
        "",
    ]
    tiers = document.get("tiers", ())
    if len(tiers) > 1 or any(tier["limit_bytes"] for tier in tiers):
        notes += [on_tiers(tiers) + " *Host peak*: on all of them.", ""]
    if document["steps"]:
        cells = [cell["trained"] for cell in document["cells"] if cell["trained"]]
        exact = sum(cell["is_as_planned"] for cell in cells)
        notes.append(
            f"{len(cells)} cells were trained, {document['steps']} steps each; the "
            f"measured peak was the predicted one in {exact}.",
        )
    rounded = [
        f"`{row['method']}`" for row in document["methods"] if not row["lossless"]
    ]
    if rounded:
        notes.append(
            "Not lossless, so gradients and weights differ from those of `share`: "
            f"{', '.join(rounded)}. The table compares their cost, and not their "
            "effect on training.",
        )
    rate = document["networks"][0].get("copies_per_second")
    if rate is not None:
        notes.append(f"A lane to the host copies {rate / 1e9:.3g} GB/s, each way.")
    notes.append(
        f"{place['processor']}, {cores}, {place['kernels']}, memcfg "
        f"{place['memcfg']}, {place['date']}."
    )
    return notes


def on_tiers(tiers: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on where methods swap to."""
    places = []
    for tier in tiers:
        limit = tier["limit_bytes"]
        parts = ["no limit" if limit is None else format_bytes(limit)]
        if tier["bandwidth"] is not None:
            parts.append(bandwidth(tier["bandwidth"]))
        places.append(f"{tier['tier']} ({', '.join(parts)})")
    return f"Tensors are swapped to {', then '.join(places)}."


def _told(network: Mapping[str, Any]) -> str:
    arguments = "".join(f", {k} {v}" for k, v in network["arguments"].items())
    whole = network["share_peak_bytes"]
    return (
        f"- {network['letter']}: `{network['network']}`, batch {network['batch']}"
        f"{arguments}: {network['ops']} ops; `share` needs {format_bytes(whole)}, the "
        f"lower bound is {percent(network['lower_bound_bytes'] / whole)}"
    )


# -- CSV ------------------------------------------------------------------------


def spreadsheet(document: Mapping[str, Any]) -> str:
    """Return a document as CSV: a row for each cell and bandwidth."""
    buffer = io.StringIO()
    writer = csv.DictWriter(
        buffer, _COLUMNS, extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    for cell in document["cells"]:
        trained = cell["trained"] or {}
        for at in cell["at"]:
            is_trained = at is at_rate(cell, document["bandwidths"][MIDDLE])
            measured = trained if is_trained else {}
            columns = {f"trained_{key}": value for key, value in measured.items()}
            lossy = {"lossy": " ".join(at.get("lossy", ()))}
            writer.writerow({**cell, **at, **lossy, **columns})
    return buffer.getvalue()
