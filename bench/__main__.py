"""Run every benchmark, or the one that is named first, with its options.

``python bench`` runs all; ``python bench allocators --quick`` runs one.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    names = [path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")]
    words = sys.argv[1:]
    wanted = [words.pop(0)] if words and words[0] in names else sorted(names)
    if words and len(wanted) > 1:
        raise SystemExit(
            f"{words[0]!r} is an option of one benchmark; name it first: "
            f"{', '.join(sorted(names))}"
        )
    for name in wanted:
        script = str(HERE / f"bench_{name}.py")
        sys.argv = [script, *words]
        print(f"== {name}", flush=True)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
