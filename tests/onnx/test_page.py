"""The lists of docs/onnx.md are those of the code; run this file to print them."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"


def lists() -> dict[str, str]:
    """The lists of the page by heading."""
    from memcfg.nn.exchange.imports import IMPORTED
    from memcfg.onnx import RULES

    rows = {"Nodes": IMPORTED, "Ops": RULES}
    return {
        name: textwrap.fill(
            ", ".join(f"`{each}`" for each in sorted(table)) + ".",
            88,
            break_on_hyphens=False,
        )
        for name, table in rows.items()
    }


def test_the_lists_are_those_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    for name, table in lists().items():
        part = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        assert part is not None
        assert table in part[1]


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(lists().values()) + "\n")
