"""The table of products with 8-bit integers, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "integers.json"
HEAD = """| rows × inputs × units | float32 | int8 | times as fast | memory | error |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def row(result: dict) -> str:
    seconds, peak = result["seconds"], result["peak_bytes"]
    cells = [
        f"{result['rows']} × {result['inputs']} × {result['units']}",
        *(f"{1e3 * seconds[each]:.3f} ms" for each in ("float32", "int8")),
        f"**{seconds['float32'] / seconds['int8']:.1f}**",
        f"{peak['int8'] / peak['float32']:.2f}",
        f"{result['error']:.3f}",
    ]
    return "| " + " | ".join(cells) + " |\n"


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
