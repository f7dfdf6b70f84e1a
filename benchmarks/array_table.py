"""Write the README's table of NumPy's arrays in a pool from the committed results.

``python benchmarks/array_table.py`` rewrites the README beside this folder; ``--check``
only tells whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "arrays.json"
MARKED = re.compile(
    r"(<!-- table: benchmarks/array_table\.py -->\n).*?(<!-- end of table -->)",
    re.DOTALL,
)
HEAD = """| | NumPy's own, µs | in a pool, µs | pool ÷ NumPy's own | promised | kept |
| --- | ---: | ---: | ---: | ---: | --- |
"""
PROMISES = {
    "np.empty, 1 KiB": 1.25,
    "np.empty, 1 MiB": 1.25,
    "np.empty, 16 MiB": 1.25,
    "np.empty filled, 24 MiB": 1.0,
    "np.empty filled, 32 MiB": 1.0,
    "np.empty filled, 40 MiB": 1.0,
    "np.empty filled, 60 MiB": 1.0,
}


def row(result: dict) -> str:
    seconds, (low, high) = result["seconds"], result["ratio_range"]
    promise = PROMISES.get(result["case"])
    ratio = f"**{result['ratio']:.2f}** ({low:.2f} to {high:.2f})"
    cells = [
        result["case"],
        f"{seconds['numpy'] * 1e6:,.3g}",
        f"{seconds['memcfg'] * 1e6:,.3g}",
        ratio,
        "" if promise is None else f"≤ {promise}",
        "" if promise is None else "yes" if result["ratio"] <= promise else "**no**",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    note = (
        f"\nMedians of {place['repeats']} turns, with the range of the ratio; below 1,"
        f" the pool\nis faster. NumPy {place['numpy']}, {place['processor']},"
        f" {place['cores']} cores, {place['date']}.\n"
    )
    return HEAD + "\n".join(map(row, document["results"])) + "\n" + note


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
