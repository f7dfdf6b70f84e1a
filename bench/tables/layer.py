"""The table of layer families compared with PyTorch, from the committed results."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
NOTE = """
Columns are those of [small networks](#small-networks), at batch 32.
"""


def table(folder: Path = HERE / "results") -> str:
    """Return the table of a folder's results, as Markdown."""
    steps = runpy.run_path(str(HERE / "tables" / "cpu.py"))
    lines = [
        row
        for path in sorted(folder.glob("layers_*.json"))
        for row in steps["rows"](json.loads(path.read_text(encoding="utf-8")))
    ]
    return steps["HEAD"] + "\n".join(lines) + "\n" + NOTE
