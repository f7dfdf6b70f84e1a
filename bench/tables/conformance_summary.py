"""What the table of models under budgets says, in a few lines."""

from __future__ import annotations

import statistics
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from conformance import LIMITS, has_bits, others, over, ran, read

HEAD = """| library | models | train in a budget | with eager's bits | over a limit |
| --- | ---: | ---: | ---: | ---: |
"""


def counted(name: str, results: list[dict]) -> str:
    """Return the line of some models."""
    counts = (
        len(results),
        sum(bool(ran(each)) for each in results),
        sum(map(has_bits, results)),
        sum(over(each) > 0 for each in results),
    )
    return "| " + " | ".join([name, *map(str, counts)]) + " |"


def times(results: list[dict]) -> str:
    """Return the medians of times by limit."""
    found = {
        share: [
            each["limits"][share]["times_eager"]
            for each in results
            if "times_eager" in each.get("limits", {}).get(share, {})
        ]
        for share in LIMITS
    }
    return ", ".join(
        f"{statistics.median(ratios):.2f} at {'the ' * (share == 'floor')}{share}"
        for share, ratios in found.items()
        if ratios
    )


def table() -> str:
    """Return the table, as Markdown."""
    place, results = read()
    libraries = dict.fromkeys(each["model"].partition("/")[0] for each in results)
    rows = [
        counted(name, [e for e in results if e["model"].startswith(f"{name}/")])
        for name in libraries
    ]
    rows.append(counted("all", results))
    lines = "\n".join(rows)
    elsewhere = others(place, results)
    told = (
        f"Median of the time of a step in that of eager's, by the limit: "
        f"{times(results)}. PyTorch {place['packages']['torch']}, "
        f"{place['processor']}, {place['date']}"
        f"{f' ({elsewhere})' * bool(elsewhere)}."
    )
    return f"{HEAD}{lines}\n\n{textwrap.fill(told, 88)}\n"
