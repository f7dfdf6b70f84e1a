"""Write the tables of the pages from the committed results.

``python bench/tables`` rewrites the README and the pages of docs/ and bench/results/;
``--check`` only reports whether they are up to date. A mark in a page names the module
here whose function ``table()`` returns the table.
"""

from __future__ import annotations

import argparse
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(
    r"(<!-- table: (?P<module>bench/tables/\w+\.py) -->\n).*?(<!-- end of table -->)",
    re.DOTALL,
)


def with_tables(page: str) -> str:
    """Return the text of a page with the present tables in it."""
    return MARKED.sub(lambda mark: mark[1] + table(mark["module"]) + mark[3], page)


def table(module: str) -> str:
    """Return the table of a module, such as ``bench/tables/mode.py``."""
    made: str = runpy.run_path(str(ROOT / module))["table"]()
    return made


def main() -> int:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    status = 0
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "bench" / "results").glob("*.md")),
    ):
        present = page.read_text(encoding="utf-8")
        wanted = with_tables(present)
        if check:
            status |= int(present != wanted)
        elif present != wanted:
            page.write_text(wanted, encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
