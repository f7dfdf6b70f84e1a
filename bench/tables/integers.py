"""The table of kernels of 8 and 4 bits, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
FILES = {
    "With VNNI": "integers.json",
    "Without VNNI": "integers_avx2.json",
    "Without VNNI, and before windows were gathered": "integers_without_vnni.json",
}
HEAD = """| inputs × units | rows | float32 | int8, times as fast | memory | error \
| int4, times as fast | memory | error |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def row(result: dict) -> str:
    seconds, peak = result["seconds"], result["peak_bytes"]
    cells = [
        result["network"],
        str(result["rows"]),
        f"{1e3 * seconds['float32']:.2f} ms",
    ]
    for name, error in result["errors"].items():
        cells.append(f"**{seconds['float32'] / seconds[name]:.2f}**")
        cells.append(f"{peak[name] / peak['float32']:.2f}")
        cells.append(f"{error:.3f}")
    cells += [""] * (HEAD.splitlines()[0].count("|") - 1 - len(cells))
    return "| " + " | ".join(cells) + " |\n"


def part(name: str, file: str) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    place = document["environment"]
    told = place.get("instructions")
    only = f", oneDNN told to keep to {told}" if told else ""
    text = f"{name} ({place['processor']}{only}):\n\n"
    text += HEAD + "".join(map(row, document["results"]))
    threads, clock = place.get("threads", "automatic"), place.get("clock", "wall")
    text += f"\nThreads: {threads}, clock: {clock}, {place['date']}, load "
    text += f"{place['load']:.1f}.\n"
    if place["load"] > 1:
        text += "Times are provisional: others used the machine.\n"
    return text + "\n"


def table() -> str:
    """Return the tables of all results, as Markdown."""
    text = "".join(part(*each) for each in FILES.items())
    return f"{text}Errors are the largest, in standard deviations of results.\n"
