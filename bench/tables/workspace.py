"""The table of loops in a workspace, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "workspaces.json"
HEAD = """| a cycle | NumPy's own, µs | workspace ÷ NumPy's own | with `reclaim` | \
from the pool a cycle |
| --- | ---: | ---: | ---: | ---: |
"""
SCOPES = """
| | ns | target | met |
| --- | ---: | ---: | --- |
"""
SLOWEST = 1.05  # of NumPy's own time
LONGEST = {"open, np.empty, 1 KiB, close": 1000}  # ns


def row(case: dict) -> str:
    cells = [
        f"{case['case']}, {case['mib']} MiB",
        f"{case['seconds']['numpy'] * 1e6:,.0f}",
        ratio(case["ratios"]["plain"]),
        ratio(case["ratios"]["reclaim"]),
        str(case["allocations"]),
    ]
    return "| " + " | ".join(cells) + " |"


def ratio(quartiles: list[float]) -> str:
    low, middle, high = quartiles
    return f"**{middle:.2f}** ({low:.2f} to {high:.2f})"


def scope_row(name: str, seconds: float) -> str:
    promise = LONGEST.get(name)
    kept = "" if promise is None else "yes" if seconds * 1e9 <= promise else "**no**"
    cells = [name, f"{seconds * 1e9:,.0f}", f"≤ {promise:,}" if promise else "", kept]
    return "| " + " | ".join(cells) + " |"


def promise_kept(cases: list[dict]) -> str:
    """Report the cases that missed the target."""
    late = [
        f"{case['case']}, {case['mib']} MiB"
        for case in cases
        if max(middle for _, middle, _ in case["ratios"].values()) > SLOWEST
    ]
    missed = f"Missed by: {'; '.join(late)}." if late else "All cases meet it."
    return (
        f"\nThe target is at most {SLOWEST} of NumPy's own time, as a median.\n"
        f"{missed}\n"
    )


def table(path: Path = RESULTS) -> str:
    """Return the tables of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, cases = document["environment"], document["cases"]
    scopes = [scope_row(*each) for each in document["scopes"].items()]
    note = (
        f"\nMedians of {place['repeats']} interleaved runs in each of"
        f" {place['processes']} processes, with the\nquartiles of the ratio; below 1,"
        f" the workspace is faster. NumPy {place['numpy']},\n{place['processor']},"
        f" {place['cores']} cores, {place['date']}.\n"
    )
    rows = "\n".join(map(row, cases)) + "\n"
    return HEAD + rows + promise_kept(cases) + SCOPES + "\n".join(scopes) + "\n" + note
