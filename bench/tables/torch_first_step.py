"""The table of what comes before a first step of PyTorch, from committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "torch_first_step.json"
HEAD = """| model | trace | `aot_eager` | estimate | again | first step | again |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
COLUMNS = ("trace", "aot_eager", "estimate", "estimate_again")
COLUMNS += ("first_step", "first_step_again")


def row(each: dict) -> str:
    seconds = [f"{each[name]:.1f}" for name in COLUMNS]
    return f"| {each['model']} | {' | '.join(seconds)} |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    rows = "\n".join(map(row, document["results"]))
    return f"""{HEAD}{rows}

Seconds of processor time on one thread. torch {place["torch"]};
{place["processor"]}, {place["date"]}.
"""
