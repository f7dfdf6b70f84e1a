"""The table of layer families beside PyTorch, out of the committed results."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "layers.json"
NOTE = """
One batch of 32 a step, as above. The machine had other work beside these runs: the
ranges are wide, and the lower ends of some are below 1.
"""


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    steps = runpy.run_path(str(HERE / "table.py"))
    lines = steps["rows"](json.loads(path.read_text(encoding="utf-8")))
    return steps["HEAD"] + "\n".join(lines) + "\n" + NOTE
