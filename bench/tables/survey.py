"""The table of the survey of Ma et al. (2020), measured: its systems, and `auto`.

The survey's own Table 1 compares what papers say of themselves on machines of their
own; this one has the same networks, limits and measures for all of them, from the
results of ``memcfg compare``.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from memcfg.commands.comparison._drawbacks import drawbacks
from memcfg.commands.comparison._method_cells import MIDDLE
from memcfg.commands.comparison._method_report import percent, times

RESULTS = Path(__file__).resolve().parents[1] / "results" / "compare.json"

# The sections of the survey, in its order; each system, its method here, its page.
SECTIONS = {
    "swap": [
        ("vDNN", "vdnn_dyn", "vdnn"),
        ("moDNN", "modnn", "modnn"),
        ("Meng et al.", "meng_swap", "meng"),
        ("SuperNeurons", "superneurons_cache", "superneurons"),
        ("Layrub", "layrub_migration", "layrub"),
        ("Capuchin", "capuchin", "capuchin"),
    ],
    "recompute": [
        ("Chen et al.", "chen_budget", "sqrt-checkpointing"),
        ("Gruslys et al.", "bptt_mixed", "bptt"),
        ("Kusumoto et al.", "kusumoto_pruned_memory", "kusumoto"),
        ("SuperNeurons", "superneurons_cost", "superneurons"),
        ("Meng et al.", "meng_attention", "meng"),
    ],
    "share": [("MXNet", "mxnet", "mxnet"), ("Layrub", "layrub", "layrub")],
    "compress": [
        ("Gist", "gist", "gist"),
        ("Gist, 8 bits", "gist_fp8", "gist"),
        ("cDMA", "cdma", "cdma"),
    ],
    "convolution scratch": [
        ("SuperNeurons", "workspace_dynamic", "need"),
        ("μ-cuDNN", "ucudnn_wd", "ucudnn"),
    ],
    "all of them": [("memcfg", "auto", "own")],
}


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(path: Path = RESULTS) -> str:
    """Return a row for each system of the survey, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = {row["method"]: row for row in document["methods"]}
    against = drawbacks(document)
    titles = ["technique", "system", "unit", "bits", "plans", "least", "time"]
    lines = [line([*titles, "drawbacks"])]
    lines.append(line(["---"] * 4 + ["---:"] * 3 + ["---"]))
    for section, systems in SECTIONS.items():
        for number, (system, method, page) in enumerate(systems):
            row = rows[method]
            cells = [
                "" if number else section,
                f"[{system}]({page}.md), `{method}`",
                row["scope"],
                "same" if row["lossless"] else "rounded",
                f"{row['plans']}/{row['cells']}",
                percent(row["least"]),
                times(row["slowdowns"][MIDDLE]),
                "; ".join(against[method]) or "–",
            ]
            lines.append(line(cells))
    named = [f"{n['letter']}: `{n['network']}`" for n in document["networks"]]
    notes = textwrap.fill(f"{', '.join(named)}.", 88)
    return "\n".join([*lines, "", notes, ""])
