"""The tables of Capuchin in a model, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "capuchin.json"


def table(path: Path = RESULTS) -> str:
    """Return the tables of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, results = document["environment"], document["results"]
    heads = ("trained", "limit", "first step", "first guided steps", "final steps")
    head = " | ".join((*heads, "plans", "steps"))
    lines = [f"| {head} |", "| --- |" + " ---: |" * 6]
    for each in results:
        if each["kind"] != "adaptation":
            continue
        base = each["unlimited_seconds"]
        times = ("passive_seconds", "guided_seconds", "settled_seconds")
        cells = [f"{each[key] / base:.2f}" for key in times]
        row = [each["network"], f"{each['share_percent']} %", *cells]
        row += [str(each["plans"]), str(each["steps"])]
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "| timed | instructions | a step | ÷ one not timed |"]
    lines.append("| --- |" + " ---: |" * 3)
    for each in results:
        if each["kind"] == "tracking":
            lines.append(
                f"| {each['network']} | {each['instructions']} | "
                f"{each['plain_seconds'] * 1e3:.3g} ms | {each['ratio']:.3f} |"
            )
    note = f"""
Limits are parts of what a step of `share` uses besides its state. Steps of the first
table are relative to those of `share` without a limit, with a lane of
{place["lane_bandwidth"]} a second: the median of the final steps, and else the fastest
step of a plan. The second table has the fastest steps of runs in turn. One thread
computes.
{place["processor"]}, {place["cores"]} cores, {place["date"]}, load {place["load"]:.1f}.
"""
    return "\n".join(lines) + "\n" + note
