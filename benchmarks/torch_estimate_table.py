"""The table of estimated and measured peaks of PyTorch's, out of committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results" / "torch_estimate.json"
HEAD = """| kind | networks | estimate, MiB | of the graph's step | of eager's step |
| --- | ---: | ---: | ---: | ---: |
"""


def span(values: list[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} – {high}"


def row(kind: str, results: list[dict]) -> str:
    told = [each["estimate_bytes"] / 2**20 for each in results]
    cells = [kind, str(len(results)), span(told, 1)]
    for name in ("graph_bytes", "eager_bytes"):
        ratios = [each["estimate_bytes"] / each[name] for each in results]
        cells.append(span(ratios, 3))
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, results = document["environment"], document["results"]
    kinds = dict.fromkeys(each["kind"] for each in results)
    rows = [row(k, [each for each in results if each["kind"] == k]) for k in kinds]
    rows.append(row("all", results))
    lines = "\n".join(rows)
    return f"""{HEAD}{lines}

Estimates by `mt.estimate(model, (x,), loss=...)`, and what they are of the peak of a
step of the same graph (`mt.budget` without a limit) and of eager's, as the pool of
`mt.limit_cpu` counts them.
PyTorch {place["torch"]}, {place["processor"]}, {place["date"]}.
"""
