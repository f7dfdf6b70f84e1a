"""The table of saved tensors under a limit, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "saved_tensors.json"
HEAD = """| network | method | time | limit, MiB | held, MiB | resident, MiB |
| --- | --- | ---: | ---: | ---: | ---: |
"""


def mebibytes(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 2**20:.1f}"


def row(result: dict) -> str:
    saved = result["saved_bytes"] if result["method"] != "checkpoint" else None
    cells = [
        result["network"],
        result["method"],
        f"{100 * (result['times_plain'] - 1):+.1f} %",
        mebibytes(result.get("limit_bytes")),
        mebibytes(result.get("peak_bytes", saved)),
        mebibytes(result["resident_bytes"]),
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    rows = "\n".join(row(each) for each in document["results"])
    return f"""{HEAD}{rows}

*Time* of a step is relative to plain PyTorch's, the median of {place["repeats"]}
interleaved runs on one thread. *Held* are the most bytes of saved tensors at a time.
*Resident* is the most that a process had above its memory before the first step,
including gradients and the operations' own memory. Percentages are of what plain
PyTorch saves; limits that do not fit are not listed.
PyTorch {place["torch"]}, {place["processor"]}, {place["date"]}.
"""
