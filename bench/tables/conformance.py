"""The table of models under budgets, from the committed results."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from textwrap import fill

RESULTS = Path(__file__).resolve().parents[1] / "results" / "conformance.json"
HEAD = """| model | eager, MiB | estimate | bits | floor | 100 % | 70 % | 50 % | at it |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |
"""
CREATED = {"ones_like", "empty_like", "zeros_like", "_unsafe_view"}  # without values
WHOLE = {"break_long_words": False, "break_on_hyphens": False}
LIMITS = ("100 %", "70 %", "50 %", "floor")


def ran(each: dict) -> list[dict]:
    """Return the limits of a model at which it trained."""
    return [found for found in each.get("limits", {}).values() if "peak_bytes" in found]


def has_bits(each: dict) -> bool:
    """Return whether a model trained, always with eager's bits."""
    return bool(ran(each)) and all(found["has_bits"] for found in ran(each))


def over(each: dict) -> int:
    """Return by how many bytes a model exceeded a limit at most."""
    return max((e["peak_bytes"] - e["limit_bytes"] for e in ran(each)), default=0)


def told(each: dict, share: str) -> str:
    """Return the time of a model's steps within a limit, or why there is none."""
    found = each.get("limits", {}).get(share)
    if found is None:
        return ""
    if "smallest_bytes" in found:
        return "below"
    if "error" in found:
        return "refused"
    beyond = found["peak_bytes"] - found["limit_bytes"]
    files = ", files" * bool(found.get("in_files"))
    return f"{found['times_eager']:.2f}{files}{f', {beyond} B over' * (beyond > 0)}"


def bits(each: dict) -> str:
    """Return whose bits a model's steps have."""
    if not ran(each):
        return ""
    if has_bits(each):
        return "eager's"
    if not each.get("is_repeatable", True):
        return "eager's differ, too"
    ops = [f"`{op}`" for op in each.get("decomposed", []) if op not in CREATED]
    return "own: " + (", ".join(ops) or "–")


def elsewhere(place: dict, each: dict) -> bool:
    """Return whether a model was measured on another processor than the last one."""
    return each.get("processor", place["processor"]) != place["processor"]


def others(place: dict, results: list[dict]) -> str:
    """Tell the processors of models that were measured elsewhere; empty if none."""
    found = Counter(
        f"{each['processor']}, {each['date']}"
        for each in results
        if elsewhere(place, each)
    )
    return "; ".join(f"{count} models: {where}" for where, count in found.items())


def row(place: dict, each: dict) -> str:
    """Return the line of a model."""
    eager, estimate = each.get("eager_bytes"), each.get("estimate") or {}
    known = estimate.get("eager_bytes")
    cells = [
        f"`{each['model']}`{'¹' * elsewhere(place, each)}",
        f"{eager / 2**20:.1f}" if eager else "",
        f"{known / eager:.3f}" if eager and known else "",
        bits(each) or each.get("error", "refused").partition(":")[0],
        f"{100 * estimate['floor_bytes'] / eager:.0f} %" if estimate else "",
        *(told(each, share) for share in LIMITS),
    ]
    return "| " + " | ".join(cells) + " |"


def read() -> tuple[dict, list[dict]]:
    """Return the environment and the models of the committed results."""
    if not RESULTS.exists():
        return {}, []
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return document["environment"], document["results"]


def table() -> str:
    """Return the table, as Markdown."""
    place, results = read()
    rows = "\n".join(row(place, each) for each in results)
    reasons = [
        fill(f"* `{each['model']}`: {why}", 88, subsequent_indent="  ", **WHOLE)
        for each in results
        for why in dict.fromkeys(
            [
                *([each["error"]] if "error" in each else []),
                *([f"not planned: {each['unplanned']}"] if "unplanned" in each else []),
                *(e["error"] for e in each.get("limits", {}).values() if "error" in e),
            ]
        )
    ]
    why = "\n\nNot trained, not planned, or not at all limits:\n\n" + "\n".join(reasons)
    names = ", ".join(f"{k} {v}" for k, v in place["packages"].items())
    where = f"{place['processor']}, {place['date']}."
    if told := others(place, results):
        where += f" ¹ {told}."
    origin = fill(f"{names}; {where}", 88, **WHOLE)
    return f"""{HEAD}{rows}{why if reasons else ""}

{origin}
"""
