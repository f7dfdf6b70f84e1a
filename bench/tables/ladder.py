"""The table of what a limit costs beside PyTorch's ways, from the committed results.

``python bench ladder --output bench/results/ladder.json`` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "ladder.json"
TITLES = (
    "network, batch, pixels",
    "limit",
    "memory, MiB",
    "memcfg",
    "`checkpoint`",
    "`compile`",
    "a step, s",
    "PyTorch's, s",
)
MIB = 2**20


def bases(points: list[dict]) -> dict[str, float]:
    """Return the seconds of each way without a limit; of memcfg's the highest limit."""
    own = [each for each in points if each["way"] == "memcfg"]
    most = max(each["number"] for each in own)
    eager = min(each["seconds"] for each in points if each["way"] == "eager")
    whole = [e for e in points if e["way"] == "compile" and e["number"] == 1]
    return {
        "memcfg": min(each["seconds"] for each in own if each["number"] == most),
        "eager": eager,
        "checkpoint": eager,
        "compile": whole[0]["seconds"] if whole else eager,
    }


def cheapest(points: list[dict], ways: tuple[str, ...], memory: int) -> dict | None:
    """Return the point of least overhead of some ways that needs no more memory."""
    base = bases(points)
    fitting = [e for e in points if e["way"] in ways and e["memory"] <= memory]
    return min(fitting, key=lambda e: e["seconds"] / base[e["way"]], default=None)


def told(point: dict | None, base: dict[str, float]) -> str:
    """Write an overhead, and what it was had by."""
    if point is None:
        return "none"
    more = f"{point['seconds'] / base[point['way']] - 1:+.1%}"
    by = {"checkpoint": f"{point['number']:g} segments", "eager": "eager"}
    by["compile"] = f"budget {point['number']:g}"
    return f"{more} ({by[point['way']]})"


def rows(result: dict) -> list[str]:
    """Return the rows of a network, a limit each, by its fastest method."""
    points = result["points"]
    base = bases(points)
    own: dict[str, dict] = {}
    for each in points:
        if each["way"] == "memcfg":
            best = own.get(each["part"], each)
            own[each["part"]] = min(best, each, key=lambda point: point["seconds"])
    lines = []
    for part, point in own.items():
        kept = cheapest(points, ("eager", "checkpoint"), point["memory"])
        made = cheapest(points, ("compile",), point["memory"])
        there = [each["seconds"] for each in (kept, made) if each is not None]
        share = point["number"] / result["default_peak_bytes"]
        cells = [
            f"{result['network']}, {result['batch']}, {result['pixels']}²",
            f"floor, {share:.0%}" if part == "floor" else part,
            f"{point['memory'] / MIB:.0f}",
            f"**{point['seconds'] / base['memcfg'] - 1:+.1%}**",
            told(kept, base),
            told(made, base),
            f"{point['seconds']:.3f}",
            f"{min(there):.3f}" if there else "none",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    if not path.exists():
        return "None yet.\n"
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    lines = [line for result in document["results"] for line in rows(result)]
    head = f"| {' | '.join(TITLES)} |\n{'| --- ' * len(TITLES)}|\n"
    return f"""{head}{chr(10).join(lines)}

*None*: no point of that method needs as little memory. The last column is the faster
of PyTorch's two.
{place["processor"]}, {place["threads"]} threads, PyTorch {place["torch"]}, \
{place["date"]}.
"""
