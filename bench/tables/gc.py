"""The table of garbage collection while a model fits, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gc.json"
HEAD = """| window | collections | all pauses, ms | longest pause, ms | median step, \
µs | longest step, ms |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def row(case: dict) -> str:
    cells = [
        case["setting"],
        f"{case['collections']:,}",
        f"{case['pauses_seconds'] * 1e3:,.0f}",
        f"{case['longest_pause_seconds'] * 1e3:,.1f}",
        f"{case['median_step_seconds'] * 1e6:,.0f}",
        f"{case['longest_step_seconds'] * 1e3:,.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine = document["environment"]
    facts = textwrap.fill(
        f"{machine['steps']:,} steps that leave {machine['cycles']} reference cycles "
        f"each, with {machine['objects']:,} other objects in lists of ten. "
        f"{machine['processor']}, {machine['cores']} cores, {machine['date']}.",
        88,
    )
    rows = "\n".join(map(row, document["cases"]))
    return f"{HEAD}{rows}\n\n{facts}\n"


if __name__ == "__main__":
    print(table())
