"""The table of estimated and measured peaks of PyTorch, from committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "torch_estimate.json"
HEAD = """| kind | networks | eager's step, MiB | its estimate | the graph's estimate |
| --- | ---: | ---: | ---: | ---: |
"""


def span(values: list[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} – {high}"


def row(kind: str, results: list[dict]) -> str:
    measured = [each["eager_bytes"] / 2**20 for each in results]
    cells = [kind, str(len(results)), span(measured, 1)]
    for name in ("eager_bytes", "graph_bytes"):
        ratios = [each[f"estimated_{name}"] / each[name] for each in results]
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

Results of `mt.estimate(model, (x,), loss=...)` over measured peaks: of an eager step
(`eager_bytes`), and of a step of `mt.budget` without a limit (`peak_bytes`), as the
pool of `mt.limit_cpu` counts them.
PyTorch {place["torch"]}, {place["processor"]}, {place["date"]}.
"""
