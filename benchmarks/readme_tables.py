"""Write the README's tables from the committed results.

``python benchmarks/readme_tables.py`` rewrites the README beside this folder;
``--check`` only tells whether it is up to date. Each place in the README is marked with
the module here that makes its table, by a function ``table()``.
"""

from __future__ import annotations

import argparse
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(
    r"(<!-- table: (?P<module>benchmarks/\w+\.py) -->\n).*?(<!-- end of table -->)",
    re.DOTALL,
)


def with_tables(readme: str) -> str:
    """Return the README's text with the present tables in it."""
    return MARKED.sub(lambda mark: mark[1] + table(mark["module"]) + mark[3], readme)


def table(module: str) -> str:
    """Return the table of a module, such as ``benchmarks/mode_table.py``."""
    made: str = runpy.run_path(str(ROOT / module))["table"]()
    return made


def main() -> int:
    """Rewrite the README, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    readme = ROOT / "README.md"
    present = readme.read_text(encoding="utf-8")
    wanted = with_tables(present)
    if check:
        return int(present != wanted)
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
