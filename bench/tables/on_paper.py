"""The table of networks that are planned for many ranks, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from memcfg.units import format_bytes, format_seconds

RESULTS = Path(__file__).resolve().parents[1] / "results" / "on_paper.json"
HEAD = """| network | ranks of | divided | state | peak | sent | a step | \
planned in | memory |
| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def row(case: dict) -> str:
    found = case["estimate"]
    best = next(
        each for each in found["rows"] if (each["shard"] or "none") == found["best"]
    )
    cells = [
        case["network"],
        f"{case['ranks']} × {format_bytes(found['limit_bytes'])}",
        f"`{found['best']}`" + " of 4" * (len(found["rows"]) > 1),
        *(format_bytes(best[f"{each}_bytes"]) for each in ("state", "peak", "sent")),
        format_seconds(best["seconds"]),
        f"{case['processor_seconds']:.1f} s",
        f"{case['resident_bytes'] / 1e6:.0f} MB",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine = document["environment"]
    facts = textwrap.fill(
        "With Adam in float32, a sample a rank or 32 in all; the best of the ways that "
        f"were planned. Times of a step are those of {machine['profile']}, by the peak "
        f"rates of its data sheet, and links of {machine['link']}/s. Planned in: "
        "processor time and resident memory of the whole process, the best of "
        f"{machine['runs']}. "
        f"{machine['processor']}, {machine['cores']} cores, load "
        f"{machine['load']:.1f}, {machine['date']}.",
        88,
    )
    rows = "\n".join(map(row, document["cases"]))
    return f"{HEAD}{rows}\n\n{facts}\n"


if __name__ == "__main__":
    print(table())
