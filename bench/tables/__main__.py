"""Write the tables and pictures of the pages from the committed results.

``python bench/tables`` rewrites the README and the pages of docs/ and bench/results/;
``--check`` only reports whether they are up to date. A mark in a page names the module
here whose function ``table()`` returns the table, with its arguments; `PICTURES` names
those that draw.
"""

from __future__ import annotations

import argparse
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(
    r"(<!-- table: (?P<module>bench/tables/\w+\.py(?:\s+\w+)*) -->\n)"
    r".*?(<!-- end of table -->)",
    re.DOTALL,
)

METHODS = (  # those with a timeline on a page of docs/methods
    *("chen_sqrt", "revolve", "rotor", "bptt_mixed", "kusumoto_exact_memory"),
    *("checkmate", "retention_intervals", "vdnn_all", "meng_swap", "superneurons"),
    *("layrub_migration", "capuchin", "modnn", "cdma", "gist_fp8", "actnn"),
    *("ucudnn_wr", "mxnet", "by_need", "auto"),
)
PICTURES = {  # by a function ``picture()``, with its arguments
    "docs/step.svg": "bench/tables/timeline.py",
    **{
        f"docs/methods/{name}.svg": f"bench/tables/method_picture.py {name}"
        for name in METHODS
    },
}


def with_tables(page: str) -> str:
    """Return the text of a page with the present tables in it."""
    return MARKED.sub(lambda mark: mark[1] + table(mark["module"]) + mark[3], page)


def table(mark: str) -> str:
    """Return the table of a mark, such as ``bench/tables/mode.py``."""
    return made_by(mark, "table")


def made_by(mark: str, function: str) -> str:
    """Return what a function of a module returns; its arguments follow its name."""
    module, *arguments = mark.split()
    made: str = runpy.run_path(str(ROOT / module))[function](*arguments)
    return made


def files() -> dict[Path, str]:
    """Return the pages and pictures as they should be."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages += sorted((ROOT / "bench" / "results").glob("*.md"))
    wanted = {page: with_tables(page.read_text(encoding="utf-8")) for page in pages}
    for name, module in PICTURES.items():
        wanted[ROOT / name] = made_by(module, "picture")
    return wanted


def main() -> int:
    """Rewrite the pages and pictures, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    status = 0
    for path, wanted in files().items():
        present = path.read_text(encoding="utf-8") if path.exists() else None
        if check:
            status |= int(present != wanted)
        elif present != wanted:
            path.write_text(wanted, encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
