"""The table of gradients of convolutions that are wrong, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "convolution_gradients.json"
NAMES = {"memcfg": "memcfg", "torch": "PyTorch"}
HEAD = """| instructions at most | library | layout | output | input gradient \
| kernel gradient | no result | largest error of the others |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |
"""


def row(result: dict) -> str:
    cells = [result["set"], NAMES[result["library"]], result["layout"]]
    cells += [f"{count:,}" for count in result["wrong"].values()]
    largest = max(result["largest_error_of_the_others"].values())
    cells += [str(result["no_result"]), f"{largest:.1e}"]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine = document["environment"]
    facts = textwrap.fill(
        f"Of {document['results'][0]['shapes']:,} shapes, those that differ from "
        f"float64 by more than 1e-4 of the largest value. PyTorch {machine['torch']}, "
        f"{machine['processor']}, {machine['instructions']}, {machine['date']}.",
        88,
    )
    rows = "\n".join(map(row, document["results"]))
    return f"{HEAD}{rows}\n\n{facts}\n"
