"""The table of step times, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "cpu.json"
HEAD = """| network, batch | threads | processor | memcfg | PyTorch | ratio | measured |
| --- | --- | --- | --- | --- | --- | --- |
"""
NOTE = """
Milliseconds a step, median of interleaved runs; the ratio is PyTorch's time over
memcfg's (above 1, memcfg is faster), with its range over the runs. PyTorch runs in the
faster of its two memory formats.
"""


def rows(document: dict) -> list[str]:
    place = document["environment"]
    found = []
    for result in document["results"]:
        seconds = result["seconds"]
        low, high = result["ratio_range"]
        cells = [
            f"{result['network']}, {result['batch_size']}",
            str(place["threads"]),
            place["processor"],
            f"{seconds['memcfg'] * 1e3:.2f}",
            f"{seconds[result.get('peer', 'torch')] * 1e3:.2f} ({place['torch']})",
            f"**{result['ratio']:.2f}** ({low:.2f} to {high:.2f})",
            place["date"],
        ]
        found.append("| " + " | ".join(cells) + " |")
    return found


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return HEAD + "\n".join(rows(document)) + "\n" + NOTE
