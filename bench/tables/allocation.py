"""The table of the rules that divide all memory, from the committed results.

``python bench allocation --output bench/results/allocation.json`` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "allocation.json"


def cell(found: dict, least: float) -> str:
    """Write the time of a plan over the fastest in the row; bold within 0.1 %."""
    if "seconds" not in found:
        return "–"
    ratio = found["seconds"] / least
    return f"**{ratio:.3f}**" if ratio <= 1.001 else f"{ratio:.3f}"


def rows(result: dict) -> list[str]:
    """Return the rows of a network, a limit each."""
    lines = []
    for limit in result["limits"]:
        found = limit["methods"]
        least = min(each["seconds"] for each in found if "seconds" in each)
        cells = [f"{result['network']}", f"{limit['percent']} %", f"{least:.3f}"]
        cells += [cell(each, least) for each in found]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    names = [each["method"] for each in results[0]["limits"][0]["methods"]]
    titles = ["network", "limit", "fastest, s", *(f"`{name}`" for name in names)]
    lines = [line for result in results for line in rows(result)]
    return f"| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|\n" + "".join(
        line + "\n" for line in lines
    )
