"""The table of planning times of steps of many ops, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from memcfg.units import format_seconds

RESULTS = Path(__file__).resolve().parents[1] / "results" / "planner_sizes.json"
HEAD = """| step | ops | `share` | `auto` | memory | peak | extra time | by |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


def line(roomy: dict, tight: dict) -> str:
    cells = [roomy["shape"], f"{roomy['ops']:,}", format_seconds(roomy["seconds"])]
    if "seconds" not in tight:
        cells += ["no answer", *[""] * 4]
    else:
        cells += [format_seconds(tight["seconds"]), f"{tight['bytes'] / 2**20:.0f} MiB"]
        needed = tight.get("peak_bytes", tight.get("needs_bytes"))
        cells.append(f"{needed / roomy['peak_bytes']:.1%}")
        more = f"{tight['recompute']:+.1%}" if "recompute" in tight else "refused"
        cells += [more, f"`{tight['method']}`" if "method" in tight else ""]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine = document["environment"]
    found = {(r["shape"], r["ops"], r["asked"]): r for r in document["results"]}
    rows = "\n".join(
        line(roomy, found[shape, ops, "auto"])
        for (shape, ops, asked), roomy in found.items()
        if asked == "share" and "seconds" in roomy
    )
    facts = textwrap.fill(
        "`share` and `auto`: processor time of planning without a limit, and at 60 % "
        "of the peak of `share`. Memory: what `auto` took above the graph. Peak: that "
        "of the plan, relative to that of `share`. Extra time: of recomputed ops, "
        "relative to "
        f"a step without. {machine['processor']}, {machine['cores']} cores, load "
        f"{machine['load']:.1f}, {machine['date']}.",
        88,
    )
    return f"{HEAD}{rows}\n\n{facts}\n"


if __name__ == "__main__":
    print(table())
