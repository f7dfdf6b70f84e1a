"""The table of all methods, from the committed results.

``memcfg compare --output bench/results/compare.json --output
bench/results/compare.svg`` writes them and the picture; ``--run STEPS`` trains, too.
"""

from __future__ import annotations

import json
from pathlib import Path

from memcfg.commands.comparison._method_report import markdown

RESULTS = Path(__file__).resolve().parents[1] / "results" / "compare.json"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    if not path.exists():
        return "None yet.\n"
    return markdown(json.loads(path.read_text(encoding="utf-8")))
