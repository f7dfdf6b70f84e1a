"""The table of NumPy's arrays in a pool, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "arrays.json"
HEAD = """| | NumPy's own, µs | in a pool, µs | pool ÷ NumPy's own | target | met |
| --- | ---: | ---: | ---: | ---: | --- |
"""
PROMISES = {
    "np.empty, 1 KiB": 1.25,
    "np.empty, 1 MiB": 1.25,
    "np.empty, 16 MiB": 1.25,
    "np.empty filled, 24 MiB": 1.0,
    "np.empty filled, 32 MiB": 1.0,
    "np.empty filled, 40 MiB": 1.0,
    "np.empty filled, 60 MiB": 1.0,
}


def row(result: dict) -> str:
    seconds, (low, high) = result["seconds"], result["ratio_range"]
    promise = PROMISES.get(result["case"])
    ratio = f"**{result['ratio']:.2f}** ({low:.2f} to {high:.2f})"
    cells = [
        result["case"],
        f"{seconds['numpy'] * 1e6:,.3g}",
        f"{seconds['memcfg'] * 1e6:,.3g}",
        ratio,
        "" if promise is None else f"≤ {promise}",
        "" if promise is None else "yes" if result["ratio"] <= promise else "**no**",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    note = (
        f"\nMedians of {place['repeats']} interleaved runs, with the range of the"
        f" ratio; below 1, the\npool is faster. NumPy {place['numpy']},"
        f" {place['processor']},"
        f" {place['cores']} cores, {place['date']}.\n"
    )
    return HEAD + "\n".join(map(row, document["results"])) + "\n" + note
