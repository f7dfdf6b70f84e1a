"""The table of units of swapping, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

RESULTS = Path(__file__).resolve().parents[1] / "results" / "granularity.json"
ROUNDS_MOST = "chunk (2 MiB)"  # it decides which cells all others have in common


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, results = document["environment"], document["results"]
    units = list(dict.fromkeys(each["unit"] for each in results))
    rates = sorted({each["bandwidth"] for each in results}, reverse=True)
    cells: dict[tuple[str, float, int], dict[str, dict]] = {}
    for each in results:
        key = each["network"], each["bandwidth"], each["limit"]
        cells.setdefault(key, {})[each["unit"]] = each
    common = [
        row
        for row in cells.values()
        if all(each["fits"] for unit, each in row.items() if unit != ROUNDS_MOST)
    ]
    heads = [f"waits at {rate / 1e9:g} GB/s" for rate in rates]
    head = ["unit", "limits that fit", *heads, "bytes moved", "added bytes"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for unit in units:
        own = [each for each in results if each["unit"] == unit]
        rows = [row[unit] for row in common if row[unit]["fits"]]
        waits = [
            fmean(each["stall"] for each in rows if each["bandwidth"] == rate)
            for rate in rates
        ]
        numbers = [
            f"{sum(each['fits'] for each in own)} of {len(own)}",
            *(f"{wait:.1%}" for wait in waits),
            f"{fmean(each['traffic'] for each in rows):.0%}",
            f"{fmean(each['waste'] for each in rows):.1%}",
        ]
        lines.append(f"| {unit} | {' | '.join(numbers)} |")
    costs = ",\n".join(
        f"{each['copy_bytes_per_second'] / 1e9:.1f} GB/s in pieces of "
        f"{each['nbytes'] >> 10} KiB"
        for each in document["costs"]
    )
    mapped = [each["map_seconds"] for each in document["costs"] if each["map_seconds"]]
    names = sorted({each["network"] for each in results})
    note = f"""
Means over {", ".join(f"`{name}`" for name in names)} at 80, 60 and 40 % of the peak of
`share`, of the cells in which all units but the largest chunk fit. *Waits* are parts of
a step's time. *Bytes moved*, in each direction, are parts of that peak. *Added bytes*
are what rounding or placement adds to the bytes in use. Steps are simulated with
measured costs. A lane copies
{costs}.
Mapping a piece elsewhere takes
{min(mapped) * 1e6:.1f} to {max(mapped) * 1e6:.1f} microseconds.
{place["processor"]}, {place["cores"]} cores, {place["date"]}, load {place["load"]:.1f}.
"""
    return "\n".join(lines) + "\n" + note
