"""The table of the coded layers of AlexNet and VGG-16, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "coding.json"
HEAD = """| layer | entries, of the weights | at random places | numbers | gaps | codebook and tables | bytes | the paper's | at random places |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""  # noqa: E501  (a line of Markdown)
COLUMNS = ("numbers", "gaps", "rest", "nbytes", "paper_bytes", "random_places_bytes")


def row(name: str, shares: list[str], bytes_of: dict[str, float]) -> str:
    cells = [name, *shares, *(f"{bytes_of[key]:,.0f}" for key in COLUMNS)]
    return f"| {' | '.join(cells)} |\n"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document, text = json.loads(path.read_text(encoding="utf-8")), HEAD
    for network in dict.fromkeys(each["network"] for each in document["results"]):
        sums = dict.fromkeys(COLUMNS, 0.0)
        for each in document["results"]:
            if (each["network"], each["coder"]) != (network, "huffman"):
                continue
            parts = each["parts"]
            found = {
                **each,
                "numbers": parts["assignments"],
                "gaps": parts["indices"],
                "rest": parts["header"] + parts["codebook"] + parts["tables"],
            }
            sums = {key: sums[key] + found[key] for key in COLUMNS}
            shares = [
                f"{each[key] / each['weights']:.1%}"
                for key in ("entries", "random_places_entries")
            ]
            text += row(f"{network} {each['layer']}", shares, found)
        text += row(f"**{network}**", ["", ""], sums)
    return text
