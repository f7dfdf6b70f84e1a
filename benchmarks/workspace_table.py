"""Write the README's table of loops in a workspace from the committed results.

``python benchmarks/workspace_table.py`` rewrites the README beside this folder;
``--check`` only tells whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "workspaces.json"
MARKED = re.compile(
    r"(<!-- table: benchmarks/workspace_table\.py -->\n).*?(<!-- end of table -->)",
    re.DOTALL,
)
HEAD = """| a cycle | NumPy's own, µs | workspace ÷ NumPy's own | with `reclaim` | \
from the pool a cycle |
| --- | ---: | ---: | ---: | ---: |
"""
SCOPES = """
| | ns | promised | kept |
| --- | ---: | ---: | --- |
"""
SLOWEST = 1.05  # of NumPy's own time
LONGEST = {"open, np.empty, 1 KiB, close": 1000}  # ns


def row(case: dict) -> str:
    cells = [
        f"{case['case']}, {case['mib']} MiB",
        f"{case['seconds']['numpy'] * 1e6:,.0f}",
        ratio(case["ratios"]["plain"]),
        ratio(case["ratios"]["reclaim"]),
        str(case["allocations"]),
    ]
    return "| " + " | ".join(cells) + " |"


def ratio(quartiles: list[float]) -> str:
    low, middle, high = quartiles
    return f"**{middle:.2f}** ({low:.2f} to {high:.2f})"


def scope_row(name: str, seconds: float) -> str:
    promise = LONGEST.get(name)
    kept = "" if promise is None else "yes" if seconds * 1e9 <= promise else "**no**"
    cells = [name, f"{seconds * 1e9:,.0f}", f"≤ {promise:,}" if promise else "", kept]
    return "| " + " | ".join(cells) + " |"


def promise_kept(cases: list[dict]) -> str:
    """Say which cases took longer than was promised."""
    late = [
        f"{case['case']}, {case['mib']} MiB"
        for case in cases
        if max(middle for _, middle, _ in case["ratios"].values()) > SLOWEST
    ]
    kept = f"not kept by: {'; '.join(late)}" if late else "kept"
    return (
        f"\nPromised is at most {SLOWEST} of NumPy's own time, as a median: {kept}.\n"
    )


def table(path: Path) -> str:
    """Return the tables of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, cases = document["environment"], document["cases"]
    scopes = [scope_row(*each) for each in document["scopes"].items()]
    note = (
        f"\nMedians of {place['repeats']} turns in each of {place['processes']}"
        " processes, with the\nquartiles of the ratio; below 1, the workspace is"
        f" faster. NumPy {place['numpy']},\n{place['processor']},"
        f" {place['cores']} cores, {place['date']}.\n"
    )
    rows = "\n".join(map(row, cases)) + "\n"
    return HEAD + rows + promise_kept(cases) + SCOPES + "\n".join(scopes) + "\n" + note


def with_table(readme: str, path: Path) -> str:
    """Return the README's text with the present table in it."""
    text, count = MARKED.subn(lambda m: m[1] + table(path) + m[2], readme)
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
