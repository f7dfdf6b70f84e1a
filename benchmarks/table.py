"""The table of step times, out of the committed results."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "results"
OTHERS = {  # with a script of their own
    "allocators.json",
    "arrays.json",
    "codecs.json",
    "compare.json",
    "data.json",
    "ladder.json",
    "layers_1_thread.json",
    "layers_2_threads.json",
    "plans.json",
    "unet_ladder.json",
    "workspace_modes.json",
    "workspaces.json",
}
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


def table(folder: Path = FOLDER) -> str:
    """Return the table of all results in a folder, as Markdown."""
    lines = [
        row
        for path in sorted(folder.glob("*.json"))
        if path.name not in OTHERS and not path.name.startswith("zoo")
        for row in rows(json.loads(path.read_text(encoding="utf-8")))
    ]
    return HEAD + "\n".join(lines) + "\n" + NOTE if lines else "None yet.\n"
