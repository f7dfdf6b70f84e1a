"""The tables of datasets, from the committed results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "data.json"
IN_PROCESS = ("torch", "tf.data", "tf.data, as NumPy")  # the faster tf.data counts
BESIDE = "torch, 2 processes"
LONGEST = 1.08  # of computing alone
HEAD = f"""| items a second | memcfg | torch | tf.data | ÷ the better | {BESIDE} |
| --- | ---: | ---: | ---: | ---: | ---: |
"""
WAITING = """
| an epoch ÷ computing alone | prefetched | target | read in turn |
| --- | ---: | ---: | ---: |
"""


def median(case: dict, peer: str) -> float:
    return statistics.median(case["items_a_second"][peer])


def row(case: dict) -> str:
    ours, torch = median(case, "memcfg"), median(case, "torch")
    tensorflow = max(median(case, peer) for peer in IN_PROCESS[1:])
    found = [ours, torch, tensorflow, median(case, BESIDE)]
    cells = [f"{rate:,.0f}" for rate in found]
    cells.insert(3, f"**{ours / max(torch, tensorflow):.2f}**")
    return f"| {case['workload']} | " + " | ".join(cells) + " |"


def waiting_row(case: dict) -> str:
    cells = [
        f"{case['threads']} thread{'s' * (case['threads'] > 1)}, "
        f"steps of {case['step_seconds'] * 1e3:.0f} ms",
        spread(case["ratios"]["ahead"]),
        f"≤ {LONGEST}",
        spread(case["ratios"]["in_turn"]),
    ]
    return "| " + " | ".join(cells) + " |"


def spread(ratios: list[float]) -> str:
    middle = statistics.median(ratios)
    return f"**{middle:.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"


def allocated(cases: list[dict]) -> str:
    told = (f"{case['pipeline']} {case['pool_blocks_a_batch']:g}" for case in cases)
    return ", ".join(told)


def table(path: Path = RESULTS) -> str:
    """Return the tables of a file of results, as Markdown."""
    results = json.loads(path.read_text(encoding="utf-8"))
    place = results["environment"]
    rows = "\n".join(row(case) for case in results["peers"])
    waits = "\n".join(waiting_row(case) for case in results["waiting"])
    return f"""{HEAD}{rows}
{WAITING}{waits}

Medians of {place["repeats"]} interleaved runs. In the second table a producer sleeps
0.9 of a step for each batch, during {place["steps"]} training steps. Every peer gave
the same items. All but the last column of the first table run in one process. Blocks of
the pool for each batch in the steady state:
{allocated(results["allocations"])}.
torch {place["torch"]}, tensorflow-cpu {place["tensorflow-cpu"]}, {place["processor"]},
{place["cores"]} cores, {place["date"]}.
"""
