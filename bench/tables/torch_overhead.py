"""The table of the cost of budgets where models fit, from committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "torch_overhead.json"
HEAD = """| network | eager, ms | budget ÷ eager | eager again ÷ eager | turns |
| --- | ---: | ---: | ---: | ---: |
"""


def ratio(quartiles: list[float]) -> str:
    low, middle, high = quartiles
    return f"**{middle:.3f}** ({low:.3f} to {high:.3f})"


def row(result: dict) -> str:
    cells = (
        result["network"],
        f"{1e3 * result['eager_seconds'][1]:.1f}",
        ratio(result["budget_ratio"]),
        ratio(result["control_ratio"]),
        str(result["turns"]),
    )
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, results = document["environment"], document["results"]
    lines = "\n".join(map(row, results))
    load = max(each["load"] for each in results)
    return f"""{HEAD}{lines}

Steps run on one thread, in turn, within a limit that a step without a plan keeps, too.
Ratios are medians of the turns, with quartiles. The machine was busy (a load of up to
{load:.0f}), as the column *eager again* shows.
PyTorch {place["torch"]}, {place["processor"]}, {place["date"]}.
"""
