"""The table of products with integers, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "integers.json"
HEAD = """| layer | kernel | float32 | integers | times as fast | memory | error |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""


def row(result: dict) -> str:
    seconds, peak = result["seconds"], result["peak_bytes"]
    text = ""
    for kind, error in result["errors"].items():
        cells = [
            result["layer"],
            kind,
            *(f"{1e3 * seconds[each]:.3f} ms" for each in ("float32", kind)),
            f"**{seconds['float32'] / seconds[kind]:.1f}**",
            f"{peak[kind] / peak['float32']:.2f}",
            f"{error:.3f}",
        ]
        text += "| " + " | ".join(cells) + " |\n"
    return text


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    text = HEAD + "".join(map(row, document["results"]))
    text += f"""
Medians of one thread; errors are the largest, in standard deviations of results.
{place["processor"]}, {place["cores"]} cores, {place["date"]}, load
{place["load"]:.1f}.
"""
    if place["load"] > 1:
        text += "Times are provisional: others used the machine.\n"
    return text
