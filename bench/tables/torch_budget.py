"""The tables of PyTorch's steps within budgets, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "torch_budget.json"
LIMITS = """| network | limit | peak | of eager's | predicted | in file | time | plan |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
PEERS = """| network | PyTorch's method | peak | time | a budget's, at that peak |
| --- | --- | ---: | ---: | ---: |
"""


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def share(each: dict) -> str:
    return f"{100 * each['peak_bytes'] / each['eager_bytes']:.1f} %"


def limit_row(each: dict) -> str:
    predicted = each.get("predicted_bytes")
    cells = [
        each["network"],
        each["setting"],
        f"{each['peak_bytes'] / 2**20:.1f} MiB",
        share(each),
        "" if predicted is None else f"{predicted / each['peak_bytes']:.3f}",
        f"{each['spill_bytes'] / 2**20:.1f} MiB" if each.get("spill_bytes") else "",
        percent(each["times_eager"]),
        "" if predicted is None else f"{each['planning_seconds']:.1f} s",
    ]
    return "| " + " | ".join(cells) + " |"


def told(own: dict) -> str:
    """Return the time of a budget, and whether tensors leave."""
    where = ", by a file" if own.get("spill_bytes") else ""
    return percent(own["times_eager"]) + where


def peer_row(each: dict, budgets: dict[tuple[str, str], dict]) -> str:
    own = budgets.get((each["network"], f"as {each['method']}, {each['setting']}"))
    cells = [
        each["network"],
        f"{each['method']}, {each['setting']}",
        share(each),
        percent(each["times_eager"]),
        "" if own is None else told(own),
    ]
    return "| " + " | ".join(cells) + " |"


def noise(results: list[dict]) -> str:
    """Return how far eager's steps were from eager's other steps."""
    ratios = [each["times_eager"] for each in results if each["method"] == "eager"]
    return f"{100 * max(abs(ratio - 1) for ratio in ratios):.0f} %"


def table(path: Path = RESULTS) -> str:
    """Return the tables of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, results = document["environment"], document["results"]
    budgets = [each for each in results if each["method"] == "budget"]
    shares = [each for each in budgets if not each["setting"].startswith("as ")]
    peers = [each for each in results if each["method"] not in ("budget", "eager")]
    known = {(each["network"], each["setting"]): each for each in budgets}
    first = "\n".join(map(limit_row, shares))
    second = "\n".join(peer_row(each, known) for each in peers)
    return f"""{LIMITS}{first}

{PEERS}{second}

Limits are shares of eager's peak. If recomputation is not enough, tensors leave for a
file (`spill_to`); limits that do not fit even so are not listed. Times are relative to
eager's, medians of {place["repeats"]} turns on one thread; on this machine eager's own
turns differ by up to {noise(results)}. If the last column is empty, another of
PyTorch's methods takes less of both. No activation works in place, which recomputation
needs. PyTorch {place["torch"]}, {place["processor"]}, {place["date"]}.
"""
