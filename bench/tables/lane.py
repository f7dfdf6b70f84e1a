"""The tables of copy lanes, from the committed results.

``chrt -f 50 python bench lanes --output bench/results/lanes.json`` writes
them.
"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "lanes.json"
LOADED = """| network | to | way | copies of | lane, GB/s | of plain | \
of plain during ops | ops slower by | by plain copies |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
PLANS = """
| network | lane at most | moved, MB | waits | predicted | ops slower by | \
step ÷ without | lane, GB/s |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
PART, SLOWER, WAITS = 0.8, 0.15, 0.03  # promised: at least, at most, at most


def marked(text: str, kept: bool) -> str:
    return text if kept else f"**{text}**"


def loaded_row(row: dict) -> str:
    rate, plain = row["lane_bytes_per_second"], dict(row["plain_bytes_per_second"])
    beside = plain.pop("beside ops")
    parts = [
        marked(f"{rate / each:.0%} of {name}", name == "direct" or rate >= PART * each)
        for name, each in plain.items()
    ]
    cells = [
        row["network"],
        row["tier"],
        " and ".join(row["ways"]),
        size(row["copy_bytes"]),
        f"{rate / 1e9:.1f}",
        ", ".join(parts),
        f"{rate / beside:.0%}",
        marked(f"{row['slowdown']:.1%}", row["slowdown"] <= SLOWER),
        f"{row['slowdown_by_plain']:.1%}",
    ]
    return "| " + " | ".join(cells) + " |"


def size(nbytes: float) -> str:
    return f"{nbytes / 2**20:.2g} MiB"


def plan_row(row: dict) -> str:
    rate, step = row["bandwidth"], row["step_seconds"]
    fits = rate is not None and rate < row["plain_bytes_per_second"]["memcpy"]
    told = "no limit" if rate is None else f"{rate / 1e9:.1f} GB/s"
    cells = [
        row["network"],
        told if rate is None or fits else f"{told}, beyond memcpy",
        f"{row['moved_bytes'] / 1e6:.0f}",
        marked(f"{row['waits']:.2%}", not fits or row["waits"] <= WAITS),
        f"{row['waits_predicted']:.2%}",
        f"{row['slowdown']:.1%}",
        f"{step['swapping'] / step['alone']:.2f}",
        f"{row['lane_bytes_per_second'] / 1e9:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the tables of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, rows = document["environment"], document["results"]
    loaded = [loaded_row(row) for row in rows if row["kind"] == "full load"]
    plans = [plan_row(row) for row in rows if row["kind"] == "plan"]
    note = f"""
Medians of {place["repeats"]} turns. The targets at full load are {PART:.0%} of a plain
copy, with ops at most {SLOWER:.0%} slower, and waits of {WAITS:.0%} of the step if
the throttled lane is slower than memcpy. Missed targets are bold.
{place["processor"]}, {place["cores"]} cores, {place["date"]}, load {place["load"]:.1f}.
"""
    if place["load"] > 1:
        note += "Provisional: others used the machine, its caches and its memory.\n"
    body = LOADED + "\n".join(loaded) + "\n" + PLANS + "\n".join(plans) + "\n"
    return body + note
