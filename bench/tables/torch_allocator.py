"""The table of PyTorch's blocks in the pool, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "torch_allocator.json"
HEAD = """| | PyTorch's own, µs | in the pool, µs | pool ÷ PyTorch's own |
| --- | ---: | ---: | ---: |
"""


def row(result: dict) -> str:
    seconds, (low, high) = result["seconds"], result["ratio_range"]
    cells = [
        result["case"],
        f"{seconds['torch'] * 1e6:,.3g}",
        f"{seconds['memcfg'] * 1e6:,.3g}",
        f"**{result['ratio']:.2g}** ({low:.2g} to {high:.2g})",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    cores = "1 core" if place["cores"] == 1 else f"{place['cores']} cores"
    note = (
        f"\nMedians of {place['repeats']} interleaved runs, with the range of the"
        f" ratio; below 1, the\npool is faster. PyTorch {place['torch']},"
        f" glibc {place['glibc']}, {place['processor']},\n{cores},"
        f" {place['date']}.\n"
    )
    return HEAD + "\n".join(map(row, document["results"])) + "\n" + note
