"""Write the README's table of step times from the committed results.

``python benchmarks/table.py`` rewrites the README beside this folder; ``--check``
only tells whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {  # with a script of their own
    "allocators.json",
    "arrays.json",
    "workspace_modes.json",
    "workspaces.json",
}
MARKED = re.compile(
    r"(<!-- table: benchmarks/table\.py -->\n).*?(<!-- end of table -->)", re.DOTALL
)
HEAD = """| network, batch | threads | processor | memcfg | PyTorch | ratio | measured |
| --- | --- | --- | --- | --- | --- | --- |
"""
NOTE = """
Milliseconds a step, median of the turns; the ratio is PyTorch's time over memcfg's
(above 1, memcfg is faster), with its range over the turns. PyTorch runs in the faster
of its two memory formats.
"""


def rows(document: dict) -> list[str]:
    place = document["environment"]
    found = []
    for result in document["results"]:
        seconds = result["seconds"]
        low, high = result["ratio_range"]
        cells = [
            f"{result['network']}, {result['batch_size']}",
            str(place["threads"]),
            place["processor"],
            f"{seconds['memcfg'] * 1e3:.2f}",
            f"{seconds[result['peer']] * 1e3:.2f} ({place['torch']})",
            f"**{result['ratio']:.2f}** ({low:.2f} to {high:.2f})",
            place["date"],
        ]
        found.append("| " + " | ".join(cells) + " |")
    return found


def table(folder: Path) -> str:
    """Return the table of all results in a folder, as Markdown."""
    lines = [
        row
        for path in sorted(folder.glob("*.json"))
        if path.name not in OTHERS
        for row in rows(json.loads(path.read_text(encoding="utf-8")))
    ]
    return HEAD + "\n".join(lines) + "\n" + NOTE if lines else "None yet.\n"


def with_table(readme: str, folder: Path) -> str:
    """Return the README's text with the present table in it."""
    text, count = MARKED.subn(lambda m: m[1] + table(folder) + m[2], readme)
    if count != 1:
        raise ValueError("the README must hold the two marks of the table once")
    return text


def main() -> int:
    """Rewrite the README, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    readme = ROOT / "README.md"
    present = readme.read_text(encoding="utf-8")
    wanted = with_table(present, ROOT / "benchmarks" / "results")
    if check:
        return int(present != wanted)
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
