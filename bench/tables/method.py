"""A method beside `auto` on the networks of the comparison, from committed results.

A page of docs/methods names the methods in its mark.
"""

from __future__ import annotations

import json
from pathlib import Path

from memcfg.commands.comparison._method_cells import MIDDLE
from memcfg.commands.comparison._method_document import at_rate
from memcfg.commands.comparison._method_report import percent, times

RESULTS = Path(__file__).resolve().parents[1] / "results" / "compare.json"
BESIDE = "auto"


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell_of(document: dict, method: str, network: str, budget: str) -> str:
    """Return a step's time compared with `share`, or the limit that is asked for."""
    (cell,) = (
        each
        for each in document["cells"]
        if [each["method"], each["network"], each["budget"]]
        == [method, network, budget]
    )
    at = at_rate(cell, document["bandwidths"][MIDDLE])
    if at.get("slowdown") is not None:
        return times(at["slowdown"])
    return "–"


def table(*methods: str) -> str:
    """Return means of each method, and the times of its steps cell by cell."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = {row["method"]: row for row in document["methods"]}
    titles = ["method", "plans", "least", "peak", "time", "extra work", "host peak"]
    lines = [line(titles), line(["---", *["---:"] * (len(titles) - 1)])]
    for name in (*methods, BESIDE):
        row = rows[name]
        extra = row["extra_work"]
        cells = [
            f"`{name}`",
            f"{row['plans']} of {row['cells']}",
            *(percent(row[key]) for key in ("least", "peak")),
            times(row["slowdowns"][MIDDLE]),
            "–" if extra is None else f"{extra:.1%}",
            percent(row["host_peak"]),
        ]
        lines.append(line(cells))
    planned = [name for name in methods if rows[name]["plans"]]
    if planned:
        names = [*planned, BESIDE]
        lines += ["", line(["network", "limit", *(f"`{name}`" for name in names)])]
        lines.append(line(["---", *["---:"] * (len(names) + 1)]))
        for network in document["networks"]:
            for budget in document["budgets"]:
                found = [
                    cell_of(document, n, network["network"], budget) for n in names
                ]
                if any(each != "–" for each in found[:-1]):
                    lines.append(line([network["network"], budget, *found]))
    place = document["environment"]
    lines += [
        "",
        f"From [all methods compared]({LINK}): {place['date']}, nominal times.",
    ]
    return "\n".join(lines) + "\n"


LINK = "../../bench/results/compare.md"
