"""Write the README's table of workspace modes from the committed results.

``python benchmarks/mode_table.py`` rewrites the README beside this folder; ``--check``
only tells whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "workspace_modes.json"
MARKED = re.compile(
    r"(<!-- table: benchmarks/mode_table\.py -->\n).*?(<!-- end of table -->)",
    re.DOTALL,
)
HEAD = """| network, batch | mode | training, MiB | prediction, MiB | blocks a step | \
time ÷ `enabled` |
| --- | --- | ---: | ---: | ---: | ---: |
"""
MIB = 2**20


def row(case: dict) -> str:
    low, high = case["ratio_range"]
    cells = [
        f"{case['network']}, {case['batch_size']}",
        f"`{case['mode']}`",
        f"{case['training_peak_bytes'] / MIB:.2f}",
        f"{case['inference_peak_bytes'] / MIB:.2f}",
        f"{case['allocations_a_step']:.0f}",
        f"**{case['ratio']:.2f}** ({low:.2f} to {high:.2f})",
    ]
    return "| " + " | ".join(cells) + " |"


def table(results: dict) -> str:
    environment = results["environment"]
    rows = "\n".join(row(case) for case in results["results"])
    return f"""{HEAD}{rows}

Peaks of the pool, to the byte in the file; time is the median of
{environment["repeats"]} turns, with its range. `enabled` is the planned program.
{environment["processor"]}, {environment["cores"]} cores, {environment["date"]}.
"""


def with_table(readme: str, path: Path) -> str:
    """Return the README's text with the present table in it."""
    results = json.loads(path.read_text(encoding="utf-8"))
    text, count = MARKED.subn(lambda m: m[1] + table(results) + m[2], readme)
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
    wanted = with_table(present, RESULTS)
    if check:
        return int(present != wanted)
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
