"""The table of workspace modes, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "workspace_modes.json"
HEAD = """| network, batch | mode | training, MiB | prediction, MiB | blocks a step | \
time ÷ `enabled` |
| --- | --- | ---: | ---: | ---: | ---: |
"""
MIB = 2**20


def row(case: dict) -> str:
    low, high = case["ratio_range"]
    cells = [
        f"{case['network']}, {case['batch_size']}",
        f"`{case['mode']}`",
        f"{case['training_peak_bytes'] / MIB:.2f}",
        f"{case['inference_peak_bytes'] / MIB:.2f}",
        f"{case['allocations_a_step']:.0f}",
        f"**{case['ratio']:.2f}** ({low:.2f} to {high:.2f})",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    results = json.loads(path.read_text(encoding="utf-8"))
    environment = results["environment"]
    rows = "\n".join(row(case) for case in results["results"])
    return f"""{HEAD}{rows}

Peaks are those of the pool. Time is the median of {environment["repeats"]} interleaved
runs, with its range. `enabled` is the planned program.
{environment["processor"]}, {environment["cores"]} cores, {environment["date"]}.
"""
