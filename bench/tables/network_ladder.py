"""The ladder of one network that the README shows, out of the committed results.

They are written by the command that the table shows, with ``--output
bench/results/network_ladder.json``.
"""

from __future__ import annotations

import json
import shlex
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "network_ladder.json"
TITLES = "Limit", "", "Peak", "Extra work", "Gap", "Measured", "Step"
MIB = 2**20
WIDTH = 88  # columns of a page


def command(asked: dict) -> str:
    """Return what wrote the results, without their file."""
    words = ["memcfg", "plan", asked["network"], "--batch", str(asked["batch"])]
    for name, value in asked["arguments"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"{name}={text.replace(' ', '')}"]
    words += ["--ladder", "--run", "--steps", str(asked["steps"])]
    whole = f"$ {shlex.join(words)}"
    if len(whole) <= WIDTH:
        return whole
    first, second = words[: words.index("--ladder")], words[words.index("--ladder") :]
    return f"$ {shlex.join(first)} \\\n    {shlex.join(second)}"


def row(rung: dict, whole: int) -> str:
    """Return the row of a limit."""
    again = rung["recompute_seconds"] / (rung["seconds"] - rung["recompute_seconds"])
    measured = rung["measured"]
    cells = [
        f"{rung['limit_bytes'] / MIB:.2f} MiB",
        f"{rung['limit_bytes'] / whole:.0%}",
        f"{rung['peak_bytes'] / MIB:.2f} MiB",
        f"{again:.1%}",
        f"{rung['optimality_gap']:.1%}",
        f"{measured['peak_bytes'] / MIB:.2f} MiB",
        f"{measured['seconds']:.2f} s",
    ]
    return "| " + " | ".join(cells) + " |"


def spread(found: dict) -> str:
    """Return the least and the most seconds of steps that compute nearly the same."""
    seconds = [
        rung["measured"]["seconds"]
        for rung in found["rungs"]
        if rung["recompute_seconds"]
        < 0.05 * (rung["seconds"] - rung["recompute_seconds"])
    ]
    return f"{min(seconds):.1f} to {max(seconds):.1f} s"


def table(path: Path = RESULTS) -> str:
    """Return the command, the table of its limits, and its refusal, as Markdown."""
    found = json.loads(path.read_text(encoding="utf-8"))
    whole, refusal = found["share_peak_bytes"], found["refusal"]
    place = found["environment"]
    rows = "\n".join(row(rung, whole) for rung in found["rungs"])
    head = f"| {' | '.join(TITLES)} |\n|{' ---: |' * len(TITLES)}"
    smallest = refusal["limit_bytes"] + 1
    exact = all(r["peak_bytes"] == r["measured"]["peak_bytes"] for r in found["rungs"])
    equal = ", and equals the prediction" if exact else ""
    told = (
        f"The smallest limit is {smallest} B ({smallest / MIB:.2f} MiB). A measured "
        f"peak is the highest offset that a step wrote to{equal}. Extra work "
        "is recomputation; no plan that fits is faster by more than the gap. "
        f"Times vary: rows of less than 5% extra work take {spread(found)}. "
        f"{place['processor']}, {place['cores']} cores, {place['date']}."
    )
    told = textwrap.fill(told, WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"```console\n{command(found)}\n```\n\n{head}\n{rows}\n\n{told}\n"
