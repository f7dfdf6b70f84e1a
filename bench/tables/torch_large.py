"""The table of large PyTorch models in less memory than their weights."""

from __future__ import annotations

import json
from pathlib import Path

from memcfg.units import format_bytes

RESULTS = Path(__file__).resolve().parents[1] / "results" / "torch_large.json"
HEAD = """| program | parameters | limit | process | by itself | read, written | time |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def row(alone: dict, planned: dict) -> str:
    cells = [
        planned["program"],
        f"{planned['parameters'] / 1e6:,.0f} M",
        *map(format_bytes, (planned["limit_bytes"], planned["peak_bytes"])),
        format_bytes(alone["peak_bytes"]),
        f"{planned['read_a_step']}, {planned['written_a_step']}",
        f"{planned['step_seconds'] / alone['step_seconds']:.1f} ×",
    ]
    return f"| {' | '.join(cells)} |"


def table(path: Path = RESULTS) -> str:
    """Return a row for each program, beside PyTorch by itself, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, results = document["environment"], document["results"]
    rows = "\n".join(map(row, results[::2], results[1::2]))
    seconds = " and ".join(f"{each['step_seconds']:.1f} s" for each in results[::2])
    return f"""{HEAD}{rows}

Bytes are read and written in each step.
Steps of PyTorch by itself took {seconds}.
torch {place["torch"]}; {place["processor"]}, {place["date"]}, with other programs at
work.
"""
